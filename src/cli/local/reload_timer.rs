//! The time of a reload: shortly after the last change of the files of a manifest. Editors write in several steps.

use std::time::{Duration, Instant};

/// Time without a change before a reload.
const QUIET: Duration = Duration::from_millis(100);
/// Longest delay of a reload, while the files change all the time.
const LONGEST: Duration = Duration::from_secs(2);

/// Longest pause before a reload that only further sources of the manifest call for.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// The time of the next reload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ReloadTimer {
    state: ReloadState,
    /// The last time at which further sources were found, and the pause after it.
    found: Option<(Instant, Duration)>,
}

/// The event that a reload waits for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum ReloadState {
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
    /// The end of the pause after further sources were found.
    Paused {
        /// The time of the reload, unless a change comes before.
        until: Instant,
    },
}

impl ReloadTimer {
    /// Takes note of a change of the files.
    pub(super) fn changed(&mut self, now: Instant) {
        let since = match self.state {
            ReloadState::AwaitingChange | ReloadState::Paused { .. } => now,
            ReloadState::AwaitingQuiet { since, .. } => since,
        };
        self.state = ReloadState::AwaitingQuiet { since, until: (now + QUIET).min(since + LONGEST) };
    }

    /// Takes note of further sources, which may have changed before they were watched.
    ///
    /// The pauses grow while each reload finds more: a template may name another file each time.
    pub(super) fn found_sources(&mut self, now: Instant) {
        let pause = match self.found {
            Some((at, pause)) if now.saturating_duration_since(at) <= 2 * pause + LONGEST => (2 * pause).min(LONGEST_PAUSE),
            _ => QUIET,
        };
        self.found = Some((now, pause));
        if self.state == ReloadState::AwaitingChange {
            self.state = ReloadState::Paused { until: now + pause };
        }
    }

    /// Returns true once when a reload is due.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let is_due = self.due_at().is_some_and(|at| at <= now);
        if is_due {
            self.state = ReloadState::AwaitingChange;
        }
        is_due
    }

    /// Returns the time of the reload.
    pub(super) fn due_at(&self) -> Option<Instant> {
        match self.state {
            ReloadState::AwaitingChange => None,
            ReloadState::AwaitingQuiet { until, .. } | ReloadState::Paused { until } => Some(until),
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
    #[test]
    fn pauses_grow_while_each_reload_finds_more_sources() {
        let (mut timer, mut now, mut pauses) = (ReloadTimer::default(), Instant::now(), Vec::new());
        for _ in 0..14 {
            timer.found_sources(now);
            let due = timer.due_at().unwrap();
            pauses.push(due.duration_since(now).as_millis());
            now = due;
            assert!(timer.expire(now));
        }
        assert_eq!(pauses[..4], [100, 200, 400, 800]);
        assert_eq!(pauses[12..], [300_000, 300_000]);
        // A change of a file is due as soon as ever.
        timer.found_sources(now);
        timer.changed(now);
        assert_eq!(timer.due_at(), Some(now + QUIET));
        // After a long time without further sources, the pauses begin anew.
        assert!(timer.expire(now + LONGEST));
        timer.found_sources(now + 3 * LONGEST_PAUSE);
        assert_eq!(timer.due_at(), Some(now + 3 * LONGEST_PAUSE + QUIET));
    }
}
