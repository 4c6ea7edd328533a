//! `ensign fleet rollout`, `halt` and `resume`: commands in waves, from wherever they were sent.

use clap::{Args, Subcommand};
use jiff::Timestamp;
use uuid::Uuid;

use crate::diag::chain;
use crate::fleet::rollout::{self, RolloutView};
use crate::fleet::{NodeResult, dispatch};
use crate::model::{NodeId, Span};
use crate::wire::Command;
use crate::wire::command::Waves;

use super::super::error::{Exit, Failure};
use super::super::local::OutputFormat;
use super::super::ui::{Tone, Ui};
use super::job::{awaited, job_id, recorded, watch};
use super::report::{ago, deliver, nodes as count};
use super::session::{Context, Session, borrowed, failure, signers};

/// How many nodes that failed are named.
const NAMED: usize = 5;

#[derive(Debug, Args)]
pub(super) struct RolloutArgs {
    #[command(subcommand)]
    command: RolloutCommand,
}

#[derive(Debug, Subcommand)]
enum RolloutCommand {
    /// How it stands, wave by wave.
    Status {
        /// The id of the job.
        #[arg(value_parser = job_id)]
        id: Uuid,
    },
    /// Follows it until every node has come to its end, and says how it stands then.
    Watch {
        /// The id of the job.
        #[arg(value_parser = job_id)]
        id: Uuid,
        /// How long to wait; when not given, until no node can say anything new.
        #[arg(long, value_name = "DURATION")]
        timeout: Option<Span>,
    },
}

pub(super) async fn run(args: RolloutArgs, context: &Context, ui: &mut Ui) -> Result<Exit, Failure> {
    let session = context.open().await?;
    match args.command {
        RolloutCommand::Status { id } => {
            let (command, digest, waves) = in_waves(id, &session).await?;
            let mut gather = awaited(&command, &digest, &session).await?;
            let reports = session.subjects.job_reports(id);
            let stream = session.subjects.stream("JOBS");
            let reports = session.bus.last_per_subject(&stream, reports.as_str()).await.map_err(|error| failure(&error))?;
            for report in &reports {
                gather.take_report(report);
            }
            show(&command, &waves, &gather.finish(), &session, ui).await?;
            Ok(Exit::Done)
        }
        RolloutCommand::Watch { id, timeout } => {
            let (command, digest, waves) = in_waves(id, &session).await?;
            let followed = watch(&command, &digest, timeout, &session, ui).await?;
            // Who reads JSON has had its document, or its lines.
            if session.output == OutputFormat::Text {
                show(&command, &waves, &followed.results, &session, ui).await?;
            }
            Ok(followed.exit)
        }
    }
}

async fn in_waves(id: Uuid, session: &Session) -> Result<(Command, String, Waves), Failure> {
    let (command, envelope) = recorded(id, session).await?;
    let waves = command.options.waves.clone();
    let waves = waves.ok_or_else(|| Failure::usage(format!("the job {id} has no waves: every node began when it had it")))?;
    Ok((command, envelope.digest(), waves))
}

async fn show(command: &Command, waves: &Waves, results: &[NodeResult], session: &Session, ui: &mut Ui) -> Result<(), Failure> {
    let view = rollout::read(&session.bus, &session.subjects, command, waves, results).await;
    let view = view.map_err(|error| failure(&error))?;
    match session.output {
        OutputFormat::Json => ui.json(&view),
        OutputFormat::Jsonl => ui.jsonl(&view),
        OutputFormat::Text => print(&view, session.now(), ui),
    }
    Ok(())
}

fn print(view: &RolloutView, now: Timestamp, ui: &mut Ui) {
    let tone = match view.state {
        "done" => Tone::Good,
        "over_budget" => Tone::Bad,
        _ => Tone::Notable,
    };
    let health = if view.health { "; health is looked at once more" } else { "" };
    ui.line(format_args!("rollout {}  {}{health}", view.id, ui.paint(tone, &view.state.replace('_', " "))));
    let title = format!(
        "{:>4}  {:<20}  {:>6} {:>8} {:>6} {:>6} {:>6} {:>6}",
        "WAVE", "BEGINS", "NODES", "WAITING", "OK", "FAILED", "HALTED", "OTHER"
    );
    ui.line(ui.paint(Tone::Dim, &title));
    for wave in &view.waves {
        let begins = if wave.begins > now { format!("in {}", ago(now, wave.begins)) } else { format!("{:.0}", wave.begins) };
        ui.line(format_args!(
            "{:>4}  {begins:<20}  {:>6} {:>8} {:>6} {:>6} {:>6} {:>6}",
            wave.number, wave.nodes, wave.waiting, wave.ok, wave.failed, wave.halted, wave.other
        ));
    }
    let mut names: Vec<&str> = view.failed.iter().take(NAMED).map(NodeId::as_str).collect();
    let more = format!("+{}", view.failed.len().saturating_sub(names.len()));
    if view.failed.len() > names.len() {
        names.push(&more);
    }
    ui.line(format_args!("budget  {} of {} may fail  {}", view.failed.len(), view.max_failed, names.join(" ")));
    if let Some(word) = &view.word {
        let reason = word.reason.as_deref().unwrap_or("no reason given");
        let what = if word.what == "halt" { "halted" } else { "resumed" };
        ui.line(format_args!("{what} by {} {} ago: {reason}", word.by.join(", "), ago(word.at, now)));
    }
}

#[derive(Debug, Args)]
pub(super) struct WordArgs {
    /// The id of the job.
    #[arg(value_parser = job_id)]
    id: Uuid,
    /// Why, for the audit trail, and for those who look at the rollout.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// How long to wait for the nodes that are there. Those that come later find it before their turn.
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    timeout: Span,
}

pub(super) async fn say(args: WordArgs, halt: bool, context: &Context, ui: &mut Ui) -> Result<Exit, Failure> {
    let session = context.open().await?;
    let (job, ..) = in_waves(args.id, &session).await?;
    let signers = signers(&session.operator)?;
    let at = rollout::next_word(&session.bus, &session.subjects, job.id, session.now()).await;
    // A halt must go out also where there is no stream to keep it.
    let at = at.unwrap_or_else(|_| session.now());
    let command = rollout::word(halt, &job, args.reason).command(&session.operator.fleet, session.host.new_id(), at);
    let signed = dispatch::sign(command, &borrowed(&signers)).map_err(|error| Failure::from_error(Exit::Usage, &error))?;
    let kept = rollout::keep_word(&session.bus, &session.subjects, job.id, &signed).await;
    let what = if halt { "halted" } else { "resumed" };
    match &kept {
        Ok(()) => ui.say(format_args!("{what}: every node that has not begun finds it before its turn")),
        Err(error) => ui.warn(format_args!("only nodes that are there now hear of it: {}", chain(error))),
    }
    let followed = deliver(&signed, args.timeout.get(), &session, ui).await?;
    ui.say(format_args!("`ensign fleet rollout status {}` shows how it stands; {}", job.id, count(followed.results.len())));
    Ok(if kept.is_err() { Exit::Failed } else { followed.exit })
}
