//! `ensign fleet nodes`: the nodes, or those that a `where` selects. `ensign fleet node`: one node in full.

use clap::Args;
use jiff::Timestamp;
use serde_json::json;

use crate::diag::{Diagnostic, count_noun, did_you_mean};
use crate::fleet::desired_state::view;
use crate::fleet::status;
use crate::fleet::status::{NodeConditions, NodeStatus};
use crate::fleet::targeting::states::NodeLiveness;
use crate::fleet::{NodeOutcome, NodeStates};
use crate::model::{HumanDuration, NodeId, RunOutcome};
use crate::wire::command::NoParameters;
use crate::wire::{Action, NodeState, Target, json as strict};

use super::super::error::{CliError, Exit};
use super::super::format::{ago, describe_watch, names};
use super::super::ui::{Tone, Ui, text};
use super::facts::print_without;
use super::node_keys::{self, NodeCommand};
use super::query::{query_draft, run_query};
use super::session::{FleetSession, OperatorArgs, connection_failure};
use super::status::print_rows;
use super::target_filter::TargetFilterArgs;
use super::{render_job, selection, unknown_nodes};
use crate::cli::local::inputs::OutputFormat;

/// Longest wait for the status of a node.
const STATUS_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(3);

#[derive(Debug, Args)]
pub(super) struct NodesArgs {
    #[command(flatten)]
    which: TargetFilterArgs,
    /// Only nodes with a failed or interrupted last run, or with a failing resource.
    #[arg(long, conflicts_with = "only_where")]
    failed: bool,
    /// Only nodes that are offline: silent or stopped.
    #[arg(long, conflicts_with = "only_where")]
    offline: bool,
    /// Only nodes without the latest assignment, or with an older agent or trust bundle than most nodes.
    #[arg(long, conflicts_with = "only_where")]
    outdated: bool,
    /// Longest wait for the nodes, with --where.
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    timeout: HumanDuration,
}

pub(super) async fn nodes(args: NodesArgs, context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let to = args.which.target_or_all()?;
    let session = context.open().await?;
    session.expect(&to);
    let states = session.states().await?;
    unknown_nodes::check_groups(&args.which.nodes.group, &states)?;
    let Some(expression) = &args.which.only_where else {
        unknown_nodes::warn(&to, &states, ui);
        let mut chosen = select_status(&states, |state| to.includes(&state.node, &state.groups));
        let desired = match args.outdated {
            true => Some(view::read_channels(&session.bus, &session.subjects).await.map_err(|error| connection_failure(&error))?),
            false => None,
        };
        NodeConditions { failed: args.failed, offline: args.offline, outdated: desired }.retain(&mut chosen, &states);
        print_rows(&chosen, &session, ui);
        return Ok(Exit::Success);
    };
    let selection = selection::select(&to, expression, args.timeout.as_std(), &states, &session, ui).await?;
    match session.output {
        OutputFormat::Json => ui.json(&selection),
        OutputFormat::Jsonl => {
            selection.selected.iter().for_each(|node| ui.jsonl(&json!({"node": node, "selected": true})));
            selection.not_selected.iter().for_each(|node| ui.jsonl(&json!({"node": node, "selected": false})));
            selection.unknown.iter().for_each(|result| ui.jsonl(result));
        }
        OutputFormat::Text => {
            let selected = select_status(&states, |state| selection.selected.contains(&state.node));
            print_rows(&selected, &session, ui);
            if !selection.not_selected.is_empty() {
                ui.line(text!("not selected: {}", names(&selection.not_selected)));
            }
            print_without(&selection.unknown.iter().collect::<Vec<_>>(), session.now(), ui);
        }
    }
    ui.message(selection.counts());
    // An offline node is named, and is no failure of the list. A refused answer is a failure.
    let silent = selection.unknown.iter().any(|result| !matches!(result.outcome, NodeOutcome::Offline(_)));
    if !selection.complete {
        return Ok(Exit::Partial);
    }
    match silent {
        true => Ok(render_job::exit_of_results(&selection.unknown)),
        false if selection.selected.is_empty() => {
            selection::warn_none_selected(&Target { filter: Some(expression.clone()), ..to }, &states, &session, ui).await;
            Ok(Exit::Partial)
        }
        false => Ok(Exit::Success),
    }
}

/// Returns the status of the nodes for which `wanted` holds.
fn select_status(states: &NodeStates, wanted: impl Fn(&NodeState) -> bool) -> Vec<NodeStatus> {
    let mut nodes = status::node_statuses(states);
    nodes.retain(|node| wanted(&node.state));
    nodes
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub(super) struct NodeArgs {
    /// Id of the node.
    name: Option<NodeId>,
    #[command(subcommand)]
    command: Option<NodeCommand>,
}

pub(super) async fn node(args: NodeArgs, context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let node = match (args.command, args.name) {
        (Some(command), _) => return node_keys::run(command, context, ui).await,
        (None, Some(node)) => node,
        (None, None) => return Err(CliError::usage("no node named").hint("`ensign fleet nodes` lists them")),
    };
    let session = context.open().await?;
    session.node_keys.expect(std::slice::from_ref(&node));
    let states = session.states().await?;
    let doubtful = states.unverified.iter().find(|doubtful| doubtful.node == node);
    if doubtful.is_none() && !states.contains_key(&node) {
        let unknown = CliError::usage(format!("unknown node {node}"));
        let near = did_you_mean(node.as_str(), states.keys().map(NodeId::as_str));
        return Err(unknown
            .hint(near.map_or_else(|| "`ensign fleet nodes` lists them".to_owned(), |near| format!("did you mean {near}?"))));
    }
    let asked = ask_status(&node, &states, &session, ui).await;
    let (live, why) = match asked {
        Ok(state) => (Some(state), None),
        Err(why) => (None, Some(why)),
    };
    let is_live = live.is_some();
    let Some(state) = live.or_else(|| states.get(&node).cloned()) else {
        let why = doubtful.map(|doubtful| doubtful.error.to_string()).unwrap_or_default();
        let diagnostic = Diagnostic::new(format!("cannot verify the state of {node}: {why}"));
        return Err(CliError::new(Exit::Partial, diagnostic));
    };
    let status = NodeStatus::verified(state, session.server_now());
    let document = || json!({"live": is_live, "why_not": why, "node": status});
    match session.output {
        OutputFormat::Text => print_node(&status, is_live, session.now(), ui),
        OutputFormat::Json => ui.json(&document()),
        OutputFormat::Jsonl => ui.jsonl(&document()),
    }
    if let Some(why) = why {
        ui.warn(text!("this is the last state it published: {}", why));
        return Ok(Exit::Partial);
    }
    Ok(Exit::Success)
}

/// Asks a node for its state. The error is the reason why the node did not send it.
async fn ask_status(node: &NodeId, states: &NodeStates, session: &FleetSession, ui: &mut Ui) -> Result<NodeState, String> {
    let draft = query_draft(Action::Status(NoParameters {}), Target::nodes(vec![node.clone()]));
    let (_, outcome) = run_query(draft, STATUS_TIMEOUT, states, session, ui).await.map_err(|failure| failure.message_text())?;
    let result = outcome.results.into_iter().next().ok_or("the node was not asked")?;
    let answer = result.done.as_ref().and_then(|done| done.answer.as_ref()).filter(|_| result.outcome == NodeOutcome::Stable);
    match answer.map(strict::from_value) {
        Some(Ok(state)) => Ok(state),
        Some(Err(error)) => Err(format!("cannot read its answer: {error}")),
        None => {
            let message = result.done.and_then(|done| done.message).map_or_else(String::new, |message| format!(": {message}"));
            Err(format!("{}{message}", result.outcome.as_str()))
        }
    }
}

fn print_node(row: &NodeStatus, live: bool, now: Timestamp, ui: &mut Ui) {
    let state = &row.state;
    let tone = if row.presence == NodeLiveness::Alive { Tone::Success } else { Tone::Error };
    let heard = if live { "asked now".to_owned() } else { format!("heard {} ago", ago(state.at, now)) };
    ui.line(text!("{}  {}  {}", state.node, ui.paint(tone, row.presence.as_str()), heard));
    let mut line = |name: &str, what: String| ui.line(text!("{:<12} {}", name, what));
    let or_none = |text: String| if text.is_empty() { "none".to_owned() } else { text };
    line("host", state.hostname.clone());
    line("agent", format!("{}, started {} ago, boot {}", state.version, ago(state.started, now), state.boot));
    if let Some(platform) = &state.platform {
        line("platform", platform.clone());
    }
    line("groups", or_none(state.groups.join(", ")));
    line("trust", format!("bundle {}", state.trust));
    let running = state.running.map_or_else(|| "nothing".to_owned(), |id| format!("job {id}"));
    line("running", format!("{running}, {} waiting", state.queued));
    line(
        "last run",
        state.last_run.as_ref().map_or_else(
            || "none".to_owned(),
            |run| {
                let noop = if run.noop { " (dry run)" } else { "" };
                let counts = &run.summary;
                let error = run.error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
                format!(
                    "{}{noop} {} ago, {} changed of {}, {} failed{error}",
                    row.outcome,
                    ago(run.timestamp, now),
                    counts.changed_resources,
                    count_noun(counts.total_resources, "resource"),
                    counts.failed_resources
                )
            },
        ),
    );
    for (name, channel) in &state.channels {
        let short = channel.digest.get(..12).unwrap_or("withdrawn");
        line("channel", format!("{name}: epoch {}, serial {}, {short}", channel.epoch, channel.serial));
    }
    for assignment in &state.assignments {
        line("assigned", describe_assignment(assignment, now));
    }
    line("outbox", format!("{} waiting, {} dropped", state.outbox, state.dropped));
    line("alarms", or_none(state.alarms.join("; ")));
}

fn describe_assignment(assignment: &crate::wire::report::AssignmentStatus, now: Timestamp) -> String {
    let force = assignment.in_force.as_deref().and_then(|digest| digest.get(..12)).unwrap_or("nothing in force");
    let mut parts = vec![format!("{}: {force}", assignment.channel)];
    if !assignment.selected {
        parts.push("not selected here".to_owned());
    }
    parts.push(if assignment.enforce { "enforced".to_owned() } else { "monitored only".to_owned() });
    parts.extend(assignment.watch.map(|watch| format!("watching {}", describe_watch(&watch, now))));
    let outcome = assignment.outcome.map(RunOutcome::as_str).unwrap_or("never");
    parts.push(assignment.ran.map_or_else(|| "never ran".to_owned(), |ran| format!("{outcome} {} ago", ago(ran, now))));
    if assignment.stable_runs > 1 {
        parts.push(format!("{} stable runs in a row", assignment.stable_runs));
    }
    parts.extend(assignment.health.as_ref().map(|health| format!("health {health}")));
    parts.push(format!("until {:.0}", assignment.expires));
    parts.join(", ")
}
