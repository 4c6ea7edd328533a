//! Records of commands in the JOBS stream, and their results.
//!
//! A record serves for display, and for the list of nodes that must answer. Only its unchanged bytes are sent again, which
//! its signatures protect.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use uuid::Uuid;

use crate::model::NodeId;
use crate::transport::{Bus, Message, StartAt, StreamReader, TransportError};
use crate::wire::subject::ReportStage;
use crate::wire::{AckStatus, Action, Command, CommandOutcome, Envelope, EnvelopeError, Selector, Subjects, Target, json};

use crate::fleet::job::tracker::{JobTracker, NodeResult};
use crate::fleet::targeting::node_identity::NodeKeys;
use crate::fleet::targeting::parallel::map_parallel;
use crate::fleet::targeting::states::ExpectedNode;

/// Longest wait for the next message that the stream has already.
const STALLED: Duration = Duration::from_secs(5);
/// Most messages that are verified together.
const BATCH_SIZE: usize = 1024;
/// Largest difference between the clocks of an operator and the server.
const MAX_CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(5);
/// Names that are shown before the rest is counted.
const NAMES: usize = 3;

/// A command from its record.
#[derive(Debug, Clone, PartialEq)]
pub struct JobRecord {
    /// The command.
    pub command: Command,
    /// SHA-256 of its signed bytes.
    pub digest: String,
    /// The envelope as it travelled.
    pub envelope: Vec<u8>,
    /// The key ids that the envelope names: hints, not facts.
    pub keyids: Vec<String>,
}

/// Errors of reading a record.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The stream can't be read.
    #[error(transparent)]
    Bus(#[from] TransportError),
    /// The stream has no record of it.
    #[error("unknown job {0}: never sent, or removed for its age")]
    Unknown(Uuid),
    /// The record is no envelope.
    #[error("the record of the job can't be read")]
    Envelope(#[from] EnvelopeError),
    /// The envelope holds no command.
    #[error("the record of the job is no command")]
    Command(#[from] json::JsonError),
}

impl JobRecord {
    fn read(message: &Message) -> Result<Self, JobError> {
        let envelope = Envelope::parse(&message.payload)?;
        let keyids = envelope.signatures.iter().map(|signature| signature.keyid.clone()).collect();
        let command = json::read(&envelope.payload)?;
        Ok(Self { command, digest: envelope.digest(), envelope: message.payload.clone(), keyids })
    }
}

/// Reads the record of one command.
///
/// # Errors
/// When the stream has no record, or the record can't be read.
pub async fn read_record(bus: &Bus, subjects: &Subjects, id: Uuid) -> Result<JobRecord, JobError> {
    let messages = bus.last_per_subject(&subjects.stream("JOBS"), subjects.job_command(id).as_str()).await?;
    let record = JobRecord::read(messages.first().ok_or(JobError::Unknown(id))?)?;
    // Otherwise the record was stored under the subject of another job.
    if record.command.id == id { Ok(record) } else { Err(JobError::Unknown(id)) }
}

/// Reads the records of all commands that the stream still has, the latest first. A record that can't be read is logged and
/// left out.
///
/// # Errors
/// When the stream can't be read.
pub async fn read_records(bus: &Bus, subjects: &Subjects) -> Result<Vec<JobRecord>, JobError> {
    let messages = bus.last_per_subject(&subjects.stream("JOBS"), subjects.job_commands().as_str()).await?;
    let mut records = Vec::new();
    for message in messages {
        match JobRecord::read(&message) {
            Ok(record) if subjects.job_command(record.command.id).as_str() == message.subject => records.push(record),
            Ok(record) => {
                tracing::warn!(subject = message.subject, id = %record.command.id, "ignored a record of another job");
            }
            Err(error) => {
                tracing::warn!(subject = message.subject, error = %crate::diag::error_chain(&error), "cannot read the record of a job");
            }
        }
    }
    records.sort_by_key(|record| std::cmp::Reverse((record.command.issued, record.command.id)));
    Ok(records)
}

/// Reads the results of a command that the stream has now.
///
/// # Errors
/// When the stream can't be read.
pub async fn read_results(
    bus: &Bus,
    subjects: &Subjects,
    node_keys: &Arc<NodeKeys>,
    record: &JobRecord,
    expected: Vec<ExpectedNode>,
) -> Result<Vec<NodeResult>, JobError> {
    let id = record.command.id;
    let mut all = JobTracker::new(subjects.clone(), Arc::clone(node_keys), id, record.digest.as_str(), expected);
    let feed = bus.follow(&subjects.stream("JOBS"), subjects.job_reports(id).as_str(), StartAt::Beginning).await?;
    let verifier = all.verifier().clone();
    read_backlog(feed, async |messages| {
        let verifier = verifier.clone();
        for verified in map_parallel(messages, move |message| verifier.report(message)).await {
            all.take(verified);
        }
    })
    .await?;
    Ok(all.finish())
}

/// Reads the messages that a stream has already, many at a time.
async fn read_backlog(mut feed: StreamReader, mut take: impl AsyncFnMut(Vec<Message>)) -> Result<(), TransportError> {
    let mut left = feed.backlog();
    let mut together = Vec::new();
    while left > 0 {
        // The stream may remove old messages during the reading: then fewer arrive than were counted.
        let Ok(Some(message)) = tokio::time::timeout(STALLED, feed.next()).await else { break };
        together.push(message?);
        left -= 1;
        if together.len() == BATCH_SIZE {
            take(std::mem::take(&mut together)).await;
        }
    }
    take(together).await;
    Ok(())
}

/// Counts the outcomes of nodes for each of these commands in one pass. Unverified messages and silent nodes do not count.
///
/// # Errors
/// When the stream can't be read.
pub async fn count_outcomes(
    bus: &Bus,
    subjects: &Subjects,
    node_keys: &Arc<NodeKeys>,
    records: &[JobRecord],
) -> Result<HashMap<Uuid, BTreeMap<&'static str, usize>>, JobError> {
    let Some(since) = records.iter().map(|record| record.command.issued).min() else { return Ok(HashMap::new()) };
    let digests: HashMap<Uuid, String> = records.iter().map(|record| (record.command.id, record.digest.clone())).collect();
    let reader = Arc::new(OutcomeReader { subjects: subjects.clone(), node_keys: Arc::clone(node_keys), digests });
    let since = since.saturating_sub(MAX_CLOCK_SKEW).unwrap_or(since);
    let feed = bus.follow(&subjects.stream("JOBS"), subjects.all_jobs().as_str(), StartAt::Since(since)).await?;
    let mut ends: HashMap<(Uuid, NodeId), &'static str> = HashMap::new();
    read_backlog(feed, async |messages| {
        let reader = Arc::clone(&reader);
        for (id, node, stage, said) in map_parallel(messages, move |message| reader.read(message)).await.into_iter().flatten() {
            said.update_outcome(ends.entry((id, node)).or_insert("accepted"), stage);
        }
    })
    .await?;
    let mut tallies: HashMap<Uuid, BTreeMap<&'static str, usize>> = HashMap::new();
    for ((id, _), word) in ends {
        *tallies.entry(id).or_default().entry(word).or_default() += 1;
    }
    Ok(tallies)
}

/// Reads the verified reports on some commands.
struct OutcomeReader {
    subjects: Subjects,
    node_keys: Arc<NodeKeys>,
    digests: HashMap<Uuid, String>,
}

impl OutcomeReader {
    fn read(&self, message: &Message) -> Option<(Uuid, NodeId, ReportStage, ReportStatus)> {
        let (id, node, stage) = self.subjects.report(&message.subject)?;
        let digest = self.digests.get(&id)?;
        self.node_keys.verify(&node, message).ok()?.check_command(digest).ok()?;
        let said: ReportStatus = serde_json::from_slice(&message.payload).ok()?;
        (said.digest == *digest).then_some((id, node, stage, said))
    }
}

/// The part of a report that is counted.
#[derive(Deserialize)]
struct ReportStatus {
    digest: String,
    #[serde(default)]
    outcome: Option<CommandOutcome>,
    #[serde(default)]
    status: Option<AckStatus>,
}

impl ReportStatus {
    fn update_outcome(&self, word: &mut &'static str, stage: ReportStage) {
        match (stage, self.outcome, self.status) {
            (ReportStage::Done, Some(outcome), _) => *word = outcome.as_str(),
            (ReportStage::Ack, _, Some(AckStatus::NotSelected)) if *word == "accepted" => *word = "not_selected",
            _ => {}
        }
    }
}

/// Describes the object of an action, without its properties, which may be secret.
pub fn describe_object(action: &Action) -> String {
    match action {
        Action::Ensure(ensure) => format!("{}#{}", ensure.kind, ensure.name().unwrap_or_default()),
        Action::Apply(apply) => manifest(&apply.url, &apply.sha256),
        Action::Assign(assign) => manifest(&assign.manifest.url, &assign.manifest.sha256),
        Action::Facts(facts) => facts.query.clone().unwrap_or_default(),
        Action::Healthcheck(health) => health.channel.clone().unwrap_or_default(),
        Action::Run(run) => run.channel.clone(),
        Action::Halt(job) | Action::Resume(job) | Action::Cancel(job) => job.job.to_string(),
        Action::Go(ahead) => format!("{} wave {}", ahead.job, ahead.wave),
        Action::Withdraw(_) | Action::Status(_) | Action::Remove(_) => String::new(),
    }
}

/// Formats a URL without credentials, with the digest. A URL that contains the digest is left out.
fn manifest(url: &str, sha256: &str) -> String {
    let shown = crate::http::redact_url(url);
    let short = sha256.get(..12).unwrap_or(sha256);
    if shown.contains(sha256) { format!("sha256 {short}") } else { format!("{shown} sha256 {short}") }
}

/// Describes the target of a command.
pub fn describe_target(to: &Target) -> String {
    let list = |names: Vec<&str>| {
        let more = names.len().saturating_sub(NAMES);
        let shown = names.into_iter().take(NAMES).collect::<Vec<_>>().join(", ");
        if more > 0 { format!("{shown} +{more}") } else { shown }
    };
    let selected = match to.selector() {
        Some(Selector::All) => "all nodes".to_owned(),
        Some(Selector::Groups(groups)) => format!("the nodes of {}", list(groups.iter().map(String::as_str).collect())),
        Some(Selector::Nodes(nodes)) => list(nodes.iter().map(NodeId::as_str).collect()),
        Some(Selector::Mixed) => to.describe_selection(NAMES),
        None => "no node".to_owned(),
    };
    let selected = format!("{selected}{}", to.describe_exclusion(NAMES));
    match &to.filter {
        Some(expression) => format!("{selected} where {expression}"),
        None => selected,
    }
}

/// True while nodes may still accept the command.
pub fn is_open(command: &Command, now: Timestamp) -> bool {
    now <= command.expires
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn commands_are_described() {
        let action = |value| serde_json::from_value::<Action>(value).unwrap();
        let sha = "0123456789abcdef".repeat(4);
        for (value, said) in [
            (
                json!({"ensure": {"type": "user", "properties": {"name": "bob", "password_hash": "secret"}}}),
                "user#bob".to_owned(),
            ),
            (
                json!({"apply": {"url": "https://u:p@h/m.tgz", "sha256": sha, "size": 1}}),
                "https://h/m.tgz sha256 0123456789ab".to_owned(),
            ),
            (
                json!({"apply": {"url": format!("obj://b/{sha}.tar.gz"), "sha256": sha, "size": 1}}),
                "sha256 0123456789ab".to_owned(),
            ),
            (json!({"facts": {"query": "os.name"}}), "os.name".to_owned()),
            (json!({"status": {}}), String::new()),
        ] {
            assert_eq!(describe_object(&action(value)), said);
        }
        let nodes: Vec<NodeId> = ["a", "b", "c", "d", "e"].iter().map(|node| node.parse().unwrap()).collect();
        assert_eq!(describe_target(&Target::nodes(nodes)), "a, b, c +2");
        let mut groups = Target::groups(vec!["web".into()]);
        groups.filter = Some("Facts.a == 1".into());
        assert_eq!(describe_target(&groups), "the nodes of web where Facts.a == 1");
        assert_eq!(describe_target(&Target::all()), "all nodes");
    }
}
