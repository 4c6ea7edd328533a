//! What an agent before this one left: every command that it accepted gets its one end.
//!
//! Started and not done → `interrupted`: whether it is harmless to run it again nobody knows.
//! Accepted and not started → checked again and run, or refused, or `expired`.

use std::collections::VecDeque;

use crate::store::Unfinished;
use crate::wire::DoneOutcome;

use super::work::Job;
use super::{Node, say};

/// Ends what can't go on; gives what shall run, in the order in which it was accepted.
pub(super) fn recover(node: &Node) -> VecDeque<Job> {
    let mut again = VecDeque::new();
    for left in node.disk.unfinished() {
        if left.started {
            interrupted(node, &left);
        } else {
            again.extend(reopen(node, &left));
        }
    }
    again
}

fn interrupted(node: &Node, left: &Unfinished) {
    // It may have ended, and only the ledger not have been told.
    if let Some(done) = node.disk.result_on_its_way(&node.result_id(left.id)) {
        node.noted(node.disk.note_done(left.id, &done));
        return;
    }
    tracing::warn!(id = %left.id, "was interrupted");
    let mut done = say::done(node, Some(left.id), &left.digest, DoneOutcome::Interrupted);
    done.message = Some("the agent ended while it ran".to_owned());
    node.finish(&done);
}

fn reopen(node: &Node, left: &Unfinished) -> Option<Job> {
    match node.verify(|verifier| verifier.reopen(&left.envelope)) {
        // Its time is looked at when its turn comes, as for every command that waits.
        Ok(verified) => {
            tracing::info!(id = %left.id, "taken up again");
            Some(Job { command: verified.get().clone(), digest: left.digest.clone(), reply: None })
        }
        Err(refusal) => {
            let why = (refusal.code, refusal.message);
            let done = say::not_done(node, Some(left.id), &left.digest, DoneOutcome::Refused, why);
            node.finish(&done);
            node.post_refusal(&done, left.subject.as_deref().unwrap_or_default(), refusal.keyids);
            None
        }
    }
}
