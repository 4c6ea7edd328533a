//! `ensign agent status`: the status of the agent of this host, with or without a server.

use clap::Args;
use jiff::Timestamp;

use crate::agent::endpoints::socket_client;
use crate::wire::AgentStatus;

use super::location::{AgentLocationArgs, unreachable_agent};
use crate::cli::error::{CliError, Exit};
use crate::cli::format::describe_watch;
use crate::cli::local::inputs::OutputFormat;
use crate::cli::ui::{TextPart, Tone, Ui, text};

/// Arguments of `ensign agent status`.
#[derive(Debug, Args)]
pub struct AgentStatusArgs {
    #[command(flatten)]
    location: AgentLocationArgs,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// Runs `ensign agent status`.
///
/// # Errors
/// When no agent answers.
pub(super) fn run(args: &AgentStatusArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let status = socket_client::status(&args.location.state_dir(ui)?).map_err(|error| unreachable_agent(&error))?;
    match args.output {
        OutputFormat::Text => print_agent_status(&status, ui),
        OutputFormat::Json => ui.json(&status),
        OutputFormat::Jsonl => ui.jsonl(&status),
    }
    Ok(if status.active_alarms().is_empty() { Exit::Success } else { Exit::Failed })
}

fn print_agent_status(status: &AgentStatus, ui: &mut Ui) {
    let named = if status.node.as_str() == status.hostname { String::new() } else { format!(" ({})", status.hostname) };
    row(ui, "node", format_args!("{} of fleet {}{named}", status.node, status.fleet));
    row(ui, "groups", list(&status.groups, "none"));
    row(ui, "agent", format_args!("version {}, since {}, start {}", status.version, whole_seconds(status.started), status.boot));
    row(ui, "nats", connection(status));
    match status.trust.version {
        0 => row(ui, "trust", "no bundle yet: version 1 comes from the stream, signed by the root keys"),
        version => row(ui, "trust", format_args!("version {version}, until {}", whole_seconds(status.trust.expires))),
    }
    row(ui, "limits", limits(status));
    let channels = status.channels.iter().map(|(name, state)| format!("{name} {}.{}", state.epoch, state.serial));
    row(ui, "channels", list(&channels.collect::<Vec<_>>(), "none"));
    for (channel, watch) in &status.watches {
        row(ui, "watching", format_args!("{channel}: {}", describe_watch(watch, status.at)));
    }
    let running = status.running.map_or_else(|| "nothing".to_owned(), |id| id.to_string());
    row(ui, "running", format_args!("{running}; {} of at most {} wait", status.queued, status.queue));
    row(ui, "last run", last_run(status));
    row(ui, "commands", commands(status));
    row(ui, "outbox", format_args!("{} wait, {} dropped", status.outbox, status.dropped));
    if !status.pending.is_empty() {
        let what = format!("needed: {} changed in the configuration", status.pending.join(", "));
        row(ui, "restart", ui.paint(Tone::Changed, what));
    }
    for alarm in status.alarms.values() {
        row(ui, "alarm", ui.paint(Tone::Error, alarm));
    }
}

#[expect(clippy::needless_pass_by_value, reason = "values are made for the call")]
fn row(ui: &mut Ui, name: &str, what: impl TextPart) {
    ui.line(text!("{:<9} {}", name, what));
}

fn list(names: &[String], none: &str) -> String {
    if names.is_empty() { none.to_owned() } else { names.join(", ") }
}

/// Rounds a time down to whole seconds, for people.
fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

fn connection(status: &AgentStatus) -> String {
    let link = &status.connection;
    let servers = link.servers.join(", ");
    let version = link.server_version.as_ref().map(|version| format!(", version {version}")).unwrap_or_default();
    let again = if link.connects > 1 { format!(", connection number {}", link.connects) } else { String::new() };
    if link.connected { format!("connected to {servers}{version}{again}") } else { format!("not connected ({servers})") }
}

fn limits(status: &AgentStatus) -> String {
    let limits = &status.limits;
    let some = |what: &str, list: &Option<Vec<String>>, all: &str| match list {
        Some(list) if list.is_empty() => format!("no {what}"),
        Some(list) => format!("{what} {}", list.join(" ")),
        None => all.to_owned(),
    };
    let parts = [
        some("types", &limits.types, "all types"),
        some("paths", &limits.paths, "all paths"),
        if limits.exec { "commands" } else { "no commands" }.to_owned(),
        if limits.apply { "manifests" } else { "no manifests" }.to_owned(),
        some("fetches from", &limits.fetch_hosts, "fetches from anywhere but this host"),
    ];
    parts.join("; ")
}

fn last_run(status: &AgentStatus) -> String {
    let Some(run) = &status.last_run else { return "none since the agent started".to_owned() };
    let s = &run.summary;
    format!(
        "{}{} at {}: {} changed, {} failed, {} stable, {} skipped",
        run.outcome.as_str(),
        if run.noop { " (dry run)" } else { "" },
        whole_seconds(run.timestamp),
        s.changed_resources,
        s.failed_resources,
        s.stable_resources,
        s.skipped_resources
    )
}

fn commands(status: &AgentStatus) -> String {
    let refused: Vec<String> = status.counts.refused.iter().map(|(code, count)| format!("{code} {count}")).collect();
    let total: u64 = status.counts.refused.values().sum();
    let why = if refused.is_empty() { String::new() } else { format!(" ({})", refused.join(", ")) };
    format!("{} accepted, {total} refused{why} since the start", status.counts.accepted)
}
