//! The result of a run: one form from the end of the run to the message to its sender.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::agent::identity::AgentInstance;
use crate::agent::status::messages;
use crate::engine::reactive::WatchedResource;
use crate::host::Cancel;
use crate::model::{ApplyState, HealthStatus, ResourceRef, RunOutcome, TransactionEvent, WatchTarget};
use crate::trust::RejectionCode;
use crate::wire::command::Action;
use crate::wire::report::{HealthReport, PlannedChanges};
use crate::wire::{CommandOutcome, CommandResult};

use super::job::Job;

/// Largest event, in bytes, that a result carries. The stream of events has the whole event.
const MAX_EVENT: usize = 128 * 1024;
/// The reason of a run that ended because the agent stopped.
const AGENT_STOPPED: &str = "the agent was stopped";
/// Most characters of each error of a failed resource.
const ERROR_LENGTH: usize = 500;

/// The result of a run, from which the result of its command is made.
pub(in crate::agent) struct RunResult {
    pub(in crate::agent) outcome: CommandOutcome,
    pub(in crate::agent) reason: Option<String>,
    pub(in crate::agent) code: Option<RejectionCode>,
    pub(in crate::agent) event: Option<TransactionEvent>,
    pub(in crate::agent) apply: Option<ApplyState>,
    pub(in crate::agent) failures: BTreeMap<String, String>,
    pub(in crate::agent) plan: Option<PlannedChanges>,
    pub(in crate::agent) answer: Option<Value>,
    /// The reports of an observation of health checks, still without the channel.
    pub(in crate::agent) checked: Vec<HealthReport>,
    /// True when the manifest could be planned: later failures are about the host, not about the manifest.
    pub(in crate::agent) planned: bool,
    /// The worst health status; none without health checks.
    pub(in crate::agent) health: Option<HealthStatus>,
    /// The news for the watcher of the assignment.
    pub(in crate::agent) watch: WatchUpdate,
}

/// The news of a run for the watcher of its assignment.
#[derive(Debug, Default)]
pub(in crate::agent) struct WatchUpdate {
    /// The resources to watch from now on, after a run of all resources.
    pub(in crate::agent) resources: Option<Vec<WatchedResource>>,
    /// The watch targets that only the run of a resource finds.
    pub(in crate::agent) late: BTreeMap<ResourceRef, Vec<WatchTarget>>,
    /// The events of a run of selected resources, without details. Of a run of all resources, those that are not stable.
    pub(in crate::agent) checks: Vec<TransactionEvent>,
}

impl RunResult {
    pub(in crate::agent) fn new(outcome: CommandOutcome, reason: Option<String>) -> Self {
        Self {
            outcome,
            reason,
            code: None,
            event: None,
            apply: None,
            failures: BTreeMap::new(),
            plan: None,
            answer: None,
            checked: Vec::new(),
            planned: false,
            health: None,
            watch: WatchUpdate::default(),
        }
    }

    /// Returns a result with an outcome and its reason.
    pub(in crate::agent) fn with_reason(outcome: CommandOutcome, why: impl Into<String>) -> Self {
        Self::new(outcome, Some(why.into()))
    }

    /// Returns true when a stop of the agent or an operator ended the run.
    pub(in crate::agent) fn is_interrupted(&self) -> bool {
        self.outcome == CommandOutcome::Interrupted
    }

    /// Returns the reason of the outcome, for people.
    pub(in crate::agent) fn reason(&self) -> &str {
        self.reason.as_deref().unwrap_or_default()
    }

    /// Returns the summary of the run.
    pub(in crate::agent) fn apply(&self) -> Option<&ApplyState> {
        self.apply.as_ref()
    }

    /// Returns the result of a query with its answer.
    pub(in crate::agent) fn answered(answer: Value) -> Self {
        Self { answer: Some(answer), ..Self::new(CommandOutcome::Stable, None) }
    }

    /// Returns the result with another reason.
    pub(in crate::agent) fn replace_reason(self, why: impl Into<String>) -> Self {
        Self { reason: Some(why.into()), ..self }
    }

    /// Returns the result with another outcome.
    pub(in crate::agent) fn replace_outcome(self, outcome: CommandOutcome) -> Self {
        Self { outcome, ..self }
    }

    /// Returns true when the run failed or was refused.
    pub(in crate::agent) fn is_failed(&self) -> bool {
        matches!(self.outcome, CommandOutcome::Failed | CommandOutcome::Refused)
    }

    /// Returns the result of a failed run.
    pub(in crate::agent) fn failed(why: impl Into<String>) -> Self {
        Self::with_reason(CommandOutcome::Failed, why)
    }

    /// Returns the result of a run that a stop of the agent ended.
    pub(in crate::agent) fn interrupted() -> Self {
        Self::with_reason(CommandOutcome::Interrupted, AGENT_STOPPED)
    }

    /// Returns the result of a command that an operator cancelled.
    pub(in crate::agent) fn cancelled(why: impl Into<String>) -> Self {
        Self { code: Some(RejectionCode::Cancelled), ..Self::with_reason(CommandOutcome::Interrupted, why) }
    }

    /// Returns the result of a command that the node refuses.
    pub(in crate::agent) fn refused(code: RejectionCode, why: impl Into<String>) -> Self {
        Self { code: Some(code), ..Self::with_reason(CommandOutcome::Refused, why) }
    }

    /// Returns the result as a message. The result of an `apply` carries the summary instead of the event.
    pub(in crate::agent) fn into_command_result(self, identity: &AgentInstance, job: &Job) -> CommandResult {
        let event = self.event.filter(|_| matches!(job.command.action, Action::Ensure(_)));
        let (rule, signers) = messages::allowed_by(&job.command);
        CommandResult {
            code: self.code.map(|code| code.as_str().to_owned()),
            message: self.reason,
            event: event.map(within_size),
            apply: self.apply.filter(|_| !matches!(job.command.action, Action::Ensure(_))),
            failures: self.failures,
            plan: self.plan,
            answer: self.answer,
            rule,
            signers,
            ..messages::result(identity, Some(job.id()), job.digest(), self.outcome)
        }
    }
}

/// Returns the outcome of a run, and the reason when the run did not finish.
pub(in crate::agent) fn outcome_and_reason(
    outcome: RunOutcome,
    error: Option<String>,
    cancel: &Cancel,
    job: &Job,
) -> (CommandOutcome, Option<String>) {
    match outcome {
        RunOutcome::Stable => (CommandOutcome::Stable, error),
        RunOutcome::Changed if job.is_dry() => (CommandOutcome::WouldChange, error),
        RunOutcome::Changed => (CommandOutcome::Changed, error),
        RunOutcome::Failed => (CommandOutcome::Failed, error),
        RunOutcome::Interrupted if cancel.is_cancelled() => {
            (CommandOutcome::Interrupted, Some(cancel.reason().unwrap_or(AGENT_STOPPED).to_owned()))
        }
        RunOutcome::Interrupted => {
            (CommandOutcome::Failed, Some(format!("the run took longer than {} and was stopped", job.command.options.timeout)))
        }
    }
}

/// Returns the beginning of an error, as long as node states and results carry it.
pub(in crate::agent) fn truncate_error(mut error: String) -> String {
    let end = error.char_indices().nth(ERROR_LENGTH).map_or(error.len(), |(end, _)| end);
    error.truncate(end);
    error
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
