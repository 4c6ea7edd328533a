//! Verification of one message of an export: its signer and its content.

use jiff::Timestamp;
use uuid::Uuid;

use crate::diag::error_chain;
use crate::model::NodeId;
use crate::transport::Message;
use crate::trust::{ReceiptError, TrustedBundle, VerifiedReceipt};
use crate::wire::report::{DroppedMessages, LifecycleEvent};
use crate::wire::subject::{EventKind, ReportStage};
use crate::wire::{Ack, AckStatus, Command, CommandOutcome, CommandResult, Envelope, NodeState, Subjects, json};

use super::export_format::ExportRecord;
use super::hash_chain::StateClaim;
use crate::fleet::targeting::node_identity::NodeKeys;

/// Checks the messages of an export.
#[derive(Debug)]
pub(super) struct MessageChecker<'a> {
    pub(super) subjects: Subjects,
    pub(super) node_keys: &'a NodeKeys,
    pub(super) trust: Option<&'a TrustedBundle>,
}

/// A message after its check.
#[derive(Debug)]
pub(super) enum CheckedMessage {
    /// The record of a command.
    Command(Box<RecordedCommand>),
    /// A message with a valid receipt of its node.
    NodeMessage(Box<NodeMessage>),
    /// A message in the name of a node without a valid receipt.
    Unverified { node: NodeId, what: String },
    /// A record that should be a command, and is none.
    InvalidCommand { id: Uuid, why: String },
    /// A message on an unknown subject.
    UnknownSubject(String),
}

/// A command from its record.
#[derive(Debug)]
pub(super) struct RecordedCommand {
    pub(super) command: Command,
    pub(super) digest: String,
    /// The keys whose signatures verify; `None` without a trust bundle.
    pub(super) signers: Option<Vec<String>>,
}

/// A verified message of a node.
#[derive(Debug)]
pub(super) struct NodeMessage {
    pub(super) node: NodeId,
    pub(super) time: Timestamp,
    pub(super) receipt: VerifiedReceipt,
    pub(super) report: NodeReport,
}

/// The content of a message of a node, as far as the audit uses it.
#[derive(Debug)]
pub(super) enum NodeReport {
    Ack {
        job: Uuid,
        accepted: bool,
    },
    Done {
        job: Uuid,
        outcome: CommandOutcome,
    },
    Dropped(DroppedMessages),
    State(StateClaim),
    /// A command that reached the node outside the server.
    LocalCommand(Box<RecordedCommand>),
    Other,
}

impl MessageChecker<'_> {
    pub(super) fn check(&self, record: ExportRecord) -> CheckedMessage {
        let (time, message) = (record.time, record.into_message());
        if let Some(id) = self.command_id(&message.subject) {
            return match self.command(&message) {
                Ok(given) if given.command.id == id => CheckedMessage::Command(Box::new(given)),
                Ok(given) => {
                    CheckedMessage::InvalidCommand { id, why: format!("the record holds the command {}", given.command.id) }
                }
                Err(why) => CheckedMessage::InvalidCommand { id, why },
            };
        }
        let Some(node) = self.node(&message.subject) else { return CheckedMessage::UnknownSubject(message.subject) };
        let said = self.node_keys.verify(&node, &message).map_err(|doubt| doubt.to_string());
        let said = said.and_then(|attested| Ok((self.read_report(&node, &message, &attested)?, attested)));
        match said {
            Ok((what, attested)) => {
                CheckedMessage::NodeMessage(Box::new(NodeMessage { node, time, receipt: attested, report: what }))
            }
            Err(why) => CheckedMessage::Unverified { node, what: format!("{}: {why}", message.subject) },
        }
    }

    fn command_id(&self, subject: &str) -> Option<Uuid> {
        let id = subject.rsplit('.').nth(1)?.parse().ok()?;
        (self.subjects.job_command(id).as_str() == subject).then_some(id)
    }

    fn command(&self, message: &Message) -> Result<RecordedCommand, String> {
        let envelope = Envelope::parse(&message.payload).map_err(|error| error_chain(&error))?;
        let command: Command = json::read(&envelope.payload).map_err(|error| error_chain(&error))?;
        command.check().map_err(|error| error.to_string())?;
        let signers = self.trust.map(|trust| trust.signers(&envelope).iter().map(|key| key.id.clone()).collect());
        Ok(RecordedCommand { command, digest: envelope.digest(), signers })
    }

    /// Returns the node that owns a subject.
    fn node(&self, subject: &str) -> Option<NodeId> {
        if let Some((_, node, _)) = self.subjects.report(subject) {
            return Some(node);
        }
        let mut tokens = subject.rsplit('.');
        let (last, before) = (tokens.next()?, tokens.next()?);
        let state: Option<NodeId> = last.parse().ok().filter(|node| self.subjects.state(node).as_str() == subject);
        let event = || {
            before
                .parse()
                .ok()
                .filter(|node| subject.starts_with(self.subjects.events(Some(node)).as_str().trim_end_matches('>')))
        };
        let failed = || {
            let (node, job) = (last.parse().ok()?, tokens.next()?.parse().ok()?);
            let marks = [self.subjects.rollout_failed(job, &node), self.subjects.rollout_ok(job, &node)];
            marks.iter().any(|mark| mark.as_str() == subject).then_some(node)
        };
        state.or_else(event).or_else(failed)
    }

    fn read_report(&self, node: &NodeId, message: &Message, attested: &VerifiedReceipt) -> Result<NodeReport, String> {
        let unreadable = |error| error_chain(&error);
        let answers = |digest: &str| {
            let fits = attested.statement.command.as_deref() == Some(digest);
            if fits { Ok(()) } else { Err(ReceiptError::Command.to_string()) }
        };
        if let Some((job, _, stage)) = self.subjects.report(&message.subject) {
            return match stage {
                ReportStage::Ack => {
                    let ack: Ack = json::read(&message.payload).map_err(unreadable)?;
                    answers(&ack.digest)?;
                    Ok(NodeReport::Ack { job, accepted: ack.status == AckStatus::Accepted })
                }
                ReportStage::Done => {
                    let done: CommandResult = json::read(&message.payload).map_err(unreadable)?;
                    answers(&done.digest)?;
                    Ok(NodeReport::Done { job, outcome: done.outcome })
                }
            };
        }
        if self.subjects.state(node).as_str() == message.subject {
            let state: NodeState = json::read(&message.payload).map_err(unreadable)?;
            let NodeState { chain, outbox: waiting, open, started, .. } = state;
            return Ok(NodeReport::State(StateClaim { chain, waiting, open, started }));
        }
        if message.subject.ends_with(".lifecycle") {
            let life: LifecycleEvent = json::read(&message.payload).map_err(unreadable)?;
            return Ok(life.dropped.map_or(NodeReport::Other, NodeReport::Dropped));
        }
        if self.subjects.event(node, EventKind::Command).as_str() == message.subject {
            return self.command(message).map(|given| NodeReport::LocalCommand(Box::new(given)));
        }
        Ok(NodeReport::Other)
    }
}
