//! The approximate memory weight of values.

use serde_json::Value;

use crate::model::budget::VALUE_WEIGHT;
use crate::model::{BudgetError, EvaluationBudget};

/// Charges for a copy of a value, part by part, so that the walk ends when the budget does.
pub(super) fn charge_value(value: &Value, budget: &EvaluationBudget) -> Result<(), BudgetError> {
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
