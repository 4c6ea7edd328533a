//! What an agent before this one left: every command that it accepted gets its one end.
//!
//! Started and not done → `interrupted`: whether it is harmless to run it again nobody knows.
//! Accepted and not started → checked again and run, or refused, or `expired`.

use std::collections::VecDeque;

use crate::wire::subject::Stage;
use crate::wire::{AckStatus, DoneOutcome};

use super::disk::Left;
use super::work::Job;
use super::{Node, say};

/// Ends what can't go on; gives what shall run, in the order in which it was accepted.
pub(super) fn recover(node: &Node) -> VecDeque<Job> {
    let mut again = VecDeque::new();
    for left in node.disk.unfinished() {
        if left.started {
            let mut done = say::done(node, Some(left.id), &left.digest, DoneOutcome::Interrupted);
            done.message = Some("the agent ended while it ran".to_owned());
            tracing::warn!(id = %left.id, "was interrupted");
            node.finish(&done);
            continue;
        }
        again.extend(reopen(node, &left));
    }
    again
}

fn reopen(node: &Node, left: &Left) -> Option<Job> {
    match node.verify(|verifier| verifier.reopen(&left.envelope)) {
        // Its time is looked at when its turn comes, as for every command that waits.
        Ok(verified) => {
            tracing::info!(id = %left.id, "taken up again");
            let ack = say::json(&say::ack(node, left.id, &left.digest, AckStatus::Accepted));
            drop(ack);
            Some(Job { command: verified.get().clone(), digest: left.digest.clone(), reply: None })
        }
        Err(refusal) => {
            let why = (refusal.code, refusal.message);
            let done = say::not_done(node, Some(left.id), &left.digest, DoneOutcome::Refused, why);
            node.finish(&done);
            node.post_refusal(&done, node.subjects.job(left.id, &node.settings.node, Stage::Done).as_str(), refusal.keyids);
            None
        }
    }
}
