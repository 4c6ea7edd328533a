//! `ensign fleet assign`, `withdraw` and `channels`: the desired state of the fleet.

use std::collections::BTreeMap;

use clap::Args;
use jiff::Timestamp;

use crate::fleet::desired_state::view;
use crate::fleet::{CommandDraft, PreparedJob};
use crate::model::HumanDuration;
use crate::wire::Action;
use crate::wire::command::{Apply, Assign, MAX_ASSIGNMENT_LIFETIME, NoParameters};

use super::super::error::{CliError, Exit};
use super::super::format::{ago, nodes as count};
use super::super::ui::{Tone, Ui, text};
use super::channel_position::{check_channel, next_position};
use super::send::send_after;
use super::session::{FleetSession, OperatorArgs, check_failure, connection_failure};
use super::source::{ApplySource, SourceArgs};
use super::target::TargetArgs;
use crate::cli::local::inputs::OutputFormat;

#[derive(Debug, Args)]
pub(super) struct AssignArgs {
    /// Channel of the assignment: nodes apply the latest assignment of each channel.
    channel: String,
    #[command(flatten)]
    source: SourceArgs,
    /// Time between two runs on a node.
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    interval: HumanDuration,
    /// Time between two runs of the health checks alone; a critical check makes the node run at once.
    #[arg(long, value_name = "DURATION")]
    health_interval: Option<HumanDuration>,
    /// Time over which the first runs of the nodes are spread.
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    splay: HumanDuration,
    /// Report drift without repair: every run is a dry run.
    #[arg(long)]
    monitor: bool,
    /// Repair drift when it happens: nodes watch what they manage, and the interval stays as the safety net.
    #[arg(long, visible_alias = "watch", conflicts_with = "monitor")]
    enforce: bool,
    /// Time for which nodes may accept the assignment: sign it again before. Nodes apply it afterwards too, and raise an alarm.
    #[arg(long, value_name = "DURATION", default_value = "30d")]
    life: HumanDuration,
    #[command(flatten)]
    target: TargetArgs,
}

pub(super) async fn assign(args: AssignArgs, context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    check_channel(&args.channel)?;
    if args.target.noop {
        return Err(CliError::usage("an assignment is no dry run").hint("--monitor reports drift and repairs nothing"));
    }
    args.target.validate()?;
    if args.life > MAX_ASSIGNMENT_LIFETIME {
        return Err(CliError::usage(format!("--life is at most {MAX_ASSIGNMENT_LIFETIME}, not {}", args.life)));
    }
    let assign = |manifest| Assign {
        manifest,
        interval: args.interval,
        health_interval: args.health_interval,
        splay: args.splay,
        enforce: !args.monitor,
        watch: args.enforce,
    };
    let source = ApplySource::new(&args.source, args.target.check())?;
    let session = context.open().await?;
    session.check_keys()?;
    let to = args.target.target()?;
    let states = session.states_of(&to).await?;
    let (place, after) = next_position(&args.channel, &states, &session, ui).await?;
    let sample = Apply { url: "obj://b/k".to_owned(), sha256: "0".repeat(64), size: 1, data: BTreeMap::new() };
    // Checked with a sample before the manifest is uploaded.
    let draft = args.target.draft_to(to.clone(), Action::Assign(assign(sample)), Some(place.clone()));
    let checked = PreparedJob::new(&session, draft, Vec::new()).check();
    checked.map_err(|error| CliError::from_error(Exit::Usage, &error))?;
    let manifest = source.pin(&session, ui).await?;
    let action = Action::Assign(assign(manifest));
    ui.message(text!("channel {}, serial {}", place.name, place.serial));
    let draft = CommandDraft { lifetime: args.life, ..args.target.draft_to(to, action, Some(place)) };
    Ok(send_after(after, draft, &args.target, &states, &session, ui).await?.exit)
}

#[derive(Debug, Args)]
pub(super) struct WithdrawArgs {
    /// Channel to withdraw.
    channel: String,
    #[command(flatten)]
    target: TargetArgs,
}

pub(super) async fn withdraw(args: WithdrawArgs, context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    check_channel(&args.channel)?;
    if args.target.nodes.is_given() || args.target.only_where.is_some() {
        let hint = "to leave some nodes out, assign it to the others";
        return Err(CliError::usage("a channel is withdrawn as a whole").hint(hint));
    }
    let session = context.open().await?;
    // Read before the target: this message then fails when another one is stored in between.
    let states = session.states().await?;
    let (place, after) = next_position(&args.channel, &states, &session, ui).await?;
    let desired = view::read_channels(&session.bus, &session.subjects).await.map_err(|error| connection_failure(&error))?;
    let Some(latest) = desired.get(&args.channel) else {
        let known = desired.keys().cloned().collect::<Vec<_>>().join(", ");
        let hint = if known.is_empty() { "the fleet has no channels".to_owned() } else { format!("known channels: {known}") };
        return Err(CliError::usage(format!("unknown channel {}", args.channel)).hint(hint));
    };
    // The signature covers the target of the withdrawal, so the target must come from a signed command.
    let latest = session.checker()?.check(&latest.envelope).map_err(|error| check_failure(&error))?;
    if latest.command().channel.as_ref().is_none_or(|channel| channel.name != args.channel) {
        return Err(CliError::usage(format!("the command published for {} is of another channel", args.channel)));
    }
    let mut order = args.target.draft_to(latest.command().to.clone(), Action::Withdraw(NoParameters {}), Some(place));
    // Nodes that are offline now must still learn of the withdrawal.
    order.lifetime = MAX_ASSIGNMENT_LIFETIME;
    order.to.filter = None;
    Ok(send_after(after, order, &args.target, &states, &session, ui).await?.exit)
}

pub(super) async fn list(context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let session = context.open().await?;
    let desired = view::read_channels(&session.bus, &session.subjects).await.map_err(|error| connection_failure(&error))?;
    let states = session.states().await?;
    let rows = view::channel_rows(&desired, &states);
    match session.output {
        OutputFormat::Json => ui.json(&rows),
        OutputFormat::Jsonl => rows.iter().for_each(|row| ui.jsonl(row)),
        OutputFormat::Text => print_channels(&rows, &session, ui),
    }
    Ok(Exit::Success)
}

fn print_channels(rows: &[view::ChannelRow], session: &FleetSession, ui: &mut Ui) {
    if rows.is_empty() {
        ui.message("no channels: `ensign fleet assign CHANNEL SOURCE --all` creates one");
    }
    let now = session.now();
    for row in rows {
        if row.id.is_some() {
            print_row(row, now, ui);
        } else {
            ui.line(text!("{}  not in the stream", row.channel));
        }
        if row.differing > 0 {
            let names = row.differ.iter().map(crate::model::NodeId::as_str).collect::<Vec<_>>().join(" ");
            let serials = if row.id.is_some() { String::new() } else { format!("  (serials {})", serials(row)) };
            let keep = if row.differing == 1 { "keeps" } else { "keep" };
            let what = format!("{} {keep} an assignment that is not in the stream", count(row.differing));
            ui.line(text!("  differing   {}: {}{}", ui.paint(Tone::Error, what), names, serials));
            ui.line(text!("              assign the channel again: all nodes then accept it"));
        }
    }
}

fn serials(row: &view::ChannelRow) -> String {
    row.serials.iter().map(|(serial, nodes)| format!("{serial}: {nodes}")).collect::<Vec<_>>().join(", ")
}

fn print_row(row: &view::ChannelRow, now: Timestamp, ui: &mut Ui) {
    let what = match &row.manifest {
        None => "withdrawn".to_owned(),
        Some(manifest) if row.watch => format!("{manifest} (watched)"),
        Some(manifest) if row.enforce => manifest.clone(),
        Some(manifest) => format!("{manifest} (monitored)"),
    };
    ui.line(text!("{}@{}  {}", row.channel, row.serial, what));
    let tone = if row.in_force == row.nodes { Tone::Success } else { Tone::Changed };
    let reached = format!("{} of {}", row.in_force, count(row.nodes));
    let ended = row.manifest.is_none();
    let heading = if ended { "ended on" } else { "in force on" };
    ui.line(text!("  {:<11} {}", heading, ui.paint(tone, reached)));
    if !row.behind.is_empty() {
        let names = row.behind.iter().map(crate::model::NodeId::as_str).collect::<Vec<_>>().join(" ");
        ui.line(text!("  not on      {}  (serials {})", names, serials(row)));
    }
    if row.reverted > 0 {
        let what = format!("{} went back to the assignment before: `ensign fleet status` has the reasons", count(row.reverted));
        ui.line(text!("  reverted    {}", ui.paint(Tone::Error, what)));
    }
    // An ended assignment needs no new signature.
    match row.expires.filter(|_| !ended) {
        None => {}
        Some(expires) if expires < now => {
            let late = format!("expired {} ago: sign it again", ago(expires, now));
            ui.line(text!("  {}", ui.paint(Tone::Error, late)));
        }
        Some(expires) => ui.line(text!("  sign again  by {:.0}", expires)),
    }
    if let Some(reason) = &row.reason {
        ui.line(text!("  reason      {}", reason));
    }
}
