//! `ensign data`: a data document, resolved on this host.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use crate::data::{EntryStatus, MergeMode, ResolvedData};
use crate::diag::Diagnostic;
use crate::engine::RunInputs;
use crate::facts;
use crate::host::Host;
use crate::model::merge::{deep_merge, shallow_merge};

use crate::cli::args::connection::Connection;
use crate::cli::error::{CliError, Exit};
use crate::cli::local::inputs;
use crate::cli::local::inputs::{InputArgs, OutputFormat};
use crate::cli::ui::{Ui, text};

/// Resolve hierarchical data.
#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// Print the data of a document as resolved on this host: overrides merged, templates resolved, annotations checked.
    #[command(alias = "resolve")]
    Parse(DataParseArgs),
    /// Show the facts, as `ensign facts`.
    #[command(hide = true)]
    Facts(super::facts::LocalFactsArgs),
}

/// Arguments of `ensign data parse`.
#[derive(Debug, Args)]
pub struct DataParseArgs {
    /// Document: a YAML or JSON file (or `https://...`, `kv://BUCKET/KEY`) with `data`, and perhaps `hierarchy` and
    /// `overrides`, such as a manifest.
    source: String,
    /// Facts as text, added to those of this host.
    #[arg(value_name = "FACT=VALUE")]
    facts: Vec<String>,
    /// YAML or JSON file of additional facts; those of the command line win.
    #[arg(long = "facts", value_name = "FILE")]
    facts_file: Option<PathBuf>,
    /// Add the environment variables of this process as facts.
    #[arg(long, short = 'E')]
    env_facts: bool,
    /// Value over the data, as text. May be repeated.
    #[arg(long = "data", short = 'D', value_name = "KEY=VALUE")]
    data: Vec<String>,
    /// YAML or JSON file of values over the data; `--data` wins.
    #[arg(long, value_name = "FILE")]
    data_file: Option<PathBuf>,
    /// The server of `kv://`.
    #[command(flatten)]
    connection: Connection,
    /// GJSON path of the part to print, as `web.port` or `users.#.name`.
    #[arg(long, value_name = "PATH")]
    query: Option<String>,
    /// Print variables, as `HIERA_KEY=value`, a line for each key.
    #[arg(long, conflicts_with_all = ["yaml", "explain"])]
    env: bool,
    /// Prefix of the names of variables.
    #[arg(long, value_name = "PREFIX", default_value = "HIERA")]
    env_prefix: String,
    /// Print YAML instead of JSON.
    #[arg(long)]
    yaml: bool,
    /// Print the result of every entry of the hierarchy too: `{"data": ..., "merge": ..., "order": [...]}`.
    #[arg(long, conflicts_with = "query")]
    explain: bool,
    /// Output format: an indented document, or one line.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// Runs `ensign data`.
pub fn data(command: &DataCommand, ui: &mut Ui) -> Result<Exit, CliError> {
    match command {
        DataCommand::Parse(args) => parse(args, ui),
        DataCommand::Facts(args) => super::facts::facts(args, ui),
    }
}

fn parse(args: &DataParseArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let host = inputs::host();
    let inputs = args.inputs(&host)?;
    let (mut resolved, mut rules) = inputs::resolve_data(&args.source, &inputs, &host)?;
    resolved.data = args.merge_values(resolved.data)?;
    std::mem::take(&mut rules.warnings).iter().for_each(|warning| ui.warn(warning));
    let wrong = rules.check(&resolved.data, inputs.secrets());
    if !wrong.is_empty() {
        return Err(CliError { exit: Exit::Usage, diagnostics: wrong });
    }
    inputs.secrets().redact_value(&mut resolved.data);
    if args.query.is_none() && !args.env && !args.explain && args.output == OutputFormat::Text {
        explain(&resolved, ui);
    }
    let shown = match &args.query {
        None if args.explain => json!({"data": resolved.data, "merge": resolved.merge, "order": resolved.order}),
        None => resolved.data,
        Some(query) => crate::template::query(&resolved.data, query).ok_or_else(|| {
            CliError::new(Exit::Failed, Diagnostic::new(format!("nothing in the data matches \"{query}\"")))
                .hint(format!("ensign data parse {} shows all data", args.source))
        })?,
    };
    match (&shown, args.output) {
        _ if args.env => variables(&args.env_prefix, &shown).into_iter().for_each(|line| ui.data(format!("{line}\n").as_bytes())),
        _ if args.yaml => ui.data(crate::yaml::to_string(&shown).as_bytes()),
        (Value::String(text), OutputFormat::Text) if args.query.is_some() => ui.data(format!("{text}\n").as_bytes()),
        (_, OutputFormat::Jsonl) => ui.jsonl(&shown),
        (_, OutputFormat::Text | OutputFormat::Json) => ui.json(&shown),
    }
    Ok(Exit::Success)
}

impl DataParseArgs {
    /// Returns the inputs. Later facts win: of the host, the environment, the file, the command line.
    fn inputs(&self, host: &Host) -> Result<RunInputs, CliError> {
        if let Some(fact) = self.facts.iter().find(|fact| !fact.contains('=')) {
            return Err(CliError::usage(format!("the fact \"{fact}\" has no value")).hint(format!("write {fact}=value")));
        }
        let (facts, facts_file, connection) = (self.facts.clone(), self.facts_file.clone(), self.connection.clone());
        let given = InputArgs { facts, facts_file, connection, ..InputArgs::default() };
        let added = given.added_facts()?;
        let environ = inputs::environment();
        let from_environ = if self.env_facts { json!(environ) } else { json!({}) };
        let host = host.clone();
        let gather = move || {
            let gathered = facts::gather(&host, &inputs::facts_directories()).value;
            shallow_merge(shallow_merge(gathered, from_environ.clone()), added.clone())
        };
        let mut inputs = RunInputs::new(gather, environ, None);
        inputs.exchange = Some(given.exchange());
        Ok(inputs)
    }

    /// Merges the values of the command line over the data.
    fn merge_values(&self, data: Value) -> Result<Value, CliError> {
        let mut data = data;
        if let Some(file) = &self.data_file {
            let over = inputs::document(file)?.into_value();
            if !over.is_object() {
                return Err(CliError::usage(format!("{}: a file of data must be a map", file.display())));
            }
            data = deep_merge(data, over);
        }
        let mut map = Map::new();
        for pair in &self.data {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| CliError::usage(format!("--data \"{pair}\" has no value")).hint("write --data key=value"))?;
            map.insert(key.to_owned(), Value::String(value.to_owned()));
        }
        Ok(deep_merge(data, Value::Object(map)))
    }
}

/// Prints the result of every entry of the hierarchy, for people.
fn explain(resolved: &ResolvedData, ui: &mut Ui) {
    if resolved.order.iter().all(|entry| entry.entry == "default" && entry.fate != EntryStatus::Used) {
        return;
    }
    let merge = if resolved.merge == MergeMode::First { "first" } else { "deep" };
    ui.message(text!("hierarchy, merge {}:", merge));
    let names: Vec<&str> = resolved.order.iter().map(|entry| entry.name.as_deref().unwrap_or(&entry.entry)).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    for (entry, name) in resolved.order.iter().zip(names) {
        let fate = match entry.fate {
            EntryStatus::Used => "matched, merged",
            EntryStatus::NoOverride => "matched, no override of this name",
            EntryStatus::NoMatch => "no match: its expressions have no value here",
            EntryStatus::NotReached => "not reached: the first that matched is taken",
        };
        ui.message(text!("  {:width$}  {}", name, fate));
    }
}

/// Returns a line for every key; any value but a map is one line.
fn variables(prefix: &str, data: &Value) -> Vec<String> {
    let Value::Object(map) = data else { return vec![format!("{prefix}_VALUE={data}")] };
    let name =
        |key: &str| key.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect::<String>();
    let shown = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => format!("{:.6}", number.as_f64().unwrap_or_default()),
        other => other.to_string(),
    };
    map.iter().map(|(key, value)| format!("{prefix}_{}={}", name(key), shown(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_become_variables() {
        let data = json!({"name": "a b", "web-port": 80, "ratio": 2.5, "on": true, "list": [1, "x"], "none": null});
        let expected = ["N_NAME=a b", "N_WEB_PORT=80", "N_RATIO=2.500000", "N_ON=true", "N_LIST=[1,\"x\"]", "N_NONE=null"];
        assert_eq!(variables("N", &data), expected);
        assert_eq!(variables("N", &json!([1])), ["N_VALUE=[1]"]);
    }
}
