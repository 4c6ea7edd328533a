//! `ensign fleet healthcheck`: the health checks of what is assigned, run now.

use clap::Args;
use serde_json::json;

use crate::fleet::NodeResult;
use crate::model::{HealthStatus, HumanDuration};
use crate::wire::command::{Healthcheck, is_token};
use crate::wire::report::HealthReport;
use crate::wire::{Action, json as strict};

use super::super::error::{Exit, Failure};
use super::super::ui::{Tone, Ui, text};
use super::facts::print_without;
use super::session::Context;
use super::target_filter::{TargetFilterArgs, question};
use super::{follow, render_job};
use crate::cli::local::inputs::OutputFormat;

#[derive(Debug, Args)]
pub(super) struct HealthcheckArgs {
    #[command(flatten)]
    which: TargetFilterArgs,
    /// Only the checks of this channel.
    #[arg(long, value_name = "NAME")]
    channel: Option<String>,
    /// How long it may take on a node, and how long to wait for the nodes.
    #[arg(long, value_name = "DURATION", default_value = "1m")]
    timeout: HumanDuration,
}

pub(super) async fn run(args: HealthcheckArgs, context: &Context, ui: &mut Ui) -> Result<Exit, Failure> {
    if let Some(channel) = args.channel.as_deref().filter(|channel| !is_token(channel)) {
        return Err(Failure::usage(format!("\"{channel}\" is not the name of a channel: 1 to 63 of a-z, 0-9, _ and -")));
    }
    let mut order = question(Action::Healthcheck(Healthcheck { channel: args.channel }), args.which.audience()?);
    order.options.timeout = args.timeout;
    let session = context.open().await?;
    let collected = follow::ask(order, args.timeout.get() + follow::MARGIN, &session, ui).await?;
    let results = &collected.results;
    match session.output {
        OutputFormat::Json => {
            ui.json(&json!({"id": collected.signed.command.id, "nodes": results, "complete": collected.complete}));
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
    ui.say(render_job::counted(results));
    Ok(if collected.complete { render_job::exit(results) } else { Exit::Partial })
}

fn print_node(result: &NodeResult, width: usize, ui: &mut Ui) {
    let Some(done) = &result.done else { return };
    let checks: Vec<HealthReport> = done.answer.as_ref().and_then(|answer| strict::from_value(answer).ok()).unwrap_or_default();
    let said = done.message.clone().unwrap_or_else(|| match checks.len() {
        1 => "1 check".to_owned(),
        count => format!("{count} checks"),
    });
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
