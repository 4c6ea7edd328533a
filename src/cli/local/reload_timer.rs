//! The time of a reload: shortly after the last change of the files of a manifest. Editors write in several steps.

use std::time::{Duration, Instant};

/// Time without a change before a reload.
const QUIET: Duration = Duration::from_millis(100);
/// Longest delay of a reload, while the files change all the time.
const LONGEST: Duration = Duration::from_secs(2);

/// The event that a reload waits for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum ReloadTimer {
    /// A change of the files.
    #[default]
    AwaitingChange,
    /// The end of the changes.
    AwaitingQuiet {
        /// The time of the first change since the last reload.
        since: Instant,
        /// The time of the reload, unless more changes follow.
        until: Instant,
    },
}

impl ReloadTimer {
    /// Takes note of a change of the files.
    pub(super) fn changed(&mut self, now: Instant) {
        let since = match *self {
            Self::AwaitingChange => now,
            Self::AwaitingQuiet { since, .. } => since,
        };
        *self = Self::AwaitingQuiet { since, until: (now + QUIET).min(since + LONGEST) };
    }

    /// Returns true once when a reload is due.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let is_due = self.due_at().is_some_and(|at| at <= now);
        if is_due {
            *self = Self::AwaitingChange;
        }
        is_due
    }

    /// Returns the time of the reload.
    pub(super) fn due_at(&self) -> Option<Instant> {
        match self {
            Self::AwaitingChange => None,
            Self::AwaitingQuiet { until, .. } => Some(*until),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_waits_for_quiet_but_not_for_ever() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        for (changes, due) in [
            (vec![], None),
            (vec![0], Some(100)),
            (vec![0, 30, 120], Some(220)),
            ((0..30).map(|number| number * 90).collect(), Some(2000)),
        ] {
            let mut timer = ReloadTimer::default();
            changes.iter().for_each(|change| timer.changed(at(*change)));
            assert_eq!(timer.due_at(), due.map(at), "{changes:?}");
            assert!(!timer.expire(at(99)));
            assert_eq!((timer.expire(at(9000)), timer.expire(at(9000))), (due.is_some(), false), "{changes:?}");
        }
    }
}
