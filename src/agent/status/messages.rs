//! Messages of the agent in the forms of `wire`.

use std::collections::BTreeMap;

use serde::Serialize;
use uuid::Uuid;

use crate::agent::identity::AgentInstance;
use crate::trust::{RejectionCode, Verified};
use crate::wire::command::Command;
use crate::wire::report::{self, LifecycleEvent, StableRuns};
use crate::wire::{Ack, AckStatus, CommandOutcome, CommandResult, RejectionEvent};

/// The version of the program, as states and events carry it.
pub(in crate::agent) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Returns a message as bytes.
pub(in crate::agent) fn json(message: &impl Serialize) -> Vec<u8> {
    // Plain data with text keys: nothing in it can fail to be written.
    serde_json::to_vec(message).unwrap_or_default()
}

/// Returns an acknowledgement. `queued` commands wait on this node.
pub(in crate::agent) fn ack(identity: &AgentInstance, id: Uuid, digest: &str, status: AckStatus, queued: u64) -> Ack {
    Ack {
        protocol: report::ACK.to_owned(),
        id,
        digest: digest.to_owned(),
        node: identity.node.clone(),
        at: identity.now(),
        status,
        queued,
        wave: None,
        rule: None,
        signers: Vec::new(),
    }
}

/// Returns the rule and the signers that allow a command. A command that was read back from disk has no rule.
pub(in crate::agent) fn allowed_by(verified: &Verified<Command>) -> (Option<u64>, Vec<String>) {
    (u64::try_from(verified.rule()).ok().filter(|rule| *rule > 0), verified.signers().to_vec())
}

/// Returns a result that has only an outcome.
pub(in crate::agent) fn result(
    identity: &AgentInstance,
    id: Option<Uuid>,
    digest: &str,
    outcome: CommandOutcome,
) -> CommandResult {
    CommandResult {
        protocol: report::RESULT.to_owned(),
        id,
        digest: digest.to_owned(),
        node: identity.node.clone(),
        at: identity.now(),
        outcome,
        code: None,
        message: None,
        event: None,
        apply: None,
        failures: BTreeMap::new(),
        plan: None,
        answer: None,
        rule: None,
        signers: Vec::new(),
    }
}

/// Returns the result of a command that was not run, with the reason.
pub(in crate::agent) fn not_run(
    identity: &AgentInstance,
    id: Option<Uuid>,
    digest: &str,
    outcome: CommandOutcome,
    (code, message): (RejectionCode, String),
) -> CommandResult {
    CommandResult { code: Some(code.as_str().to_owned()), message: Some(message), ..result(identity, id, digest, outcome) }
}

/// Returns a rejection for monitoring, from the result of the command.
pub(in crate::agent) fn rejection(
    identity: &AgentInstance,
    result: &CommandResult,
    subject: &str,
    keyids: Vec<String>,
) -> RejectionEvent {
    RejectionEvent {
        protocol: report::REJECTION.to_owned(),
        event_id: identity.host.new_id(),
        node: result.node.clone(),
        timestamp: result.at,
        code: result.code.clone().unwrap_or_default(),
        message: result.message.clone().unwrap_or_default(),
        subject: subject.to_owned(),
        digest: result.digest.clone(),
        id: result.id,
        keyids,
    }
}

/// Returns counts of stable runs, by channel. The time has whole seconds.
pub(in crate::agent) fn stable_runs(identity: &AgentInstance, runs: BTreeMap<String, u64>) -> StableRuns {
    let now = identity.now();
    let timestamp = now.round(jiff::Unit::Second).unwrap_or(now);
    StableRuns { protocol: report::STABLE.to_owned(), timestamp, runs }
}

/// Returns an event in the life of the agent; see [`LifecycleEvent::what`].
pub(in crate::agent) fn lifecycle(identity: &AgentInstance, what: &str) -> LifecycleEvent {
    LifecycleEvent {
        protocol: report::LIFECYCLE.to_owned(),
        event_id: identity.host.new_id(),
        node: identity.node.clone(),
        timestamp: identity.now(),
        what: what.to_owned(),
        message: None,
        version: VERSION.to_owned(),
        boot: identity.boot,
        dropped: None,
    }
}
