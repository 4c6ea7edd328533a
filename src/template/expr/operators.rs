//! Operators between values, as the Expr language defines them.

use std::cmp::Ordering;

use super::node::Op;
use super::value::Value;
use super::value_weight;
use crate::model::budget::VALUE_WEIGHT;
use crate::model::{BudgetError, EvaluationBudget};
use crate::template::functions::bus_functions::go_field;
use crate::template::functions::regexes::Pattern;

/// The most elements of a range.
const MAX_RANGE: i64 = 1_000_000;

/// The sign or word of an operator.
pub(super) fn symbol(op: Op) -> &'static str {
    match op {
        Op::Or => "or",
        Op::And => "and",
        Op::Equal => "==",
        Op::NotEqual => "!=",
        Op::Less => "<",
        Op::LessEqual => "<=",
        Op::More => ">",
        Op::MoreEqual => ">=",
        Op::In => "in",
        Op::Contains => "contains",
        Op::StartsWith => "startsWith",
        Op::EndsWith => "endsWith",
        Op::Matches => "matches",
        Op::Range => "..",
        Op::Add => "+",
        Op::Subtract => "-",
        Op::Multiply => "*",
        Op::Divide => "/",
        Op::Modulo => "%",
        Op::Power => "**",
        Op::Coalesce => "??",
    }
}

fn invalid(op: Op, a: &Value, b: &Value) -> String {
    format!("invalid operation: {} {} {}", a.kind(), symbol(op), b.kind())
}

/// Applies an operator to two values.
pub(super) fn apply(op: Op, a: &Value, b: &Value, budget: &EvaluationBudget) -> Result<Value, String> {
    let pay = |result: Result<(), BudgetError>| result.map_err(|spent| spent.to_string());
    match op {
        // A comparison visits each part of both values at most once.
        Op::Equal | Op::NotEqual | Op::In => {
            pay(budget.charge_work(value_weight::weight(a).saturating_add(value_weight::weight(b))))?;
        }
        Op::Contains | Op::StartsWith | Op::EndsWith => pay(budget.charge_work(value_weight::weight(a)))?,
        Op::Add => pay(budget.charge(value_weight::weight(a).saturating_add(value_weight::weight(b))))?,
        _ => {}
    }
    match op {
        Op::Equal => Ok(Value::Bool(equal(a, b))),
        Op::NotEqual => Ok(Value::Bool(!equal(a, b))),
        Op::Less | Op::LessEqual | Op::More | Op::MoreEqual => order(op, a, b),
        Op::In => is_in(a, b).map(Value::Bool),
        Op::Contains | Op::StartsWith | Op::EndsWith | Op::Matches => compare_texts(op, a, b, budget).map(Value::Bool),
        Op::Range => range(a, b, budget),
        _ => arithmetic(op, a, b),
    }
}

fn arithmetic(op: Op, a: &Value, b: &Value) -> Result<Value, String> {
    Ok(match (op, a, b) {
        (Op::Add, Value::String(a), Value::String(b)) => Value::String(format!("{a}{b}")),
        (Op::Add, Value::Integer(a), Value::Integer(b)) => Value::Integer(a.wrapping_add(*b)),
        (Op::Subtract, Value::Integer(a), Value::Integer(b)) => Value::Integer(a.wrapping_sub(*b)),
        (Op::Multiply, Value::Integer(a), Value::Integer(b)) => Value::Integer(a.wrapping_mul(*b)),
        (Op::Modulo, Value::Integer(_), Value::Integer(0)) => return Err("integer divide by zero".to_owned()),
        (Op::Modulo, Value::Integer(a), Value::Integer(b)) => Value::Integer(a.wrapping_rem(*b)),
        (Op::Add | Op::Subtract | Op::Multiply | Op::Divide | Op::Power, ..) => match (a.to_float(), b.to_float()) {
            (Some(a), Some(b)) => Value::Float(match op {
                Op::Add => a + b,
                Op::Subtract => a - b,
                Op::Multiply => a * b,
                Op::Divide => a / b,
                _ => a.powf(b),
            }),
            _ => return time_arithmetic(op, a, b),
        },
        _ => return Err(invalid(op, a, b)),
    })
}

/// Adds, subtracts and multiplies times and durations.
fn time_arithmetic(op: Op, a: &Value, b: &Value) -> Result<Value, String> {
    Ok(match (op, a, b) {
        (Op::Add, Value::Time(time), Value::Duration(span)) | (Op::Add, Value::Duration(span), Value::Time(time)) => {
            time.plus(*span)?.into()
        }
        (Op::Subtract, Value::Time(time), Value::Duration(span)) => {
            time.plus(span.checked_neg().ok_or("duration out of range")?)?.into()
        }
        (Op::Subtract, Value::Time(a), Value::Time(b)) => Value::Duration(a.since(b)?),
        (Op::Add, Value::Duration(a), Value::Duration(b)) => Value::Duration(a.wrapping_add(*b)),
        (Op::Subtract, Value::Duration(a), Value::Duration(b)) => Value::Duration(a.wrapping_sub(*b)),
        (Op::Multiply, Value::Duration(a), Value::Integer(b)) | (Op::Multiply, Value::Integer(a), Value::Duration(b)) => {
            Value::Duration(a.wrapping_mul(*b))
        }
        _ => return Err(invalid(op, a, b)),
    })
}

fn order(op: Op, a: &Value, b: &Value) -> Result<Value, String> {
    let not_a_number = matches!((a.to_float(), b.to_float()), (Some(a), Some(b)) if a.is_nan() || b.is_nan());
    let Some(order) = a.compare(b) else {
        return if not_a_number { Ok(Value::Bool(false)) } else { Err(invalid(op, a, b)) };
    };
    Ok(Value::Bool(match op {
        Op::Less => order == Ordering::Less,
        Op::LessEqual => order != Ordering::Greater,
        Op::More => order == Ordering::Greater,
        _ => order != Ordering::Less,
    }))
}

pub(super) fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Integer(_) | Value::Float(_), Value::Integer(_) | Value::Float(_)) => a.compare(b) == Some(Ordering::Equal),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Map(_), Value::Map(_)) => strictly_equal(a, b),
        _ => a == b,
    }
}

/// True when two values are equal and their numbers have the same type. Values within maps are compared so.
fn strictly_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| strictly_equal(a, b)),
        (Value::Map(a), Value::Map(b)) => {
            a.len() == b.len() && a.iter().all(|(key, value)| b.get(key).is_some_and(|other| strictly_equal(value, other)))
        }
        _ => a == b,
    }
}

fn is_in(item: &Value, of: &Value) -> Result<bool, String> {
    match of {
        Value::Nil => Ok(false),
        Value::Array(items) => Ok(items.iter().any(|other| equal(item, other))),
        Value::Map(map) => match item {
            Value::String(key) => Ok(map.contains_key(key)),
            Value::Nil => Ok(false),
            other => Err(format!("a key of a map is a text, not {}", other.kind())),
        },
        Value::KeyedMap(pairs) => Ok(pairs.iter().any(|(key, _)| equal(key, item))),
        _ => Err(format!("operator \"in\" not defined on {}", of.kind())),
    }
}

fn compare_texts(op: Op, a: &Value, b: &Value, budget: &EvaluationBudget) -> Result<bool, String> {
    match (a, b) {
        (Value::Nil, _) | (_, Value::Nil) => Ok(false),
        (Value::String(a), Value::String(b)) => Ok(match op {
            Op::Contains => a.contains(b.as_str()),
            Op::StartsWith => a.starts_with(b.as_str()),
            Op::EndsWith => a.ends_with(b.as_str()),
            _ => Pattern::compile_charged(b, budget)?.charge(a, budget)?.is_match(a),
        }),
        _ => Err(invalid(op, a, b)),
    }
}

fn range(a: &Value, b: &Value, budget: &EvaluationBudget) -> Result<Value, String> {
    match (a.to_integer(), b.to_integer()) {
        (Some(from), Some(to)) if to.saturating_sub(from) >= MAX_RANGE => {
            Err(format!("the range {from}..{to} is longer than {MAX_RANGE}"))
        }
        (Some(from), Some(to)) => {
            let length = usize::try_from(to.saturating_sub(from).saturating_add(1)).unwrap_or(0);
            budget.charge(length.saturating_mul(VALUE_WEIGHT)).map_err(|spent| spent.to_string())?;
            Ok(Value::Array((from..=to).map(Value::Integer).collect()))
        }
        _ => Err("the ends of a range must be whole numbers".to_owned()),
    }
}

/// The member of a value under a key or an index.
pub(super) fn member(of: &Value, key: &Value) -> Result<Value, String> {
    let place = |length: usize| {
        let at = key.to_integer().ok_or_else(|| format!("cannot fetch {} from {}", key_text(key), of.kind()))?;
        let place = usize::try_from(at).ok().or_else(|| length.checked_sub(at.unsigned_abs().try_into().ok()?));
        place.filter(|place| *place < length).ok_or_else(|| format!("index out of range: {at} (array length is {length})"))
    };
    match (of, key) {
        (Value::Array(items), _) => Ok(items.get(place(items.len())?).cloned().unwrap_or(Value::Nil)),
        // Expr indexes the bytes of a text.
        (Value::String(_) | Value::Bytes(_), Value::Integer(_) | Value::Float(_)) => {
            let bytes = of.as_bytes().unwrap_or_default();
            Ok(bytes.get(place(bytes.len())?).map_or(Value::Nil, |byte| Value::Integer((*byte).into())))
        }
        (Value::Map(map), Value::String(key)) => {
            let field = || go_field(key, |field| map.contains_key(field)).and_then(|field| map.get(field));
            Ok(map.get(key).or_else(field).cloned().unwrap_or(Value::Nil))
        }
        (Value::Map(_), Value::Nil) => Ok(Value::Nil),
        (Value::KeyedMap(pairs), _) => {
            Ok(pairs.iter().find(|(known, _)| equal(known, key)).map_or(Value::Nil, |(_, item)| item.clone()))
        }
        _ => Err(format!("cannot fetch {} from {}", key_text(key), of.kind())),
    }
}

fn key_text(key: &Value) -> String {
    key.as_str().map_or_else(|| key.to_string(), str::to_owned)
}

/// A part of a list or a text. Places beyond the end are cut to the end.
pub(super) fn slice(of: &Value, from: Option<&Value>, to: Option<&Value>) -> Result<Value, String> {
    let length = match of {
        Value::Array(items) => items.len(),
        Value::String(text) => text.len(),
        Value::Bytes(bytes) => bytes.len(),
        _ => return Err(format!("cannot slice {}", of.kind())),
    };
    let place = |item: Option<&Value>, default: usize| -> Result<usize, String> {
        let Some(item) = item else { return Ok(default) };
        let at = item.to_integer().ok_or_else(|| format!("cannot slice with {}", item.kind()))?;
        let from_end = || length.saturating_sub(usize::try_from(at.unsigned_abs()).unwrap_or(usize::MAX));
        Ok(usize::try_from(at).unwrap_or_else(|_| from_end()).min(length))
    };
    let (from, to) = (place(from, 0)?, place(to, length)?);
    let range = from.min(to)..to;
    Ok(match of {
        Value::Array(items) => Value::Array(items.get(range).unwrap_or_default().to_vec()),
        Value::String(text) => {
            let part = text.get(range).ok_or("cannot slice a text in the middle of a character")?;
            Value::String(part.to_owned())
        }
        Value::Bytes(bytes) => Value::Bytes(bytes.get(range).unwrap_or_default().to_vec()),
        _ => Value::Nil,
    })
}

/// Values in the order of their keys: `asc`, which is the default, or `desc`.
pub(super) fn sort_by_keys(mut keyed: Vec<(Value, Value)>, order: Option<&Value>) -> Result<Vec<Value>, String> {
    let backwards = match order {
        None => false,
        Some(Value::String(order)) if order == "asc" => false,
        Some(Value::String(order)) if order == "desc" => true,
        Some(other) => return Err(format!("invalid order {other}, expected asc or desc")),
    };
    let mut wrong = None;
    keyed.sort_by(|(a, _), (b, _)| {
        let order = a.compare(b).unwrap_or_else(|| {
            wrong.get_or_insert_with(|| format!("invalid operation: {} < {}", a.kind(), b.kind()));
            Ordering::Equal
        });
        if backwards { order.reverse() } else { order }
    });
    match wrong {
        Some(wrong) => Err(wrong),
        None => Ok(keyed.into_iter().map(|(_, item)| item).collect()),
    }
}
