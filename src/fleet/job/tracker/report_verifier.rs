//! Verification of reports and answers by the receipts of nodes.
//!
//! A [`ReportVerifier`] checks many messages at a time, on all processors. [`JobTracker`](super::JobTracker) takes its results.

use std::sync::Arc;

use uuid::Uuid;

use crate::model::NodeId;
use crate::transport::Message;
use crate::wire::subject::ReportStage;
use crate::wire::{Ack, CommandResult, Subjects, json};

use super::outcome::NodeOutcome;
use crate::fleet::targeting::key_discovery::HeldMessage;
use crate::fleet::targeting::node_identity::{IdentityError, NodeKeys};

/// The result of a verification. Only [`ReportVerifier`] creates it.
#[derive(Debug)]
pub struct VerifiedReport(pub(super) Verdict);

/// The content of a message, as far as it counts.
#[derive(Debug)]
pub(super) enum Verdict {
    Ack(Box<Ack>),
    Done(Box<CommandResult>),
    NotAccepted(Box<CommandResult>),
    NoResponders(NodeId),
    Unverified {
        node: NodeId,
        what: &'static str,
        error: IdentityError,
    },
    /// The key of the node is not pinned: the node may be new.
    UnknownNode {
        node: NodeId,
        what: &'static str,
        message: Box<HeldMessage>,
    },
    Ignored,
}

/// Verifies the reports and answers of nodes about one command.
#[derive(Debug, Clone)]
pub struct ReportVerifier {
    pub(super) node_keys: Arc<NodeKeys>,
    pub(super) subjects: Subjects,
    pub(super) id: Uuid,
    pub(super) digest: String,
    /// True when answers to the reply subject count like reports of the stream, which does not answer.
    pub(super) takes_replies: bool,
}

impl ReportVerifier {
    fn verify_signature(&self, node: &NodeId, message: &Message) -> Result<(), IdentityError> {
        // A receipt for another command is a replay.
        self.node_keys.verify(node, message)?.check_command(&self.digest)?;
        Ok(())
    }

    /// Verifies a message of the JOBS stream.
    pub fn report(&self, message: &Message) -> VerifiedReport {
        VerifiedReport(self.report_verdict(message).unwrap_or(Verdict::Ignored))
    }

    fn report_verdict(&self, message: &Message) -> Option<Verdict> {
        let (id, node, stage) = self.subjects.report(&message.subject)?;
        if id != self.id {
            return None;
        }
        let what = if stage == ReportStage::Ack { "an acknowledgement" } else { "a result" };
        match self.verify_signature(&node, message) {
            Ok(()) => {}
            Err(IdentityError::Unknown) => {
                return Some(Verdict::UnknownNode { node, what, message: Box::new(HeldMessage::Report(message.clone())) });
            }
            Err(doubt) => return Some(Verdict::Unverified { node, what, error: doubt }),
        }
        match stage {
            ReportStage::Ack => {
                let ack: Ack = json::read(&message.payload).ok()?;
                (ack.node == node && ack.digest == self.digest).then(|| Verdict::Ack(Box::new(ack)))
            }
            ReportStage::Done => {
                let done: CommandResult = json::read(&message.payload).ok()?;
                (done.node == node && done.digest == self.digest).then(|| Verdict::Done(Box::new(done)))
            }
        }
    }

    /// Verifies an answer to the reply subject. `asked` is the node to whose own subject the command went.
    pub fn answer(&self, message: &Message, asked: Option<&NodeId>) -> VerifiedReport {
        VerifiedReport(self.answer_verdict(message, asked).unwrap_or(Verdict::Ignored))
    }

    fn answer_verdict(&self, message: &Message, asked: Option<&NodeId>) -> Option<Verdict> {
        if message.no_responders {
            return asked.cloned().map(Verdict::NoResponders);
        }
        if self.takes_replies
            && let Some(verdict) = self.reply_verdict(message, asked)
        {
            return Some(verdict);
        }
        let done: CommandResult = json::read(&message.payload).ok()?;
        let ours = done.digest == self.digest && done.id.is_none_or(|id| id == self.id);
        if !ours || !NodeOutcome::from_result(&done).is_not_accepted() || asked.is_some_and(|node| *node != done.node) {
            return None;
        }
        match self.verify_signature(&done.node, message) {
            Ok(()) => Some(Verdict::NotAccepted(Box::new(done))),
            Err(IdentityError::Unknown) => {
                let said = HeldMessage::Answer(message.clone(), asked.cloned());
                Some(Verdict::UnknownNode { node: done.node, what: "an answer", message: Box::new(said) })
            }
            Err(doubt) => Some(Verdict::Unverified { node: done.node, what: "an answer", error: doubt }),
        }
    }

    /// Verifies an acknowledgement, or the result of an accepted command, on the reply subject.
    fn reply_verdict(&self, message: &Message, asked: Option<&NodeId>) -> Option<Verdict> {
        let is_ours = |node: &NodeId, digest: &str| digest == self.digest && asked.is_none_or(|asked| asked == node);
        let (node, verdict) = if let Ok(ack) = json::read::<Ack>(&message.payload) {
            (ack.node.clone(), is_ours(&ack.node, &ack.digest).then(|| Verdict::Ack(Box::new(ack)))?)
        } else {
            let done: CommandResult = json::read(&message.payload).ok()?;
            let is_accepted = done.id == Some(self.id) && !NodeOutcome::from_result(&done).is_not_accepted();
            (done.node.clone(), (is_accepted && is_ours(&done.node, &done.digest)).then(|| Verdict::Done(Box::new(done)))?)
        };
        match self.verify_signature(&node, message) {
            Ok(()) => Some(verdict),
            Err(error) => Some(Verdict::Unverified { node, what: "an answer", error }),
        }
    }
}
