//! The words of the reactive engine: why a resource is checked, how the check ended, what to report.

use std::time::Duration;

/// The cause of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirtyCause {
    /// The watch of a new or changed resource was armed.
    FirstCheck,
    /// A watch reported a possible change.
    Event,
    /// The queue of a watch overflowed: any resource may have changed.
    Overflow,
    /// The interval `poll` of the resource is over.
    Poll,
    /// A flapping resource had a quiet period. A stable check ends the flapping.
    QuietPeriod,
    /// A resource that this one subscribes to changed.
    Refresh,
    /// The facts, the data or the variables that the resource reads when it runs may be others.
    NewInputs,
    /// A resource that this one requires succeeded.
    RequirementMet,
    /// The pause after a failure is over.
    Retry,
    /// The sweep checks every resource.
    Sweep,
}

impl DirtyCause {
    /// Returns true for causes that may come in storms, so that their checks wait for the pauses of the resource.
    pub(super) fn is_debounced(self) -> bool {
        matches!(self, Self::Event | Self::Overflow)
    }
}

/// The end of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The resource needed no change.
    Stable,
    /// The resource was changed, and verified.
    Changed {
        /// True for the repair of drift. False for a new property, and for the action of a refresh.
        corrective: bool,
    },
    /// The resource is only observed (noop), and needs a change.
    WouldChange {
        /// A digest of the wanted changes: equal changes are reported once.
        digest: u64,
    },
    /// The check, the change, its verification or its health check failed.
    Failed {
        /// True when the host was changed before the failure.
        changed: bool,
        /// True when drift was repaired, and the repair was undone before its verification.
        undone: bool,
    },
    /// A required resource has not succeeded.
    Unmet,
    /// `control` excluded the resource.
    Skipped,
}

impl Outcome {
    /// Returns true when the host was changed.
    pub(super) fn has_changed(self) -> bool {
        matches!(self, Self::Changed { .. } | Self::Failed { changed: true, .. })
    }

    /// Returns true when the resource is as wanted.
    pub(super) fn has_succeeded(self) -> bool {
        matches!(self, Self::Stable | Self::Changed { .. })
    }
}

/// A transition to report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// A noop resource needs a change that was not reported yet.
    WouldChange {
        /// The resource.
        key: u32,
    },
    /// The tries of a resource are used up. The next event or sweep tries again.
    Parked {
        /// The resource.
        key: u32,
        /// The failures in a row.
        failures: u32,
    },
    /// Another process undoes the repairs of a resource. Its checks now have pauses.
    FlappingBegan {
        /// The resource.
        key: u32,
        /// The number of repairs.
        repairs: u32,
        /// The time from the first repair to the last one.
        span: Duration,
    },
    /// A flapping resource was stable for its quiet period.
    FlappingEnded {
        /// The resource.
        key: u32,
        /// The number of repairs, from the first one.
        repairs: u32,
        /// The time from the first repair to the end of the quiet period.
        span: Duration,
    },
    /// All resources were settled for the timeout of the convergence.
    Converged {
        /// The number of noop resources that need a change.
        would_change: u32,
    },
    /// A converged catalog has drift, a failure or a new resource.
    Diverged,
}
