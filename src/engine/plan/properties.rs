//! The values of properties: templates are resolved, and numbers keep their text where a property is text.

use std::collections::HashSet;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::manifest::Declaration;
use crate::resource::{self, Common, DecodeError, ResourceType};
use crate::template::{Scope, TemplateError, is_template};
use crate::yaml::{KeyOrIndex, YamlDocument};

/// Restores a number to its text, where a property is text: `version: 1.10` is not 1.1.
pub(super) fn as_written(
    properties: &mut Map<String, Value>,
    kind: &dyn ResourceType,
    document: &YamlDocument,
    declaration: &Declaration,
) {
    let endless = |value: &Value| value.as_str().is_some_and(|text| matches!(text, "+Inf" | "-Inf" | "NaN"));
    for (key, value) in properties.iter_mut().filter(|(_, value)| value.is_number() || endless(value)) {
        if !is_typed(kind, key) {
            let below = |path: &[KeyOrIndex]| document.number_text(&[path, &[KeyOrIndex::Key(key.clone())]].concat());
            let defaults = || declaration.defaults_at.as_deref().and_then(below);
            if let Some(text) = below(&declaration.at.path()).or_else(defaults) {
                *value = Value::String(text);
            }
        }
    }
}

/// Returns the error of the type about its first unknown property.
pub(super) fn unknown_property(kind: &dyn ResourceType, properties: &Map<String, Value>, scope: &Scope) -> Option<DecodeError> {
    let schema = kind.schema(&mut schemars::SchemaGenerator::default()).to_value();
    let known = schema.get("properties").and_then(Value::as_object);
    let is_known =
        |key: &str| key == "name" || Common::KEYS.contains(&key) || known.is_some_and(|properties| properties.contains_key(key));
    properties.iter().filter(|(key, _)| !is_known(key)).find_map(|(key, value)| {
        let alone = Map::from_iter([("name".to_owned(), Value::from("x")), (key.clone(), value.clone())]);
        kind.decode(&alone, scope).err().filter(|error| error.property.as_ref() == Some(key))
    })
}

/// The properties of each type that are not text.
static TYPED: LazyLock<HashSet<(&'static str, String)>> = LazyLock::new(|| {
    let of = |kind: &&'static dyn ResourceType| {
        let kind: &'static dyn ResourceType = *kind;
        let schema = kind.schema(&mut schemars::SchemaGenerator::default()).to_value();
        let properties = schema.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
        let is_typed = |property: &Value| is_plain(property) || is_free(property) || property.get("items").is_some_and(is_plain);
        let name = kind.name();
        properties.into_iter().filter(move |(_, property)| is_typed(property)).map(move |(key, _)| (name, key))
    };
    resource::TYPES.iter().flat_map(of).collect()
});

/// Returns true for numbers and flags, also optional ones.
fn is_plain(property: &Value) -> bool {
    let is_plain = |name: &Value| matches!(name.as_str(), Some("boolean" | "integer" | "number"));
    match property.get("type") {
        Some(Value::Array(types)) => types.iter().all(|name| is_plain(name) || name.as_str() == Some("null")),
        Some(one) => is_plain(one),
        None => false,
    }
}

/// Returns true for a map with any keys and values.
fn is_free(property: &Value) -> bool {
    property.get("additionalProperties").is_some_and(|rest| rest.as_bool() == Some(true))
}

/// Returns true for properties that are not text: their templates keep the type of their result.
pub(super) fn is_typed(kind: &dyn ResourceType, key: &str) -> bool {
    match kind.typed_properties() {
        Some(own) => own.iter().any(|property| property == key),
        None => TYPED.contains(&(kind.name(), key.to_owned())),
    }
}

/// Returns true when a text or a key in the value is a template.
pub(super) fn holds_template(value: &Value) -> bool {
    match value {
        Value::String(text) => is_template(text),
        Value::Array(list) => list.iter().any(holds_template),
        Value::Object(map) => map.iter().any(|(key, item)| is_template(key) || holds_template(item)),
        _ => false,
    }
}

/// Resolves the templates of one property. The result is text, except for a property that is not text.
pub(in crate::engine) fn resolve(
    scope: &Scope,
    kind: &dyn ResourceType,
    key: &str,
    value: &Value,
) -> Result<Value, TemplateError> {
    if kind.templated_keys().contains(&key) {
        return scope.resolve_tree_with_keys(value);
    }
    if is_typed(kind, key) {
        return scope.resolve_tree(value);
    }
    match value {
        Value::String(text) => scope.resolve_text(text).map(|text| Value::String(text.into_owned())),
        Value::Array(list) => list.iter().map(|item| resolve(scope, kind, "", item)).collect(),
        Value::Object(map) => {
            map.iter().map(|(name, item)| resolve(scope, kind, "", item).map(|item| (name.clone(), item))).collect()
        }
        other => Ok(other.clone()),
    }
}

/// Resolves health checks. Their rules are resolved when they are checked.
pub(super) fn resolve_checks(scope: &Scope, kind: &dyn ResourceType, checks: &Value) -> Result<Value, TemplateError> {
    let resolve_check = |check: &Value| match check {
        Value::Object(check) => check
            .iter()
            .map(|(key, value)| {
                let value = match key.as_str() {
                    "goss_rules" => value.clone(),
                    "tries" => scope.resolve_tree(value)?,
                    _ => resolve(scope, kind, "", value)?,
                };
                Ok((key.clone(), value))
            })
            .collect(),
        other => resolve(scope, kind, "", other),
    };
    match checks {
        Value::Array(checks) => checks.iter().map(resolve_check).collect(),
        other => resolve(scope, kind, "", other),
    }
}
