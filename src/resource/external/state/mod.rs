//! The observed state of a resource, and its difference from the properties.

use serde_json::{Map, Value, json};

use super::description::Description;
use super::property::check_value;
use super::values::{ABSENT, Values};
use crate::diag::clean;
use crate::host::fs;
use crate::model::secret::REDACTED;
use crate::resource::{ChangeStep, OutputKind};

/// The longest value in the description of a change, in characters.
const MAX_SHOWN: usize = 100;

/// The observed state of a resource.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct ObservedValues {
    pub(super) ensure: String,
    /// Observed properties of the type.
    pub(super) own: Map<String, Value>,
    pub(super) outputs: Map<String, Value>,
}

impl ObservedValues {
    /// Reads the response to `observe` strictly.
    ///
    /// # Errors
    /// The part that is wrong.
    pub(super) fn read(description: &Description, mut response: Map<String, Value>) -> Result<Self, String> {
        let ensure = match response.shift_remove("ensure") {
            Some(Value::String(state)) if description.ensure.contains(&state) || state == ABSENT => state,
            Some(Value::String(state)) => return Err(format!("ensure: \"{state}\" is no state of the type")),
            _ => return Err("ensure: expected text".to_owned()),
        };
        let mut observed = Self { ensure, ..Self::default() };
        for (key, value) in map(&mut response, "properties")? {
            let property =
                description.properties.get(&key).ok_or_else(|| format!("properties.{key} is no property of the type"))?;
            if !value.is_null() {
                let value = check_value(property, &value).map_err(|why| format!("properties.{key}: {why}"))?;
                observed.own.insert(key, value);
            }
        }
        let outputs = description.outputs();
        for (key, value) in map(&mut response, "outputs")? {
            let output = outputs.iter().find(|output| output.name == key.as_str());
            let output = output.ok_or_else(|| format!("outputs.{key} is no output of the type"))?;
            if !value.is_null() {
                let is_valid = has_kind(output.kind, &value);
                observed.outputs.insert(key.clone(), value);
                is_valid.then_some(()).ok_or_else(|| format!("outputs.{key}: expected {}", output.kind.name()))?;
            }
        }
        match response.keys().next() {
            Some(key) => Err(format!("unknown key \"{}\"", clean::cell(key))),
            None => Ok(observed),
        }
    }

    /// Returns the state as in events: secrets and content are replaced.
    pub(super) fn redacted(&self, description: &Description) -> Map<String, Value> {
        let mut shown = redacted(description, &self.own);
        shown.shift_insert(0, "ensure".to_owned(), json!(self.ensure));
        shown
    }
}

/// Returns a map of the response; an empty one when left out.
fn map(response: &mut Map<String, Value>, key: &str) -> Result<Map<String, Value>, String> {
    match response.shift_remove(key) {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(map)) => Ok(map),
        Some(_) => Err(format!("{key}: expected a map")),
    }
}

fn has_kind(kind: OutputKind, value: &Value) -> bool {
    match kind {
        OutputKind::Text => value.is_string(),
        OutputKind::Number => value.is_i64() || value.is_u64(),
        OutputKind::Flag => value.is_boolean(),
        OutputKind::List => value.as_array().is_some_and(|items| items.iter().all(Value::is_string)),
    }
}

/// Returns properties as in events: a secret as stars, content as a digest.
pub(super) fn redacted(description: &Description, values: &Map<String, Value>) -> Map<String, Value> {
    let shown = |(key, value): (&String, &Value)| {
        let property = description.properties.get(key);
        let value = match value {
            _ if property.is_some_and(|property| property.secret) => json!(REDACTED),
            Value::String(text) if property.is_some_and(|property| property.content) => json!(digest(text)),
            other => other.clone(),
        };
        (key.clone(), value)
    };
    values.iter().map(shown).collect()
}

fn digest(text: &str) -> String {
    format!("sha256:{} ({} bytes)", fs::sha256(text.as_bytes()), text.len())
}

/// Returns the steps from the observed to the desired state; none for a converged resource. Pure.
///
/// Only properties that the program observes are compared. An absent resource has no properties.
pub(super) fn difference(description: &Description, wanted: &Values, observed: &ObservedValues) -> Vec<ChangeStep> {
    let step = |what: &str, from: &str, to: &str| ChangeStep {
        description: format!("changed {what}"),
        details: vec![format!("{what} {from} → {to}")],
    };
    let mut steps = Vec::new();
    if wanted.ensure != observed.ensure {
        steps.push(step("ensure", &observed.ensure, &wanted.ensure));
    }
    if wanted.ensure == ABSENT {
        return steps;
    }
    for (key, value) in &wanted.own {
        let Some(found) = observed.own.get(key).filter(|found| *found != value) else { continue };
        let one = |value: &Value| redacted(description, &Map::from_iter([(key.clone(), value.clone())])).remove(key);
        let text = |value: &Value| one(value).map_or_else(String::new, |value| value_text(&value));
        steps.push(step(key, &text(found), &text(value)));
    }
    steps
}

/// Returns a value for people: text without quotes, other values as JSON.
fn value_text(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let text = if text.is_empty() { "(none)" } else { &text };
    clean::cell_with_limit(text, MAX_SHOWN).into_owned()
}

#[cfg(test)]
mod tests;
