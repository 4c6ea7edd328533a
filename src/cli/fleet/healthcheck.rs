//! `ensign fleet healthcheck`: a run of the health checks of the assignments.

use clap::Args;
use serde_json::json;

use crate::diag::count_noun;
use crate::fleet::NodeResult;
use crate::fleet::job::follow::TRAVEL_TIME;
use crate::model::{HealthStatus, HumanDuration};
use crate::wire::command::Healthcheck;
use crate::wire::report::HealthReport;
use crate::wire::{Action, json as strict};

use super::super::error::{CliError, Exit};
use super::super::ui::{Tone, Ui, text};
use super::channel_position::check_channel;
use super::facts::print_without;
use super::query::{query_draft, run_query};
use super::render_job;
use super::session::OperatorArgs;
use super::target_filter::TargetFilterArgs;
use crate::cli::local::inputs::OutputFormat;

#[derive(Debug, Args)]
pub(super) struct HealthcheckArgs {
    #[command(flatten)]
    which: TargetFilterArgs,
    /// Channel whose checks run.
    #[arg(long, value_name = "NAME")]
    channel: Option<String>,
    /// Longest run on a node, and longest wait for the nodes.
    #[arg(long, value_name = "DURATION", default_value = "1m")]
    timeout: HumanDuration,
}

pub(super) async fn run(args: HealthcheckArgs, context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    args.channel.as_deref().map_or(Ok(()), check_channel)?;
    let mut draft = query_draft(Action::Healthcheck(Healthcheck { channel: args.channel }), args.which.target()?);
    draft.options.timeout = args.timeout;
    let session = context.open().await?;
    let states = session.states_if_available(&draft.to).await?;
    let (signed, outcome) = run_query(draft, args.timeout.as_std() + TRAVEL_TIME, &states, &session, ui).await?;
    let results = &outcome.results;
    match session.output {
        OutputFormat::Json => {
            ui.json(&json!({"id": signed.command.id, "nodes": results, "complete": outcome.complete && outcome.all_known}));
        }
        OutputFormat::Jsonl => results.iter().for_each(|result| ui.jsonl(result)),
        OutputFormat::Text => {
            let (answered, without): (Vec<_>, Vec<_>) =
                results.iter().partition(|result| result.done.as_ref().is_some_and(|done| done.answer.is_some()));
            let width = answered.iter().map(|result| result.node.as_str().len()).max().unwrap_or(0);
            answered.iter().for_each(|result| print_node(result, width, ui));
            print_without(&without, session.now(), ui);
        }
    }
    ui.message(render_job::count_outcomes_text(results));
    Ok(if outcome.complete && outcome.all_known { render_job::exit_of_results(results) } else { Exit::Partial })
}

fn print_node(result: &NodeResult, width: usize, ui: &mut Ui) {
    let Some(done) = &result.done else { return };
    let checks: Vec<HealthReport> = done.answer.as_ref().and_then(|answer| strict::from_value(answer).ok()).unwrap_or_default();
    let said = done.message.clone().unwrap_or_else(|| count_noun(checks.len() as u64, "check"));
    ui.line(text!("{:<width$}  {}", result.node.as_str(), said));
    for check in checks {
        let tone = match check.result.status {
            HealthStatus::Ok => Tone::Success,
            HealthStatus::Warning => Tone::Changed,
            HealthStatus::Critical | HealthStatus::Unknown => Tone::Error,
        };
        let word = ui.paint(tone, check.result.status.as_str());
        ui.line(text!("  {:<8} {} {} {}  {}", word, check.channel, check.resource, check.result.name, check.result.output));
    }
}
