//! What operators do with values, as the Expr language has it.

use std::cmp::Ordering;

use super::parse::Op;
use super::weigh;
use crate::model::budget::VALUE_WEIGHT;
use crate::model::{BudgetError, EvaluationBudget};
use crate::template::regexes::Pattern;
use crate::template::remote::go_field;
use ::expr::{Context, Value as Item};

/// The longest range.
const MAX_RANGE: i64 = 1_000_000;

/// The kind of a value, as errors call it.
pub(super) fn kind(item: &Item) -> &'static str {
    match item {
        Item::Nil => "<nil>",
        Item::Bool(_) => "bool",
        Item::Integer(_) => "int",
        Item::Float(_) => "float64",
        Item::String(_) => "string",
        Item::Bytes(_) => "bytes",
        Item::Array(_) => "list",
        Item::Map(_) | Item::KeyedMap(_) => "map",
        _ => "time",
    }
}

/// The sign or word of an operator.
pub(super) fn sign(op: Op) -> &'static str {
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

fn invalid(op: Op, a: &Item, b: &Item) -> String {
    format!("invalid operation: {} {} {}", kind(a), sign(op), kind(b))
}

/// What an operator makes of two values.
pub(super) fn binary(op: Op, a: Item, b: Item, budget: &EvaluationBudget) -> Result<Item, String> {
    let pay = |result: Result<(), BudgetError>| result.map_err(|spent| spent.to_string());
    match op {
        // What a list holds is compared with each other one at most once, with what is sought once for each.
        Op::Equal | Op::NotEqual | Op::In => pay(budget.work(weigh::of(&a).saturating_add(weigh::of(&b))))?,
        Op::Contains | Op::StartsWith | Op::EndsWith => pay(budget.work(weigh::of(&a)))?,
        Op::Add => pay(budget.charge(weigh::of(&a).saturating_add(weigh::of(&b))))?,
        _ => {}
    }
    match op {
        Op::Equal => Ok(Item::Bool(equal(&a, &b))),
        Op::NotEqual => Ok(Item::Bool(!equal(&a, &b))),
        Op::Less | Op::LessEqual | Op::More | Op::MoreEqual => order(op, &a, &b),
        Op::In => within(&a, &b).map(Item::Bool),
        Op::Contains | Op::StartsWith | Op::EndsWith | Op::Matches => texts(op, &a, &b, budget).map(Item::Bool),
        Op::Range => range(&a, &b, budget),
        _ => arithmetic(op, a, b),
    }
}

fn arithmetic(op: Op, a: Item, b: Item) -> Result<Item, String> {
    Ok(match (op, &a, &b) {
        (Op::Add, Item::String(a), Item::String(b)) => Item::String(format!("{a}{b}")),
        (Op::Add, Item::Integer(a), Item::Integer(b)) => Item::Integer(a.wrapping_add(*b)),
        (Op::Subtract, Item::Integer(a), Item::Integer(b)) => Item::Integer(a.wrapping_sub(*b)),
        (Op::Multiply, Item::Integer(a), Item::Integer(b)) => Item::Integer(a.wrapping_mul(*b)),
        (Op::Modulo, Item::Integer(_), Item::Integer(0)) => return Err("integer divide by zero".to_owned()),
        (Op::Modulo, Item::Integer(a), Item::Integer(b)) => Item::Integer(a.wrapping_rem(*b)),
        (Op::Add | Op::Subtract | Op::Multiply | Op::Divide | Op::Power, ..) => match (float(&a), float(&b)) {
            (Some(a), Some(b)) => Item::Float(match op {
                Op::Add => a + b,
                Op::Subtract => a - b,
                Op::Multiply => a * b,
                Op::Divide => a / b,
                _ => a.powf(b),
            }),
            _ => return temporal(op, a, b),
        },
        _ => return Err(invalid(op, &a, &b)),
    })
}

/// Times and durations are added and parted by the crate.
fn temporal(op: Op, a: Item, b: Item) -> Result<Item, String> {
    let is_time = |item: &Item| matches!(item, Item::DateTime(_) | Item::Duration(_));
    if !is_time(&a) && !is_time(&b) {
        return Err(invalid(op, &a, &b));
    }
    let wrong = invalid(op, &a, &b);
    let mut context = Context::default();
    context.insert("a", a);
    context.insert("b", b);
    ::expr::eval(&format!("a {} b", sign(op)), &context).map_err(|_| wrong)
}

/// A number as a float.
pub(super) fn float(item: &Item) -> Option<f64> {
    match item {
        // As a conversion in Go: the nearest float.
        #[expect(clippy::cast_precision_loss, reason = "numbers beyond 2^53 are rounded in Go too")]
        Item::Integer(value) => Some(*value as f64),
        Item::Float(value) => Some(*value),
        _ => None,
    }
}

/// A number as a place; what is behind the point falls away.
pub(super) fn whole(item: &Item) -> Option<i64> {
    match item {
        Item::Integer(value) => Some(*value),
        // Beyond what fits, as on the machines that Go runs on.
        Item::Float(value) if !(-9.3e18..9.3e18).contains(value) => Some(i64::MIN),
        #[expect(clippy::cast_possible_truncation, reason = "truncation is what is meant")]
        Item::Float(value) => Some(*value as i64),
        _ => None,
    }
}

fn order(op: Op, a: &Item, b: &Item) -> Result<Item, String> {
    let not_a_number = matches!((float(a), float(b)), (Some(a), Some(b)) if a.is_nan() || b.is_nan());
    let Some(order) = compare(a, b) else {
        return if not_a_number { Ok(Item::Bool(false)) } else { Err(invalid(op, a, b)) };
    };
    Ok(Item::Bool(match op {
        Op::Less => order == Ordering::Less,
        Op::LessEqual => order != Ordering::Greater,
        Op::More => order == Ordering::Greater,
        _ => order != Ordering::Less,
    }))
}

/// Which of two values comes first, where they can be compared.
pub(super) fn compare(a: &Item, b: &Item) -> Option<Ordering> {
    match (a, b) {
        (Item::Integer(a), Item::Integer(b)) => Some(a.cmp(b)),
        (Item::String(a), Item::String(b)) => Some(a.cmp(b)),
        (Item::Duration(a), Item::Duration(b)) => Some(a.cmp(b)),
        (Item::DateTime(a), Item::DateTime(b)) => a.partial_cmp(b),
        _ => float(a)?.partial_cmp(&float(b)?),
    }
}

fn equal(a: &Item, b: &Item) -> bool {
    match (a, b) {
        (Item::Integer(_) | Item::Float(_), Item::Integer(_) | Item::Float(_)) => compare(a, b) == Some(Ordering::Equal),
        (Item::Array(a), Item::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Item::Map(_), Item::Map(_)) => same(a, b),
        _ => a == b,
    }
}

/// Whether two values are equal and their numbers of one kind, as everything within maps is compared.
fn same(a: &Item, b: &Item) -> bool {
    match (a, b) {
        (Item::Array(a), Item::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Item::Map(a), Item::Map(b)) => {
            a.len() == b.len() && a.iter().all(|(key, value)| b.get(key).is_some_and(|other| same(value, other)))
        }
        _ => a == b,
    }
}

fn within(item: &Item, of: &Item) -> Result<bool, String> {
    match of {
        Item::Nil => Ok(false),
        Item::Array(items) => Ok(items.iter().any(|other| equal(item, other))),
        Item::Map(map) => match item {
            Item::String(key) => Ok(map.contains_key(key)),
            Item::Nil => Ok(false),
            other => Err(format!("a key of a map is a text, not {}", kind(other))),
        },
        Item::KeyedMap(pairs) => Ok(pairs.iter().any(|(key, _)| equal(key, item))),
        _ => Err(format!("operator \"in\" not defined on {}", kind(of))),
    }
}

fn texts(op: Op, a: &Item, b: &Item, budget: &EvaluationBudget) -> Result<bool, String> {
    match (a, b) {
        (Item::Nil, _) | (_, Item::Nil) => Ok(false),
        (Item::String(a), Item::String(b)) => Ok(match op {
            Op::Contains => a.contains(b.as_str()),
            Op::StartsWith => a.starts_with(b.as_str()),
            Op::EndsWith => a.ends_with(b.as_str()),
            _ => Pattern::made(b, budget)?.on(a, budget)?.is_match(a),
        }),
        _ => Err(invalid(op, a, b)),
    }
}

fn range(a: &Item, b: &Item, budget: &EvaluationBudget) -> Result<Item, String> {
    match (whole(a), whole(b)) {
        (Some(from), Some(to)) if to.saturating_sub(from) >= MAX_RANGE => {
            Err(format!("the range {from}..{to} is longer than {MAX_RANGE}"))
        }
        (Some(from), Some(to)) => {
            let length = usize::try_from(to.saturating_sub(from).saturating_add(1)).unwrap_or(0);
            budget.charge(length.saturating_mul(VALUE_WEIGHT)).map_err(|spent| spent.to_string())?;
            Ok(Item::Array((from..=to).map(Item::Integer).collect()))
        }
        _ => Err("a range goes from one whole number to another".to_owned()),
    }
}

/// What a key or an index leads to.
pub(super) fn member(of: &Item, key: &Item) -> Result<Item, String> {
    let place = |length: usize| {
        let at = whole(key).ok_or_else(|| format!("cannot fetch {} from {}", shown(key), kind(of)))?;
        let place = usize::try_from(at).ok().or_else(|| length.checked_sub(at.unsigned_abs().try_into().ok()?));
        place.filter(|place| *place < length).ok_or_else(|| format!("index out of range: {at} (array length is {length})"))
    };
    match (of, key) {
        (Item::Array(items), _) => Ok(items.get(place(items.len())?).cloned().unwrap_or(Item::Nil)),
        // A text is bytes there.
        (Item::String(_) | Item::Bytes(_), Item::Integer(_) | Item::Float(_)) => {
            let bytes = bytes(of).unwrap_or_default();
            Ok(bytes.get(place(bytes.len())?).map_or(Item::Nil, |byte| Item::Integer((*byte).into())))
        }
        (Item::Map(map), Item::String(key)) => {
            let field = || go_field(key, |field| map.contains_key(field)).and_then(|field| map.get(field));
            Ok(map.get(key).or_else(field).cloned().unwrap_or(Item::Nil))
        }
        (Item::Map(_), Item::Nil) => Ok(Item::Nil),
        (Item::KeyedMap(pairs), _) => {
            Ok(pairs.iter().find(|(known, _)| equal(known, key)).map_or(Item::Nil, |(_, item)| item.clone()))
        }
        _ => Err(format!("cannot fetch {} from {}", shown(key), kind(of))),
    }
}

/// The bytes of a text.
pub(super) fn bytes(item: &Item) -> Option<&[u8]> {
    match item {
        Item::String(text) => Some(text.as_bytes()),
        Item::Bytes(bytes) => Some(bytes),
        _ => None,
    }
}

fn shown(key: &Item) -> String {
    key.as_string().map_or_else(|| key.to_string(), str::to_owned)
}

/// A part of a list or a text; what is beyond the end is left out.
pub(super) fn slice(of: &Item, from: Option<&Item>, to: Option<&Item>) -> Result<Item, String> {
    let length = match of {
        Item::Array(items) => items.len(),
        Item::String(text) => text.len(),
        Item::Bytes(bytes) => bytes.len(),
        _ => return Err(format!("cannot slice {}", kind(of))),
    };
    let place = |item: Option<&Item>, default: usize| -> Result<usize, String> {
        let Some(item) = item else { return Ok(default) };
        let at = whole(item).ok_or_else(|| format!("cannot slice with {}", kind(item)))?;
        let from_end = || length.saturating_sub(usize::try_from(at.unsigned_abs()).unwrap_or(usize::MAX));
        Ok(usize::try_from(at).unwrap_or_else(|_| from_end()).min(length))
    };
    let (from, to) = (place(from, 0)?, place(to, length)?);
    let range = from.min(to)..to;
    Ok(match of {
        Item::Array(items) => Item::Array(items.get(range).unwrap_or_default().to_vec()),
        Item::String(text) => {
            let part = text.get(range).ok_or("cannot slice a text in the middle of a character")?;
            Item::String(part.to_owned())
        }
        Item::Bytes(bytes) => Item::Bytes(bytes.get(range).unwrap_or_default().to_vec()),
        _ => Item::Nil,
    })
}
