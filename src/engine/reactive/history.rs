//! The history of a resource: its checks so far. The next pause and the next report depend on them.

use std::time::{Duration, Instant};

use super::event::{DirtyCause, Notice, Outcome};
use super::flapping::RecentRepairs;
use super::policy::{DEBOUNCE, RepairPolicy, TokenBucket, after};

/// Pause after a check before an overflow of a watch queue causes another one: overflows come in storms of events.
const OVERFLOW_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause after a failure once an event arrived: the cause of the failure may be gone.
const LONGEST_EVENT_PAUSE: Duration = Duration::from_secs(30);

/// The checks of one resource so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct RepairHistory {
    checked_at: Option<Instant>,
    failures: u32,
    tries: u32,
    is_parked: bool,
    /// True after the first success.
    has_succeeded: bool,
    reported: Option<u64>,
    bucket: Option<Box<TokenBucket>>,
    repairs: Option<Box<RecentRepairs>>,
}

impl RepairHistory {
    /// Takes note of the start of a check.
    pub(super) fn started(&mut self, cause: DirtyCause, policy: &RepairPolicy, now: Instant) {
        if let (Some(limit), true) = (policy.limit, cause.is_debounced()) {
            self.bucket.get_or_insert_with(|| Box::new(TokenBucket::full(limit, now))).spend(limit, now);
        }
    }

    /// Takes note of the end of a check. Returns the report that the end is worth.
    pub(super) fn ended(&mut self, key: u32, outcome: Outcome, policy: &RepairPolicy, now: Instant) -> Option<Notice> {
        self.checked_at = Some(now);
        match outcome {
            Outcome::Failed { undone, .. } => {
                let parked = self.failed(key, policy);
                // A resource that never succeeded may fail for its own reasons, as a service that does not start.
                let is_fight = undone && self.has_succeeded && parked.is_none();
                return if is_fight { self.repaired(key, now) } else { parked };
            }
            Outcome::Unmet => return None,
            Outcome::WouldChange { digest } => {
                self.succeeded(policy);
                return (self.reported.replace(digest) != Some(digest)).then_some(Notice::WouldChange { key });
            }
            Outcome::Stable | Outcome::Changed { .. } | Outcome::Skipped => self.succeeded(policy),
        }
        self.reported = None;
        if outcome == (Outcome::Changed { corrective: true }) {
            return self.repaired(key, now);
        }
        let recent = self.repairs.as_mut()?;
        let ended = (outcome == Outcome::Stable).then(|| recent.stable(now)).flatten();
        self.repairs.take_if(|recent| recent.is_empty());
        ended.map(|(repairs, span)| Notice::FlappingEnded { key, repairs, span })
    }

    /// Returns the earliest time for a check with this cause.
    ///
    /// The first event of a quiet resource is due at once. Further events wait for the pause after the last check.
    pub(super) fn earliest(&self, cause: DirtyCause, policy: &RepairPolicy, now: Instant) -> Instant {
        let Some(checked_at) = self.checked_at.filter(|_| cause.is_debounced()) else { return now };
        let debounce = if cause == DirtyCause::Overflow { OVERFLOW_PAUSE } else { DEBOUNCE };
        let failure = if self.failures == 0 { Duration::ZERO } else { policy.pause(self.failures).min(LONGEST_EVENT_PAUSE) };
        let paused_until = after(checked_at, debounce.max(failure).max(self.flapping_pause()));
        let ready_at = self.bucket.as_ref().zip(policy.limit).map_or(now, |(bucket, limit)| bucket.ready_at(limit, now));
        paused_until.max(ready_at).max(now)
    }

    /// Returns the time of the next try after a failure; `None` when the tries are used up.
    pub(super) fn retry_at(&self, policy: &RepairPolicy) -> Option<Instant> {
        let pause = policy.pause(self.failures).max(self.flapping_pause());
        self.checked_at.filter(|_| !self.is_parked).map(|at| after(at, pause))
    }

    /// Returns the time of the next poll.
    pub(super) fn poll_at(&self, policy: &RepairPolicy) -> Option<Instant> {
        self.checked_at.zip(policy.poll).map(|(at, poll)| after(at, poll.max(DEBOUNCE).max(self.flapping_pause())))
    }

    /// Returns the end of the quiet period of a flapping resource.
    pub(super) fn quiet_at(&self) -> Option<Instant> {
        self.repairs.as_ref().and_then(|recent| recent.quiet_at())
    }

    /// Returns true after a failure, until a check succeeds.
    pub(super) fn is_failing(&self) -> bool {
        self.failures > 0
    }

    /// Returns true while few further repairs would make the resource flapping.
    pub(super) fn is_suspicious(&self) -> bool {
        self.repairs.as_ref().is_some_and(|recent| recent.is_suspicious())
    }

    fn repaired(&mut self, key: u32, now: Instant) -> Option<Notice> {
        let began = self.repairs.get_or_insert_default().repaired(now);
        began.map(|(repairs, span)| Notice::FlappingBegan { key, repairs, span })
    }

    fn flapping_pause(&self) -> Duration {
        self.repairs.as_ref().and_then(|recent| recent.pause()).unwrap_or_default()
    }

    fn succeeded(&mut self, policy: &RepairPolicy) {
        (self.failures, self.is_parked, self.has_succeeded) = (0, false, true);
        if policy.retry_reset {
            self.tries = 0;
        }
    }

    fn failed(&mut self, key: u32, policy: &RepairPolicy) -> Option<Notice> {
        self.failures = self.failures.saturating_add(1);
        let was_parked = self.is_parked;
        self.is_parked = policy.retry.is_some_and(|retry| self.tries >= retry);
        if !self.is_parked {
            self.tries = self.tries.saturating_add(1);
        }
        (self.is_parked && !was_parked).then_some(Notice::Parked { key, failures: self.failures })
    }
}
