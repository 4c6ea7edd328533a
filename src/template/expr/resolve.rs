//! The resolution of paths in facts, data and environment.

use serde_json::{Map, Value as Json};

use super::names::{Member, Root, ValuePath};
use super::operators;
use super::value::Value;
use crate::model::EvaluationBudget;
use crate::template::functions::limits;

/// The value of a path; nil when the last key does not exist.
pub(super) fn resolve_path(path: &ValuePath, root: &Json, budget: &EvaluationBudget) -> Result<Value, String> {
    let mut found = Some(root);
    for (index, step) in path.steps.iter().enumerate() {
        let here = match found {
            None | Some(Json::Null) if step.optional => return Ok(Value::Nil),
            None | Some(Json::Null) => {
                let missing = path_prefix(path, index);
                return Err(format!("missing key '{missing}': cannot fetch {} from <nil>", step_text(&step.to)));
            }
            Some(here) => here,
        };
        found = match (here, &step.to) {
            (Json::Object(map), Member::Key(key)) => map.get(key).or_else(|| by_go_name(path.root, map, key)),
            (Json::Array(items), Member::Index(at)) => {
                let place = usize::try_from(*at).ok().or_else(|| items.len().checked_sub(at.unsigned_abs().try_into().ok()?));
                let item = place.and_then(|place| items.get(place));
                let length = items.len();
                Some(
                    item.ok_or_else(|| format!("index out of range: {at} ({} has {length} elements)", path_prefix(path, index)))?,
                )
            }
            // Expr indexes the bytes of a text.
            (Json::String(text), Member::Index(at)) => {
                return operators::member(&Value::from(text.as_str()), &Value::Integer(*at));
            }
            (other, to) => {
                return Err(format!(
                    "cannot fetch {} from {}: it is {}",
                    step_text(to),
                    path_prefix(path, index),
                    type_name(other)
                ));
            }
        };
    }
    match (found, path.root) {
        // As in a shell, a variable that is not set is empty.
        (None, Root::Environ) => Ok(Value::from("")),
        (found, _) => {
            found.map(|found| limits::charge_value(found, budget)).transpose().map_err(|spent| spent.to_string())?;
            Ok(found.map_or(Value::Nil, Value::from))
        }
    }
}

/// Finds a fact by the field name that the Go system gives the fact: `PlatformFamily`, `OS`.
fn by_go_name<'a>(root: Root, map: &'a Map<String, Json>, key: &str) -> Option<&'a Json> {
    map.iter().find(|(name, _)| root == Root::Facts && is_go_field_name(key, name)).map(|(_, value)| value)
}

/// True when a key is the field name that the Go system gives a fact.
pub(in crate::template) fn is_go_field_name(key: &str, name: &str) -> bool {
    key.starts_with(|c: char| c.is_ascii_uppercase()) && name.eq_ignore_ascii_case(key)
}

fn step_text(member: &Member) -> String {
    match member {
        Member::Key(key) => key.clone(),
        Member::Index(index) => index.to_string(),
    }
}

/// The first steps of a path, joined by dots.
fn path_prefix(path: &ValuePath, steps: usize) -> String {
    let steps = path.steps.iter().take(steps).map(|step| step_text(&step.to));
    std::iter::once(format!("{:?}", path.root)).chain(steps).collect::<Vec<_>>().join(".")
}

fn type_name(value: &Json) -> &'static str {
    match value {
        Json::Null => "nothing",
        Json::Bool(_) => "true or false",
        Json::Number(_) => "a number",
        Json::String(_) => "a text",
        Json::Array(_) => "a list",
        Json::Object(_) => "a map",
    }
}
