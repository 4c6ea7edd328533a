//! Limits and memory charges for values of minijinja.
//!
//! minijinja counts instructions, not bytes. Output is charged in [`write()`], arguments and results of functions in
//! [`weigh`].

use std::fmt::{self, Write as _};
use std::sync::Arc;

use minijinja::value::{Value as Item, ValueKind};
use minijinja::{Environment, Error, Output, State};

use super::errors::budget_error;
use crate::model::BudgetError;
use crate::model::budget::VALUE_WEIGHT;
use crate::template::functions::limits::{MAX_VALUE_DEPTH, nested_too_deep};
use crate::template::text::ScopeState;

/// The fuel of one rendering; a step of a loop over a list costs about ten.
const FUEL: u64 = 5_000_000;

/// The deepest nesting of blocks and files.
const MAX_RECURSION: usize = 100;

/// The longest text that is not charged to the budget, in bytes: an instruction costs as much.
pub(in crate::template::files) const MAX_PLAIN_TEXT: usize = 32;

/// Limits the work and the output of an environment.
pub(in crate::template::files) fn set_limits(environment: &mut Environment<'_>, scope: &Arc<ScopeState>) {
    let scope = Arc::clone(scope);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(MAX_RECURSION);
    environment.set_formatter(move |out, state, item| write(&scope, out, state, item));
}

/// Charges `pay` for everything inside a value; shared parts count each time.
///
/// # Errors
/// The budget is exhausted, or the value is nested too deep.
pub(in crate::template::files) fn weigh(item: &Item, pay: &dyn Fn(usize) -> Result<(), BudgetError>) -> Result<(), String> {
    weigh_nested(item, pay, 0)
}

fn weigh_nested(item: &Item, pay: &dyn Fn(usize) -> Result<(), BudgetError>, depth: usize) -> Result<(), String> {
    let paid = |bytes: usize| pay(bytes).map_err(|spent| spent.to_string());
    if depth > MAX_VALUE_DEPTH {
        return Err(nested_too_deep());
    }
    paid(VALUE_WEIGHT)?;
    if let Some(text) = item.as_str() {
        return paid(text.len());
    }
    match item.kind() {
        ValueKind::Bytes => paid(item.as_bytes().map_or(0, <[u8]>::len)),
        ValueKind::Seq | ValueKind::Iterable => {
            item.try_iter().map_err(|error| error.to_string())?.try_for_each(|item| weigh_nested(&item, pay, depth + 1))
        }
        ValueKind::Map => item.try_iter().map_err(|error| error.to_string())?.try_for_each(|key| {
            weigh_nested(&key, pay, depth + 1)?;
            item.get_item(&key).map_or(Ok(()), |item| weigh_nested(&item, pay, depth + 1))
        }),
        _ => Ok(()),
    }
}

/// Output that charges each part before it is written.
struct ChargedOutput<'o, 'w, 'b> {
    out: &'o mut Output<'w>,
    pay: &'b dyn Fn(usize) -> Result<(), BudgetError>,
    spent: Option<BudgetError>,
}

impl fmt::Write for ChargedOutput<'_, '_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if let Err(spent) = (self.pay)(text.len()) {
            self.spent = Some(spent);
            return Err(fmt::Error);
        }
        self.out.write_str(text)
    }
}

/// Writes a value, without escaping.
fn write(scope: &ScopeState, out: &mut Output<'_>, _: &State<'_, '_>, item: &Item) -> Result<(), Error> {
    let pay = |bytes: usize| scope.parts.budget.charge(bytes);
    // Printing follows any nesting, so the depth is checked first.
    weigh(item, &|bytes| scope.parts.budget.charge_work(bytes)).map_err(budget_error)?;
    let mut paid = ChargedOutput { out, pay: &pay, spent: None };
    let written = write!(paid, "{item}");
    match paid.spent {
        Some(spent) => Err(budget_error(spent.to_string())),
        None => written.map_err(Error::from),
    }
}
