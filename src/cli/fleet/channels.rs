//! `ensign fleet assign`, `withdraw` and `channels`: what nodes keep to from now on.

use std::collections::BTreeMap;

use clap::Args;

use crate::fleet::{Order, channels};
use crate::model::Span;
use crate::wire::Action;
use crate::wire::command::{Apply, Assign, MAX_STANDING, Nothing};

use super::super::error::{Exit, Failure};
use super::super::local::OutputFormat;
use super::super::ui::{Tone, Ui};
use super::apply::{check_channel, next_place};
use super::collect;
use super::report::{ago, nodes as count, send};
use super::session::{Context, Session, failure};
use super::source::{Source, SourceArgs};
use super::target::TargetArgs;

#[derive(Debug, Args)]
pub(super) struct AssignArgs {
    /// The channel: nodes keep to the latest of each that is for them.
    channel: String,
    #[command(flatten)]
    source: SourceArgs,
    /// Time between two runs on a node.
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    interval: Span,
    /// Time between two looks at the health checks alone; a critical one makes the node run at once.
    #[arg(long, value_name = "DURATION")]
    health_interval: Option<Span>,
    /// Spreads the first runs of the nodes over this time.
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    splay: Span,
    /// Drift is said and not repaired: every run is a dry one.
    #[arg(long)]
    monitor: bool,
    /// How long nodes may take it up: sign it again before. They keep to it after that, and raise an alarm.
    #[arg(long, value_name = "DURATION", default_value = "30d")]
    life: Span,
    #[command(flatten)]
    target: TargetArgs,
}

pub(super) async fn assign(args: AssignArgs, context: &Context, ui: &mut Ui) -> Result<Exit, Failure> {
    check_channel(&args.channel)?;
    if args.target.noop {
        return Err(Failure::usage("an assignment is no dry run").hint("--monitor says drift and repairs nothing"));
    }
    args.target.check()?;
    if args.life > MAX_STANDING {
        return Err(Failure::usage(format!("--life is at most {MAX_STANDING}, not {}", args.life)));
    }
    let assign = |manifest| Assign {
        manifest,
        interval: args.interval,
        health_interval: args.health_interval,
        splay: args.splay,
        enforce: !args.monitor,
    };
    let source = Source::new(&args.source)?;
    let session = context.open().await?;
    session.has_keys()?;
    let place = next_place(&args.channel, &session).await?;
    let sample = Apply { url: "obj://b/k".to_owned(), sha256: "0".repeat(64), size: 1, data: BTreeMap::new() };
    collect::check(args.target.order(Action::Assign(assign(sample)), Some(place.clone()))?, &session)?;
    let manifest = source.pin(&session, ui).await?;
    let action = Action::Assign(assign(manifest));
    ui.say(format_args!("channel {}, serial {}", place.name, place.serial));
    let order = Order { life: args.life, ..args.target.order(action, Some(place))? };
    Ok(send(order, &args.target, &session, ui).await?.exit)
}

#[derive(Debug, Args)]
pub(super) struct WithdrawArgs {
    /// The channel.
    channel: String,
    #[command(flatten)]
    target: TargetArgs,
}

pub(super) async fn withdraw(args: WithdrawArgs, context: &Context, ui: &mut Ui) -> Result<Exit, Failure> {
    check_channel(&args.channel)?;
    if args.target.audience().is_ok() {
        let hint = "to leave some nodes out, assign it to the others";
        return Err(Failure::usage("a channel is withdrawn as a whole").hint(hint));
    }
    let session = context.open().await?;
    let desired = channels::desired(&session.bus, &session.subjects).await.map_err(|error| failure(&error))?;
    let Some(latest) = desired.get(&args.channel) else {
        let known = desired.keys().cloned().collect::<Vec<_>>().join(", ");
        let hint = if known.is_empty() { "the fleet has no channels".to_owned() } else { format!("there are: {known}") };
        return Err(Failure::usage(format!("there is no channel {}", args.channel)).hint(hint));
    };
    let place = next_place(&args.channel, &session).await?;
    let mut order = args.target.order_to(latest.command.to.clone(), Action::Withdraw(Nothing {}), Some(place));
    // Who is offline now shall still learn it.
    order.life = MAX_STANDING;
    order.to.only_where = None;
    Ok(send(order, &args.target, &session, ui).await?.exit)
}

pub(super) async fn list(context: &Context, ui: &mut Ui) -> Result<Exit, Failure> {
    let session = context.open().await?;
    let desired = channels::desired(&session.bus, &session.subjects).await.map_err(|error| failure(&error))?;
    let states = session.states().await?;
    let rows = channels::rows(&desired, &states);
    match session.output {
        OutputFormat::Json => ui.json(&rows),
        OutputFormat::Jsonl => rows.iter().for_each(|row| ui.jsonl(row)),
        OutputFormat::Text => print(&rows, &session, ui),
    }
    Ok(Exit::Done)
}

fn print(rows: &[channels::ChannelRow], session: &Session, ui: &mut Ui) {
    if rows.is_empty() {
        ui.say("no channels: `ensign fleet assign CHANNEL SOURCE --all` makes one");
    }
    let now = session.now();
    for row in rows {
        let what = match (&row.manifest, row.enforce) {
            (None, _) => "withdrawn".to_owned(),
            (Some(manifest), true) => manifest.clone(),
            (Some(manifest), false) => format!("{manifest} (monitored)"),
        };
        ui.line(format_args!("{}@{}  {what}", row.channel, row.serial));
        let tone = if row.in_force == row.nodes { Tone::Good } else { Tone::Notable };
        let reached = format!("{} of {}", row.in_force, count(row.nodes));
        let ended = row.manifest.is_none();
        let heading = if ended { "  ended on    " } else { "  in force on " };
        ui.line(format_args!("{heading}{}", ui.paint(tone, &reached)));
        if !row.behind.is_empty() {
            let names = row.behind.iter().map(crate::model::NodeId::as_str).collect::<Vec<_>>().join(" ");
            let serials = row.serials.iter().map(|(serial, nodes)| format!("{serial}: {nodes}")).collect::<Vec<_>>().join(", ");
            ui.line(format_args!("  not on      {names}  (serials {serials})"));
        }
        if ended {
            // Nobody needs to sign again what is not there.
        } else if row.expires < now {
            let late = format!("was to be signed again {} ago", ago(row.expires, now));
            ui.line(format_args!("  {}", ui.paint(Tone::Bad, &late)));
        } else {
            ui.line(format_args!("  sign again  by {:.0}", row.expires));
        }
        if let Some(reason) = &row.reason {
            ui.line(format_args!("  reason      {reason}"));
        }
    }
}
