//! Functions for operations on values: print, access, compare, iterate.

use std::cmp::Ordering;
use std::sync::Arc;

use minijinja::value::{Value as Item, ValueKind};
use minijinja::{Environment, Error};
use serde_json::Value;

use crate::template::files::minijinja_env::{budget_error, template_error, to_json, weigh};
use crate::template::functions::bus_functions::go_field;
use crate::template::functions::limits::MAX_RESULT;
use crate::template::functions::print;
use crate::template::text::ScopeState;

/// Adds the functions to an environment.
pub(super) fn add(environment: &mut Environment<'_>, scope: &Arc<ScopeState>) {
    let of = Arc::clone(scope);
    // The source comes along, for the error about a missing value.
    environment.add_function("show", move |item: Item, name: String| match to_json(&of, &item)? {
        Value::Null => Err(template_error(format!("missing key '{name}' in environment"))),
        shown => Ok(print_value(&shown)),
    });
    environment.add_function("at", |item: Item, key: Item, name: String| member_at(&item, &key, &name));
    let of = Arc::clone(scope);
    environment.add_function("entries", move |item: Item, name: String| {
        if item.is_undefined() {
            return Err(template_error(format!("missing key '{name}' in environment")));
        }
        let entries = entries(&item)?;
        weigh(&entries, &|bytes| of.parts.budget.charge(bytes)).map_err(budget_error)?;
        Ok(entries)
    });
    environment.add_function("has", |item: Item| !item.is_undefined() && !item.is_none());
    environment.add_function("truth", |item: Item| is_true(&item));
    environment.add_function("same", |left: Item, right: Item| is_same(&left, &right));
    environment.add_function("ordered", |sign: String, left: Item, right: Item| compare(&sign, &left, &right));
}

/// Returns a value as an action prints it: a float in full, never with an exponent.
fn print_value(value: &Value) -> String {
    match value.as_f64().filter(|_| value.is_f64()) {
        Some(float) => float.to_string(),
        None => print::to_text(value),
    }
}

/// Returns the member at a key or an index.
fn member_at(item: &Item, key: &Item, name: &str) -> Result<Item, Error> {
    if item.is_undefined() || item.is_none() {
        return Err(template_error(format!("missing key '{name}': cannot fetch {key} from <nil>")));
    }
    let index = if key.is_number() { number(key).map(f64::trunc) } else { None };
    let Some(index) = index else {
        let found = item.get_item(key)?;
        let field = key.as_str().filter(|_| found.is_undefined() && item.kind() == ValueKind::Map);
        let has = |field: &str| item.get_attr(field).is_ok_and(|found| !found.is_undefined());
        return field.and_then(|key| go_field(key, has)).map_or(Ok(found), |field| item.get_attr(field));
    };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is whole and not below zero")]
    let place = (0.0..9e15).contains(&index).then_some(index as usize);
    // As in Go: the byte at an index.
    if let Some(text) = item.as_str() {
        let byte = place.and_then(|place| text.as_bytes().get(place));
        return byte.map(|byte| Item::from(*byte)).ok_or_else(|| template_error(format!("index out of range: {index}")));
    }
    // A negative index finds nothing.
    place.map_or(Ok(Item::UNDEFINED), |place| item.get_item(&Item::from(place)))
}

fn number(item: &Item) -> Option<f64> {
    if item.is_number() { f64::try_from(item.clone()).ok() } else { None }
}

/// True unless the value is missing, zero, false or the empty text. Empty lists and maps are true.
fn is_true(item: &Item) -> bool {
    match item.kind() {
        ValueKind::Undefined | ValueKind::None => false,
        ValueKind::Number => number(item) != Some(0.0),
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => true,
        _ => item.is_true(),
    }
}

/// True when two values are equal; values of different types never are.
fn is_same(left: &Item, right: &Item) -> bool {
    let nothing = |item: &Item| item.is_undefined() || item.is_none();
    if nothing(left) || nothing(right) {
        return nothing(left) && nothing(right);
    }
    left.kind() == right.kind() && left == right
}

/// Compares numbers with `<` and the like; a text on the right is parsed as a number.
fn compare(sign: &str, left: &Item, right: &Item) -> Result<bool, Error> {
    let wrong = |side: &str| template_error(format!("{sign} takes numbers, but its {side} side is not a number"));
    let order = match (left.as_i64(), right.as_i64()) {
        (Some(a), Some(b)) if left.is_integer() && right.is_integer() => Some(a.cmp(&b)),
        _ => {
            let a = number(left).ok_or_else(|| wrong("left"))?;
            let read = || right.as_str().and_then(|text| text.parse().ok());
            a.partial_cmp(&number(right).or_else(read).ok_or_else(|| wrong("right"))?)
        }
    };
    Ok(match sign {
        "<" => order == Some(Ordering::Less),
        "<=" => matches!(order, Some(Ordering::Less | Ordering::Equal)),
        ">" => order == Some(Ordering::Greater),
        _ => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
    })
}

/// Returns the entries of a loop: keys or indexes, each with its value.
fn entries(item: &Item) -> Result<Item, Error> {
    let pair = |key: Item, item: Item| Item::from(vec![key, item]);
    match item.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            Ok(item.try_iter()?.enumerate().map(|(index, item)| pair(index.into(), item)).collect())
        }
        ValueKind::Map => item.try_iter()?.map(|key| Ok(pair(key.clone(), item.get_item(&key)?))).collect(),
        ValueKind::Number => {
            let most = number(item).filter(|most| most.fract() == 0.0);
            let most = most.ok_or_else(|| template_error("range needs a whole number".to_owned()))?;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "too many are refused below")]
            let most = most.max(0.0) as usize;
            if most > MAX_RESULT {
                return Err(template_error(format!("a range over more than {MAX_RESULT} numbers")));
            }
            Ok((0..most).map(|at| pair(at.into(), at.into())).collect())
        }
        // A key without a value is an empty list, as in Go.
        ValueKind::None => Ok(Item::from(Vec::<Item>::new())),
        _ => Err(template_error("range needs a list, a map or a number".to_owned())),
    }
}
