//! Reasons why a function has no result.

use crate::model::BudgetError;

/// A reason why a function has no result.
pub(super) enum CallError {
    /// The number or the types of the arguments do not fit.
    Arguments,
    Failed(String),
}

impl From<String> for CallError {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

impl From<BudgetError> for CallError {
    fn from(spent: BudgetError) -> Self {
        Self::Failed(spent.to_string())
    }
}
