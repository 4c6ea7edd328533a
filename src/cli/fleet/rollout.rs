//! `ensign fleet rollout`, `halt` and `resume`: commands in waves, sent from any machine.

use clap::{Args, Subcommand};
use jiff::Timestamp;
use uuid::Uuid;

use crate::diag::error_chain;
use crate::fleet::NodeResult;
use crate::fleet::job::records::JobRecord;
use crate::fleet::rollout::overrides;
use crate::fleet::rollout::view::{self, RolloutView};
use crate::model::HumanDuration;
use crate::wire::Action;
use crate::wire::command::{JobRef, RolloutPlan};

use super::super::error::{CliError, Exit};
use super::super::format::{ago, first_names, nodes as count};
use super::super::ui::{Tone, Ui, text};
use super::job_name::{JobName, show_signed_about};
use super::job_record::{checked_command, record, results};
use super::seal::{sign, sign_draft};
use super::send::{deliver, watch};
use super::session::{FleetSession, OperatorArgs, connection_failure};
use super::unknown_nodes;
use crate::cli::local::inputs::OutputFormat;

/// Failed nodes that are named.
const MAX_NAMED: usize = 5;

#[derive(Debug, Args)]
pub(super) struct RolloutArgs {
    #[command(subcommand)]
    command: RolloutCommand,
}

#[derive(Debug, Subcommand)]
enum RolloutCommand {
    /// Show the progress of a rollout, wave by wave.
    Status {
        /// Id of the job, its first characters, or @last.
        #[arg(hide_possible_values = true)]
        id: JobName,
    },
    /// Release the next wave of a rollout that was sent with --go, once the wave before has succeeded.
    Go {
        /// Id of the job, its first characters, or @last.
        #[arg(hide_possible_values = true)]
        id: JobName,
        /// Last wave to release, with all waves before it; the next wave by default.
        #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(2..=64))]
        wave: Option<u64>,
    },
    /// Follow a rollout until every node has reached its terminal state, then show its progress.
    Watch {
        /// Id of the job, its first characters, or @last.
        #[arg(hide_possible_values = true)]
        id: JobName,
        /// Longest wait; by default until no node can report anything new.
        #[arg(long, value_name = "DURATION")]
        timeout: Option<HumanDuration>,
    },
}

pub(super) async fn run(args: RolloutArgs, context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let session = context.open().await?;
    match args.command {
        RolloutCommand::Go { id, wave } => release_wave(id.resolve(&session).await?, wave, &session, ui).await,
        RolloutCommand::Status { id } => {
            let (record, waves) = rollout_record(id.resolve(&session).await?, &session).await?;
            let results = results(&record, &session.states().await?, &session).await?;
            show(&record, &waves, &results, &session, ui).await?;
            Ok(Exit::Success)
        }
        RolloutCommand::Watch { id, timeout } => {
            let (record, waves) = rollout_record(id.resolve(&session).await?, &session).await?;
            let states = session.states().await?;
            let followed = watch(&record.command, &record.digest, timeout, &states, &session, ui).await?;
            // JSON has its document or its lines already.
            if session.output == OutputFormat::Text {
                show(&record, &waves, &followed.results, &session, ui).await?;
            }
            Ok(followed.exit)
        }
    }
}

fn no_waves_failure(id: Uuid) -> CliError {
    CliError::usage(format!("the job {id} has no waves: every node began as soon as it had the command"))
}

async fn rollout_record(id: Uuid, session: &FleetSession) -> Result<(JobRecord, RolloutPlan), CliError> {
    let record = record(id, session).await?;
    let waves = record.command.options.waves.clone().ok_or_else(|| no_waves_failure(id))?;
    Ok((record, waves))
}

async fn release_wave(id: Uuid, wave: Option<u64>, session: &FleetSession, ui: &mut Ui) -> Result<Exit, CliError> {
    let checker = session.checker()?;
    let job = checked_command(id, &checker, session).await?;
    let waves = job.command().options.waves.as_ref().ok_or_else(|| no_waves_failure(id))?;
    if !waves.go {
        return Err(CliError::usage(format!("the waves of the job {id} need no go-ahead: it was sent without --go")));
    }
    let gone = view::read_last_go_ahead(&session.bus, &session.subjects, id).await.map_err(|error| connection_failure(&error))?;
    let wave = wave.unwrap_or(gone + 1);
    if wave > waves.steps.len() as u64 {
        return Err(CliError::usage(format!("the job {id} has {} waves; all of them have their go-ahead", waves.steps.len())));
    }
    show_signed_about(&format!("release wave {wave} of"), &job, session, ui);
    let signed = sign_draft(overrides::go_ahead_draft(job.command(), wave), session)?;
    overrides::store_go_ahead(&session.bus, &session.subjects, id, &signed).await.map_err(|error| connection_failure(&error))?;
    ui.message(text!("wave {} of {} may begin once wave {} has succeeded", wave, id, wave.saturating_sub(1)));
    Ok(Exit::Success)
}

async fn show(
    record: &JobRecord,
    waves: &RolloutPlan,
    results: &[NodeResult],
    session: &FleetSession,
    ui: &mut Ui,
) -> Result<(), CliError> {
    let view = view::read_rollout(&session.bus, &session.subjects, &record.command, &record.digest, waves, results).await;
    let view = view.map_err(|error| connection_failure(&error))?;
    match session.output {
        OutputFormat::Json => ui.json(&view),
        OutputFormat::Jsonl => ui.jsonl(&view),
        OutputFormat::Text => print(&view, session.now(), ui),
    }
    Ok(())
}

fn print(view: &RolloutView, now: Timestamp, ui: &mut Ui) {
    let tone = match view.state {
        "done" => Tone::Success,
        "over_budget" => Tone::Error,
        _ => Tone::Changed,
    };
    let health = if view.health { "; with a health gate" } else { "" };
    ui.line(text!("rollout {}  {}{}", view.id, ui.paint(tone, view.state.replace('_', " ")), health));
    let title = text!(
        "{:>4}  {:<20}  {:>6} {:>8} {:>6} {:>6} {:>6} {:>6}",
        "WAVE",
        "PROVED",
        "NODES",
        "WAITING",
        "OK",
        "FAILED",
        "HALTED",
        "OTHER"
    );
    ui.line(ui.paint(Tone::Dim, title));
    for wave in &view.waves {
        let proved = match (wave.witnesses, view.go) {
            (0, _) => String::new(),
            (witnesses, Some(go)) if go <= wave.number as u64 => format!("{} of {witnesses}, no go yet", wave.proved),
            (witnesses, _) => format!("{} of {witnesses}", wave.proved),
        };
        ui.line(text!(
            "{:>4}  {:<20}  {:>6} {:>8} {:>6} {:>6} {:>6} {:>6}",
            wave.number,
            proved,
            wave.nodes,
            wave.waiting,
            wave.ok,
            wave.failed,
            wave.halted,
            wave.other
        ));
    }
    let names = first_names(&view.failed, MAX_NAMED);
    ui.line(text!("budget  {} of {} may fail  {}", view.failed.len(), view.max_failed, names));
    if let Some(word) = &view.word {
        let reason = word.reason.as_deref().unwrap_or("no reason given");
        let what = match word.what {
            "halt" => "halted",
            "cancel" => "cancelled",
            _ => "resumed",
        };
        ui.line(text!("{} by {} {} ago: {}", what, word.by.join(", "), ago(word.at, now), reason));
    }
}

#[derive(Debug, Args)]
pub(super) struct OverrideArgs {
    /// Id of the job, its first characters, or @last.
    #[arg(hide_possible_values = true)]
    id: JobName,
    /// Reason, for the audit trail and for the status of the rollout.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Longest wait for the online nodes. Nodes that connect later read the command before their turn.
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    timeout: HumanDuration,
}

pub(super) async fn send_override(
    args: OverrideArgs,
    action: fn(JobRef) -> Action,
    context: &OperatorArgs,
    ui: &mut Ui,
) -> Result<Exit, CliError> {
    let session = context.open().await?;
    let checker = session.checker()?;
    let job = checked_command(args.id.resolve(&session).await?, &checker, &session).await?;
    let id = job.command().id;
    if job.command().options.waves.is_none() {
        return Err(no_waves_failure(id));
    }
    show_signed_about(action(JobRef { job: id }).name(), &job, &session, ui);
    // A halt must go out also where there is no stream to keep it.
    let last = overrides::read_checked_override(&session.bus, &session.subjects, &checker, id).await.unwrap_or_default();
    if last.as_ref().is_some_and(|last| overrides::is_cancel(last, id)) {
        return Err(CliError::usage(format!("the job {id} is cancelled, for good")).hint("send a new command"));
    }
    let at = overrides::next_override_time(last.as_ref(), session.now());
    let draft = overrides::override_draft(action, &job, args.reason);
    let signed = sign(draft.command(&session.operator.fleet, session.host.new_id(), at), &session)?;
    let kept = overrides::store_override(&session.bus, &session.subjects, id, &signed).await;
    let what = if matches!(signed.command.action, Action::Halt(_)) { "halted" } else { "resumed" };
    match &kept {
        Ok(()) => ui.message(text!("{}: every node that has not begun reads it before its turn", what)),
        Err(error) => ui.warn(text!("cannot store it, so only online nodes get it: {}", error_chain(error))),
    }
    let states = session.states_of(&signed.command.to).await?;
    unknown_nodes::warn(&signed.command.to, &states, ui);
    let expected = states.expected(&signed.command.to);
    let followed = deliver(&signed, expected, args.timeout.as_std(), &session, ui).await?;
    ui.message(text!("`ensign fleet rollout status {}` shows the progress; {}", id, count(followed.results.len())));
    Ok(if kept.is_err() { Exit::Failed } else { followed.exit })
}
