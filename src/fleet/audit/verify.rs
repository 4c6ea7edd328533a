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
use super::message_check::{CheckedMessage, MessageChecker, NodeMessage, RecordedCommand, What};
use crate::fleet::targeting::node_identity::NodeKeys;
use crate::fleet::targeting::parallel::share_here;

/// How many lines are checked together: bounds what is in memory.
const TOGETHER: usize = 4096;

/// What there is of one node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NodeMessages {
    /// Messages that it signed.
    pub verified: u64,
    /// Messages in its name that it did not.
    pub unverified: u64,
    /// The first and the last place of its chain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chain: Option<(u64, u64)>,
    /// Messages that were stored more than once.
    pub duplicates: u64,
}

/// The outcome of a check.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AuditReport {
    /// The fleet.
    pub fleet: String,
    /// Before this, messages may be missing for their age.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub horizon: Option<jiff::Timestamp>,
    /// How many messages were checked.
    pub messages: u64,
    /// How many commands are on record.
    pub commands: u64,
    /// Whether it was checked who signed the commands.
    pub commands_checked: bool,
    /// Of each node.
    pub nodes: BTreeMap<NodeId, NodeMessages>,
    /// What somebody must look at.
    pub findings: Vec<Finding>,
    /// What is explained.
    pub notes: Vec<Finding>,
}

impl AuditReport {
    /// True when nobody has to look at anything.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Checks the lines of an export with the keys of the nodes, and with the trust bundle when there is one.
///
/// # Errors
/// When it is no export, or a line can't be read; `lines` may also end with an error of its own.
pub fn verify<E: std::convert::From<RecordError>>(
    mut lines: impl Iterator<Item = Result<String, E>>,
    node_keys: impl FnOnce(&str) -> NodeKeys,
    trust: Option<&TrustedBundle>,
) -> Result<AuditReport, E> {
    let first = lines.next().unwrap_or_else(|| Err(RecordError::Format.into()))?;
    let opening = ExportHeader::read(&first)?;
    let node_keys = node_keys(&opening.fleet);
    let inspector = MessageChecker { subjects: Subjects::new(&opening.fleet), node_keys: &node_keys, trust };
    let mut all = All::default();
    let mut number = 1;
    loop {
        let mut some = Vec::new();
        for line in lines.by_ref().take(TOGETHER) {
            number += 1;
            some.push((number, line?));
        }
        if some.is_empty() {
            break;
        }
        let inspected =
            share_here(&some, |(number, line)| ExportRecord::read(line, *number).map(|record| inspector.inspect(record)));
        for one in inspected {
            all.take(one?);
        }
    }
    Ok(all.report(opening, trust.is_some(), &node_keys.names()))
}

/// What was read so far.
#[derive(Default)]
struct All {
    messages: u64,
    commands: u64,
    nodes: BTreeMap<NodeId, NodeMessages>,
    chains: BTreeMap<NodeId, NodeChain>,
    jobs: BTreeMap<Uuid, JobAudit>,
    found: Vec<Finding>,
}

impl All {
    fn take(&mut self, inspected: CheckedMessage) {
        self.messages += 1;
        let find = |kind, node, job, what| Finding { kind, node, job, what };
        match inspected {
            CheckedMessage::Command(given) => self.command(*given),
            CheckedMessage::Said(said) => self.said(*said),
            CheckedMessage::Doubtful { node, what } => {
                self.nodes.entry(node.clone()).or_default().unverified += 1;
                self.found.push(find(FindingKind::Forged, Some(node), None, what));
            }
            CheckedMessage::NoCommand { id, why } => self.found.push(find(FindingKind::BadCommand, None, Some(id), why)),
            CheckedMessage::Stranger(subject) => {
                self.found.push(find(FindingKind::Stranger, None, None, format!("a message on {subject}")));
            }
        }
    }

    /// Takes a command, which is on record once for the fleet and once for each node that it was carried to.
    fn command(&mut self, given: RecordedCommand) {
        let (id, job) = (given.command.id, self.jobs.entry(given.command.id).or_default());
        match &job.given {
            None => {
                self.commands += 1;
                job.given = Some(given);
            }
            Some(before) if before.digest != given.digest => {
                let what = "another command with this id is on record too".to_owned();
                self.found.push(Finding { kind: FindingKind::BadCommand, node: None, job: Some(id), what });
            }
            Some(_) => {}
        }
    }

    fn said(&mut self, said: NodeMessage) {
        let NodeMessage { node, time, attested, what } = said;
        self.nodes.entry(node.clone()).or_default().verified += 1;
        let chain = self.chains.entry(node.clone()).or_default();
        let statement = attested.statement;
        if let Some(seq) = statement.seq {
            let (boot, at) = (statement.boot, statement.at);
            chain.links.push(ChainLink { seq, prev: statement.prev, digest: attested.digest, boot, at, time });
        }
        match what {
            What::Ack { job, accepted } => self.answers(job, node, statement.command).accepted |= accepted,
            What::Done { job, outcome } => self.answers(job, node, statement.command).outcomes.push(outcome),
            What::Dropped(dropped) => chain.dropped.push(dropped),
            What::State(claim) => chain.claim = Some(claim),
            What::Carried(given) => self.command(*given),
            What::Other => {}
        }
    }

    fn answers(&mut self, job: Uuid, node: NodeId, command: Option<String>) -> &mut NodeAnswers {
        let answers = self.jobs.entry(job).or_default().nodes.entry(node).or_default();
        answers.digests.extend(command);
        answers
    }

    fn report(mut self, opening: ExportHeader, commands_checked: bool, known: &[NodeId]) -> AuditReport {
        let silent = known.iter().filter(|node| !self.nodes.contains_key(*node));
        self.found.extend(silent.map(|node| Finding {
            kind: FindingKind::Absent,
            node: Some(node.clone()),
            job: None,
            what: "nothing of it is on record, not even its state, which has no age; `ensign fleet node forget` is for one that is gone"
                .to_owned(),
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
