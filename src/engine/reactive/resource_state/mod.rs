//! The state machine of one resource: from an event to its check, and from the check to the next event.
//!
//! [`ResourceState`] names the event that the resource waits for. [`step`] is pure: the history and the policy of the resource
//! come in, and time as an [`Instant`].

use std::time::Instant;

use super::event::{DirtyCause, Outcome};
use super::history::RepairHistory;
use super::policy::RepairPolicy;

/// The reason to check a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckReason {
    /// The cause of the check.
    pub cause: DirtyCause,
    /// The time of the first event that no ended check covers: the repair latency counts from here.
    pub since: Instant,
}

impl CheckReason {
    /// Returns the reason for both: the earlier time, and the cause that waits for no pause.
    fn merged(self, other: Self) -> Self {
        let cause = if self.cause.is_debounced() && !other.cause.is_debounced() { other.cause } else { self.cause };
        Self { cause, since: self.since.min(other.since) }
    }
}

/// The event that a resource waits for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ResourceState {
    /// Waits for its watch. No check before: a change in between would be lost.
    #[default]
    AwaitingWatch,
    /// Waits for an event. The last check succeeded.
    Clean,
    /// Waits for an event. The resource is only observed (noop), and needs a change.
    WouldChange,
    /// Waits for the time of its check.
    Dirty {
        /// The time of the check.
        at: Instant,
        /// The reason for the check.
        reason: CheckReason,
    },
    /// Waits for the end of its check.
    Running {
        /// The reason for this check.
        reason: CheckReason,
        /// The reason for one more check: events since the start.
        dirty_again: Option<CheckReason>,
        /// True when a required resource succeeded since the start.
        requirement_met: bool,
    },
    /// Waits for the next try after a failure.
    AwaitingRetry {
        /// The time of the try.
        at: Instant,
        /// The time of the event that led to the failed check.
        since: Instant,
    },
    /// Waits for an event or the sweep. The tries after failures are used up.
    Parked,
    /// Waits for the success of a required resource.
    Blocked,
    /// Waits for the end of the quiet period. Another process undid the repairs.
    Flapping {
        /// The end of the quiet period.
        until: Instant,
    },
}

/// An event of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResourceEvent {
    /// The watch is armed.
    Armed,
    /// The resource may have changed, or must be checked for another reason.
    Dirtied(CheckReason),
    /// A required resource succeeded.
    RequirementMet,
    /// The check was handed out.
    Started,
    /// The check begins only now, and covers all events until now.
    Began,
    /// The check ended. The history has the outcome already.
    Ended(Outcome),
}

impl ResourceState {
    /// Returns the time of the next check; `None` while the resource does not wait for time.
    pub(super) fn due_at(&self, history: &RepairHistory, policy: &RepairPolicy) -> Option<Instant> {
        match self {
            Self::Dirty { at, .. } | Self::AwaitingRetry { at, .. } => Some(*at),
            Self::Flapping { until } => Some(history.poll_at(policy).map_or(*until, |at| at.min(*until))),
            Self::Clean | Self::WouldChange | Self::Parked | Self::Blocked => history.poll_at(policy),
            Self::AwaitingWatch | Self::Running { .. } => None,
        }
    }

    /// Returns the reason for a check that starts now; `None` while no check may start.
    pub(super) fn reason(&self, now: Instant) -> Option<CheckReason> {
        let cause = match self {
            Self::AwaitingWatch | Self::Running { .. } => return None,
            Self::Dirty { reason, .. } => return Some(*reason),
            Self::AwaitingRetry { since, .. } => return Some(CheckReason { cause: DirtyCause::Retry, since: *since }),
            Self::Flapping { until } if *until <= now => DirtyCause::QuietPeriod,
            Self::Flapping { .. } | Self::Clean | Self::WouldChange | Self::Parked | Self::Blocked => DirtyCause::Poll,
        };
        Some(CheckReason { cause, since: now })
    }
}

/// Returns the next state of a resource after an event.
///
/// An event that the state does not wait for changes nothing.
pub(super) fn step(
    state: ResourceState,
    event: ResourceEvent,
    history: &RepairHistory,
    policy: &RepairPolicy,
    now: Instant,
) -> ResourceState {
    use ResourceEvent as E;
    use ResourceState as S;
    let due_now = |cause| S::Dirty { at: now, reason: CheckReason { cause, since: now } };
    match (state, event) {
        (S::AwaitingWatch, E::Armed) => due_now(DirtyCause::FirstCheck),
        (state, E::Dirtied(reason)) => dirtied(state, reason, history, policy, now),
        (S::Blocked, E::RequirementMet) => due_now(DirtyCause::RequirementMet),
        (S::Running { reason, dirty_again, .. }, E::RequirementMet) => S::Running { reason, dirty_again, requirement_met: true },
        (S::Running { reason, .. }, E::Began) => S::Running { reason, dirty_again: None, requirement_met: false },
        (state, E::Started) => match state.reason(now) {
            Some(reason) => S::Running { reason, dirty_again: None, requirement_met: false },
            None => state,
        },
        (S::Running { reason, dirty_again, requirement_met }, E::Ended(outcome)) => {
            let rest = match outcome {
                // The required resource succeeded after this check had seen its failure.
                Outcome::Unmet if requirement_met => due_now(DirtyCause::RequirementMet),
                Outcome::Unmet => S::Blocked,
                Outcome::Failed { .. } => {
                    history.retry_at(policy).map_or(S::Parked, |at| S::AwaitingRetry { at, since: reason.since })
                }
                Outcome::WouldChange { .. } => S::WouldChange,
                Outcome::Stable | Outcome::Changed { .. } | Outcome::Skipped => {
                    history.quiet_at().map_or(S::Clean, |until| S::Flapping { until })
                }
            };
            match dirty_again {
                Some(again) => dirtied(rest, again, history, policy, now),
                None => rest,
            }
        }
        (state, E::Armed | E::RequirementMet | E::Began | E::Ended(_)) => state,
    }
}

fn dirtied(
    state: ResourceState,
    reason: CheckReason,
    history: &RepairHistory,
    policy: &RepairPolicy,
    now: Instant,
) -> ResourceState {
    use ResourceState as S;
    let earliest = history.earliest(reason.cause, policy, now);
    match state {
        // The first check comes after the watch is armed.
        S::AwaitingWatch => S::AwaitingWatch,
        S::Running { reason: current, dirty_again, requirement_met } => {
            let dirty_again = Some(dirty_again.map_or(reason, |again| again.merged(reason)));
            S::Running { reason: current, dirty_again, requirement_met }
        }
        S::Dirty { at, reason: first } => S::Dirty { at: at.min(earliest), reason: first.merged(reason) },
        S::AwaitingRetry { at, since } if reason.cause.is_debounced() => S::AwaitingRetry { at: at.min(earliest), since },
        S::AwaitingRetry { since, .. } => S::Dirty { at: earliest, reason: CheckReason { since, ..reason } },
        S::Parked if reason.cause.is_debounced() => S::AwaitingRetry { at: earliest, since: reason.since },
        S::Clean | S::WouldChange | S::Parked | S::Blocked | S::Flapping { .. } => S::Dirty { at: earliest, reason },
    }
}

#[cfg(test)]
mod tests;
