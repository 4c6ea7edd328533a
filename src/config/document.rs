//! A TOML text whose places are known.

use std::ops::Range;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;
use toml::de::{DeTable, DeValue};

use crate::diag::{Diagnostic, Place, did_you_mean};

/// A TOML text and the name of its file.
#[derive(Debug, Clone, Copy)]
pub struct Document<'a> {
    text: &'a str,
    name: &'a str,
}

impl<'a> Document<'a> {
    /// The text of the file called `name`.
    pub fn new(text: &'a str, name: &'a str) -> Self {
        Self { text, name }
    }

    /// The name of the file.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// The document as a `T`.
    ///
    /// # Errors
    /// What is wrong with the syntax, the types, and every key that `T` does not know.
    pub fn read<T: DeserializeOwned + JsonSchema>(&self) -> Result<T, Vec<Diagnostic>> {
        toml::from_str(self.text).map_err(|error| {
            let unknown = self.unknown_keys::<T>();
            if unknown.is_empty() { vec![self.explain(&error)] } else { unknown }
        })
    }

    /// The place of the value at `key`, or of the nearest table around it that is written.
    pub fn place(&self, key: &[&str]) -> Option<Place> {
        let root = DeTable::parse(self.text).ok()?;
        let mut table = root.get_ref();
        let mut span = None;
        for part in key {
            let Some((name, value)) = table.get_key_value(*part) else { break };
            span = Some(name.span());
            match value.get_ref() {
                DeValue::Table(inner) => table = inner,
                _ => break,
            }
        }
        self.at(&span?)
    }

    fn explain(&self, error: &toml::de::Error) -> Diagnostic {
        let message = error.message().lines().collect::<Vec<_>>().join(": ");
        Diagnostic::new(message).at(error.span().and_then(|span| self.at(&span)))
    }

    fn at(&self, span: &Range<usize>) -> Option<Place> {
        let before = self.text.get(..span.start)?;
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = self.text.get(start..)?.lines().next().unwrap_or_default();
        Some(Place {
            file: self.name.to_owned(),
            line: before.matches('\n').count() + 1,
            column: self.text.get(start..span.start)?.chars().count() + 1,
            text: without_secret(line),
        })
    }

    /// Every key that the schema of `T` does not have, with the known one it resembles.
    fn unknown_keys<T: JsonSchema>(&self) -> Vec<Diagnostic> {
        let Ok(root) = DeTable::parse(self.text) else { return Vec::new() };
        let schema = inlined_schema::<T>();
        let mut found = Vec::new();
        self.compare(root.get_ref(), &schema, "", &mut found);
        found
    }

    fn compare(&self, table: &DeTable<'_>, schema: &Value, path: &str, found: &mut Vec<Diagnostic>) {
        let Some(known) = properties(schema) else { return };
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            match known.get(name) {
                Some(below) => {
                    if let DeValue::Table(inner) = value.get_ref() {
                        self.compare(inner, below, &format!("{path}{name}."), found);
                    }
                }
                None => {
                    let unknown = Diagnostic::new(format!("unknown key `{path}{name}`")).at(self.at(&key.span()));
                    found.push(match did_you_mean(name, known.keys().map(String::as_str)) {
                        Some(near) => unknown.hint(format!("did you mean `{near}`?")),
                        None => unknown,
                    });
                }
            }
        }
    }
}

/// The schema of a type, without references.
pub fn inlined_schema<T: JsonSchema>() -> Value {
    let settings = schemars::generate::SchemaSettings::default().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

/// The properties of a schema, also of an optional one.
pub fn properties(schema: &Value) -> Option<&serde_json::Map<String, Value>> {
    schema.get("properties").and_then(Value::as_object).or_else(|| schema.get("anyOf")?.as_array()?.iter().find_map(properties))
}

/// The line as it may be shown: what follows `password =` or `token =` stays in its file.
fn without_secret(line: &str) -> String {
    let assigned = |name: &str| {
        let end = line.find(name)? + name.len();
        line.get(end..)?.trim_start_matches('"').trim_start().starts_with('=').then_some(end)
    };
    match ["password", "token"].into_iter().filter_map(assigned).min().and_then(|end| line.get(..end)) {
        Some(shown) => format!("{shown} = {}", crate::model::secret::REDACTED),
        None => line.to_owned(),
    }
}
