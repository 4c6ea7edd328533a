//! Flapping: a resource that is repaired again and again, as another process undoes each repair.

use std::time::{Duration, Instant};

use super::policy::after;

/// Repairs within [`WINDOW`] that make a resource flapping.
const REPAIRS: usize = 5;
/// Repairs that count, from which on the processes that change the resource are of interest.
const SUSPICIOUS_REPAIRS: usize = 2;
/// Time in which the repairs count.
pub(super) const WINDOW: Duration = Duration::from_secs(60);
/// First pause between the checks of a flapping resource. Each repair doubles the pause.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause between the checks of a flapping resource.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// The number of repairs, and the time from the first one.
pub(super) type RepairSpan = (u32, Duration);

/// The repairs of drift of one resource, while they count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RecentRepairs {
    times: Vec<Instant>,
    flapping: Option<Flapping>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Flapping {
    since: Instant,
    repairs: u32,
    pause: Duration,
    quiet_at: Instant,
}

impl RecentRepairs {
    /// Adds a repair. Returns the repairs when the resource is flapping from now on.
    pub(super) fn repaired(&mut self, now: Instant) -> Option<RepairSpan> {
        if let Some(flapping) = &mut self.flapping {
            flapping.repairs = flapping.repairs.saturating_add(1);
            flapping.pause = flapping.pause.saturating_mul(2).min(LONGEST_PAUSE);
            flapping.quiet_at = quiet_at(now, flapping.pause);
            return None;
        }
        self.times.retain(|at| now.saturating_duration_since(*at) < WINDOW);
        self.times.push(now);
        let since = *self.times.first()?;
        if self.times.len() < REPAIRS {
            return None;
        }
        let repairs = u32::try_from(self.times.len()).unwrap_or(u32::MAX);
        self.times = Vec::new();
        self.flapping = Some(Flapping { since, repairs, pause: FIRST_PAUSE, quiet_at: quiet_at(now, FIRST_PAUSE) });
        Some((repairs, now.saturating_duration_since(since)))
    }

    /// Takes note of a check that needed no repair. Returns the repairs when the flapping ends with this check.
    pub(super) fn stable(&mut self, now: Instant) -> Option<RepairSpan> {
        self.times.retain(|at| now.saturating_duration_since(*at) < WINDOW);
        let ended = self.flapping.take_if(|flapping| now >= flapping.quiet_at)?;
        Some((ended.repairs, now.saturating_duration_since(ended.since)))
    }

    /// Returns true while few further repairs would make the resource flapping.
    pub(super) fn is_suspicious(&self) -> bool {
        self.flapping.is_none() && self.times.len() >= SUSPICIOUS_REPAIRS
    }

    /// Returns the pause between the checks of a flapping resource.
    pub(super) fn pause(&self) -> Option<Duration> {
        self.flapping.map(|flapping| flapping.pause)
    }

    /// Returns the end of the quiet period of a flapping resource.
    pub(super) fn quiet_at(&self) -> Option<Instant> {
        self.flapping.map(|flapping| flapping.quiet_at)
    }

    /// Returns true when no repair counts any more.
    pub(super) fn is_empty(&self) -> bool {
        self.times.is_empty() && self.flapping.is_none()
    }
}

fn quiet_at(now: Instant, pause: Duration) -> Instant {
    after(now, pause.saturating_mul(2).max(WINDOW))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn five_repairs_within_a_minute_are_flapping() {
        for (repairs, found) in [
            (&[0, 1, 2, 3][..], None),
            (&[0, 1, 2, 3, 4][..], Some((5, seconds(4)))),
            (&[0, 1, 2, 3, 59][..], Some((5, seconds(59)))),
            (&[0, 1, 2, 3, 60][..], None),
            (&[0, 30, 60, 61, 62, 63][..], Some((5, seconds(33)))),
            (&[0, 20, 40, 60, 80, 100, 120][..], None),
        ] {
            let (start, mut recent) = (Instant::now(), RecentRepairs::default());
            let last = repairs.iter().map(|at| recent.repaired(start + seconds(*at))).fold(None, Option::or);
            assert_eq!(last, found, "{repairs:?}");
            assert_eq!(recent.pause().is_some(), found.is_some(), "{repairs:?}");
        }
    }

    #[test]
    fn each_repair_doubles_the_pause_and_the_quiet_period_is_twice_as_long() {
        let (start, mut recent) = (Instant::now(), RecentRepairs::default());
        for _ in 0..REPAIRS {
            recent.repaired(start);
        }
        for (pause, quiet) in
            [(1, 60), (2, 60), (4, 60), (8, 60), (16, 60), (32, 64), (64, 128), (128, 256), (256, 512), (300, 600), (300, 600)]
        {
            assert_eq!((recent.pause(), recent.quiet_at()), (Some(seconds(pause)), Some(start + seconds(quiet))));
            assert_eq!(recent.repaired(start), None, "reported once");
        }
    }

    #[test]
    fn a_stable_check_after_the_quiet_period_ends_the_flapping() {
        let (start, mut recent) = (Instant::now(), RecentRepairs::default());
        for at in 0..6 {
            recent.repaired(start + seconds(at));
        }
        assert_eq!(recent.stable(start + seconds(64)), None, "the last repair was at 5 s");
        assert_eq!(recent.stable(start + seconds(65)), Some((6, seconds(65))));
        assert!(recent.is_empty());
        assert_eq!(recent.stable(start + seconds(66)), None, "reported once");
    }

    #[test]
    fn old_repairs_are_forgotten() {
        let (start, mut recent) = (Instant::now(), RecentRepairs::default());
        recent.repaired(start);
        assert_eq!(recent.stable(start + seconds(59)), None);
        assert!(!recent.is_empty());
        assert_eq!(recent.stable(start + seconds(60)), None);
        assert!(recent.is_empty());
    }
}
