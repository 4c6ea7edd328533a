//! The result of a run: one form from its end to the message that travels.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::agent::identity::Identity;
use crate::agent::status::messages;
use crate::model::{ApplyState, HealthStatus, TransactionEvent};
use crate::trust::RejectionCode;
use crate::wire::command::Action;
use crate::wire::report::{HealthReport, PlannedChanges};
use crate::wire::{CommandOutcome, CommandResult};

use super::job::Job;

/// Largest event, in bytes, that a result carries. The stream of events has it too.
const MAX_EVENT: usize = 128 * 1024;

/// The result of a run, from its end to the result of its command.
pub(in crate::agent) struct RunResult {
    pub(in crate::agent) outcome: CommandOutcome,
    pub(in crate::agent) why: Option<String>,
    pub(in crate::agent) code: Option<RejectionCode>,
    pub(in crate::agent) event: Option<TransactionEvent>,
    pub(in crate::agent) apply: Option<ApplyState>,
    pub(in crate::agent) failures: BTreeMap<String, String>,
    pub(in crate::agent) plan: Option<PlannedChanges>,
    pub(in crate::agent) answer: Option<Value>,
    /// For a look at health checks: what they found, still without the channel.
    pub(in crate::agent) checked: Vec<HealthReport>,
    /// Whether the manifest could be planned: what came after that is about the host.
    pub(in crate::agent) planned: bool,
    /// The worst health check; nothing when there was none.
    pub(in crate::agent) health: Option<HealthStatus>,
}

impl RunResult {
    pub(in crate::agent) fn of(outcome: CommandOutcome, why: Option<String>) -> Self {
        Self {
            outcome,
            why,
            code: None,
            event: None,
            apply: None,
            failures: BTreeMap::new(),
            plan: None,
            answer: None,
            checked: Vec::new(),
            planned: false,
            health: None,
        }
    }

    /// It ended, and this is to be said about it.
    pub(in crate::agent) fn plain(outcome: CommandOutcome, why: impl Into<String>) -> Self {
        Self::of(outcome, Some(why.into()))
    }

    /// True when the agent was stopped meanwhile.
    pub(in crate::agent) fn is_interrupted(&self) -> bool {
        self.outcome == CommandOutcome::Interrupted
    }

    /// Why it ended so, for people.
    pub(in crate::agent) fn why(&self) -> &str {
        self.why.as_deref().unwrap_or_default()
    }

    /// The summary of the run.
    pub(in crate::agent) fn apply(&self) -> Option<&ApplyState> {
        self.apply.as_ref()
    }

    /// It was asked something, and this is the answer.
    pub(in crate::agent) fn answered(answer: Value) -> Self {
        Self { answer: Some(answer), ..Self::of(CommandOutcome::Stable, None) }
    }

    /// The same, with words for people.
    pub(in crate::agent) fn saying(self, why: impl Into<String>) -> Self {
        Self { why: Some(why.into()), ..self }
    }

    /// The same, with this end.
    pub(in crate::agent) fn ending(self, outcome: CommandOutcome) -> Self {
        Self { outcome, ..self }
    }

    /// True when something failed or would not be done.
    pub(in crate::agent) fn is_failed(&self) -> bool {
        matches!(self.outcome, CommandOutcome::Failed | CommandOutcome::Refused)
    }

    /// It could not be done.
    pub(in crate::agent) fn failed(why: impl Into<String>) -> Self {
        Self::plain(CommandOutcome::Failed, why)
    }

    /// The agent was stopped meanwhile.
    pub(in crate::agent) fn interrupted() -> Self {
        Self::plain(CommandOutcome::Interrupted, "the agent was stopped")
    }

    /// The node would not do it.
    pub(in crate::agent) fn refused(code: RejectionCode, why: impl Into<String>) -> Self {
        Self { code: Some(code), ..Self::plain(CommandOutcome::Refused, why) }
    }

    /// The result as it is sent. For an `apply`, it carries the summary instead of the event.
    pub(in crate::agent) fn into_command_result(self, identity: &Identity, job: &Job) -> CommandResult {
        let event = self.event.filter(|_| matches!(job.command.action, Action::Ensure(_)));
        let (rule, signers) = messages::allowed_by(&job.command);
        CommandResult {
            code: self.code.map(|code| code.as_str().to_owned()),
            message: self.why,
            event: event.map(within_size),
            apply: self.apply.filter(|_| job.manifest().is_some()),
            failures: self.failures,
            plan: self.plan,
            answer: self.answer,
            rule,
            signers,
            ..messages::result(identity, Some(job.id()), job.digest(), self.outcome)
        }
    }
}

/// Returns an event that passes the server's limit, without the parts that are too large.
pub(in crate::agent) fn within_size(mut event: TransactionEvent) -> TransactionEvent {
    if messages::json(&event).len() > MAX_EVENT {
        event.diff = None;
    }
    if messages::json(&event).len() > MAX_EVENT {
        (event.properties, event.status) = (Value::Null, None);
    }
    event
}
