//! `ensign status TYPE NAME`: the current state of one resource.

use clap::Args;
use serde_json::{Map, Value, json};

use crate::diag::Diagnostic;
use crate::resource::{Providers, TypeRef, Types};

use crate::cli::args::types::TypesArgs;
use crate::cli::error::{CliError, Exit};
use crate::cli::local::inputs;
use crate::cli::local::inputs::OutputFormat;
use crate::cli::ui::Ui;

/// Show the current state of a resource of this host.
#[derive(Debug, Args)]
pub struct LocalStatusArgs {
    /// Resource type, as `file`.
    #[arg(value_name = "TYPE")]
    kind: String,
    /// Name of the resource, as `/etc/motd`.
    name: String,
    #[command(flatten)]
    types: TypesArgs,
    /// Print JSON instead of YAML.
    #[arg(long)]
    json: bool,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// Runs `ensign status`.
pub fn status(args: &LocalStatusArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let kind = find_type(&args.kind, &args.types.read()?)?;
    let host = inputs::host();
    let Some(query) = kind.query(&args.name) else {
        return Err(CliError::usage(format!("{} resources have no state to show", kind.name())));
    };
    let decoded = query.map_err(|error| CliError::usage(error.to_string()))?;
    let failed = |error: &dyn std::error::Error| CliError::from_error(Exit::Failed, error);
    let bound = decoded.bind("", &Providers::default(), &host).map_err(|error| failed(&error))?;
    let (ensure, state) = bound.observe(&host).map_err(|error| failed(&error))?;
    let mut shown = Map::new();
    shown.insert("type".to_owned(), json!(kind.name()));
    shown.insert("name".to_owned(), json!(args.name));
    shown.insert("ensure".to_owned(), json!(ensure));
    shown.extend(state);
    match (args.json, args.output) {
        (true, _) | (_, OutputFormat::Json) => ui.json(&shown),
        (_, OutputFormat::Jsonl) => ui.jsonl(&shown),
        (_, OutputFormat::Text) => ui.data(crate::yaml::to_string(&Value::Object(shown)).as_bytes()),
    }
    Ok(Exit::Success)
}

/// Finds the type of this name, or returns an error that suggests one.
pub fn find_type(name: &str, types: &Types) -> Result<TypeRef, CliError> {
    types.find(name).ok_or_else(|| {
        let diagnostic = Diagnostic::new(format!("unknown resource type \"{name}\""));
        CliError::new(Exit::Usage, diagnostic.hint(types.hint(name)))
    })
}
