//! `ensign fleet channel`: the versions of a channel, and the way back to an earlier one.

use clap::{Args, Subcommand};

use crate::diag::Diagnostic;
use crate::fleet::desired_state::history::{ChannelVersion, NoVersion, version_before, versions};
use crate::fleet::desired_state::view;
use crate::fleet::job::records::{describe_target, read_records};
use crate::fleet::{CheckedCommand, CommandDraft};
use crate::http::redact_url;
use crate::manifest::fetch;
use crate::model::HumanDuration;
use crate::registry::BusObjects;
use crate::wire::command::{Action, Apply, Channel, MAX_ASSIGNMENT_LIFETIME};

use super::super::error::{CliError, Exit};
use super::super::format::{ago, nodes as count};
use super::super::ui::{Tone, Ui, text};
use super::channel_position::{check_channel, next_position};
use super::confirm::{ConfirmArgs, confirm_signature};
use super::job_record::record_failure;
use super::send::send_after;
use super::session::{FleetSession, OperatorArgs, connection_failure};
use super::target::TargetArgs;
use crate::cli::local::inputs::OutputFormat;
use crate::cli::local::manifest_source::{BUNDLE_MAX, FETCH_TIMEOUT};

/// Digits of a digest that a line shows.
const SHORT_DIGEST: usize = 12;

#[derive(Debug, Args)]
pub(super) struct ChannelArgs {
    #[command(subcommand)]
    command: ChannelCommand,
}

#[derive(Debug, Subcommand)]
enum ChannelCommand {
    /// Show the versions of a channel, the latest first, with their signers.
    History {
        /// Channel to show.
        channel: String,
    },
    /// Assign an earlier version of a channel again, under a new serial.
    Rollback(Box<RollbackArgs>),
}

#[derive(Debug, Args)]
struct RollbackArgs {
    /// Channel to roll back.
    channel: String,
    /// Serial of the version to assign again; the assignment before the latest command by default.
    #[arg(long, value_name = "SERIAL")]
    to: Option<u64>,
    /// Time for which nodes may accept the assignment: sign it again before.
    #[arg(long, value_name = "DURATION", default_value = "30d")]
    life: HumanDuration,
    #[command(flatten)]
    target: TargetArgs,
}

pub(super) async fn run(args: ChannelArgs, context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    match args.command {
        ChannelCommand::History { channel } => history(&channel, context, ui).await,
        ChannelCommand::Rollback(args) => rollback(*args, context, ui).await,
    }
}

async fn history(channel: &str, context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    check_channel(channel)?;
    let session = context.open().await?;
    let versions = read_versions(channel, &session).await?;
    match session.output {
        OutputFormat::Json => ui.json(&versions),
        OutputFormat::Jsonl => versions.iter().for_each(|version| ui.jsonl(version)),
        OutputFormat::Text => print(channel, &versions, &session, ui),
    }
    Ok(Exit::Success)
}

async fn read_versions(channel: &str, session: &FleetSession) -> Result<Vec<ChannelVersion>, CliError> {
    let latest = view::read_channel(&session.bus, &session.subjects, channel).await;
    let latest = latest.map_err(|error| connection_failure(&error))?.desired;
    let records = read_records(&session.bus, &session.subjects).await.map_err(|error| record_failure(&error))?;
    Ok(versions(channel, latest.as_ref(), &records, &session.checker()?))
}

fn print(channel: &str, versions: &[ChannelVersion], session: &FleetSession, ui: &mut Ui) {
    if versions.is_empty() {
        ui.message(text!("no versions of channel {} on record: `ensign fleet channels` lists the channels", channel));
    }
    for version in versions {
        let digest: String = version.sha256.iter().flat_map(|sha256| sha256.chars()).take(SHORT_DIGEST).collect();
        let what = if version.manifest.is_some() { format!("sha256 {digest}") } else { "withdrawn".to_owned() };
        let mark = if version.latest { "  (latest)" } else { "" };
        let age = ago(version.issued, session.now());
        ui.line(text!("{}@{}  {} ago  {}  for {}{}", channel, version.serial, age, what, describe_target(&version.to), mark));
        match &version.unverified {
            None => ui.line(text!("  signed by   {}", version.signers.join(", "))),
            Some(why) => ui.line(text!("  {}", ui.paint(Tone::Error, format!("unverified  {why}")))),
        }
        if let Some(manifest) = &version.manifest {
            ui.line(text!("  manifest    {}", redact_url(manifest)));
        }
        if let Some(reason) = &version.reason {
            ui.line(text!("  reason      {}", reason));
        }
    }
}

async fn rollback(args: RollbackArgs, context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let RollbackArgs { channel, to, life, target } = args;
    check_channel(&channel)?;
    if target.target().is_ok() || target.only_where.is_some() {
        let hint = "an earlier version is assigned to the nodes that it was signed for; `ensign fleet assign` takes others";
        return Err(CliError::usage("a rollback has no target of its own").hint(hint));
    }
    if target.noop {
        return Err(CliError::usage("an assignment is no dry run"));
    }
    if life > MAX_ASSIGNMENT_LIFETIME {
        return Err(CliError::usage(format!("--life is at most {MAX_ASSIGNMENT_LIFETIME}, not {life}")));
    }
    target.waves.plan()?;
    let session = context.open().await?;
    session.check_keys()?;
    let mut states = session.states().await?;
    let (place, after) = next_position(&channel, &states, &session, ui).await?;
    let versions = read_versions(&channel, &session).await?;
    let earlier = version_before(&channel, &versions, to).map_err(|error| no_version(&error, &channel, &versions))?;
    let Action::Assign(assign) = &earlier.command().action else { return Err(CliError::usage("the version is no assignment")) };
    check_bundle(&assign.manifest, &session).await?;
    let reason = target.reason.clone().or_else(|| Some(format!("rollback to serial {}", serial(earlier))));
    let draft = target.draft_to(earlier.command().to.clone(), earlier.command().action.clone(), Some(place.clone()));
    let mut draft = CommandDraft { lifetime: life, reason, ..draft };
    // The runs are those of the earlier version.
    draft.options.timeout = earlier.command().options.timeout;
    show(earlier, &place, states.expected(&draft.to).len(), &session, ui);
    if confirm_signature(target.confirm.yes, "not rolled back", &session, ui).await? {
        // The answer may have taken minutes.
        states = session.states_of(&draft.to).await?;
    }
    // The question was asked above.
    let target = TargetArgs { confirm: ConfirmArgs { yes: true }, ..target };
    Ok(send_after(after, draft, &target, &states, &session, ui).await?.exit)
}

fn serial(command: &CheckedCommand) -> u64 {
    command.command().channel.as_ref().map_or(0, |place| place.serial)
}

fn show(earlier: &CheckedCommand, place: &Channel, nodes: usize, session: &FleetSession, ui: &mut Ui) {
    let command = earlier.command();
    let Action::Assign(assign) = &command.action else { return };
    ui.message(text!("channel {}, serial {}: the same as serial {}", place.name, place.serial, serial(earlier)));
    ui.message(text!("  signed      {} ago by {}", ago(command.issued, session.now()), earlier.signers().join(", ")));
    ui.message(text!("  manifest    {}", redact_url(&assign.manifest.url)));
    ui.message(text!("  sha256      {}, {} bytes", assign.manifest.sha256, assign.manifest.size));
    ui.message(text!("  for         {}, now {}", describe_target(&command.to), count(nodes)));
    if let Some(reason) = &command.reason {
        ui.message(text!("  its reason  {}", reason));
    }
}

fn no_version(error: &NoVersion, channel: &str, versions: &[ChannelVersion]) -> CliError {
    let serials: Vec<String> = versions.iter().map(|version| version.serial.to_string()).collect();
    let known = if serials.is_empty() { "none".to_owned() } else { serials.join(", ") };
    CliError::from_error(Exit::Usage, error)
        .hint(format!("serials on record: {known}; `ensign fleet channel history {channel}` shows them"))
}

/// Checks that nodes can still fetch the bundle, with the signed digest. A `file:` URL is a file of each node.
async fn check_bundle(manifest: &Apply, session: &FleetSession) -> Result<(), CliError> {
    if manifest.url.starts_with("file:") {
        return Ok(());
    }
    let url = redact_url(&manifest.url);
    let hint = "nothing was signed; `ensign bundle push DIR` uploads the same directory again";
    let mut content = Vec::new();
    let pin = fetch::measure(&manifest.url, BUNDLE_MAX, FETCH_TIMEOUT, &BusObjects(&session.bus), &mut content).await;
    let pin = pin.map_err(|error| {
        let why = crate::diag::error_chain(&error);
        CliError::new(Exit::Failed, Diagnostic::new(format!("cannot read the bundle of the earlier version, {url}: {why}")))
            .hint(hint)
    })?;
    if pin.sha256 == manifest.sha256 {
        return Ok(());
    }
    let why = format!("{url} has other content than the earlier version: sha256 {}, not {}", pin.sha256, manifest.sha256);
    Err(CliError::new(Exit::Failed, Diagnostic::new(why)).hint(hint))
}
