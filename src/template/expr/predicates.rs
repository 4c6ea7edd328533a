//! Functions that take a predicate, as `filter(list, # > 2)`.

use super::node::{Op, PredicateFunction};
use super::value::Value;
use super::{operators, value_weight};
use crate::model::EvaluationBudget;

/// A predicate: takes the index, the element, and the accumulator of `reduce`.
type Predicate<'p> = &'p dyn Fn(usize, Value, Value) -> Result<Value, String>;

/// Calls a function that takes a predicate. `rest` is the order of `sortBy`, or the first accumulator of `reduce`.
pub(super) fn call(
    function: PredicateFunction,
    list: Vec<Value>,
    predicate: Predicate<'_>,
    rest: Option<Value>,
    budget: &EvaluationBudget,
) -> Result<Value, String> {
    let result = |index: usize, item: &Value| {
        let taken = budget.used_memory();
        let result = predicate(index, value_weight::charged_clone(item, budget)?, Value::Nil)?;
        budget.release_since(taken, value_weight::weight(&result));
        Ok(result)
    };
    let holds = |index: usize, item: &Value| {
        let taken = budget.used_memory();
        let holds = truth(&result(index, item)?);
        budget.release_since(taken, 0);
        holds
    };
    let found = |index: Option<usize>| index.and_then(|index| list.get(index)).cloned().unwrap_or_default();
    let place = |index: Option<usize>| index.map_or(Value::Nil, Value::from);
    Ok(match function {
        PredicateFunction::All => Value::Bool(first(&list, |at, item| Ok(!holds(at, item)?))?.is_none()),
        PredicateFunction::Any => Value::Bool(first(&list, holds)?.is_some()),
        PredicateFunction::None => Value::Bool(first(&list, holds)?.is_none()),
        PredicateFunction::One => Value::Bool(filter(&list, budget, holds)?.len() == 1),
        PredicateFunction::Count => Value::from(filter(&list, budget, holds)?.len()),
        PredicateFunction::Filter => Value::Array(filter(&list, budget, holds)?),
        PredicateFunction::Find => found(first(&list, holds)?),
        PredicateFunction::FindIndex => place(first(&list, holds)?),
        PredicateFunction::FindLast => found(last(&list, holds)?),
        PredicateFunction::FindLastIndex => place(last(&list, holds)?),
        PredicateFunction::Map => {
            Value::Array(list.iter().enumerate().map(|(at, item)| result(at, item)).collect::<Result<_, _>>()?)
        }
        PredicateFunction::Sum => list
            .iter()
            .enumerate()
            .try_fold(Value::Integer(0), |sum, (at, item)| operators::apply(Op::Add, &sum, &result(at, item)?, budget))?,
        PredicateFunction::GroupBy => group(&list, budget, result)?,
        PredicateFunction::SortBy => sort(&list, rest.as_ref(), budget, result)?,
        PredicateFunction::Reduce => reduce(list, rest, budget, predicate)?,
    })
}

fn truth(item: &Value) -> Result<bool, String> {
    item.as_bool().ok_or_else(|| format!("a predicate must be true or false, not {}", item.kind()))
}

type Test<'t> = &'t dyn Fn(usize, &Value) -> Result<bool, String>;

fn first(list: &[Value], test: impl Fn(usize, &Value) -> Result<bool, String>) -> Result<Option<usize>, String> {
    find_index(list.iter().enumerate(), &test)
}

fn last(list: &[Value], test: impl Fn(usize, &Value) -> Result<bool, String>) -> Result<Option<usize>, String> {
    find_index(list.iter().enumerate().rev(), &test)
}

fn find_index<'i>(items: impl Iterator<Item = (usize, &'i Value)>, test: Test<'_>) -> Result<Option<usize>, String> {
    for (index, item) in items {
        if test(index, item)? {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

fn filter(
    list: &[Value],
    budget: &EvaluationBudget,
    test: impl Fn(usize, &Value) -> Result<bool, String>,
) -> Result<Vec<Value>, String> {
    let mut chosen = Vec::new();
    for (index, item) in list.iter().enumerate() {
        if test(index, item)? {
            chosen.push(value_weight::charged_clone(item, budget)?);
        }
    }
    Ok(chosen)
}

fn group(
    list: &[Value],
    budget: &EvaluationBudget,
    key: impl Fn(usize, &Value) -> Result<Value, String>,
) -> Result<Value, String> {
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (index, item) in list.iter().enumerate() {
        let key = key(index, item)?;
        let item = value_weight::charged_clone(item, budget)?;
        // The search compares the key with the key of each group.
        budget.charge_work(value_weight::weight(&key).saturating_mul(1 + groups.len())).map_err(|spent| spent.to_string())?;
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, items)) => items.push(item),
            None => groups.push((key, vec![item])),
        }
    }
    let groups = groups.into_iter().map(|(key, items)| (key, Value::Array(items)));
    Ok(Value::KeyedMap(groups.collect()))
}

fn sort(
    list: &[Value],
    order: Option<&Value>,
    budget: &EvaluationBudget,
    key: impl Fn(usize, &Value) -> Result<Value, String>,
) -> Result<Value, String> {
    let mut keyed = Vec::with_capacity(list.len());
    for (index, item) in list.iter().enumerate() {
        keyed.push((key(index, item)?, value_weight::charged_clone(item, budget)?));
    }
    operators::sort_by_keys(keyed, order).map(Value::Array)
}

fn reduce(list: Vec<Value>, start: Option<Value>, budget: &EvaluationBudget, predicate: Predicate<'_>) -> Result<Value, String> {
    let mut items = list.into_iter().enumerate();
    let mut accumulator = match start {
        Some(start) => start,
        None => items.next().map(|(_, item)| item).ok_or("reduce of an empty list with no initial value")?,
    };
    // Before each step, only the list and the accumulator are in memory.
    let taken = budget.used_memory();
    for (index, item) in items {
        accumulator = predicate(index, item, accumulator)?;
        budget.release_since(taken, value_weight::weight(&accumulator));
    }
    Ok(accumulator)
}
