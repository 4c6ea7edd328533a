//! The timer queue: resources that are checked at an interval.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use super::report::ResourceKey;

/// The shortest interval. A shorter one would occupy a processor.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// The intervals of resources, and their next ends.
#[derive(Debug, Default)]
pub(super) struct IntervalQueue {
    queue: BTreeSet<(Instant, ResourceKey)>,
    intervals: HashMap<ResourceKey, (Instant, Duration)>,
}

impl IntervalQueue {
    /// Sets or removes the interval of a resource. An equal interval continues.
    pub(super) fn set(&mut self, key: ResourceKey, interval: Option<Duration>, now: Instant) {
        let interval = interval.map(|interval| interval.max(MIN_INTERVAL));
        if self.intervals.get(&key).map(|(_, interval)| *interval) == interval {
            return;
        }
        if let Some((end, _)) = self.intervals.remove(&key) {
            self.queue.remove(&(end, key));
        }
        // An interval beyond the end of the clock has no end.
        if let Some((end, interval)) = interval.and_then(|interval| Some((now.checked_add(interval)?, interval))) {
            self.intervals.insert(key, (end, interval));
            self.queue.insert((end, key));
        }
    }

    /// Returns the resources whose interval has ended, and begins their next interval.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<ResourceKey> {
        let mut expired = Vec::new();
        while let Some((end, key)) = self.queue.first().copied().filter(|(end, _)| *end <= now) {
            self.queue.remove(&(end, key));
            expired.push(key);
            if let Some((end, interval)) = self.intervals.get_mut(&key)
                && let Some(next) = now.checked_add(*interval)
            {
                *end = next;
                self.queue.insert((next, key));
            }
        }
        expired
    }

    /// Returns the next end of an interval.
    pub(super) fn next(&self) -> Option<Instant> {
        self.queue.first().map(|(end, _)| *end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_end_again_and_again() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let [a, b] = [1, 2].map(ResourceKey);
        let mut queue = IntervalQueue::default();
        queue.set(a, Some(2 * second), start);
        queue.set(b, Some(3 * second), start);
        assert_eq!(queue.next(), Some(start + 2 * second));
        assert_eq!(queue.expire(start + second), []);
        assert_eq!(queue.expire(start + 2 * second), [a]);
        assert_eq!(queue.expire(start + 4 * second), [b, a]);
        // An equal interval is not begun again, another is.
        queue.set(a, Some(2 * second), start + 5 * second);
        assert_eq!(queue.next(), Some(start + 6 * second));
        queue.set(a, Some(second / 2), start + 5 * second);
        assert_eq!(queue.next(), Some(start + 5 * second + second / 2));
        queue.set(a, None, start);
        queue.set(b, None, start);
        assert_eq!(queue.next(), None);
        queue.set(a, Some(Duration::MAX), start);
        assert_eq!((queue.next(), queue.expire(start + second)), (None, Vec::new()));
        queue.set(a, Some(Duration::ZERO), start);
        assert_eq!(queue.next(), Some(start + MIN_INTERVAL));
    }
}
