//! Checks an export without a server: every receipt, every chain, every job.

use std::collections::BTreeMap;

use serde::Serialize;
use uuid::Uuid;

use crate::model::NodeId;
use crate::trust::TrustedBundle;
use crate::wire::Subjects;

use super::export_format::{ExportHeader, ExportRecord, RecordError};
use super::finding::{Finding, FindingKind};
use super::hash_chain::{ChainLink, NodeChain};
use super::jobs::{self, JobAudit, NodeAnswers};
use super::message_check::{CheckedMessage, MessageChecker, NodeMessage, NodeReport, RecordedCommand};
use crate::fleet::targeting::node_identity::NodeKeys;
use crate::fleet::targeting::parallel::map_parallel_blocking;

/// Most lines that are checked together, to limit memory.
const BATCH_SIZE: usize = 4096;

/// Counts of the messages of one node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NodeMessages {
    /// Messages with a valid receipt.
    pub verified: u64,
    /// Messages in its name without a valid receipt.
    pub unverified: u64,
    /// The first and the last position of its chain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chain: Option<(u64, u64)>,
    /// Messages that were stored more than once.
    pub duplicates: u64,
}

/// The result of an audit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AuditReport {
    /// The fleet.
    pub fleet: String,
    /// Before this, messages may be missing for their age.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub horizon: Option<jiff::Timestamp>,
    /// Number of checked messages.
    pub messages: u64,
    /// Number of commands with a record.
    pub commands: u64,
    /// True when a trust bundle verified the signers of commands.
    pub commands_checked: bool,
    /// The counts of each node.
    pub nodes: BTreeMap<NodeId, NodeMessages>,
    /// Findings that an operator must examine.
    pub findings: Vec<Finding>,
    /// Findings with a harmless explanation.
    pub notes: Vec<Finding>,
}

impl AuditReport {
    /// True when no finding needs an operator.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Checks the lines of an export with the keys of the nodes and, when given, the trust bundle.
///
/// # Errors
/// When the file is no export, a line can't be read, or `lines` returns an error.
pub fn verify<E: std::convert::From<RecordError>>(
    mut lines: impl Iterator<Item = Result<String, E>>,
    node_keys: impl FnOnce(&str) -> NodeKeys,
    trust: Option<&TrustedBundle>,
) -> Result<AuditReport, E> {
    let first = lines.next().unwrap_or_else(|| Err(RecordError::Format.into()))?;
    let opening = ExportHeader::read(&first)?;
    let node_keys = node_keys(&opening.fleet);
    let inspector = MessageChecker { subjects: Subjects::new(&opening.fleet), node_keys: &node_keys, trust };
    let mut all = AuditState::default();
    let mut number = 1;
    loop {
        let mut some = Vec::new();
        for line in lines.by_ref().take(BATCH_SIZE) {
            number += 1;
            some.push((number, line?));
        }
        if some.is_empty() {
            break;
        }
        let inspected = map_parallel_blocking(&some, |(number, line)| {
            ExportRecord::read(line, *number).map(|record| inspector.check(record))
        });
        for one in inspected {
            all.take(one?);
        }
    }
    Ok(all.into_report(opening, trust.is_some(), &node_keys.nodes()))
}

/// The state of an audit while lines are read.
#[derive(Default)]
struct AuditState {
    messages: u64,
    commands: u64,
    nodes: BTreeMap<NodeId, NodeMessages>,
    chains: BTreeMap<NodeId, NodeChain>,
    jobs: BTreeMap<Uuid, JobAudit>,
    found: Vec<Finding>,
}

impl AuditState {
    fn take(&mut self, inspected: CheckedMessage) {
        self.messages += 1;
        let find = |kind, node, job, what| Finding { kind, node, job, what };
        match inspected {
            CheckedMessage::Command(given) => self.take_command(*given),
            CheckedMessage::NodeMessage(said) => self.take_node_message(*said),
            CheckedMessage::Unverified { node, what } => {
                self.nodes.entry(node.clone()).or_default().unverified += 1;
                self.found.push(find(FindingKind::Forged, Some(node), None, what));
            }
            CheckedMessage::InvalidCommand { id, why } => self.found.push(find(FindingKind::BadCommand, None, Some(id), why)),
            CheckedMessage::UnknownSubject(subject) => {
                self.found.push(find(FindingKind::Stranger, None, None, format!("a message on the unknown subject {subject}")));
            }
        }
    }

    /// Takes a command. The fleet has one record, and each node that got it outside the server has another.
    fn take_command(&mut self, given: RecordedCommand) {
        let (id, job) = (given.command.id, self.jobs.entry(given.command.id).or_default());
        match &job.record {
            None => {
                self.commands += 1;
                job.record = Some(given);
            }
            Some(before) if before.digest != given.digest => {
                let what = "a second record has another command with this id".to_owned();
                self.found.push(Finding { kind: FindingKind::BadCommand, node: None, job: Some(id), what });
            }
            Some(_) => {}
        }
    }

    fn take_node_message(&mut self, said: NodeMessage) {
        let NodeMessage { node, time, receipt: attested, report: what } = said;
        self.nodes.entry(node.clone()).or_default().verified += 1;
        let chain = self.chains.entry(node.clone()).or_default();
        let statement = attested.statement;
        if let Some(seq) = statement.seq {
            let (boot, at) = (statement.boot, statement.at);
            chain.links.push(ChainLink { seq, prev: statement.prev, digest: attested.digest, boot, at, time });
        }
        match what {
            NodeReport::Ack { job, accepted } => self.node_answers(job, node, statement.command).accepted |= accepted,
            NodeReport::Done { job, outcome } => self.node_answers(job, node, statement.command).outcomes.push(outcome),
            NodeReport::Dropped(dropped) => chain.dropped.push(dropped),
            NodeReport::State(claim) => chain.claim = Some(claim),
            NodeReport::LocalCommand(given) => self.take_command(*given),
            NodeReport::Other => {}
        }
    }

    fn node_answers(&mut self, job: Uuid, node: NodeId, command: Option<String>) -> &mut NodeAnswers {
        let answers = self.jobs.entry(job).or_default().nodes.entry(node).or_default();
        answers.digests.extend(command);
        answers
    }

    fn into_report(mut self, opening: ExportHeader, commands_checked: bool, known: &[NodeId]) -> AuditReport {
        let silent = known.iter().filter(|node| !self.nodes.contains_key(*node));
        self.found.extend(silent.map(|node| Finding {
            kind: FindingKind::Absent,
            node: Some(node.clone()),
            job: None,
            what:
                "the export has no message and no state of this node; if the node is gone: `ensign fleet node forget`".to_owned(),
        }));
        let horizon = opening.horizon();
        for (node, chain) in &mut self.chains {
            let found = chain.check(horizon);
            let of_node = self.nodes.entry(node.clone()).or_default();
            of_node.chain = chain.links.first().zip(chain.links.last()).map(|(first, last)| (first.seq, last.seq));
            of_node.duplicates = chain.duplicates;
            self.found.extend(found.into_iter().map(|(kind, what)| Finding { kind, node: Some(node.clone()), job: None, what }));
        }
        self.found.extend(jobs::check(&self.jobs, horizon, opening.at));
        let (notes, findings) = self.found.into_iter().partition(|found| found.kind.is_note());
        AuditReport {
            fleet: opening.fleet,
            horizon,
            messages: self.messages,
            commands: self.commands,
            commands_checked,
            nodes: self.nodes,
            findings,
            notes,
        }
    }
}
