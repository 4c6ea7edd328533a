//! Functions on lists and maps.

use super::call_error::CallError;
use crate::model::EvaluationBudget;
use crate::template::expr::operators::{self, equal, member};
use crate::template::expr::value::Value;
use crate::template::expr::value_weight;

fn one_list(args: &[Value]) -> Result<&[Value], CallError> {
    if let [Value::Array(items)] = args { Ok(items) } else { Err(CallError::Arguments) }
}

pub(super) fn len(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    Ok(Value::from(match args {
        [Value::Array(items)] => items.len(),
        [Value::String(text)] => text.chars().count(),
        [Value::Bytes(bytes)] => bytes.len(),
        [Value::Map(map)] => map.len(),
        [Value::KeyedMap(pairs)] => pairs.len(),
        _ => return Err(CallError::Arguments),
    }))
}

/// The first or last element; nil for an empty list.
pub(super) fn first_or_last(args: &[Value], index: i64) -> Result<Value, CallError> {
    let [of] = args else { return Err(CallError::Arguments) };
    Ok(member(of, &Value::Integer(index)).unwrap_or_default())
}

/// The element under a key or an index; nil when the list or map has none.
pub(super) fn get(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    match args {
        [Value::Array(_) | Value::String(_) | Value::Bytes(_), key] if key.to_integer().is_none() => Err(CallError::Arguments),
        [Value::Map(_), key] if !matches!(key, Value::String(_) | Value::Nil) => Err(CallError::Arguments),
        [of, key] => Ok(member(of, key).unwrap_or_default()),
        _ => Err(CallError::Arguments),
    }
}

pub(super) fn take(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    let [Value::Array(items), Value::Integer(count)] = args else { return Err(CallError::Arguments) };
    let count = usize::try_from(*count).map_err(|_| format!("cannot take {count} elements"))?;
    Ok(Value::Array(items.iter().take(count).cloned().collect()))
}

pub(super) fn reverse(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    Ok(Value::Array(one_list(args)?.iter().rev().cloned().collect()))
}

pub(super) fn uniq(args: &[Value], budget: &EvaluationBudget) -> Result<Value, CallError> {
    let mut kept: Vec<Value> = Vec::new();
    for item in one_list(args)? {
        // The search compares the element with each element of the result.
        budget.charge_work(value_weight::weight(item).saturating_mul(1 + kept.len()))?;
        if !kept.iter().any(|known| equal(known, item)) {
            kept.push(item.clone());
        }
    }
    Ok(Value::Array(kept))
}

pub(super) fn concat(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    if args.is_empty() {
        return Err(CallError::Arguments);
    }
    let lists = args.iter().map(|list| one_list(std::slice::from_ref(list)));
    Ok(Value::Array(lists.collect::<Result<Vec<_>, _>>()?.concat()))
}

pub(super) fn flatten(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    let mut left: Vec<&Value> = one_list(args)?.iter().rev().collect();
    let mut flat = Vec::new();
    while let Some(value) = left.pop() {
        match value {
            Value::Array(items) => left.extend(items.iter().rev()),
            value => flat.push(value.clone()),
        }
    }
    Ok(Value::Array(flat))
}

pub(super) fn sort(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    let (items, order) = match args {
        [Value::Array(items)] => (items.as_slice(), None),
        [Value::Array(items), order] => (items.as_slice(), Some(order)),
        [Value::Nil] => (&[][..], None),
        _ => return Err(CallError::Arguments),
    };
    Ok(Value::Array(operators::sort_by_keys(items.iter().map(|item| (item.clone(), item.clone())).collect(), order)?))
}

/// The keys and values of a map.
fn pairs(args: &[Value]) -> Result<Vec<(Value, Value)>, CallError> {
    match args {
        [Value::Map(map)] => Ok(map.iter().map(|(key, value)| (key.as_str().into(), value.clone())).collect()),
        [Value::KeyedMap(pairs)] => Ok(pairs.clone()),
        _ => Err(CallError::Arguments),
    }
}

pub(super) fn keys(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    Ok(Value::Array(pairs(args)?.into_iter().map(|(key, _)| key).collect()))
}

pub(super) fn values(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    Ok(Value::Array(pairs(args)?.into_iter().map(|(_, value)| value).collect()))
}

pub(super) fn to_pairs(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    Ok(Value::Array(pairs(args)?.into_iter().map(|(key, value)| Value::Array(vec![key, value])).collect()))
}

/// Makes a map from a list of pairs. Of equal keys, the last value counts.
pub(super) fn from_pairs(args: &[Value], budget: &EvaluationBudget) -> Result<Value, CallError> {
    let mut map: Vec<(Value, Value)> = Vec::new();
    for pair in one_list(args)? {
        let Value::Array(pair) = pair else { return Err(CallError::Arguments) };
        let [key, value] = pair.as_slice() else { return Err(CallError::Arguments) };
        if matches!(key, Value::Array(_) | Value::Bytes(_) | Value::Map(_) | Value::KeyedMap(_)) {
            return Err(CallError::Failed(format!("a key of a map cannot be a {}", key.kind())));
        }
        // The search compares the key with each key of the map.
        budget.charge_work(value_weight::weight(key).saturating_mul(1 + map.len()))?;
        match map.iter_mut().find(|(known, _)| known == key) {
            Some((_, old)) => *old = value.clone(),
            None => map.push((key.clone(), value.clone())),
        }
    }
    Ok(Value::KeyedMap(map))
}
