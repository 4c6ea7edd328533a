//! Stable runs, which find every resource as wanted: counted instead of published, so that a stable fleet sends little.
//!
//! The summary of a run is published when the run changed something or failed. The first stable run after that is published
//! too. The stable runs that follow are counted, and the counts are published every `stable_interval`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::model::RunOutcome;

/// The counted runs of all channels that are not published yet.
#[derive(Debug, Default)]
pub(in crate::agent) struct StableRunCounter {
    /// The channels whose last run is known to be stable.
    stable_channels: BTreeSet<String>,
    counted: BTreeMap<String, u64>,
    /// The time of the last message about stable runs.
    published_at: Option<Instant>,
}

/// The message that a run leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::agent) enum RunNotice {
    /// The summary of the run, with the number of runs before it that were only counted.
    Summary(u64),
    /// The counts of all channels.
    Counts(BTreeMap<String, u64>),
    /// None: the run is only counted.
    Nothing,
}

impl StableRunCounter {
    /// Counts the end of a run of a channel. Returns the message to publish.
    pub(in crate::agent) fn count(&mut self, channel: &str, outcome: RunOutcome, interval: Duration, now: Instant) -> RunNotice {
        let stable = outcome == RunOutcome::Stable;
        let was_quiet =
            if stable { !self.stable_channels.insert(channel.to_owned()) } else { self.stable_channels.remove(channel) };
        if !stable || !was_quiet || interval.is_zero() {
            if stable {
                self.published_at.get_or_insert(now);
            }
            return RunNotice::Summary(self.counted.remove(channel).unwrap_or_default());
        }
        *self.counted.entry(channel.to_owned()).or_default() += 1;
        if self.published_at.is_some_and(|told| now.duration_since(told) < interval) {
            return RunNotice::Nothing;
        }
        self.published_at = Some(now);
        RunNotice::Counts(std::mem::take(&mut self.counted))
    }

    /// Takes the counts, for an agent that stops.
    pub(in crate::agent) fn take(&mut self) -> Option<BTreeMap<String, u64>> {
        Some(std::mem::take(&mut self.counted)).filter(|counted| !counted.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stable_runs_are_counted_and_told_now_and_then() {
        let (mut runs, start, hour) = (StableRunCounter::default(), Instant::now(), Duration::from_secs(3600));
        let counts =
            |all: &[(&str, u64)]| RunNotice::Counts(all.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect());
        use RunOutcome::{Changed, Failed, Stable};
        for (minute, channel, outcome, telling) in [
            (0, "base", Changed, RunNotice::Summary(0)),
            (5, "base", Stable, RunNotice::Summary(0)),
            (6, "web", Stable, RunNotice::Summary(0)),
            (10, "base", Stable, RunNotice::Nothing),
            (11, "web", Stable, RunNotice::Nothing),
            (15, "base", Stable, RunNotice::Nothing),
            // A change is published at once, with the count of the runs before.
            (20, "base", Changed, RunNotice::Summary(2)),
            (25, "base", Stable, RunNotice::Summary(0)),
            (30, "base", Stable, RunNotice::Nothing),
            (65, "base", Stable, counts(&[("base", 2), ("web", 1)])),
            (70, "base", Stable, RunNotice::Nothing),
            (75, "web", Failed, RunNotice::Summary(0)),
            (80, "web", Failed, RunNotice::Summary(0)),
            (130, "base", Stable, counts(&[("base", 2)])),
        ] {
            let now = start + Duration::from_secs(minute * 60);
            assert_eq!(runs.count(channel, outcome, hour, now), telling, "minute {minute}");
        }
        assert_eq!(runs.take(), None);
        assert_eq!(runs.count("base", Stable, hour, start + 3 * hour), RunNotice::Nothing);
        assert_eq!(runs.take(), Some(BTreeMap::from([("base".to_owned(), 1)])));
        assert_eq!(runs.count("base", Stable, Duration::ZERO, start + 4 * hour), RunNotice::Summary(0));
    }
}
