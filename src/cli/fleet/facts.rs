//! `ensign fleet facts`: the facts of nodes, by a query.

use clap::Args;
use serde_json::{Value, json};

use crate::fleet::job::response_groups::group_responses;
use crate::fleet::{NodeOutcome, NodeResult};
use crate::model::HumanDuration;
use crate::wire::Action;
use crate::wire::command::FactsQuery;

use super::super::error::{CliError, Exit};
use super::super::format::{names, nodes};
use super::super::ui::{Tone, Ui, text};
use super::query::{query_draft, run_query};
use super::render_job;
use super::session::OperatorArgs;
use super::target_filter::TargetFilterArgs;
use crate::cli::local::inputs::OutputFormat;

/// Most nodes without an answer that are named.
const MAX_SILENT: usize = 20;

#[derive(Debug, Args)]
pub(super) struct FactsArgs {
    /// GJSON path of the facts to show, as `host.info.platformFamily`.
    query: Option<String>,
    #[command(flatten)]
    which: TargetFilterArgs,
    /// Print a line per node, instead of a line per value.
    #[arg(long)]
    by_node: bool,
    /// Longest wait for the nodes.
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    timeout: HumanDuration,
}

pub(super) async fn run(args: FactsArgs, context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let draft = query_draft(Action::Facts(FactsQuery { query: args.query.clone() }), args.which.target()?);
    let session = context.open().await?;
    let states = session.states_if_available(&draft.to).await?;
    let (signed, outcome) = run_query(draft, args.timeout.as_std(), &states, &session, ui).await?;
    let (same, without) = group_responses(&outcome.results);
    match session.output {
        OutputFormat::Json => {
            ui.json(&json!({"id": signed.command.id, "query": args.query, "values": same, "without": without}));
        }
        OutputFormat::Jsonl => {
            for same in &same {
                same.nodes.iter().for_each(|node| ui.jsonl(&json!({"node": node, "value": same.value})));
            }
            without.iter().for_each(|result| ui.jsonl(result));
        }
        OutputFormat::Text => {
            // Whole sets of facts differ on every host.
            if args.by_node || args.query.is_none() {
                let mut lines: Vec<_> =
                    same.iter().flat_map(|same| same.nodes.iter().map(move |node| (node, &same.value))).collect();
                lines.sort_by_key(|(node, _)| *node);
                print_nodes(&lines, ui);
            } else {
                for same in &same {
                    ui.line(text!(
                        "{:>6}× {}  {}",
                        same.nodes.len(),
                        format_value(&same.value),
                        ui.paint(Tone::Dim, names(&same.nodes))
                    ));
                }
            }
            print_without(&without, session.now(), ui);
        }
    }
    ui.message(render_job::count_outcomes_text(&outcome.results));
    let nothing = same.iter().all(|same| same.value.is_null());
    if let Some(query) = args.query.as_deref().filter(|_| nothing && !same.is_empty()) {
        ui.message(text!("no node has a fact at {}; `ensign fleet facts --node NAME` shows all facts", query));
    }
    if !outcome.complete || !outcome.all_known {
        return Ok(Exit::Partial);
    }
    match render_job::exit_of_results(&outcome.results) {
        Exit::Success if nothing => Ok(Exit::Failed),
        exit => Ok(exit),
    }
}

fn print_nodes(lines: &[(&crate::model::NodeId, &Value)], ui: &mut Ui) {
    let width = lines.iter().map(|(node, _)| node.as_str().len()).max().unwrap_or(0);
    for (node, value) in lines {
        match value {
            // A single node needs no name beside its facts.
            Value::Object(_) if lines.len() == 1 => ui.document(value),
            Value::Object(_) => {
                ui.line(text!("{}:", node));
                ui.document(value);
            }
            plain => ui.line(text!("{:<width$}  {}", node.as_str(), format_value(plain))),
        }
    }
}

/// Formats a value on one line.
fn format_value(value: &Value) -> String {
    match value {
        Value::Null => "(none)".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Prints the nodes that did not answer, and the reasons.
pub(super) fn print_without(without: &[&NodeResult], now: jiff::Timestamp, ui: &mut Ui) {
    // Nodes that were not asked are left out.
    let unasked = |result: &&&NodeResult| result.outcome != NodeOutcome::NotSelected;
    let asked: Vec<_> = without.iter().filter(unasked).collect();
    for result in asked.iter().take(MAX_SILENT) {
        ui.line(render_job::node_line(result, now, ui));
    }
    let more = asked.len().saturating_sub(MAX_SILENT);
    if more > 0 {
        ui.line(text!("  and {} more without an answer", nodes(more)));
    }
}
