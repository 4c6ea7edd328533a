//! What the agent says, put into the forms of `wire`.

use std::collections::BTreeMap;

use serde::Serialize;
use uuid::Uuid;

use crate::trust::{RejectionCode, Verified};
use crate::wire::command::Command;
use crate::wire::report::AssignmentStatus;
use crate::wire::report::{self, FailingResource, LifecycleEvent, StableRuns};
use crate::wire::{Ack, AckStatus, CommandOutcome, CommandResult, NodeState, RejectionEvent};

use crate::agent::Node;

/// The version of the program, as states and events carry it.
pub(in crate::agent) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A message as bytes.
pub(in crate::agent) fn json(message: &impl Serialize) -> Vec<u8> {
    // Plain data with text keys: there is nothing in it that could fail to be written.
    serde_json::to_vec(message).unwrap_or_default()
}

pub(in crate::agent) fn ack(node: &Node, id: Uuid, digest: &str, status: AckStatus) -> Ack {
    Ack {
        protocol: report::ACK.to_owned(),
        id,
        digest: digest.to_owned(),
        node: node.settings().node.clone(),
        at: node.now(),
        status,
        queued: node.board.read(|standing| standing.queued),
        wave: node.room.wave(id),
        rule: None,
        signers: Vec::new(),
    }
}

/// What allows a command, for whoever asks why it was done; no rule for one that was read back from the disk.
pub(in crate::agent) fn allowed(verified: &Verified<Command>) -> (Option<u64>, Vec<String>) {
    (u64::try_from(verified.rule()).ok().filter(|rule| *rule > 0), verified.signers().to_vec())
}

/// A result without anything to tell but its outcome.
pub(in crate::agent) fn done(node: &Node, id: Option<Uuid>, digest: &str, outcome: CommandOutcome) -> CommandResult {
    CommandResult {
        protocol: report::RESULT.to_owned(),
        id,
        digest: digest.to_owned(),
        node: node.settings().node.clone(),
        at: node.now(),
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

/// The result of something that is not done, and why.
pub(in crate::agent) fn not_done(
    node: &Node,
    id: Option<Uuid>,
    digest: &str,
    outcome: CommandOutcome,
    why: (RejectionCode, String),
) -> CommandResult {
    let (code, message) = why;
    CommandResult { code: Some(code.as_str().to_owned()), message: Some(message), ..done(node, id, digest, outcome) }
}

/// A refusal for monitoring, from the result that says it.
pub(in crate::agent) fn refused(node: &Node, done: &CommandResult, subject: &str, keyids: Vec<String>) -> RejectionEvent {
    RejectionEvent {
        protocol: report::REJECTION.to_owned(),
        event_id: node.host.new_id(),
        node: done.node.clone(),
        timestamp: done.at,
        code: done.code.clone().unwrap_or_default(),
        message: done.message.clone().unwrap_or_default(),
        subject: subject.to_owned(),
        digest: done.digest.clone(),
        id: done.id,
        keyids,
    }
}

pub(in crate::agent) fn stable(node: &Node, runs: BTreeMap<String, u64>) -> StableRuns {
    let now = node.now();
    let timestamp = now.round(jiff::Unit::Second).unwrap_or(now);
    StableRuns { protocol: report::STABLE.to_owned(), timestamp, runs }
}

pub(in crate::agent) fn life(node: &Node, what: &str) -> LifecycleEvent {
    LifecycleEvent {
        protocol: report::LIFECYCLE.to_owned(),
        event_id: node.host.new_id(),
        node: node.settings().node.clone(),
        timestamp: node.now(),
        what: what.to_owned(),
        message: None,
        version: VERSION.to_owned(),
        boot: node.boot,
        dropped: None,
    }
}

/// That another trust bundle is obeyed.
pub(in crate::agent) fn trust_life(node: &Node, version: u64) -> LifecycleEvent {
    LifecycleEvent { message: Some(format!("now obeys version {version}")), ..life(node, "trust") }
}

/// The failing resources that a state names, at most: a state is read by everybody who looks at the fleet.
const MOST_FAILING: usize = 5;

/// The first failing resources: of the last command, then of the channels in their order.
fn failing(all: &BTreeMap<String, Vec<FailingResource>>, assignments: &[AssignmentStatus]) -> Vec<FailingResource> {
    let channels = assignments.iter().filter_map(|assignment| all.get(&assignment.channel));
    all.get("").into_iter().chain(channels).flatten().take(MOST_FAILING).cloned().collect()
}

pub(in crate::agent) fn state(node: &Node, alive: bool) -> NodeState {
    let waiting = node.disk.outbox_state();
    let standing = node.board.read(Clone::clone);
    let failing = failing(&standing.failing, &standing.assignments);
    NodeState {
        protocol: report::STATE.to_owned(),
        node: node.settings().node.clone(),
        at: node.now(),
        interval: node.settings().heartbeat.get().as_secs().max(1),
        alive,
        hostname: node.settings().hostname.clone(),
        boot: node.boot,
        started: node.started,
        version: VERSION.to_owned(),
        platform: node.platform.clone(),
        groups: node.settings().groups.clone(),
        trust: node.trust().version(),
        channels: standing.channels,
        assignments: standing.assignments,
        running: standing.running,
        queued: standing.queued,
        last_run: standing.last_run,
        failing,
        outbox: waiting.outbox,
        dropped: waiting.dropped,
        dropped_results: waiting.dropped_results,
        key: Some(node.disk.notary().public().to_short()),
        chain: waiting.chain,
        open: waiting.open,
        confinement: node.confinement(),
        alarms: standing.alarms.into_values().collect(),
    }
}
