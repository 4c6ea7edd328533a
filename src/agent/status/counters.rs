//! What is counted from the start of the agent on, for those who watch it. Nothing depends on it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::wire::CommandResult;
use crate::wire::agent_status::AgentCounters;

/// The longest text of a refusal that is kept.
const REFUSAL: usize = 300;

/// The counters, shared by reference.
#[derive(Debug, Default)]
pub(in crate::agent) struct Counters(Mutex<AgentCounters>);

impl Counters {
    fn held(&self) -> MutexGuard<'_, AgentCounters> {
        // Numbers: a panic elsewhere leaves them as good as they were.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::agent) fn now(&self) -> AgentCounters {
        self.held().clone()
    }

    pub(in crate::agent) fn command_accepted(&self) {
        self.held().accepted += 1;
    }

    pub(in crate::agent) fn command_repeated(&self) {
        self.held().repeated += 1;
    }

    pub(in crate::agent) fn not_selected(&self) {
        self.held().not_selected += 1;
    }

    /// A command was not taken. The codes are ours and few, whoever sends.
    pub(in crate::agent) fn command_rejected(&self, done: &CommandResult) {
        let code = done.code.clone().unwrap_or_default();
        let mut text = format!("{code}: {}", done.message.as_deref().unwrap_or_default());
        let end = text.char_indices().nth(REFUSAL).map_or(text.len(), |(end, _)| end);
        text.truncate(end);
        let mut counts = self.held();
        counts.last_refusal = Some(text);
        *counts.refused.entry(code).or_default() += 1;
    }

    /// So many registrations were left out that no known node signed.
    pub(in crate::agent) fn unsigned_registrations(&self, dropped: usize) {
        *self.held().refused.entry("unsigned_registration".to_owned()).or_default() += dropped as u64;
    }

    /// Looking at a message took this long.
    pub(in crate::agent) fn verified_in(&self, took: Duration) {
        self.held().intake_seconds += took.as_secs_f64();
    }

    /// An accepted command ended.
    pub(in crate::agent) fn command_ended(&self, done: &CommandResult, took: Duration) {
        // The name of the state, as messages have it.
        let state = serde_json::to_value(done.outcome).ok().and_then(|value| value.as_str().map(str::to_owned));
        let mut counts = self.held();
        *counts.ended.entry(state.unwrap_or_default()).or_default() += 1;
        counts.run_seconds += took.as_secs_f64();
    }

    /// The server stored a message: its kind is the last word of its subject.
    pub(in crate::agent) fn published(&self, subject: &str) {
        let kind = subject.rsplit('.').next().unwrap_or_default().to_owned();
        *self.held().published.entry(kind).or_default() += 1;
    }

    pub(in crate::agent) fn reloaded(&self) {
        self.held().reloads += 1;
    }
}
