//! Weights of values and of function results: estimates of their memory, in bytes.

use super::value::Value;
use crate::model::budget::VALUE_WEIGHT;
use crate::model::{BudgetError, EvaluationBudget};

/// The deepest nesting of lists and maps. Data and facts are nested less.
pub(super) const MAX_DEPTH: usize = 160;

/// The approximate memory of a value, in bytes. A value that is nested too deep has `usize::MAX`.
pub(super) fn weight(item: &Value) -> usize {
    weight_at_depth(item, 0)
}

fn weight_at_depth(item: &Value, depth: usize) -> usize {
    if depth > MAX_DEPTH {
        return usize::MAX;
    }
    let of = |item: &Value| weight_at_depth(item, depth + 1);
    let below = match item {
        Value::String(text) => text.len(),
        Value::Bytes(bytes) => bytes.len(),
        Value::Array(items) => sum(items.iter().map(of)),
        Value::Map(map) => sum(map.iter().map(|(key, item)| of(item).saturating_add(VALUE_WEIGHT + key.len()))),
        Value::KeyedMap(pairs) => sum(pairs.iter().map(|(key, item)| of(key).saturating_add(of(item)))),
        _ => 0,
    };
    below.saturating_add(VALUE_WEIGHT)
}

fn sum(weights: impl Iterator<Item = usize>) -> usize {
    weights.fold(0, usize::saturating_add)
}

/// Copies a value, and charges the budget.
pub(super) fn charged_clone(item: &Value, budget: &EvaluationBudget) -> Result<Value, String> {
    budget.charge(weight(item)).map_err(|spent: BudgetError| spent.to_string())?;
    Ok(item.clone())
}

/// The most memory that the result of a call can take, in bytes.
pub(super) fn call_weight(name: &str, args: &[Value]) -> usize {
    let given = sum(args.iter().map(weight));
    let text = |at: usize| args.get(at).and_then(Value::as_str).map_or(0, str::len);
    match (name, args) {
        // The result is a number, true or false, or a name.
        ("len" | "abs" | "ceil" | "floor" | "round" | "hasPrefix" | "hasSuffix" | "indexOf" | "lastIndexOf" | "type", _) => 0,
        ("repeat", [_, times, ..]) => {
            text(0).saturating_mul(times.to_integer().and_then(|times| usize::try_from(times).ok()).unwrap_or(0))
        }
        ("replace", _) => {
            let places = match text(1) {
                0 => text(0) + 1,
                length => text(0) / length,
            };
            text(0).saturating_add(places.saturating_mul(text(2)))
        }
        ("join", [Value::Array(items), ..]) => given.saturating_add(items.len().saturating_mul(text(1))),
        // Each part becomes a value.
        ("split" | "splitAfter", _) => text(0).saturating_add((text(0) + 1).saturating_mul(VALUE_WEIGHT)),
        ("fromJSON", _) => text(0).saturating_mul(VALUE_WEIGHT / 2),
        // Each line is indented by its depth, and an escaped character takes up to six bytes.
        ("toJSON" | "string", _) => args.iter().map(|item| json_length(item, 0)).fold(0, usize::saturating_add),
        ("toBase64" | "upper" | "lower", _) => given.saturating_mul(3),
        _ => given.saturating_mul(2),
    }
}

/// The most bytes of a value as indented JSON, at a depth.
fn json_length(item: &Value, depth: usize) -> usize {
    let line = 8 + 2 * depth;
    let below = |item: &Value| json_length(item, depth + 1);
    line + match item {
        Value::String(text) => text.len().saturating_mul(6),
        Value::Bytes(bytes) => bytes.len().saturating_mul(5),
        Value::Array(items) => items.iter().map(below).fold(0, usize::saturating_add),
        Value::Map(map) => map.iter().map(|(key, item)| key.len() * 6 + below(item)).fold(0, usize::saturating_add),
        Value::KeyedMap(pairs) => pairs.iter().map(|(key, item)| below(key) + below(item)).fold(0, usize::saturating_add),
        _ => 40,
    }
}
