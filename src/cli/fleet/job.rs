//! `ensign fleet job`: commands that were sent, from wherever they were sent.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use jiff::SignedDuration;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::diag::clean::cell_of;
use crate::fleet::job::dispatch;
use crate::fleet::job::dispatch::{Dispatched, SealedCommand};
use crate::fleet::job::outcome_groups;
use crate::fleet::job::records;
use crate::fleet::job::records::{JobError, JobRecord};
use crate::fleet::targeting::states;
use crate::fleet::{CheckedCommand, Checker, JobTracker, NodeResult, Outcome, plan};
use crate::model::{HumanDuration, NodeId};
use crate::transport::StartAt;
use crate::wire::{Command, Envelope};

use super::super::error::{Exit, Failure};
use super::super::ui::{Tone, Ui, text};
use super::follow::{self, MARGIN};
use super::go_ahead::{all_waves, go_on};
use super::plan::print_groups;
use super::render_job::{self, Followed, ago, cluster_lines, follow, node_line, nodes};
use super::session::{Context, Session, failure, unchecked};
use crate::cli::local::inputs::OutputFormat;

/// The widest column of the list; what is wider moves the others of its line.
const WIDE: usize = 48;

#[derive(Debug, Args)]
pub(super) struct JobArgs {
    #[command(subcommand)]
    command: JobCommand,
}

#[derive(Debug, Subcommand)]
enum JobCommand {
    /// Follows a command until every node has come to its end.
    Watch(Watch),
    /// The commands that were sent, the latest first.
    List(List),
    /// What became of a command on every node, as far as they have said.
    Show(Show),
    /// Sends a command once more, the same bytes, for nodes that did not answer; the others do nothing twice.
    Resend(Resend),
}

#[derive(Debug, Args)]
struct Watch {
    /// The id of the job.
    #[arg(value_parser = job_id)]
    id: Uuid,
    /// How long to wait; when not given, until no node can say anything new.
    #[arg(long, value_name = "DURATION")]
    timeout: Option<HumanDuration>,
}

#[derive(Debug, Args)]
struct List {
    /// How many.
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    limit: usize,
    /// How far back.
    #[arg(long, value_name = "DURATION", default_value = "7d")]
    since: HumanDuration,
}

#[derive(Debug, Args)]
struct Show {
    /// The id of the job.
    #[arg(value_parser = job_id)]
    id: Uuid,
    /// Everything that this node said.
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
}

#[derive(Debug, Args)]
struct Resend {
    /// The id of the job.
    #[arg(value_parser = job_id)]
    id: Uuid,
    /// How long to wait; when not given, until no node can say anything new.
    #[arg(long, value_name = "DURATION")]
    timeout: Option<HumanDuration>,
}

pub(super) async fn run(args: JobArgs, context: &Context, ui: &mut Ui) -> Result<Exit, Failure> {
    let session = context.open().await?;
    match args.command {
        JobCommand::Watch(Watch { id, timeout }) => {
            let record = record(id, &session).await?;
            Ok(watch(&record.command, &record.digest, timeout, &session, ui).await?.exit)
        }
        JobCommand::List(args) => list(&args, &session, ui).await,
        JobCommand::Show(args) => show(args, &session, ui).await,
        JobCommand::Resend(args) => resend(args, &session, ui).await,
    }
}

/// The id of a job on the command line.
pub(super) fn job_id(text: &str) -> Result<Uuid, String> {
    text.parse().map_err(|_| "not the id of a job; `ensign fleet job list` shows them".to_owned())
}

/// A record that can't be had, with what to do about it.
pub(super) fn missing(error: &JobError) -> Failure {
    match error {
        JobError::Bus(error) => failure(error),
        JobError::Unknown(_) => Failure::from_error(Exit::Usage, error).hint("`ensign fleet job list` shows the latest"),
        _ => Failure::from_error(Exit::Failed, error),
    }
}

async fn record(id: Uuid, session: &Session) -> Result<JobRecord, Failure> {
    records::record(&session.bus, &session.subjects, id).await.map_err(|error| missing(&error))
}

/// The command of a job, when it was signed by whom it must be.
pub(super) async fn checked(id: Uuid, checker: &Checker, session: &Session) -> Result<CheckedCommand, Failure> {
    let record = record(id, session).await?;
    checker.check(&record.envelope).map_err(|error| unchecked(&error))
}

/// The same as it was signed.
pub(super) async fn recorded(id: Uuid, session: &Session) -> Result<(Command, Envelope), Failure> {
    let record = record(id, session).await?;
    let envelope = Envelope::parse(&record.envelope).map_err(|error| Failure::from_error(Exit::Failed, &error))?;
    Ok((record.command, envelope))
}

/// What the server has of a command now.
async fn results(record: &JobRecord, session: &Session) -> Result<Vec<NodeResult>, Failure> {
    let states = session.states().await?;
    let expected = states::expected(&record.command.to, &states, session.server_now());
    records::results(&session.bus, &session.subjects, &session.roster, record, expected).await.map_err(|error| missing(&error))
}

/// Follows a command that was sent before, until no node can say anything new, or for so long.
pub(super) async fn watch(
    command: &Command,
    digest: &str,
    timeout: Option<HumanDuration>,
    session: &Session,
    ui: &mut Ui,
) -> Result<Followed, Failure> {
    let gather = awaited(command, digest, session).await?;
    let reports = session.subjects.job_reports(command.id);
    let stream = session.subjects.stream("JOBS");
    let mut feed = session.bus.follow(&stream, reports.as_str(), StartAt::Beginning).await.map_err(|error| failure(&error))?;
    let wait = timeout.map_or_else(|| remaining(command, session), HumanDuration::get);
    let followed = follow(gather, digest, &mut feed, None, Instant::now() + wait, session, ui);
    go_on(command, digest, session, followed).await
}

/// Everybody whom a command is for, before anything of them is read.
pub(super) async fn awaited(command: &Command, digest: &str, session: &Session) -> Result<JobTracker, Failure> {
    let states = session.states().await?;
    let expected = states::expected(&command.to, &states, session.server_now());
    Ok(follow::gatherer(command, digest, expected, session))
}

/// How long nodes may still work on it.
fn remaining(command: &Command, session: &Session) -> Duration {
    let waves = SignedDuration::try_from(all_waves(command)).unwrap_or(SignedDuration::MAX);
    let expires = command.expires.max(command.issued.saturating_add(waves).unwrap_or(command.expires));
    let until_expired = Duration::try_from(expires.duration_since(session.now())).unwrap_or_default();
    let since_expired = Duration::try_from(session.now().duration_since(expires)).unwrap_or_default();
    until_expired + command.options.timeout.get().saturating_sub(since_expired) + MARGIN
}

async fn list(args: &List, session: &Session, ui: &mut Ui) -> Result<Exit, Failure> {
    let back = SignedDuration::try_from(args.since.get()).unwrap_or(SignedDuration::MAX);
    let since = session.now().saturating_sub(back).unwrap_or_default();
    let mut records = records::records(&session.bus, &session.subjects).await.map_err(|error| missing(&error))?;
    records.retain(|record| record.command.issued >= since);
    records.truncate(args.limit);
    let mut tallies =
        records::tally(&session.bus, &session.subjects, &session.roster, &records).await.map_err(|error| missing(&error))?;
    let rows: Vec<(&JobRecord, BTreeMap<&str, usize>)> =
        records.iter().map(|record| (record, tallies.remove(&record.command.id).unwrap_or_default())).collect();
    match session.output {
        OutputFormat::Json => ui.json(&rows.iter().map(|(record, counts)| head(record, counts)).collect::<Vec<_>>()),
        OutputFormat::Jsonl => rows.iter().for_each(|(record, counts)| ui.jsonl(&head(record, counts))),
        OutputFormat::Text => {
            let table: Vec<[String; 4]> = rows.iter().map(|(record, counts)| columns(record, counts)).collect();
            let widest = |index: usize, title: &str| {
                table
                    .iter()
                    .filter_map(|row| row.get(index))
                    .map(|cell| cell.chars().count())
                    .max()
                    .unwrap_or(0)
                    .clamp(title.len(), WIDE)
            };
            let (actions, results, whom) = (widest(0, "ACTION"), widest(1, "RESULTS"), widest(2, "FOR"));
            let title =
                text!("{:<36} {:>5}  {:<actions$}  {:<results$}  {:<whom$}  WHAT", "JOB", "AGO", "ACTION", "RESULTS", "FOR");
            ui.line(ui.paint(Tone::Dim, title));
            for ((record, _), [action, counts, to, what]) in rows.iter().zip(&table) {
                let (id, ago) = (record.command.id, ago(record.command.issued, session.now()));
                let (action, to) = (cell_of(action, WIDE), cell_of(to, WIDE));
                let line = text!("{} {:>5}  {:<actions$}  {:<results$}  {:<whom$}  {}", id, ago, action, counts, to, what);
                ui.line(line.trim_end());
            }
        }
    }
    Ok(Exit::Success)
}

/// What a line of the list says behind the age: action, results, for whom, what and why.
fn columns(record: &JobRecord, counts: &BTreeMap<&str, usize>) -> [String; 4] {
    let command = &record.command;
    let counts = counts.iter().map(|(word, count)| format!("{count} {word}")).collect::<Vec<_>>().join(", ");
    let counts = if counts.is_empty() { "no answers".to_owned() } else { counts };
    let reason = command.reason.as_ref().map_or_else(String::new, |reason| format!("({reason})"));
    let what = words(&[&records::what(&command.action), &reason]);
    [action(command), counts, records::whom(&command.to), what]
}

/// Those of the words that are not empty, each with a blank behind it.
pub(super) fn words(words: &[&str]) -> String {
    words.iter().filter(|word| !word.is_empty()).map(|word| format!("{word} ")).collect()
}

/// `apply`, `dry apply`, `apply, plan`
fn action(command: &Command) -> String {
    let name = command.action.name();
    match (command.options.noop, command.options.approves.is_some()) {
        (true, _) => format!("dry {name}"),
        (false, true) => format!("{name}, plan"),
        (false, false) => name.to_owned(),
    }
}

/// A command without its properties, which may be secret.
fn head(record: &JobRecord, counts: &BTreeMap<&str, usize>) -> Value {
    let command = &record.command;
    json!({
        "id": command.id,
        "digest": record.digest,
        "issued": command.issued,
        "expires": command.expires,
        "action": command.action.name(),
        "what": records::what(&command.action),
        "noop": command.options.noop,
        "approves": command.options.approves,
        "to": command.to,
        "reason": command.reason,
        "keyids": record.keyids,
        "counts": counts,
    })
}

fn counts(results: &[NodeResult]) -> BTreeMap<&'static str, usize> {
    results.iter().fold(BTreeMap::new(), |mut counts, result| {
        *counts.entry(result.outcome.word()).or_default() += 1;
        counts
    })
}

async fn show(args: Show, session: &Session, ui: &mut Ui) -> Result<Exit, Failure> {
    let record = record(args.id, session).await?;
    let mut results = results(&record, session).await?;
    if let Some(node) = &args.node {
        results.retain(|result| result.node.as_str() == node);
        if results.is_empty() {
            return Err(Failure::usage(format!("the job {} was not for a node {node}", args.id)));
        }
    }
    match session.output {
        OutputFormat::Json => {
            let mut document = head(&record, &counts(&results));
            if let Some(document) = document.as_object_mut() {
                document.insert("clusters".to_owned(), json!(outcome_groups::cluster(&results)));
                document.insert("nodes".to_owned(), json!(results));
            }
            ui.json(&document);
        }
        OutputFormat::Jsonl => results.iter().for_each(|result| ui.jsonl(result)),
        OutputFormat::Text => print(&record, &results, args.node.is_some(), session, ui),
    }
    Ok(render_job::exit(&results))
}

fn print(record: &JobRecord, results: &[NodeResult], in_full: bool, session: &Session, ui: &mut Ui) {
    let command = &record.command;
    let now = session.now();
    ui.say(text!(
        "job {}: {}for {}",
        command.id,
        words(&[&action(command), &records::what(&command.action)]),
        records::whom(&command.to)
    ));
    let reason = command.reason.as_ref().map_or_else(String::new, |reason| format!(", because: {reason}"));
    ui.say(text!("signed {} ago by {} as it says{}", ago(command.issued, now), record.keyids.join(", "), reason));
    if let Some(plan) = command.options.approves {
        ui.say(text!("approves the plan {}", plan));
    }
    if records::is_open(command, now) {
        ui.say(text!("nodes take it until {:.0}; `ensign fleet job watch {}` follows", command.expires, command.id));
    }
    if !in_full {
        outcome_groups::cluster(results).iter().for_each(|cluster| cluster_lines(cluster, ui));
    }
    for result in results.iter().filter(|_| in_full) {
        ui.line(node_line(result, now, ui));
        if let Some(done) = result.done.as_ref().filter(|_| in_full) {
            for (resource, error) in &done.failures {
                ui.line(text!("      {}: {}", resource, error));
            }
            if let Some(answer) = &done.answer {
                ui.document(answer);
            }
        }
    }
    if command.options.noop && results.len() > 1 {
        ui.line("");
    }
    if command.options.noop {
        print_groups(&plan::groups(results), ui);
    }
    ui.say(render_job::counted(results));
}

async fn resend(args: Resend, session: &Session, ui: &mut Ui) -> Result<Exit, Failure> {
    let record = record(args.id, session).await?;
    let command = &record.command;
    if command.action.is_desired_state() {
        return Err(Failure::usage("what is standing needs no sending: nodes ask for it themselves"));
    }
    if !records::is_open(command, session.now()) {
        let over = Failure::usage(format!("nodes do not take it any more: it expired at {:.0}", command.expires));
        return Err(over.hint("send a new command: what is as wanted already stays as it is"));
    }
    let known = results(&record, session).await?;
    let waits = |result: &&NodeResult| {
        matches!(result.outcome, Outcome::NoAnswer | Outcome::Offline(_) | Outcome::Unfinished | Outcome::Busy)
    };
    let missing: Vec<NodeId> = known.iter().filter(waits).map(|result| result.node.clone()).collect();
    if missing.is_empty() {
        let all = if known.len() == 1 { "the only node has".to_owned() } else { format!("all {} have", nodes(known.len())) };
        ui.say(text!("{} answered: nothing is sent", all));
        return Ok(render_job::exit(&known));
    }
    ui.say(text!("{} of {} have not answered", missing.len(), nodes(known.len())));
    let states = session.states().await?;
    let mut expected = states::expected(&command.to, &states, session.server_now());
    expected.retain(|expected| missing.contains(&expected.node));
    let signed =
        SealedCommand { after: 0, command: command.clone(), digest: record.digest.clone(), envelope: record.envelope.clone() };
    let sent = dispatch::resend(&session.bus, &session.subjects, &signed, &missing).await.map_err(|error| failure(&error))?;
    let Dispatched { mut feed, mut inbox, asked } = sent;
    let gather = follow::gatherer(command, &record.digest, expected, session);
    let wait = args.timeout.map_or_else(|| remaining(command, session), HumanDuration::get);
    let deadline = Instant::now() + wait;
    let followed = follow(gather, &record.digest, &mut feed, Some((&mut inbox, &asked)), deadline, session, ui).await?;
    let said: BTreeMap<NodeId, NodeResult> =
        known.into_iter().chain(followed.results).map(|result| (result.node.clone(), result)).collect();
    let all: Vec<NodeResult> = said.into_values().collect();
    Ok(if followed.exit == Exit::Partial { followed.exit } else { render_job::exit(&all) })
}
