//! `ensign trust rule`: the rules of a trust bundle.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use jiff::Timestamp;

use crate::trust::decide::policy::names;
use crate::wire::bundle::Rule;
use crate::wire::{Envelope, TrustBundle};

use super::super::error::{CliError, Exit};
use super::super::ui::{Ui, text};
use super::files::{self, BundleEdit, BundleEditArgs};
use super::show;

#[derive(Debug, Subcommand)]
pub(super) enum RuleCommand {
    /// Add a rule. An option that is left out allows everything of its kind; `*` and `?` are wildcards.
    Add(Box<RuleAddArgs>),
    /// Remove a rule by its number.
    Remove(RuleRemoveArgs),
    /// List the rules with their numbers.
    List(RuleListArgs),
}

#[derive(Debug, Args)]
pub(super) struct RuleAddArgs {
    #[command(flatten)]
    edited: BundleEditArgs,
    /// Ids of the keys, with commas: ops-alice,ops-*.
    #[arg(long, value_name = "IDS", value_delimiter = ',', required = true)]
    keys: Vec<String>,
    /// Actions: ensure, apply, ...
    #[arg(long, value_name = "ACTIONS", value_delimiter = ',')]
    actions: Option<Vec<String>>,
    /// Resource types: package,service.
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    types: Option<Vec<String>>,
    /// Names of resources and paths: nginx*,/srv/www/**.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    names: Option<Vec<String>>,
    /// Paths and sources that templates and properties may read on a node: /etc/app/**, env:NAME, credential:NAME,
    /// kv:BUCKET/KEY, registrations.
    #[arg(long, value_name = "READS", value_delimiter = ',')]
    reads: Option<Vec<String>>,
    /// Nodes that a command may name.
    #[arg(long, value_name = "NODES", value_delimiter = ',')]
    nodes: Option<Vec<String>>,
    /// Groups that a command may name.
    #[arg(long, value_name = "GROUPS", value_delimiter = ',')]
    groups: Option<Vec<String>>,
    /// Channels.
    #[arg(long, value_name = "CHANNELS", value_delimiter = ',')]
    channels: Option<Vec<String>>,
    /// Most nodes of a command, each of them named.
    #[arg(long, value_name = "N")]
    max_nodes: Option<u64>,
    /// Allow dry runs only.
    #[arg(long)]
    noop_only: bool,
    /// Number of distinct keys of this rule that must sign.
    #[arg(long, value_name = "N", default_value_t = 1)]
    quorum: u32,
}

#[derive(Debug, Args)]
pub(super) struct RuleRemoveArgs {
    #[command(flatten)]
    edited: BundleEditArgs,
    /// Number of the rule, as `trust rule list` shows it.
    number: usize,
}

#[derive(Debug, Args)]
pub(super) struct RuleListArgs {
    /// Bundle, signed or not.
    file: PathBuf,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(command: &RuleCommand, now: Timestamp, ui: &mut Ui) -> Result<Exit, CliError> {
    match command {
        RuleCommand::Add(args) => add(args, now, ui),
        RuleCommand::Remove(args) => remove(args, now, ui),
        RuleCommand::List(args) => list(args, ui),
    }
}

fn add(args: &RuleAddArgs, now: Timestamp, ui: &mut Ui) -> Result<Exit, CliError> {
    let mut work = BundleEdit::open(&args.edited, now)?;
    let rule = Rule {
        keys: args.keys.clone(),
        actions: args.actions.clone(),
        types: args.types.clone(),
        names: args.names.clone(),
        reads: args.reads.clone(),
        nodes: args.nodes.clone(),
        groups: args.groups.clone(),
        channels: args.channels.clone(),
        max_nodes: args.max_nodes,
        noop_only: args.noop_only,
        quorum: args.quorum,
    };
    let able = work.bundle.keys.iter().filter(|key| names(&rule, &key.id) && !work.bundle.revoked.contains(&key.id)).count();
    if able < rule.quorum as usize {
        ui.warn(text!("the rule names {} keys that may sign, and requires {}: no command can satisfy it", able, rule.quorum));
    }
    work.bundle.rules.push(rule);
    work.save(&args.edited, now, ui)
}

fn remove(args: &RuleRemoveArgs, now: Timestamp, ui: &mut Ui) -> Result<Exit, CliError> {
    let mut work = BundleEdit::open(&args.edited, now)?;
    let count = work.bundle.rules.len();
    if args.number == 0 || args.number > count {
        return Err(CliError::usage(format!("unknown rule {}: the highest number is {count}", args.number)));
    }
    work.bundle.rules.remove(args.number - 1);
    work.save(&args.edited, now, ui)
}

fn list(args: &RuleListArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let is_signed = Envelope::parse(&files::read(&args.file)?).is_ok();
    let bundle: TrustBundle = if is_signed { files::read_signed(&args.file)?.bundle } else { files::read_unsigned(&args.file)? };
    if args.json {
        ui.json(&bundle.rules);
    } else {
        show::print_rules(&bundle, ui);
    }
    Ok(Exit::Success)
}
