//! A TOML text with the places of its values.

use std::fmt;
use std::ops::Range;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::diag::{Diagnostic, SourceLocation, did_you_mean};

/// Separates the message of an error of serde from its hint.
pub const HINT: &str = "\nhint: ";

/// A TOML text and the name of its file.
#[derive(Debug, Clone, Copy)]
pub struct TomlDocument<'a> {
    text: &'a str,
    name: &'a str,
}

impl<'a> TomlDocument<'a> {
    /// Wraps the text of the file `name`.
    pub fn new(text: &'a str, name: &'a str) -> Self {
        Self { text, name }
    }

    /// Reads the document as a `T`.
    ///
    /// # Errors
    /// Mistakes of syntax and types, and every key that `T` does not have.
    pub fn read<T: DeserializeOwned + JsonSchema>(&self) -> Result<T, Vec<Diagnostic>> {
        self.read_with(&[])
    }

    /// Reads the document as a `T`, with `defaults` for keys at the top level that the document leaves out.
    ///
    /// # Errors
    /// See [`Self::read`].
    pub fn read_with<T: DeserializeOwned + JsonSchema>(&self, defaults: &[(&str, &str)]) -> Result<T, Vec<Diagnostic>> {
        let mut table = DeTable::parse(self.text).map_err(|error| vec![self.explain(&error)])?;
        for (key, value) in defaults {
            let entry = table.get_mut().entry(Spanned::new(0..0, (*key).into()));
            entry.or_insert_with(|| Spanned::new(0..0, DeValue::String((*value).into())));
        }
        T::deserialize(toml::Deserializer::from(table)).map_err(|error| {
            let unknown = self.unknown_keys::<T>();
            if unknown.is_empty() { vec![self.explain(&error)] } else { unknown }
        })
    }

    /// True when the document has `key` at its top level.
    pub fn has(&self, key: &str) -> bool {
        DeTable::parse(self.text).is_ok_and(|table| table.get_ref().contains_key(key))
    }

    /// Returns the place of the value at `key`, or of the nearest table around it.
    pub fn place(&self, key: &[&str]) -> Option<SourceLocation> {
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
        let (message, hint) = error.message().split_once(HINT).unwrap_or((error.message(), ""));
        let message = message.lines().collect::<Vec<_>>().join(": ");
        with_hint(Diagnostic::new(message).at(error.span().and_then(|span| self.at(&span))), hint)
    }

    fn at(&self, span: &Range<usize>) -> Option<SourceLocation> {
        let before = self.text.get(..span.start)?;
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = self.text.get(start..)?.lines().next().unwrap_or_default();
        Some(SourceLocation {
            file: self.name.to_owned(),
            line: before.matches('\n').count() + 1,
            column: self.text.get(start..span.start)?.chars().count() + 1,
            text: without_secret(line),
        })
    }

    /// Returns every key that the schema of `T` does not have, with the similar known key.
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

/// Adds a hint that is not empty.
fn with_hint(diagnostic: Diagnostic, hint: &str) -> Diagnostic {
    if hint.is_empty() { diagnostic } else { diagnostic.hint(hint) }
}

/// Collects the mistakes in the values of a document.
#[derive(Debug)]
pub(super) struct Checks<'a> {
    document: &'a TomlDocument<'a>,
    found: Vec<Diagnostic>,
}

impl<'a> Checks<'a> {
    /// Begins without a mistake.
    pub(super) fn new(document: &'a TomlDocument<'a>) -> Self {
        Self { document, found: Vec::new() }
    }

    /// Reports a mistake at `key`.
    pub(super) fn report(&mut self, key: &[&str], message: impl Into<String>) {
        self.report_with(key, message, "");
    }

    /// Reports a mistake at `key` with a hint, which may be empty.
    pub(super) fn report_with(&mut self, key: &[&str], message: impl Into<String>, hint: &str) {
        self.found.push(with_hint(Diagnostic::new(message).at(self.document.place(key)), hint));
    }

    /// Reports a value below `least` or above `most`.
    pub(super) fn range<T: Copy + PartialOrd + fmt::Display>(&mut self, key: &[&str], value: T, least: T, most: T) {
        if value < least || value > most {
            let name = key.join(".");
            self.report(key, format!("`{name}` must be between {least} and {most}, not {value}"));
        }
    }

    /// Returns the mistakes.
    pub(super) fn finish(self) -> Result<(), Vec<Diagnostic>> {
        if self.found.is_empty() { Ok(()) } else { Err(self.found) }
    }
}

/// Returns the schema of a type, without references.
pub fn inlined_schema<T: JsonSchema>() -> Value {
    let settings = schemars::generate::SchemaSettings::default().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

/// Returns the properties of a schema, also of an optional type.
pub fn properties(schema: &Value) -> Option<&serde_json::Map<String, Value>> {
    schema.get("properties").and_then(Value::as_object).or_else(|| schema.get("anyOf")?.as_array()?.iter().find_map(properties))
}

/// Returns the line without the value of `password =` or `token =`.
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
