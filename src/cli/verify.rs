//! `ensign verify`: the content of a signed command, and the decision of nodes about it, without a network.
//!
//! Uses the verifier of the agent, with the trust bundle and the id and groups of a node. Only the node knows its limits, its
//! ledger and its facts: they are not checked.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::engine::effects::of_signed;
use crate::host::Host;
use crate::host::fs;
use crate::model::NodeId;
use crate::resource::Types;
use crate::trust::{
    BundleAuthority, KnownTrust, NodeLimits, OpenedMessage, PublicKey, Rejection, ReplayStore, TrustedBundle, Verifier,
    open_bundle,
};
use crate::wire::report::ChannelPosition;
use crate::wire::{Action, Command, Envelope, MAX_ENVELOPE, Selector, Subjects, Target, digest, json};

use super::error::{CliError, Exit};
use super::key;
use super::ui::{Tone, Ui, text};
use crate::cli::args::types::TypesArgs;
use crate::cli::local::inputs::OutputFormat;

/// Verify a signed command against a trust bundle, without a network.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// File of the signed command.
    file: PathBuf,
    /// File of the signed trust bundle.
    #[arg(long, value_name = "FILE")]
    trust: PathBuf,
    /// Root key, or its file, that must have signed the bundle; the roots of the bundle itself by default.
    #[arg(long, value_name = "KEY")]
    root: Vec<String>,
    /// Node to decide for, may be repeated; by default the nodes that the command names.
    #[arg(long, value_name = "ID")]
    node: Vec<NodeId>,
    /// Group of these nodes, may be repeated; without --node, by default the groups that the command names.
    #[arg(long, value_name = "NAME")]
    group: Vec<String>,
    /// Time of arrival; now by default.
    #[arg(long, value_name = "TIME")]
    at: Option<Timestamp>,
    #[command(flatten)]
    types: TypesArgs,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// The decision of a node.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Verdict {
    /// The node would accept the command.
    Taken {
        signers: Vec<String>,
        /// The rule of the bundle that allows the command, from 1.
        rule: usize,
    },
    /// The node would refuse the command.
    Refused { code: &'static str, message: String },
}

/// The content of a signed command, and the decisions of nodes.
#[derive(Debug, Serialize)]
struct VerifyReport {
    /// SHA-256 of the signed bytes.
    digest: String,
    /// The key ids in the envelope: hints, not facts.
    keyids: Vec<String>,
    /// The signed command, where it can be parsed. Only the decisions of nodes say whether its signers may send it.
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<Command>,
    /// The decision of each node.
    nodes: BTreeMap<String, Verdict>,
}

/// A replay store without commands.
struct EmptyReplayStore;

impl ReplayStore for EmptyReplayStore {
    fn accepted_digest(&self, _: Uuid) -> Option<String> {
        None
    }

    fn channel(&self, _: &str) -> Option<ChannelPosition> {
        None
    }

    fn remembers_since(&self) -> Option<Timestamp> {
        None
    }

    fn trust(&self) -> KnownTrust {
        KnownTrust::AtLeast(0)
    }
}

/// Runs `ensign verify`.
///
/// # Errors
/// When a file can't be read, or the bundle is not accepted.
pub fn run(args: &VerifyArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let trust = bundle(args)?;
    let bytes = fs::read_named(&args.file, 4 * MAX_ENVELOPE as u64).map_err(|error| CliError::from_error(Exit::Usage, &error))?;
    let envelope = Envelope::parse(&bytes).ok();
    let command = envelope.as_ref().and_then(|envelope| json::read::<Command>(&envelope.payload).ok());
    let (nodes, groups) = nodes_to_check(args, command.as_ref());
    let now = args.at.unwrap_or_else(|| Host::system(None).now());
    let types = args.types.read()?;
    let verdict = |node: &NodeId| decide(&bytes, &trust, node, &groups, &types, now);
    let found = VerifyReport {
        digest: envelope.as_ref().map_or_else(|| digest(&bytes), Envelope::digest),
        keyids: envelope.map(|envelope| envelope.signatures.into_iter().map(|s| s.keyid).collect()).unwrap_or_default(),
        command,
        nodes: nodes.iter().map(|node| (node.to_string(), verdict(node))).collect(),
    };
    match args.output {
        OutputFormat::Text => print_report(&found, &trust, ui),
        OutputFormat::Json => ui.json(&found),
        OutputFormat::Jsonl => ui.jsonl(&found),
    }
    let refused = found.nodes.values().any(|verdict| matches!(verdict, Verdict::Refused { .. }));
    Ok(if refused { Exit::Refused } else { Exit::Success })
}

fn bundle(args: &VerifyArgs) -> Result<TrustedBundle, CliError> {
    let bytes =
        fs::read_named(&args.trust, 4 * MAX_ENVELOPE as u64).map_err(|error| CliError::from_error(Exit::Usage, &error))?;
    let own = open_bundle(&bytes, BundleAuthority::Stored).map_err(|error| CliError::from_error(Exit::Refused, &error))?;
    if args.root.is_empty() {
        return Ok(own);
    }
    let roots = args.root.iter().map(|text| Ok(key::public_key(text)?.0)).collect::<Result<Vec<PublicKey>, CliError>>()?;
    let threshold = u32::try_from(roots.len()).unwrap_or(u32::MAX);
    let pin = BundleAuthority::Roots { fleet: own.fleet(), keys: &roots, threshold };
    open_bundle(&bytes, pin).map_err(|error| CliError::from_error(Exit::Refused, &error))
}

/// Returns the nodes to decide for, and their groups: those of the caller, or else those of the command. The decision
/// about a pattern is for one node, and without any name for any node.
fn nodes_to_check(args: &VerifyArgs, command: Option<&Command>) -> (Vec<NodeId>, Vec<String>) {
    if !args.node.is_empty() {
        return (args.node.clone(), args.group.clone());
    }
    let to = command.map_or_else(Target::default, |command| command.to.clone());
    let examples = to.globs.iter().flatten().filter_map(|glob| glob.as_str().replace('*', "any").parse().ok());
    let mut nodes: Vec<NodeId> = to.nodes.iter().flatten().cloned().chain(examples).collect();
    nodes.retain(|node| to.includes_by_name(node) != Some(false));
    if nodes.is_empty() {
        nodes.extend("any".parse());
    }
    let groups = if args.group.is_empty() { to.groups.unwrap_or_default() } else { args.group.clone() };
    (nodes, groups)
}

fn decide(bytes: &[u8], trust: &TrustedBundle, node: &NodeId, groups: &[String], types: &Types, now: Timestamp) -> Verdict {
    // Only the node itself knows and enforces its limits.
    let limits = NodeLimits { exec: true, ..NodeLimits::default() };
    let subjects = Subjects::new(trust.fleet());
    let condition = |_: &str| Ok(true);
    let (seen, effects) = (&EmptyReplayStore, |kind: &str, properties: &Map<String, Value>| of_signed(types, kind, properties));
    let verifier = Verifier {
        trust,
        node,
        groups,
        limits: &limits,
        subjects: &subjects,
        now,
        replay_store: seen,
        evaluate_filter: &condition,
        effects: &effects,
    };
    match verifier.open(bytes, None) {
        Ok(OpenedMessage::New(command) | OpenedMessage::FilteredOut(command)) => {
            Verdict::Taken { signers: command.signers().to_vec(), rule: command.rule() }
        }
        Ok(OpenedMessage::ForOtherNodes(_) | OpenedMessage::NotTargeted) => {
            Verdict::Refused { code: "not_for_me", message: "the command is for other nodes".to_owned() }
        }
        // The replay store is empty.
        Ok(OpenedMessage::Duplicate { .. }) => {
            Verdict::Refused { code: "replayed", message: "the node accepted the command before".to_owned() }
        }
        Err(Rejection { code, message, .. }) => Verdict::Refused { code: code.as_str(), message },
    }
}

fn print_report(found: &VerifyReport, trust: &TrustedBundle, ui: &mut Ui) {
    let mut row = |name: &str, what: String| ui.line(text!("{:<9} {}", name, what));
    row("sha256", found.digest.clone());
    row("keys", format!("{} (not verified)", if found.keyids.is_empty() { "none".to_owned() } else { found.keyids.join(", ") }));
    if let Some(command) = &found.command {
        row("command", format!("{} of fleet {}", command.id, command.fleet));
        row("asks", describe_command(command));
        row("of", describe_command_target(command));
        row("issued", command.issued.to_string());
        if let Some(not_before) = command.not_before {
            row("from", not_before.to_string());
        }
        row("until", command.expires.to_string());
        if let Some(channel) = &command.channel {
            row("channel", format!("{} {}.{}", channel.name, channel.epoch, channel.serial));
        }
        if let Some(reason) = &command.reason {
            row("reason", reason.clone());
        }
    }
    row("trust", format!("bundle of {}, version {}, until {}", trust.fleet(), trust.version(), trust.expires()));
    for (node, verdict) in &found.nodes {
        let text = match verdict {
            Verdict::Taken { signers, rule } => {
                let limits = ui.paint(Tone::Dim, "; only the node checks its limits and replays");
                let taken = ui.paint(Tone::Success, "would accept it");
                text!("{}: signed by {}, allowed by rule {}{}", taken, signers.join(", "), rule, limits)
            }
            Verdict::Refused { code, message } => {
                text!("{} {}: {}", ui.paint(Tone::Error, "would refuse it:"), code, message)
            }
        };
        ui.line(text!("{:<9} {}", node, text));
    }
}

/// Returns the action of a command on one line.
pub(super) fn describe_command(command: &Command) -> String {
    describe_action(&command.action, command.options.noop)
}

/// Returns an action on one line.
pub(super) fn describe_action(action: &Action, noop: bool) -> String {
    let noop = if noop { " (dry run)" } else { "" };
    let what = match action {
        Action::Ensure(ensure) => format!("ensure {}#{}", ensure.kind, ensure.name().unwrap_or_default()),
        Action::Apply(apply) => format!("apply {} (sha256 {}, {} bytes)", apply.url, apply.sha256, apply.size),
        other => other.name().to_owned(),
    };
    format!("{what}{noop}")
}

/// Returns the target of a command on one line.
pub(super) fn describe_command_target(command: &Command) -> String {
    describe_target(&command.to)
}

/// Returns a target on one line.
pub(super) fn describe_target(to: &Target) -> String {
    let only_where = &to.filter;
    let selected = match to.selector() {
        Some(Selector::Nodes(nodes)) => format!("nodes {}", nodes.iter().map(NodeId::as_str).collect::<Vec<_>>().join(", ")),
        Some(Selector::Groups(groups)) => format!("groups {}", groups.join(", ")),
        Some(Selector::All) => "all nodes".to_owned(),
        Some(Selector::Mixed) => to.describe_selection(usize::MAX),
        None => "no nodes".to_owned(),
    };
    let to = format!("{selected}{}", to.describe_exclusion(usize::MAX));
    only_where.as_ref().map_or_else(|| to.clone(), |only| format!("{to}, where {only}"))
}
