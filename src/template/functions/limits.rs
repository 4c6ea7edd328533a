//! Limits of values: size, nesting, and the memory that a budget pays for.

use serde_json::Value;

use crate::model::budget::VALUE_WEIGHT;
use crate::model::{BudgetError, EvaluationBudget};

/// The maximum length of texts (bytes) and lists (items) that a function creates.
pub(in crate::template) const MAX_RESULT: usize = 1 << 20;

/// The deepest nesting of lists and maps.
pub(in crate::template) const MAX_VALUE_DEPTH: usize = 100;

/// Returns the error for a value beyond [`MAX_VALUE_DEPTH`].
pub(in crate::template) fn nested_too_deep() -> String {
    format!("lists and maps are nested more than {MAX_VALUE_DEPTH} deep")
}

/// Charges for a copy of a value, part by part, so that the walk ends when the budget does.
pub(in crate::template) fn charge_value(value: &Value, budget: &EvaluationBudget) -> Result<(), BudgetError> {
    budget.charge(VALUE_WEIGHT)?;
    match value {
        Value::String(text) => budget.charge(text.len()),
        Value::Array(items) => items.iter().try_for_each(|item| charge_value(item, budget)),
        Value::Object(map) => map.iter().try_for_each(|(key, item)| {
            budget.charge(VALUE_WEIGHT + key.len())?;
            charge_value(item, budget)
        }),
        _ => Ok(()),
    }
}
