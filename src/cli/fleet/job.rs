//! `ensign fleet job`: commands that were sent, from any machine.

use std::collections::{BTreeMap, BTreeSet};

use clap::{Args, Subcommand};
use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::diag::clean::cell_with_limit;
use crate::fleet::desired_state::view;
use crate::fleet::job::follow::remaining_wait;
use crate::fleet::job::outcome_groups;
use crate::fleet::job::records::{self, JobRecord};
use crate::fleet::{JobFollower, NodeOutcome, NodeResult, SealedCommand, plan};
use crate::model::{HumanDuration, NodeId};
use crate::wire::report::RevertStatus;

use super::super::error::{CliError, Exit};
use super::super::format;
use super::super::ui::{Tone, Ui, text};
use super::cancel::{self, JobCancelArgs};
use super::job_name::{JobName, action_name};
use super::job_record::{record, record_failure, results};
use super::plan_output::print_groups;
use super::render_job::{self, group_lines, node_line};
use super::retry::{self, JobRetryArgs};
use super::send::{follow, watch};
use super::session::{FleetSession, OperatorArgs, connection_failure};
use super::unknown_nodes::known_names;
use crate::cli::local::inputs::OutputFormat;

/// Widest column of the list; a wider value moves the rest of its line.
const MAX_COLUMN_WIDTH: usize = 48;

#[derive(Debug, Args)]
pub(super) struct JobArgs {
    #[command(subcommand)]
    command: JobCommand,
}

#[derive(Debug, Subcommand)]
enum JobCommand {
    /// Follow a command until every node has reached its terminal state.
    Watch(JobWatchArgs),
    /// List the commands that were sent, the latest first.
    List(JobListArgs),
    /// Show the result of a command on every node so far.
    Show(JobShowArgs),
    /// Send the same bytes again, for nodes that did not answer; the other nodes run nothing twice.
    Resend(JobResendArgs),
    /// Sign the action of a job again, for the nodes on which it failed.
    Retry(JobRetryArgs),
    /// Cancel a command: nodes that have not begun never begin, and a run in progress is stopped.
    Cancel(JobCancelArgs),
}

#[derive(Debug, Args)]
struct JobWatchArgs {
    /// Id of the job, its first characters, or @last.
    #[arg(hide_possible_values = true)]
    id: JobName,
    /// Longest wait; by default until no node can report anything new.
    #[arg(long, value_name = "DURATION")]
    timeout: Option<HumanDuration>,
}

#[derive(Debug, Args)]
struct JobListArgs {
    /// Most commands to list.
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    limit: usize,
    /// Age of the oldest command.
    #[arg(long, value_name = "DURATION", default_value = "7d")]
    since: HumanDuration,
    /// Only commands that failed, were refused or were interrupted on a node.
    #[arg(long)]
    failed: bool,
    /// Only commands that name this key as a signer.
    #[arg(long, value_name = "NAME")]
    signer: Option<String>,
}

#[derive(Debug, Args)]
struct JobShowArgs {
    /// Id of the job, its first characters, or @last.
    #[arg(hide_possible_values = true)]
    id: JobName,
    /// Node whose messages are shown in full.
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
}

#[derive(Debug, Args)]
struct JobResendArgs {
    /// Id of the job, its first characters, or @last.
    #[arg(hide_possible_values = true)]
    id: JobName,
    /// Longest wait; by default until no node can report anything new.
    #[arg(long, value_name = "DURATION")]
    timeout: Option<HumanDuration>,
}

pub(super) async fn run(args: JobArgs, context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let session = context.open().await?;
    match args.command {
        JobCommand::Watch(JobWatchArgs { id, timeout }) => {
            let record = record(id.resolve(&session).await?, &session).await?;
            let states = session.states().await?;
            Ok(watch(&record.command, &record.digest, timeout, &states, &session, ui).await?.exit)
        }
        JobCommand::List(args) => list(&args, &session, ui).await,
        JobCommand::Show(args) => show(args, &session, ui).await,
        JobCommand::Resend(args) => resend(args, &session, ui).await,
        JobCommand::Retry(args) => retry::run(args, &session, ui).await,
        JobCommand::Cancel(args) => cancel::run(args, &session, ui).await,
    }
}

async fn list(args: &JobListArgs, session: &FleetSession, ui: &mut Ui) -> Result<Exit, CliError> {
    let back = SignedDuration::try_from(args.since.as_std()).unwrap_or(SignedDuration::MAX);
    let since = session.now().saturating_sub(back).unwrap_or_default();
    let mut records = records::read_records(&session.bus, &session.subjects).await.map_err(|error| record_failure(&error))?;
    records.retain(|record| record.command.issued >= since);
    if let Some(signer) = &args.signer {
        check_signer(signer, &records)?;
        records.retain(|record| record.keyids.contains(signer));
    }
    if !args.failed {
        records.truncate(args.limit);
    }
    let mut tallies = records::count_outcomes(&session.bus, &session.subjects, &session.node_keys, &records)
        .await
        .map_err(|error| record_failure(&error))?;
    let rows: Vec<(&JobRecord, BTreeMap<&str, usize>)> =
        records.iter().map(|record| (record, tallies.remove(&record.command.id).unwrap_or_default())).collect();
    let rows: Vec<_> = rows.into_iter().filter(|(_, counts)| !args.failed || has_failure(counts)).take(args.limit).collect();
    match session.output {
        OutputFormat::Json => ui.json(&rows.iter().map(|(record, counts)| job_summary(record, counts)).collect::<Vec<_>>()),
        OutputFormat::Jsonl => rows.iter().for_each(|(record, counts)| ui.jsonl(&job_summary(record, counts))),
        OutputFormat::Text => {
            let table: Vec<[String; 4]> = rows.iter().map(|(record, counts)| columns(record, counts)).collect();
            let widest = |index: usize, title: &str| {
                table
                    .iter()
                    .filter_map(|row| row.get(index))
                    .map(|cell| cell.chars().count())
                    .max()
                    .unwrap_or(0)
                    .clamp(title.len(), MAX_COLUMN_WIDTH)
            };
            let (actions, results, whom) = (widest(0, "ACTION"), widest(1, "RESULTS"), widest(2, "FOR"));
            let title =
                text!("{:<36} {:>5}  {:<actions$}  {:<results$}  {:<whom$}  WHAT", "JOB", "AGO", "ACTION", "RESULTS", "FOR");
            ui.line(ui.paint(Tone::Dim, title));
            for ((record, _), [action, counts, to, what]) in rows.iter().zip(&table) {
                let (id, age) = (record.command.id, format::ago(record.command.issued, session.now()));
                let (action, to) = (cell_with_limit(action, MAX_COLUMN_WIDTH), cell_with_limit(to, MAX_COLUMN_WIDTH));
                let line = text!("{} {:>5}  {:<actions$}  {:<results$}  {:<whom$}  {}", id, age, action, counts, to, what);
                ui.line(line.trim_end());
            }
        }
    }
    Ok(Exit::Success)
}

/// Checks that a record names the signer.
fn check_signer(signer: &str, records: &[JobRecord]) -> Result<(), CliError> {
    let known: BTreeSet<&str> = records.iter().flat_map(|record| &record.keyids).map(String::as_str).collect();
    if known.contains(signer) {
        return Ok(());
    }
    Err(CliError::usage(format!("no command in this time names the signer {signer}")).hint(known_names("signers", &known)))
}

fn has_failure(counts: &BTreeMap<&str, usize>) -> bool {
    ["failed", "refused", "interrupted"].iter().any(|word| counts.contains_key(word))
}

/// Returns the columns behind the age: action, results, target, and the object with the reason.
fn columns(record: &JobRecord, counts: &BTreeMap<&str, usize>) -> [String; 4] {
    let command = &record.command;
    let counts = counts.iter().map(|(word, count)| format!("{count} {word}")).collect::<Vec<_>>().join(", ");
    let counts = if counts.is_empty() { "no answers".to_owned() } else { counts };
    let reason = command.reason.as_ref().map_or_else(String::new, |reason| format!("({reason})"));
    let what = format::spaced(&[&records::describe_object(&command.action), &reason]);
    [action_name(command), counts, records::describe_target(&command.to), what]
}

/// Returns a command without its properties, which may be secret.
fn job_summary(record: &JobRecord, counts: &BTreeMap<&str, usize>) -> Value {
    let command = &record.command;
    json!({
        "id": command.id,
        "digest": record.digest,
        "issued": command.issued,
        "expires": command.expires,
        "action": command.action.name(),
        "what": records::describe_object(&command.action),
        "noop": command.options.noop,
        "approves": command.options.approves,
        "to": command.to,
        "reason": command.reason,
        "keyids": record.keyids,
        "counts": counts,
    })
}

async fn show(args: JobShowArgs, session: &FleetSession, ui: &mut Ui) -> Result<Exit, CliError> {
    let record = record(args.id.resolve(session).await?, session).await?;
    let states = session.states().await?;
    let mut results = results(&record, &states, session).await?;
    if let Some(node) = &args.node {
        results.retain(|result| result.node.as_str() == node);
        if results.is_empty() {
            return Err(CliError::usage(format!("the job {} does not target the node {node}", record.command.id)));
        }
    }
    let mut reverted = view::reverted_nodes(&states, record.command.id);
    reverted.retain(|node, _| args.node.as_ref().is_none_or(|wanted| node.as_str() == wanted));
    match session.output {
        OutputFormat::Json => {
            let mut document = job_summary(&record, &render_job::counts(&results));
            if let Some(document) = document.as_object_mut() {
                document.insert("clusters".to_owned(), json!(outcome_groups::group_results(&results)));
                document.insert("nodes".to_owned(), json!(results));
                if !reverted.is_empty() {
                    document.insert("reverted".to_owned(), json!(reverted));
                }
            }
            ui.json(&document);
        }
        OutputFormat::Jsonl => results.iter().for_each(|result| ui.jsonl(result)),
        OutputFormat::Text => {
            print(&record, &results, args.node.is_some(), session, ui);
            for (node, RevertStatus { to, at, why }) in &reverted {
                let back =
                    to.map_or_else(|| "ended, as no assignment was before".to_owned(), |to| format!("reverted to serial {to}"));
                ui.line(text!("{}  {} {} ago: {}", node, ui.paint(Tone::Error, back), format::ago(*at, session.now()), why));
            }
        }
    }
    Ok(render_job::exit_of_results(&results))
}

fn print(record: &JobRecord, results: &[NodeResult], in_full: bool, session: &FleetSession, ui: &mut Ui) {
    let command = &record.command;
    let now = session.now();
    ui.message(text!(
        "job {}: {}for {}",
        command.id,
        format::spaced(&[&action_name(command), &records::describe_object(&command.action)]),
        records::describe_target(&command.to)
    ));
    let reason = command.reason.as_ref().map_or_else(String::new, |reason| format!(", because: {reason}"));
    ui.message(text!("signed {} ago by {} (not verified){}", format::ago(command.issued, now), record.keyids.join(", "), reason));
    if let Some(plan) = command.options.approves {
        ui.message(text!("approves the plan {}", plan));
    }
    if records::is_open(command, now) {
        ui.message(text!("nodes accept it until {:.0}; `ensign fleet job watch {}` follows", command.expires, command.id));
    }
    if !in_full {
        outcome_groups::group_results(results).iter().for_each(|cluster| group_lines(cluster, ui));
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
        print_groups(&plan::group_by_changes(results), ui);
    }
    ui.message(render_job::count_outcomes_text(results));
}

async fn resend(args: JobResendArgs, session: &FleetSession, ui: &mut Ui) -> Result<Exit, CliError> {
    let record = record(args.id.resolve(session).await?, session).await?;
    let command = &record.command;
    if command.action.is_desired_state() {
        return Err(CliError::usage("desired state is not resent: nodes fetch it themselves"));
    }
    if !records::is_open(command, session.now()) {
        let over = CliError::usage(format!("nodes no longer accept the command: it expired at {:.0}", command.expires));
        return Err(over.hint("send a new command: converged resources do not change"));
    }
    let states = session.states().await?;
    let known = results(&record, &states, session).await?;
    let waits = |result: &&NodeResult| {
        matches!(result.outcome, NodeOutcome::NoAnswer | NodeOutcome::Offline(_) | NodeOutcome::Unfinished | NodeOutcome::Busy)
    };
    let missing: Vec<NodeId> = known.iter().filter(waits).map(|result| result.node.clone()).collect();
    if missing.is_empty() {
        let all =
            if known.len() == 1 { "the only node has".to_owned() } else { format!("all {} have", format::nodes(known.len())) };
        ui.message(text!("{} answered: nothing is sent", all));
        return Ok(render_job::exit_of_results(&known));
    }
    ui.message(text!("{} of {} have not answered", missing.len(), format::nodes(known.len())));
    let mut expected = states.expected(&command.to);
    expected.retain(|expected| missing.contains(&expected.node));
    let signed = SealedCommand {
        last_sequence: 0,
        command: command.clone(),
        digest: record.digest.clone(),
        envelope: record.envelope.clone(),
    };
    let job = JobFollower::resend(session, &signed, expected).await.map_err(|error| connection_failure(&error))?;
    let wait = args.timeout.map_or_else(|| remaining_wait(command, session.now()), HumanDuration::as_std);
    let followed = follow(job, command, &record.digest, wait, session, ui).await?;
    let said: BTreeMap<NodeId, NodeResult> =
        known.into_iter().chain(followed.results).map(|result| (result.node.clone(), result)).collect();
    let all: Vec<NodeResult> = said.into_values().collect();
    Ok(if followed.exit == Exit::Partial { followed.exit } else { render_job::exit_of_results(&all) })
}
