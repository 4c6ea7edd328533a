//! Convergence: the whole catalog is settled, and was for a while.

use std::time::{Duration, Instant};

use super::event::Notice;
use super::policy::after;

/// The state of a catalog, as far as its convergence depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CatalogActivity {
    /// A resource waits for its watch, is failed, parked, blocked or flapping.
    Unsettled,
    /// A check is due or running. All other resources are settled.
    Busy,
    /// All resources are clean, or noop.
    Settled {
        /// The end of the last check that was not stable.
        disturbed_at: Option<Instant>,
        /// The number of noop resources that need a change.
        would_change: u32,
    },
}

/// The event that the convergence waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConvergenceState {
    /// Waits for all resources to be settled.
    Diverged,
    /// Waits for the end of checks, within or after the timeout.
    AwaitingChecks {
        /// The end of the timeout.
        until: Instant,
    },
    /// Waits for the end of the timeout.
    AwaitingQuiet {
        /// The end of the timeout.
        until: Instant,
    },
    /// Waits for drift or a failure.
    Converged {
        /// The time of the convergence.
        since: Instant,
    },
}

/// The convergence of a catalog: settled for a timeout.
///
/// A stable check neither ends the convergence nor restarts the timeout. A poll would otherwise prevent convergence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConvergenceMonitor {
    timeout: Duration,
    state: ConvergenceState,
}

impl ConvergenceMonitor {
    /// Returns the convergence of a catalog that was not checked yet.
    pub fn new(timeout: Duration) -> Self {
        Self { timeout, state: ConvergenceState::Diverged }
    }

    /// Takes note of the activity of the catalog. Returns [`Notice::Converged`] or [`Notice::Diverged`] after a transition.
    pub fn observe(&mut self, activity: CatalogActivity, now: Instant) -> Option<Notice> {
        let before = self.state;
        self.state = step(before, activity, self.timeout, now);
        match (before, self.state, activity) {
            (ConvergenceState::Converged { .. }, ConvergenceState::Converged { .. }, _) => None,
            (ConvergenceState::Converged { .. }, _, _) => Some(Notice::Diverged),
            (_, ConvergenceState::Converged { .. }, CatalogActivity::Settled { would_change, .. }) => {
                Some(Notice::Converged { would_change })
            }
            _ => None,
        }
    }

    /// Returns the time of the convergence, while only time is missing.
    pub fn converged_at(&self) -> Option<Instant> {
        match self.state {
            ConvergenceState::AwaitingQuiet { until } => Some(until),
            _ => None,
        }
    }

    /// Returns the state.
    pub fn state(&self) -> ConvergenceState {
        self.state
    }
}

/// Returns the next state of the convergence.
fn step(state: ConvergenceState, activity: CatalogActivity, timeout: Duration, now: Instant) -> ConvergenceState {
    use ConvergenceState as S;
    let quiet_or_converged = |until| if until <= now { S::Converged { since: now } } else { S::AwaitingQuiet { until } };
    match (state, activity) {
        (_, CatalogActivity::Unsettled) | (S::Diverged, CatalogActivity::Busy) => S::Diverged,
        (S::Converged { since }, CatalogActivity::Busy) => S::Converged { since },
        (S::AwaitingChecks { until } | S::AwaitingQuiet { until }, CatalogActivity::Busy) => S::AwaitingChecks { until },
        (S::Diverged, CatalogActivity::Settled { .. }) => quiet_or_converged(after(now, timeout)),
        (S::AwaitingChecks { until } | S::AwaitingQuiet { until }, CatalogActivity::Settled { disturbed_at, .. }) => {
            quiet_or_converged(disturbed_at.map_or(until, |at| until.max(after(at, timeout))))
        }
        (S::Converged { since }, CatalogActivity::Settled { disturbed_at, .. }) => match disturbed_at {
            Some(at) if at > since => S::AwaitingQuiet { until: after(at, timeout) },
            _ => S::Converged { since },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ConvergenceState as S;

    #[test]
    fn every_state_and_activity_has_its_successor() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let settled = |disturbed: Option<u64>| CatalogActivity::Settled { disturbed_at: disturbed.map(at), would_change: 3 };
        let (converged, quiet, checks) = (
            |since| S::Converged { since: at(since) },
            |until| S::AwaitingQuiet { until: at(until) },
            |until| S::AwaitingChecks { until: at(until) },
        );
        let reports_converged = Some(Notice::Converged { would_change: 3 });
        for (state, activity, now, next, notice) in [
            (S::Diverged, CatalogActivity::Unsettled, 20, S::Diverged, None),
            (S::Diverged, CatalogActivity::Busy, 20, S::Diverged, None),
            (S::Diverged, settled(None), 20, quiet(30), None),
            (S::Diverged, settled(Some(5)), 20, quiet(30), None),
            (checks(25), CatalogActivity::Unsettled, 20, S::Diverged, None),
            (checks(25), CatalogActivity::Busy, 20, checks(25), None),
            (checks(25), CatalogActivity::Busy, 26, checks(25), None),
            (checks(25), settled(Some(15)), 20, quiet(25), None),
            (checks(25), settled(Some(20)), 20, quiet(30), None),
            (checks(25), settled(Some(15)), 26, converged(26), reports_converged),
            (quiet(25), CatalogActivity::Unsettled, 20, S::Diverged, None),
            (quiet(25), CatalogActivity::Busy, 20, checks(25), None),
            (quiet(25), settled(None), 20, quiet(25), None),
            (quiet(25), settled(None), 25, converged(25), reports_converged),
            (quiet(25), settled(Some(20)), 25, quiet(30), None),
            (converged(15), CatalogActivity::Unsettled, 20, S::Diverged, Some(Notice::Diverged)),
            (converged(15), CatalogActivity::Busy, 20, converged(15), None),
            (converged(15), settled(Some(5)), 20, converged(15), None),
            (converged(15), settled(None), 20, converged(15), None),
            (converged(15), settled(Some(18)), 20, quiet(28), Some(Notice::Diverged)),
        ] {
            let mut convergence = ConvergenceMonitor { timeout: Duration::from_secs(10), state };
            let name = format!("{state:?}, {activity:?} at {now} s");
            assert_eq!(convergence.observe(activity, at(now)), notice, "{name}");
            assert_eq!(convergence.state(), next, "{name}");
            let waits = matches!(next, S::AwaitingQuiet { .. });
            assert_eq!(convergence.converged_at().is_some(), waits, "{name}");
        }
    }

    #[test]
    fn without_a_timeout_a_settled_catalog_converges_at_once() {
        let (mut convergence, now) = (ConvergenceMonitor::new(Duration::ZERO), Instant::now());
        let settled = CatalogActivity::Settled { disturbed_at: Some(now), would_change: 0 };
        assert_eq!(convergence.observe(settled, now), Some(Notice::Converged { would_change: 0 }));
        assert_eq!(convergence.observe(settled, now), None);
    }
}
