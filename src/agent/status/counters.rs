//! Counters since the start of the agent, for monitoring. Nothing depends on them.

use std::sync::Mutex;
use std::time::Duration;

use crate::model::{TransactionEvent, lock};
use crate::wire::CommandResult;
use crate::wire::agent_status::{AgentCounters, REPAIR_LATENCY_BOUNDS};

/// Most characters of the last rejection that is kept.
const MAX_REJECTION_LENGTH: usize = 300;

/// The counters, shared by reference.
#[derive(Debug, Default)]
pub(in crate::agent) struct SharedCounters(Mutex<AgentCounters>);

impl SharedCounters {
    pub(in crate::agent) fn now(&self) -> AgentCounters {
        lock(&self.0).clone()
    }

    pub(in crate::agent) fn command_accepted(&self) {
        lock(&self.0).accepted += 1;
    }

    pub(in crate::agent) fn command_repeated(&self) {
        lock(&self.0).repeated += 1;
    }

    pub(in crate::agent) fn not_selected(&self) {
        lock(&self.0).not_selected += 1;
    }

    /// Counts a rejected command by its rejection code. The codes are a fixed set, whatever a sender sends.
    pub(in crate::agent) fn command_rejected(&self, done: &CommandResult) {
        let code = done.code.clone().unwrap_or_default();
        let mut text = format!("{code}: {}", done.message.as_deref().unwrap_or_default());
        let end = text.char_indices().nth(MAX_REJECTION_LENGTH).map_or(text.len(), |(end, _)| end);
        text.truncate(end);
        let mut counts = lock(&self.0);
        counts.last_refusal = Some(text);
        *counts.refused.entry(code).or_default() += 1;
    }

    /// Counts registrations that were dropped because no known node signed them.
    pub(in crate::agent) fn unsigned_registrations(&self, dropped: usize) {
        *lock(&self.0).refused.entry("unsigned_registration".to_owned()).or_default() += dropped as u64;
    }

    /// Records the time that the verification of a message took.
    pub(in crate::agent) fn verified_in(&self, took: Duration) {
        lock(&self.0).intake_seconds += took.as_secs_f64();
    }

    /// Counts an accepted command that ended.
    pub(in crate::agent) fn command_ended(&self, done: &CommandResult, took: Duration) {
        // The name of the outcome, as messages have it.
        let state = serde_json::to_value(done.outcome).ok().and_then(|value| value.as_str().map(str::to_owned));
        let mut counts = lock(&self.0);
        *counts.ended.entry(state.unwrap_or_default()).or_default() += 1;
        counts.run_seconds += took.as_secs_f64();
    }

    /// Counts a message that the server stored. The last token of its subject is its kind.
    pub(in crate::agent) fn published(&self, subject: &str) {
        let kind = subject.rsplit('.').next().unwrap_or_default().to_owned();
        *lock(&self.0).published.entry(kind).or_default() += 1;
    }

    /// Counts the check of a watched resource.
    pub(in crate::agent) fn checked(&self, event: &TransactionEvent) {
        let repairs = &mut lock(&self.0).repairs;
        repairs.checks += 1;
        repairs.changes += u64::from(event.changed && !event.noop);
        repairs.failures_retried += u64::from(event.failed);
    }

    /// Counts a failed check after which no try is left.
    pub(in crate::agent) fn tries_used_up(&self) {
        let repairs = &mut lock(&self.0).repairs;
        repairs.failures_retried = repairs.failures_retried.saturating_sub(1);
        repairs.failures_final += 1;
    }

    /// Counts a repair of drift that took this time.
    pub(in crate::agent) fn repaired(&self, latency: Duration) {
        let seconds = latency.as_secs_f64();
        let slot = REPAIR_LATENCY_BOUNDS.iter().take_while(|bound| seconds > **bound).count();
        let repairs = &mut lock(&self.0).repairs;
        if let Some(count) = repairs.latency.get_mut(slot) {
            *count += 1;
        }
        repairs.latency_seconds += seconds;
    }

    pub(in crate::agent) fn reloaded(&self) {
        lock(&self.0).reloads += 1;
    }
}
