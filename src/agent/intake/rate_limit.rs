//! Rate limits.

use std::time::{Duration, Instant};

/// A token bucket: `most` tokens, and one more after every interval.
pub(in crate::agent) struct RateLimiter {
    most: u32,
    left: u32,
    interval: Duration,
    since: Instant,
}

impl RateLimiter {
    /// Returns a full bucket.
    pub(in crate::agent) fn new(most: u32, interval: Duration) -> Self {
        Self { most, left: most, interval, since: Instant::now() }
    }

    /// Takes a token. Returns false when none is left.
    pub(in crate::agent) fn take(&mut self) -> bool {
        let gained = self.since.elapsed().as_millis() / self.interval.as_millis().max(1);
        if gained > 0 {
            self.left = self.left.saturating_add(u32::try_from(gained).unwrap_or(u32::MAX)).min(self.most);
            self.since = Instant::now();
        }
        let some = self.left > 0;
        self.left = self.left.saturating_sub(1);
        some
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_run_out_and_come_back() {
        let mut limiter = RateLimiter::new(2, Duration::from_millis(500));
        assert_eq!([limiter.take(), limiter.take(), limiter.take()], [true, true, false]);
        std::thread::sleep(Duration::from_millis(600));
        assert!(limiter.take());
    }
}
