//! The job log of a fleet: commands with signers, times, reasons and outcomes.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use crate::transport::{Bus, Message, StartAt, TransportError};
use crate::trust::TrustedBundle;
use crate::wire::subject::ReportStage;
use crate::wire::{Command, CommandResult, Envelope, Subjects, json};

use super::describe;
use super::export::next_message;
use crate::fleet::targeting::node_identity::NodeKeys;
use crate::fleet::targeting::parallel::map_parallel;

/// Most messages that are verified together.
const BATCH_SIZE: usize = 4096;

/// A command and its outcomes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobLogRow {
    /// Time of the signature.
    pub time: Timestamp,
    /// Its id.
    pub id: Uuid,
    /// SHA-256 of its signed bytes.
    pub digest: String,
    /// The signers: with a trust bundle the keys that verify, without a bundle the key ids in the envelope.
    pub signers: Vec<String>,
    /// True when a trust bundle verified the signers.
    pub signers_verified: bool,
    /// The action.
    pub action: String,
    /// The target.
    pub audience: String,
    /// The reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// True for a dry run.
    pub noop: bool,
    /// Number of nodes with each terminal state, by signed results only.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Number of results without a valid receipt.
    pub unverified: u64,
}

/// A report on a job after verification.
enum CheckedResult {
    Ended(Uuid, String, &'static str),
    Unverified(Uuid),
}

/// Reads the jobs since a time, the oldest first.
///
/// # Errors
/// When the stream of jobs can't be read.
pub async fn read_job_log(
    bus: &Bus,
    subjects: &Subjects,
    node_keys: &Arc<NodeKeys>,
    trust: Option<&TrustedBundle>,
    since: Timestamp,
) -> Result<Vec<JobLogRow>, TransportError> {
    let mut feed = bus.follow(&subjects.stream("JOBS"), subjects.all_jobs().as_str(), StartAt::Since(since)).await?;
    let mut left = feed.backlog();
    let mut table: BTreeMap<Uuid, JobLogRow> = BTreeMap::new();
    while left > 0 {
        let mut reports = Vec::new();
        while left > 0 && reports.len() < BATCH_SIZE {
            left -= 1;
            let Some(message) = next_message(&mut feed).await? else {
                left = 0;
                break;
            };
            match read_row(&message, trust) {
                Some(row) if subjects.job_command(row.id).as_str() == message.subject => {
                    table.entry(row.id).or_insert(row);
                }
                _ => reports.push(message),
            }
        }
        let (shared, known) = (Arc::clone(node_keys), subjects.clone());
        let looked = map_parallel(reports, move |message| report(&known, &shared, message)).await;
        for report in looked.into_iter().flatten() {
            match report {
                CheckedResult::Ended(id, digest, outcome) => {
                    if let Some(row) = table.get_mut(&id).filter(|row| row.digest == digest) {
                        *row.outcomes.entry(outcome).or_default() += 1;
                    }
                }
                CheckedResult::Unverified(id) => {
                    if let Some(row) = table.get_mut(&id) {
                        row.unverified += 1;
                    }
                }
            }
        }
    }
    let mut rows: Vec<JobLogRow> = table.into_values().collect();
    rows.sort_by_key(|row| (row.time, row.id));
    Ok(rows)
}

/// Returns the row of a command; `None` for any other message.
fn read_row(message: &Message, trust: Option<&TrustedBundle>) -> Option<JobLogRow> {
    let envelope = Envelope::parse(&message.payload).ok()?;
    let command: Command = json::read(&envelope.payload).ok()?;
    Some(job_log_row(&command, &envelope, trust))
}

/// Returns the row of a command without outcomes.
pub fn job_log_row(command: &Command, envelope: &Envelope, trust: Option<&TrustedBundle>) -> JobLogRow {
    let signers = match trust {
        Some(trust) => trust.signers(envelope).iter().map(|key| key.id.clone()).collect(),
        None => envelope.signatures.iter().map(|signature| signature.keyid.clone()).collect(),
    };
    JobLogRow {
        time: command.issued,
        id: command.id,
        digest: envelope.digest(),
        signers,
        signers_verified: trust.is_some(),
        action: describe::describe_action(&command.action),
        audience: describe::describe_target(&command.to),
        reason: command.reason.clone(),
        noop: command.options.noop,
        outcomes: BTreeMap::new(),
        unverified: 0,
    }
}

fn report(subjects: &Subjects, node_keys: &NodeKeys, message: &Message) -> Option<CheckedResult> {
    let (id, node, stage) = subjects.report(&message.subject)?;
    if stage != ReportStage::Done {
        return None;
    }
    let Ok(attested) = node_keys.verify(&node, message) else { return Some(CheckedResult::Unverified(id)) };
    let done: CommandResult = json::read(&message.payload).ok()?;
    if done.node != node || attested.check_command(&done.digest).is_err() {
        return Some(CheckedResult::Unverified(id));
    }
    Some(CheckedResult::Ended(id, done.digest, done.outcome.as_str()))
}
