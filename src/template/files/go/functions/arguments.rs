//! The arguments of functions: their number and their types.

use std::rc::Rc;

use crate::template::files::go::context::GoContext;
use crate::template::files::go::value::{GoList, GoMap, GoValue, Numeric};
use crate::template::functions::limits::MAX_RESULT;
use crate::template::functions::print::truncate;

/// Returns a count as a value.
pub(in crate::template::files::go) fn count_value(count: usize) -> GoValue {
    GoValue::Int(i64::try_from(count).unwrap_or(i64::MAX))
}

/// Returns the error for a wrong number of arguments, which the call has excluded.
pub(super) fn wrong_arity<T>() -> Result<T, String> {
    Err("wrong number of arguments".to_owned())
}

pub(super) fn one_argument(args: &[GoValue]) -> Result<&GoValue, String> {
    if let [one] = args { Ok(one) } else { wrong_arity() }
}

pub(in crate::template::files::go) fn two_arguments(args: &[GoValue]) -> Result<(&GoValue, &GoValue), String> {
    if let [one, two] = args { Ok((one, two)) } else { wrong_arity() }
}

pub(super) fn three_arguments(args: &[GoValue]) -> Result<(&GoValue, &GoValue, &GoValue), String> {
    if let [one, two, three] = args { Ok((one, two, three)) } else { wrong_arity() }
}

/// Returns an argument as a text.
pub(in crate::template::files::go) fn as_text(context: &GoContext<'_>, item: &GoValue) -> Result<Rc<str>, String> {
    match item {
        GoValue::Nil => Err("an argument has no value; give it one with default".to_owned()),
        other => other.to_text(context),
    }
}

pub(super) fn as_texts<const N: usize>(context: &GoContext<'_>, args: &[GoValue]) -> Result<[Rc<str>; N], String> {
    let texts: Vec<Rc<str>> = args.iter().map(|item| as_text(context, item)).collect::<Result<_, _>>()?;
    texts.try_into().map_err(|_| "wrong number of arguments".to_owned())
}

/// Returns an argument as a list.
pub(super) fn as_list(item: &GoValue) -> Result<&Rc<GoList>, String> {
    match item {
        GoValue::List(list) => Ok(list),
        GoValue::Nil => Err("expected a list, but there is no value".to_owned()),
        other => Err(format!("expected a list, not {}", other.type_name())),
    }
}

/// Returns an argument as a map.
pub(super) fn as_map(item: &GoValue) -> Result<&Rc<GoMap>, String> {
    match item {
        GoValue::Map(map) => Ok(map),
        GoValue::Nil => Err("expected a map, but there is no value".to_owned()),
        other => Err(format!("expected a map, not {}", other.type_name())),
    }
}

/// Converts to an integer as Sprig does: texts are parsed, other types are 0.
pub(super) fn as_integer(item: &GoValue) -> i64 {
    match item {
        GoValue::Int(value) => *value,
        GoValue::Float(value) => truncate(*value),
        GoValue::Bool(value) => i64::from(*value),
        GoValue::Text(text) => text.trim().parse().unwrap_or_else(|_| truncate(text.trim().parse().unwrap_or(0.0))),
        _ => 0,
    }
}

/// Converts to a float as Sprig does: texts are parsed, other types are 0.
pub(super) fn as_float(item: &GoValue) -> f64 {
    match item {
        GoValue::Text(text) => text.trim().parse().unwrap_or(0.0),
        GoValue::Bool(value) => f64::from(u8::from(*value)),
        other => other.number().map_or(0.0, Numeric::float),
    }
}

/// Returns an argument as a count or a length.
pub(super) fn as_count(item: &GoValue) -> Result<usize, String> {
    let wanted = as_integer(item);
    usize::try_from(wanted).ok().filter(|size| *size <= MAX_RESULT).ok_or_else(|| format!("{wanted} is out of range"))
}
