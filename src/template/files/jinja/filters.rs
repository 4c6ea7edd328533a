//! Functions that metered Jinja templates call: they charge the budget for operators and filters.

use std::sync::Arc;

use minijinja::value::{Rest, Value as Item, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State};

use crate::model::budget::VALUE_WEIGHT;
use crate::template::files::minijinja_env::{template_error, weigh};
use crate::template::text::ScopeState;

/// Adds the functions to an environment.
pub(super) fn add(environment: &mut Environment<'_>, scope: &Arc<ScopeState>) {
    // `debug` would print all values, whatever their size.
    environment.remove_global("debug");
    let of = Arc::clone(scope);
    environment.add_function("weighed", move |item: Item| {
        weigh(&item, &|bytes| of.parts.budget.charge_work(bytes)).map_err(template_error)?;
        Ok::<Item, Error>(item)
    });
    let of = Arc::clone(scope);
    environment.add_function("paid", move |item: Item| {
        weigh(&item, &|bytes| of.parts.budget.charge(bytes)).map_err(template_error)?;
        Ok::<Item, Error>(item)
    });
    let of = Arc::clone(scope);
    environment.add_function("product", move |left: Item, right: Item| product(&of, &left, &right));
    let of = Arc::clone(scope);
    environment.add_filter("filtered", move |state: &mut State<'_, '_>, item: Item, name: String, args: Rest<ValueOrKwargs>| {
        apply_charged_filter(&of, state, item, &name, args.into_values())
    });
}

/// Returns the weight of a value.
fn weight(scope: &ScopeState, item: &Item) -> Result<usize, Error> {
    let weight = std::cell::Cell::new(0_usize);
    let count = |bytes: usize| {
        weight.set(weight.get().saturating_add(bytes));
        scope.parts.budget.charge_work(bytes)
    };
    weigh(item, &count).map_err(template_error)?;
    Ok(weight.get())
}

/// Implements `a * b`: a product of numbers, or a repeated text or list.
fn product(scope: &ScopeState, left: &Item, right: &Item) -> Result<Item, Error> {
    let (many, times) = if left.is_number() { (right, left) } else { (left, right) };
    if many.is_number() {
        if let (true, true) = (left.is_integer(), right.is_integer()) {
            let both = i128::try_from(left.clone())?.checked_mul(i128::try_from(right.clone())?);
            return both.map(Item::from).ok_or_else(|| template_error("the product is too large".to_owned()));
        }
        return Ok(Item::from(f64::try_from(left.clone())? * f64::try_from(right.clone())?));
    }
    let wrong = || template_error("* takes two numbers, or a text or list and a count".to_owned());
    let times = times.as_usize().ok_or_else(wrong)?;
    scope.charge(weight(scope, many)?.saturating_mul(times)).map_err(template_error)?;
    match (many.as_str(), many.kind()) {
        (Some(text), _) => Ok(Item::from(text.repeat(times))),
        (None, ValueKind::Seq | ValueKind::Iterable) => {
            let items: Vec<Item> = many.try_iter()?.collect();
            Ok(std::iter::repeat_n(items, times).flatten().collect())
        }
        _ => Err(wrong()),
    }
}

/// Applies a filter: charges its upper bound first, then the weight of the result.
fn apply_charged_filter(
    scope: &ScopeState,
    state: &mut State<'_, '_>,
    item: Item,
    name: &str,
    args: Vec<Item>,
) -> Result<Item, Error> {
    let budget = &scope.parts.budget;
    let taken = budget.used_memory();
    scope.charge(memory_bound(scope, &item, name, &args)?).map_err(template_error)?;
    let made = state.apply_filter(name, &[vec![item], args].concat())?;
    budget.release_since(taken, 0);
    scope.charge(weight(scope, &made)?).map_err(template_error)?;
    Ok(made)
}

/// Returns an upper bound of the memory for a filter.
fn memory_bound(scope: &ScopeState, item: &Item, name: &str, args: &[Item]) -> Result<usize, Error> {
    let whole = weight(scope, item)?;
    let given = args.iter().map(|arg| weight(scope, arg)).sum::<Result<usize, Error>>()?;
    // Widths and counts, including those in named arguments.
    let named = |arg: &Item| match arg.kind() {
        ValueKind::Map => arg.try_iter().into_iter().flatten().filter_map(|key| arg.get_item(&key).ok()).collect(),
        _ => vec![arg.clone()],
    };
    let number: usize = args.iter().flat_map(named).filter_map(|arg| arg.as_usize()).fold(0, usize::saturating_add);
    let text = |at: usize| args.get(at).and_then(Item::as_str).map_or(0, str::len);
    let parts = whole / VALUE_WEIGHT + 1;
    Ok(match name {
        "replace" => whole.saturating_add((whole / text(0).max(1) + 1).saturating_mul(text(1))),
        "join" => whole.saturating_add(parts.saturating_mul(given)),
        "indent" => {
            let lines = item.as_str().map_or(0, |text| text.lines().count()) + 1;
            whole.saturating_add(lines.saturating_mul(number))
        }
        "batch" | "slice" => whole.saturating_mul(2).saturating_add(number.saturating_mul(VALUE_WEIGHT.saturating_add(given))),
        "tojson" => whole.saturating_mul(6).saturating_add(parts.saturating_mul(number.saturating_mul(8))),
        // Each line is indented by its depth.
        "pprint" => whole.saturating_mul(12),
        "format" => {
            let format = item.as_str().unwrap_or_default();
            let widths = format.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse::<usize>().ok());
            let widths = widths.fold(0, usize::saturating_add);
            let stars = format.matches('*').count().saturating_mul(number);
            [whole, given.saturating_mul(2), widths, stars].into_iter().fold(0, usize::saturating_add)
        }
        // `map` may apply another filter to each part.
        "map" => whole.saturating_add(parts.saturating_mul(given.saturating_add(number))).saturating_mul(2),
        "sum" | "first" | "last" | "min" | "max" | "int" | "float" | "bool" | "abs" | "round" => 0,
        _ => whole.saturating_mul(6),
    })
}
