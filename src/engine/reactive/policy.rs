//! The policy of a resource: tries, pauses, and the limit of checks.

use std::time::{Duration, Instant};

/// Pause after a check, in which further events wait: a storm of events costs at most 50 checks a second.
pub(super) const DEBOUNCE: Duration = Duration::from_millis(20);
/// First pause after a failure, unless the policy has its own.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// Longest pause after a failure, unless the policy begins with a longer one.
const LONGEST_DELAY: Duration = Duration::from_secs(600);
/// Longest time added to a moment: far beyond any use, and safe from overflow.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The policy of a resource for checks that no run asks for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RepairPolicy {
    /// The tries after a failure; `None` for any number.
    pub retry: Option<u32>,
    /// The pause after the first failure. Each further failure in a row doubles the pause, up to 10 minutes.
    pub delay: Duration,
    /// True when a success refills the tries.
    pub retry_reset: bool,
    /// The time from the end of a check to the next one; `None` to check after events only.
    pub poll: Option<Duration>,
    /// The limit of checks that events cause; `None` for no limit.
    pub limit: Option<CheckLimit>,
}

/// The limit of checks that events cause: a token bucket, of which each check takes one token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CheckLimit {
    /// The checks a second, above 0.
    pub per_second: f64,
    /// The checks without a pause, at least 1.
    pub burst: u32,
}

impl Default for RepairPolicy {
    fn default() -> Self {
        Self { retry: None, delay: FIRST_DELAY, retry_reset: true, poll: None, limit: None }
    }
}

impl RepairPolicy {
    /// Returns the pause after this many failures in a row.
    pub(super) fn pause(&self, failures: u32) -> Duration {
        let first = self.delay.max(DEBOUNCE);
        let doubled = first.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1)));
        doubled.min(LONGEST_DELAY.max(first))
    }
}

/// The tokens of a [`CheckLimit`] at a moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct TokenBucket {
    tokens: f64,
    counted_at: Instant,
}

impl TokenBucket {
    /// Returns the full bucket.
    pub(super) fn full(limit: CheckLimit, now: Instant) -> Self {
        Self { tokens: f64::from(limit.burst.max(1)), counted_at: now }
    }

    /// Returns the time of the next token.
    pub(super) fn ready_at(&self, limit: CheckLimit, now: Instant) -> Instant {
        let missing = 1.0 - self.tokens_at(limit, now);
        if missing <= 0.0 {
            return now;
        }
        after(now, Duration::try_from_secs_f64(missing / limit.per_second).unwrap_or(LONGEST))
    }

    /// Removes a token.
    pub(super) fn spend(&mut self, limit: CheckLimit, now: Instant) {
        *self = Self { tokens: (self.tokens_at(limit, now) - 1.0).max(0.0), counted_at: now };
    }

    fn tokens_at(&self, limit: CheckLimit, now: Instant) -> f64 {
        let refilled = now.saturating_duration_since(self.counted_at).as_secs_f64() * limit.per_second;
        (self.tokens + refilled).min(f64::from(limit.burst.max(1)))
    }
}

/// Returns the moment after a pause. The sum of a moment and a pause of centuries would panic.
pub(super) fn after(moment: Instant, pause: Duration) -> Instant {
    moment + pause.min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_up_to_ten_minutes() {
        let seconds = Duration::from_secs;
        for (delay, failures, pause) in [
            (seconds(1), 1, seconds(1)),
            (seconds(1), 2, seconds(2)),
            (seconds(1), 10, seconds(512)),
            (seconds(1), 11, seconds(600)),
            (seconds(1), u32::MAX, seconds(600)),
            (seconds(3600), 3, seconds(3600)),
            (Duration::ZERO, 1, DEBOUNCE),
            (Duration::MAX, 2, Duration::MAX),
        ] {
            let policy = RepairPolicy { delay, ..RepairPolicy::default() };
            assert_eq!(policy.pause(failures), pause, "{delay:?} after {failures} failures");
        }
    }

    #[test]
    fn a_bucket_gives_its_burst_and_then_the_rate() {
        let (limit, start) = (CheckLimit { per_second: 2.0, burst: 2 }, Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        let mut bucket = TokenBucket::full(limit, start);
        for (now, ready) in [(0, 0), (0, 0), (0, 500), (500, 500), (600, 1000), (9_000, 9_000), (9_000, 9_000), (9_000, 9_500)] {
            assert_eq!(bucket.ready_at(limit, at(now)), at(ready), "at {now} ms");
            if now == ready {
                bucket.spend(limit, at(now));
            }
        }
    }

    #[test]
    fn a_rate_of_nothing_is_a_long_pause_without_a_panic() {
        for per_second in [0.0, f64::MIN_POSITIVE, -1.0] {
            let (limit, now) = (CheckLimit { per_second, burst: 0 }, Instant::now());
            let mut bucket = TokenBucket::full(limit, now);
            bucket.spend(limit, now);
            assert!(bucket.ready_at(limit, now) > now, "{per_second}");
        }
    }
}
