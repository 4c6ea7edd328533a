//! What an agent before this one left: every command that it accepted gets its one end.
//!
//! Started and not done → `interrupted`: it may not be harmless to run it again. What it left running has been
//! ended by then, see `leftovers.rs`.
//! Accepted and not started → checked again and run, or refused, or `expired`.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::store::UnfinishedCommand;
use crate::trust::RejectionCode;
use crate::wire::{CommandOutcome, CommandResult};

use crate::agent::Node;
use crate::agent::exec::run::Job;
use crate::agent::rollout::gate;
use crate::agent::status::messages;

/// What the agent before left to do.
#[derive(Default)]
pub(in crate::agent) struct Recovered {
    /// What has ended, and is to be written down.
    pub(in crate::agent) ended: Vec<RecoveredEnd>,
    /// What shall run, in the order in which it was accepted.
    pub(in crate::agent) jobs: VecDeque<Job>,
}

/// A command that has ended.
pub(in crate::agent) struct RecoveredEnd {
    /// How.
    pub(in crate::agent) done: CommandResult,
    /// True when its result is in the outbox already.
    pub(in crate::agent) posted: bool,
}

/// Looks through the ledger for what has no end there.
pub(in crate::agent) fn recover(node: &Node) -> Recovered {
    let mut found = Recovered::default();
    for left in node.disk.unfinished() {
        // It may have ended, and only the ledger not have been told.
        if let Some(done) = node.disk.queued_result(&node.result_id(left.id)) {
            found.ended.push(RecoveredEnd { done, posted: true });
        } else if left.started {
            found.ended.push(interrupted(node, &left));
        } else if let Some(done) = standing(node, &left) {
            found.ended.extend(done);
        } else {
            reopen(node, &left, &mut found);
        }
    }
    found
}

fn interrupted(node: &Node, left: &UnfinishedCommand) -> RecoveredEnd {
    tracing::warn!(id = %left.id, "was interrupted");
    let mut done = messages::done(node, Some(left.id), &left.digest, CommandOutcome::Interrupted);
    let what = "the agent ended while it ran".to_owned();
    done.message = Some(node.leftovers.report.iter().fold(what, |what, report| format!("{what}; {report}")));
    gate::publish_failure_of_envelope(node, &left.envelope, &done);
    RecoveredEnd { done, posted: false }
}

/// What stands is taken up by the enforcer. Something later may have come before it was ever run: then that is its end.
fn standing(node: &Node, left: &UnfinishedCommand) -> Option<Option<RecoveredEnd>> {
    let verified = node.verify(|verifier| verifier.reverify_assignment(&left.envelope)).ok()?;
    if !verified.get().action.is_desired_state() {
        return None;
    }
    if node.standing.mark_result_pending(verified.get()) {
        return Some(None);
    }
    let why = (RejectionCode::StaleSerial, "something later came in its channel before it was run".to_owned());
    let done = messages::not_done(node, Some(left.id), &left.digest, CommandOutcome::Refused, why);
    Some(Some(RecoveredEnd { done, posted: false }))
}

fn reopen(node: &Node, left: &UnfinishedCommand, found: &mut Recovered) {
    match node.verify(|verifier| verifier.reverify_queued(&left.envelope)) {
        // Its time is looked at when its turn comes, as for every command that waits.
        Ok(verified) => {
            tracing::info!(id = %left.id, "taken up again");
            found.jobs.push_back(Job::once(Arc::new(verified), None));
        }
        Err(refusal) => {
            let why = (refusal.code, refusal.message);
            let done = messages::not_done(node, Some(left.id), &left.digest, CommandOutcome::Refused, why);
            node.post_rejection(&done, left.subject.as_deref().unwrap_or_default(), refusal.keyids);
            found.ended.push(RecoveredEnd { done, posted: false });
        }
    }
}
