//! `ensign facts`: the facts of this host.

use clap::Args;

use crate::facts;
use crate::model::merge;

use crate::cli::error::{CliError, Exit};
use crate::cli::local::inputs;
use crate::cli::local::inputs::{InputArgs, OutputFormat};
use crate::cli::ui::Ui;

/// Show the facts of this host.
#[derive(Debug, Args)]
pub struct LocalFactsArgs {
    /// GJSON path of the facts to show, as `host.info.platformFamily`.
    query: Option<String>,
    #[command(flatten)]
    given: InputArgs,
    /// Print YAML instead of JSON.
    #[arg(long)]
    yaml: bool,
    /// Output format: an indented document, or one line.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// Runs `ensign facts`.
pub fn facts(args: &LocalFactsArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let host = inputs::host();
    let gathered = facts::gather(&host, &inputs::facts_directories());
    for warning in &gathered.warnings {
        ui.warn(warning);
    }
    let value = merge::deep_merge(gathered.value, args.given.added_facts()?);
    let shown = match &args.query {
        None => value,
        Some(query) => crate::template::query(&value, query).ok_or_else(|| {
            CliError::new(Exit::Failed, crate::diag::Diagnostic::new(format!("no fact matches \"{query}\"")))
                .hint("`ensign facts` shows all facts")
        })?,
    };
    match (&shown, args.yaml, args.output) {
        (_, true, _) => ui.data(crate::yaml::to_string(&shown).as_bytes()),
        (serde_json::Value::String(text), false, OutputFormat::Text) => ui.data(format!("{text}\n").as_bytes()),
        (_, false, OutputFormat::Jsonl) => ui.jsonl(&shown),
        (_, false, OutputFormat::Text | OutputFormat::Json) => ui.json(&shown),
    }
    Ok(Exit::Success)
}
