//! The resolution of paths in facts, data and environment.

use serde_json::{Map, Value as Json};

use super::names::{Member, Path, Root};
use super::operators;
use super::value::Value;
use crate::model::EvaluationBudget;
use crate::template::weight;

/// The value of a path; nil when the last key does not exist.
pub(super) fn value(path: &Path, root: &Json, budget: &EvaluationBudget) -> Result<Value, String> {
    let mut found = Some(root);
    for (index, step) in path.steps.iter().enumerate() {
        let here = match found {
            None | Some(Json::Null) if step.optional => return Ok(Value::Nil),
            None | Some(Json::Null) => {
                let missing = shown(path, index);
                return Err(format!("missing key '{missing}': cannot fetch {} from <nil>", member(&step.to)));
            }
            Some(here) => here,
        };
        found = match (here, &step.to) {
            (Json::Object(map), Member::Key(key)) => map.get(key).or_else(|| by_old_name(path.root, map, key)),
            (Json::Array(items), Member::Index(at)) => {
                let place = usize::try_from(*at).ok().or_else(|| items.len().checked_sub(at.unsigned_abs().try_into().ok()?));
                let item = place.and_then(|place| items.get(place));
                let length = items.len();
                Some(item.ok_or_else(|| format!("index out of range: {at} ({} has {length} elements)", shown(path, index)))?)
            }
            // Expr indexes the bytes of a text.
            (Json::String(text), Member::Index(at)) => {
                return operators::member(&Value::from(text.as_str()), &Value::Integer(*at));
            }
            (other, to) => return Err(format!("cannot fetch {} from {}: it is {}", member(to), shown(path, index), kind(other))),
        };
    }
    match (found, path.root) {
        // As in a shell, a variable that is not set is empty.
        (None, Root::Environ) => Ok(Value::from("")),
        (found, _) => {
            found.map(|found| weight::charge(found, budget)).transpose().map_err(|spent| spent.to_string())?;
            Ok(found.map_or(Value::Nil, Value::from))
        }
    }
}

/// Finds a fact by the field name that the Go system gives the fact: `PlatformFamily`, `OS`.
fn by_old_name<'a>(root: Root, map: &'a Map<String, Json>, key: &str) -> Option<&'a Json> {
    map.iter().find(|(name, _)| root == Root::Facts && is_old_name(key, name)).map(|(_, value)| value)
}

/// True when a key is the field name that the Go system gives a fact.
pub(in super::super) fn is_old_name(key: &str, name: &str) -> bool {
    key.starts_with(|c: char| c.is_ascii_uppercase()) && name.eq_ignore_ascii_case(key)
}

fn member(member: &Member) -> String {
    match member {
        Member::Key(key) => key.clone(),
        Member::Index(index) => index.to_string(),
    }
}

/// The first steps of a path, joined by dots.
fn shown(path: &Path, steps: usize) -> String {
    let steps = path.steps.iter().take(steps).map(|step| member(&step.to));
    std::iter::once(format!("{:?}", path.root)).chain(steps).collect::<Vec<_>>().join(".")
}

fn kind(value: &Json) -> &'static str {
    match value {
        Json::Null => "nothing",
        Json::Bool(_) => "true or false",
        Json::Number(_) => "a number",
        Json::String(_) => "a text",
        Json::Array(_) => "a list",
        Json::Object(_) => "a map",
    }
}
