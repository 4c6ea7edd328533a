//! `ensign doc` and `ensign schema`: the documentation and JSON schemas of the definitions.

use clap::Args;
use serde_json::{Map, Value};

use crate::diag::{Diagnostic, did_you_mean};
use crate::resource::{Common, ResourceOutput, ResourceType};

use super::error::{CliError, Exit};
use super::schemas;
use super::ui::{Ui, text};
use crate::cli::args::shape::PropertyShape;
use crate::cli::args::types::TypesArgs;
use crate::cli::local::status;

/// Show the documentation of a resource type, or list the types.
#[derive(Debug, Args)]
pub struct DocArgs {
    /// Resource type, as `file`.
    #[arg(value_name = "TYPE")]
    kind: Option<String>,
    #[command(flatten)]
    types: TypesArgs,
}

/// Print a JSON schema, or list the schemas.
#[derive(Debug, Args)]
pub struct SchemaArgs {
    /// Name of the schema, as `manifest`.
    name: Option<String>,
    #[command(flatten)]
    types: TypesArgs,
}

/// Runs `ensign doc`.
pub fn doc(args: &DocArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let types = args.types.read()?;
    match &args.kind {
        None => types.iter().for_each(|kind| ui.line(text!("{:<10} {}", kind.name(), kind.about()))),
        Some(name) => ui.data(type_page(&*status::find_type(name, &types)?).as_bytes()),
    }
    Ok(Exit::Success)
}

/// Runs `ensign schema`.
pub fn schema(args: &SchemaArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let Some(name) = &args.name else {
        schemas::ALL.iter().for_each(|schema| ui.line(schema.name));
        return Ok(Exit::Success);
    };
    let found = schemas::ALL.iter().find(|schema| schema.name == name.as_str());
    let Some(schema) = found else {
        let hint = did_you_mean(name, schemas::ALL.iter().map(|schema| schema.name))
            .map_or_else(|| "`ensign schema` lists all schemas".to_owned(), |near| format!("did you mean \"{near}\"?"));
        return Err(CliError::new(Exit::Usage, Diagnostic::new(format!("unknown schema \"{name}\"")).hint(hint)));
    };
    ui.json(&(schema.make)(&args.types.read()?));
    Ok(Exit::Success)
}

/// Returns the page of a type in Markdown, generated from its definition.
pub fn type_page(kind: &dyn ResourceType) -> String {
    let mut generator = schemas::generator();
    let own = kind.schema(&mut generator);
    let common = generator.root_schema_for::<Common>();
    let mut page = vec![format!("# {}\n\n{}\n", kind.name(), kind.about())];
    page.push(format!("Providers: {}.", kind.providers().iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")));
    page.push(format!("Acts on `subscribe`: {}.\n", if kind.refreshes() { "yes" } else { "no" }));
    page.push("## Properties\n".to_owned());
    page.push(table(own.as_value(), kind.runtime_templates()));
    page.push(
        "Templates in properties marked *late* are resolved when the resource runs, all others when the manifest is read.\n"
            .to_owned(),
    );
    if !kind.outputs().is_empty() {
        let row = |output: &ResourceOutput| format!("| `{}` | {} | {} |", output.name, output.kind.name(), output.about);
        let rows: Vec<String> = kind.outputs().iter().map(row).collect();
        page.push(format!(
            "## Outputs\n\nValues for templates of later resources, as `resources['{}#name'].{}`.\n",
            kind.name(),
            kind.outputs().first().map_or("", |output| output.name.as_ref())
        ));
        page.push(format!("| output | type | meaning |\n|---|---|---|\n{}\n", rows.join("\n")));
    }
    page.push("## Properties of every resource\n".to_owned());
    page.push(table(common.as_value(), &[]));
    page.join("\n")
}

fn table(schema: &Value, late: &[&str]) -> String {
    let empty = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    let required: Vec<&str> =
        schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let definitions = schema.get("$defs").unwrap_or(&Value::Null);
    let mut lines = vec!["| property | type | | meaning |\n|---|---|---|---|".to_owned()];
    for (name, property) in properties {
        let mut notes = Vec::new();
        if required.contains(&name.as_str()) {
            notes.push("required".to_owned());
        }
        if late.contains(&name.as_str()) {
            notes.push("*late*".to_owned());
        }
        if let Some(default) = property.get("default").filter(|default| !is_empty_value(default)) {
            notes.push(format!("default `{default}`"));
        }
        let meaning =
            property.get("description").and_then(Value::as_str).unwrap_or_default().replace('\n', " ").replace('|', "\\|");
        lines.push(format!(
            "| `{name}` | {} | {} | {meaning} |",
            PropertyShape::from_schema(property, definitions).describe(),
            notes.join(", ")
        ));
    }
    lines.push(String::new());
    lines.join("\n")
}

fn is_empty_value(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Number(_) => false,
    }
}
