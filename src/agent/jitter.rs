//! Randomness that keeps a fleet from doing everything at once.

use std::time::Duration;

/// Returns a random delay from zero up to `most`.
pub(super) fn random_delay(most: Duration) -> Duration {
    // Without randomness the middle is as good as anything.
    let bits = getrandom::u32().unwrap_or(u32::MAX / 2);
    most.mul_f64(f64::from(bits) / (f64::from(u32::MAX) + 1.0))
}

/// Returns the pause before attempt number `attempt` (from 1): up to 1 s, 2 s, 4 s, ... 30 s.
pub(super) fn backoff(attempt: u32) -> Duration {
    let bound = 1_u64 << attempt.saturating_sub(1).min(5);
    // Never zero: the caller has just failed.
    Duration::from_millis(50) + random_delay(Duration::from_secs(bound.min(30)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_differ() {
        for (attempt, most) in [(1, 1), (2, 2), (5, 16), (6, 30), (100, 30)] {
            let pauses: Vec<_> = (0..20).map(|_| backoff(attempt)).collect();
            assert!(pauses.iter().all(|pause| *pause <= Duration::from_millis(most * 1000 + 50)), "{attempt}");
            assert!(pauses.iter().min() < pauses.iter().max());
        }
    }
}
