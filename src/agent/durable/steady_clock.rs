//! A guard against clock jumps. A clock that jumps ahead for a moment must have no lasting effect. Otherwise the recorded times
//! would count for months: the time that has surely passed, the age of forgotten commands.
//!
//! Pure: the inputs are readings of the clock and of a monotonic clock.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::trust::decide::verify::MAX_CLOCK_SKEW;

/// Largest jump ahead of the trusted time that counts at once.
const MAX_JUMP: SignedDuration = SignedDuration::from_hours(24);
/// Shortest time for which a clock must continue after a jump before its time is trusted.
const CONFIRMATION_TIME: Duration = Duration::from_secs(3600);

/// A line along which a clock runs: its reading at a time since the start.
#[derive(Debug, Clone, Copy)]
struct Line {
    wall: Timestamp,
    since_start: Duration,
}

impl Line {
    /// Returns the reading at this time since the start.
    fn at(self, since_start: Duration) -> Timestamp {
        let gone = SignedDuration::try_from(since_start.saturating_sub(self.since_start)).unwrap_or_default();
        self.wall.saturating_add(gone).unwrap_or(self.wall)
    }
}

/// The clock since the start of the agent.
#[derive(Debug)]
pub(in crate::agent) struct SteadyClock {
    /// The trusted time.
    trusted: Line,
    /// The current reading.
    current: Line,
}

impl SteadyClock {
    /// Returns the clock at the start of an agent that knows that `passed` has passed.
    pub(in crate::agent) fn from(passed: Timestamp, wall: Timestamp) -> Self {
        let line = |wall| Line { wall, since_start: Duration::ZERO };
        Self { trusted: line(passed), current: line(wall) }
    }

    /// Returns the latest time that is trusted to have passed, when the clock shows `wall`.
    pub(in crate::agent) fn update(&mut self, wall: Timestamp, since_start: Duration) -> Timestamp {
        if wall.duration_since(self.current.at(since_start)).abs() > MAX_CLOCK_SKEW {
            self.current = Line { wall, since_start };
        } else if since_start.saturating_sub(self.current.since_start) >= CONFIRMATION_TIME {
            self.trusted = self.current;
        }
        self.trusted.at(since_start).saturating_add(MAX_JUMP).unwrap_or(Timestamp::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_is_believed_when_it_lasts() {
        let hour = |hours: i64| Timestamp::from_second(1_800_000_000 + hours * 3600).unwrap();
        let since = |hours: u64| Duration::from_secs(hours * 3600);
        let month = 30 * 24;
        let mut clock = SteadyClock::from(hour(0), hour(0));
        // Hours since the start, the reading of the clock, the trusted time.
        for (gone, wall, believed) in [
            (0, 0, 24),
            (1, 1, 25),
            (2, 2, 26),
            (3, 3 + month, 27),
            (4, 4, 28),
            (5, 5, 29),
            // The clock continues.
            (6, 6 + month, 30),
            (7, 7 + month, 31 + month),
            (8, 8 + month, 32 + month),
            // Set back: the trusted time does not go back.
            (9, 9, 33 + month),
            (10, 10, 34),
        ] {
            assert_eq!(clock.update(hour(wall), since(gone)), hour(believed), "after {gone} hours");
        }
        // A host that was off for a month.
        let mut clock = SteadyClock::from(hour(0), hour(month));
        assert_eq!(clock.update(hour(month), since(0)), hour(24));
        assert_eq!(clock.update(hour(month + 1), since(1)), hour(month + 25));
    }
}
