//! `ensign verify`: what a signed command is, and whether nodes would take it, by file and without a network.
//!
//! The same verifier as in the agent, with what is known here: the trust bundle, and who the node is. What only the node
//! itself knows (its limits, what it has seen, its facts) is left to it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use crate::engine::effects::of_signed;
use crate::host::Host;
use crate::host::fs;
use crate::model::NodeId;
use crate::trust::{
    KnownTrust, NodeLimits, OpenedMessage, Pin, PublicKey, Rejection, ReplayStore, TrustedBundle, Verifier, open_bundle,
};
use crate::wire::report::ChannelPosition;
use crate::wire::{Action, Command, Envelope, MAX_ENVELOPE, Selector, Subjects, Target, digest, json};

use super::error::{Exit, Failure};
use super::key;
use super::ui::{Tone, Ui, text};
use crate::cli::local::inputs::OutputFormat;

/// Check a signed command against a trust bundle, by file and without a network.
#[derive(Debug, Args)]
pub struct Verify {
    /// The signed command.
    file: PathBuf,
    /// The signed trust bundle.
    #[arg(long, value_name = "FILE")]
    trust: PathBuf,
    /// A root key that the bundle must be signed by, or its file; its own roots are believed when none is given.
    #[arg(long, value_name = "KEY")]
    root: Vec<String>,
    /// A node that it is for; may be repeated. Those that it names when not given.
    #[arg(long, value_name = "ID")]
    node: Vec<NodeId>,
    /// A group that these nodes are in; may be repeated. Those that it names when no node is given.
    #[arg(long, value_name = "NAME")]
    group: Vec<String>,
    /// When it comes; now when not given.
    #[arg(long, value_name = "TIME")]
    at: Option<Timestamp>,
    /// How results are written to standard output.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// What a node would say.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Verdict {
    /// It would take it.
    Taken {
        signers: Vec<String>,
        /// The rule of the bundle that allows it, from 1.
        rule: usize,
    },
    /// It would not.
    Refused { code: &'static str, message: String },
}

/// What is found.
#[derive(Debug, Serialize)]
struct Found {
    /// SHA-256 of the signed bytes.
    digest: String,
    /// The key ids that the envelope names: hints, not facts.
    keyids: Vec<String>,
    /// What was signed, where it can be read: that it was signed by somebody who may is said by the nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<Command>,
    /// What each node would say.
    nodes: BTreeMap<String, Verdict>,
}

/// Nothing was seen before.
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
pub fn run(args: &Verify, ui: &mut Ui) -> Result<Exit, Failure> {
    let trust = bundle(args)?;
    let bytes = fs::read_named(&args.file, 4 * MAX_ENVELOPE as u64).map_err(|error| Failure::from_error(Exit::Usage, &error))?;
    let envelope = Envelope::parse(&bytes).ok();
    let command = envelope.as_ref().and_then(|envelope| json::read::<Command>(&envelope.payload).ok());
    let (nodes, groups) = whom(args, command.as_ref());
    let now = args.at.unwrap_or_else(|| Host::system(None).now());
    let verdict = |node: &NodeId| judge(&bytes, &trust, node, &groups, now);
    let found = Found {
        digest: envelope.as_ref().map_or_else(|| digest(&bytes), Envelope::digest),
        keyids: envelope.map(|envelope| envelope.signatures.into_iter().map(|s| s.keyid).collect()).unwrap_or_default(),
        command,
        nodes: nodes.iter().map(|node| (node.to_string(), verdict(node))).collect(),
    };
    match args.output {
        OutputFormat::Text => say(&found, &trust, ui),
        OutputFormat::Json => ui.json(&found),
        OutputFormat::Jsonl => ui.jsonl(&found),
    }
    let refused = found.nodes.values().any(|verdict| matches!(verdict, Verdict::Refused { .. }));
    Ok(if refused { Exit::Refused } else { Exit::Success })
}

fn bundle(args: &Verify) -> Result<TrustedBundle, Failure> {
    let bytes = fs::read_named(&args.trust, 4 * MAX_ENVELOPE as u64).map_err(|error| Failure::from_error(Exit::Usage, &error))?;
    let own = open_bundle(&bytes, Pin::Kept).map_err(|error| Failure::from_error(Exit::Refused, &error))?;
    if args.root.is_empty() {
        return Ok(own);
    }
    let roots = args.root.iter().map(|text| Ok(key::public_key(text)?.0)).collect::<Result<Vec<PublicKey>, Failure>>()?;
    let threshold = u32::try_from(roots.len()).unwrap_or(u32::MAX);
    let pin = Pin::Roots { fleet: own.fleet(), keys: &roots, threshold };
    open_bundle(&bytes, pin).map_err(|error| Failure::from_error(Exit::Refused, &error))
}

/// The nodes that are asked about, and their groups. Where neither the caller nor the command names one, any will do.
fn whom(args: &Verify, command: Option<&Command>) -> (Vec<NodeId>, Vec<String>) {
    let any = || "any".parse().into_iter().collect();
    if !args.node.is_empty() {
        return (args.node.clone(), args.group.clone());
    }
    match command.and_then(|command| command.to.selector()) {
        Some(Selector::Nodes(nodes)) => (nodes.to_vec(), args.group.clone()),
        Some(Selector::Groups(groups)) if args.group.is_empty() => (any(), groups.to_vec()),
        _ => (any(), args.group.clone()),
    }
}

fn judge(bytes: &[u8], trust: &TrustedBundle, node: &NodeId, groups: &[String], now: Timestamp) -> Verdict {
    // The limits of a node stand in its own configuration, and are its to hold.
    let limits = NodeLimits { exec: true, ..NodeLimits::default() };
    let subjects = Subjects::new(trust.fleet());
    let condition = |_: &str| Ok(true);
    let (seen, effects) = (&EmptyReplayStore, &of_signed);
    let verifier =
        Verifier { trust, node, groups, limits: &limits, subjects: &subjects, now, seen, condition: &condition, effects };
    match verifier.open(bytes, None) {
        Ok(OpenedMessage::New(command) | OpenedMessage::NotSelected(command)) => {
            Verdict::Taken { signers: command.signers().to_vec(), rule: command.rule() }
        }
        Ok(OpenedMessage::Elsewhere(_)) => Verdict::Refused { code: "not_for_me", message: "it is for other nodes".to_owned() },
        // Nothing was seen before.
        Ok(OpenedMessage::Seen { .. }) => Verdict::Refused { code: "replayed", message: "it was accepted before".to_owned() },
        Err(Rejection { code, message, .. }) => Verdict::Refused { code: code.as_str(), message },
    }
}

fn say(found: &Found, trust: &TrustedBundle, ui: &mut Ui) {
    let mut row = |name: &str, what: String| ui.line(text!("{:<9} {}", name, what));
    row("sha256", found.digest.clone());
    row(
        "keys",
        format!("{} (as it says itself)", if found.keyids.is_empty() { "none".to_owned() } else { found.keyids.join(", ") }),
    );
    if let Some(command) = &found.command {
        row("command", format!("{} of fleet {}", command.id, command.fleet));
        row("asks", asked(command));
        row("of", whose(command));
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
                let limits = ui.paint(Tone::Dim, "; its own limits, and what it has seen, are its to check");
                let taken = ui.paint(Tone::Success, "would take it");
                text!("{}: signed by {}, allowed by rule {}{}", taken, signers.join(", "), rule, limits)
            }
            Verdict::Refused { code, message } => {
                text!("{} {}: {}", ui.paint(Tone::Error, "would refuse it:"), code, message)
            }
        };
        ui.line(text!("{:<9} {}", node, text));
    }
}

/// What a command asks for, on one line.
pub(super) fn asked(command: &Command) -> String {
    asked_of(&command.action, command.options.noop)
}

/// The same of an action.
pub(super) fn asked_of(action: &Action, noop: bool) -> String {
    let noop = if noop { " (dry run)" } else { "" };
    let what = match action {
        Action::Ensure(ensure) => format!("ensure {}#{}", ensure.kind, ensure.name().unwrap_or_default()),
        Action::Apply(apply) => format!("apply {} (sha256 {}, {} bytes)", apply.url, apply.sha256, apply.size),
        other => other.name().to_owned(),
    };
    format!("{what}{noop}")
}

/// Whom a command is for, on one line.
pub(super) fn whose(command: &Command) -> String {
    audience(&command.to)
}

/// The same of an audience.
pub(super) fn audience(to: &Target) -> String {
    let only_where = &to.only_where;
    let to = match to.selector() {
        Some(Selector::Nodes(nodes)) => format!("nodes {}", nodes.iter().map(NodeId::as_str).collect::<Vec<_>>().join(", ")),
        Some(Selector::Groups(groups)) => format!("groups {}", groups.join(", ")),
        Some(Selector::All) => "all nodes".to_owned(),
        None => "nobody".to_owned(),
    };
    only_where.as_ref().map_or_else(|| to.clone(), |only| format!("{to}, where {only}"))
}
