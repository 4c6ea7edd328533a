//! Functions of templates that need the scope, and their values.

use std::sync::Arc;

use minijinja::value::{Rest, Serde, Value as Item};
use minijinja::{Environment, Error};
use serde_json::Value;

use super::charges::weigh;
use super::errors::{budget_error, template_error};
use crate::template::text::ScopeState;

/// Adds functions that need the scope.
pub(in crate::template::files) fn add_scoped(
    environment: &mut Environment<'_>,
    scope: &Arc<ScopeState>,
    names: &'static [&'static str],
    depth: usize,
) {
    for name in names {
        let scope = Arc::clone(scope);
        environment.add_function(*name, move |args: Rest<Item>| {
            let args = all_to_json(&scope, &args)?;
            to_item(
                &scope,
                match *name {
                    "lookup" => scope.call_lookup(&args),
                    "template" => scope.call_template(&args, depth),
                    "kvGet" | "registrations" => scope.call_bus_function(name, &args),
                    "secret" => scope.call_secret(&args),
                    "jet" => scope.call_jet(&args, depth),
                    _ => scope.call_read_file(&args),
                },
            )
        });
    }
}

/// Returns a copy, charged to the budget.
pub(in crate::template::files) fn to_json(scope: &ScopeState, item: &Item) -> Result<Value, Error> {
    weigh(item, &|bytes| scope.parts.budget.charge(bytes)).map_err(budget_error)?;
    serde_json::to_value(item).map_err(|error| template_error(error.to_string()))
}

pub(in crate::template::files) fn all_to_json(scope: &ScopeState, items: &[Item]) -> Result<Vec<Value>, Error> {
    items.iter().map(|item| to_json(scope, item)).collect()
}

pub(in crate::template::files) fn to_item(scope: &ScopeState, result: Result<Value, String>) -> Result<Item, Error> {
    let value = result.map_err(template_error)?;
    scope.charge_copy(&value).map_err(budget_error)?;
    Ok(Item::from(Serde(value)))
}
