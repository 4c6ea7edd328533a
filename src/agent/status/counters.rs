//! Counters since the start of the agent, for monitoring. Nothing depends on them.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::wire::CommandResult;
use crate::wire::agent_status::AgentCounters;

/// Most characters of the last rejection that is kept.
const MAX_REJECTION_LENGTH: usize = 300;

/// The counters, shared by reference.
#[derive(Debug, Default)]
pub(in crate::agent) struct SharedCounters(Mutex<AgentCounters>);

impl SharedCounters {
    fn lock(&self) -> MutexGuard<'_, AgentCounters> {
        // Numbers only: a panic of another thread leaves them valid.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::agent) fn now(&self) -> AgentCounters {
        self.lock().clone()
    }

    pub(in crate::agent) fn command_accepted(&self) {
        self.lock().accepted += 1;
    }

    pub(in crate::agent) fn command_repeated(&self) {
        self.lock().repeated += 1;
    }

    pub(in crate::agent) fn not_selected(&self) {
        self.lock().not_selected += 1;
    }

    /// Counts a rejected command by its rejection code. The codes are a fixed set, whatever a sender sends.
    pub(in crate::agent) fn command_rejected(&self, done: &CommandResult) {
        let code = done.code.clone().unwrap_or_default();
        let mut text = format!("{code}: {}", done.message.as_deref().unwrap_or_default());
        let end = text.char_indices().nth(MAX_REJECTION_LENGTH).map_or(text.len(), |(end, _)| end);
        text.truncate(end);
        let mut counts = self.lock();
        counts.last_refusal = Some(text);
        *counts.refused.entry(code).or_default() += 1;
    }

    /// Counts registrations that were dropped because no known node signed them.
    pub(in crate::agent) fn unsigned_registrations(&self, dropped: usize) {
        *self.lock().refused.entry("unsigned_registration".to_owned()).or_default() += dropped as u64;
    }

    /// Records the time that the verification of a message took.
    pub(in crate::agent) fn verified_in(&self, took: Duration) {
        self.lock().intake_seconds += took.as_secs_f64();
    }

    /// Counts an accepted command that ended.
    pub(in crate::agent) fn command_ended(&self, done: &CommandResult, took: Duration) {
        // The name of the outcome, as messages have it.
        let state = serde_json::to_value(done.outcome).ok().and_then(|value| value.as_str().map(str::to_owned));
        let mut counts = self.lock();
        *counts.ended.entry(state.unwrap_or_default()).or_default() += 1;
        counts.run_seconds += took.as_secs_f64();
    }

    /// Counts a message that the server stored. The last token of its subject is its kind.
    pub(in crate::agent) fn published(&self, subject: &str) {
        let kind = subject.rsplit('.').next().unwrap_or_default().to_owned();
        *self.lock().published.entry(kind).or_default() += 1;
    }

    pub(in crate::agent) fn reloaded(&self) {
        self.lock().reloads += 1;
    }
}
