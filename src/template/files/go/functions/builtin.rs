//! The functions of the Go template language itself.

use std::cmp::Ordering;

use super::arguments::{as_integer, as_text, count_value, one_argument, wrong_arity};
use super::function::{ANY, CallShape, GoFunction, function};
use crate::template::files::go::context::GoContext;
use crate::template::files::go::format;
use crate::template::files::go::value::{GoValue, Numeric};
use crate::template::functions::escape::{html, js, urlquery};

pub(super) static TABLE: &[GoFunction] = &[
    GoFunction { name: "and", shape: CallShape::And },
    GoFunction { name: "or", shape: CallShape::Or },
    function("not", 1, 1, |_, args| Ok(GoValue::Bool(!one_argument(args)?.is_truthy()))),
    function("eq", 2, ANY, |context, args| match args {
        [first, rest @ ..] => {
            for other in rest {
                if equal(context, first, other)? {
                    return Ok(GoValue::Bool(true));
                }
            }
            Ok(GoValue::Bool(false))
        }
        [] => wrong_arity(),
    }),
    function("ne", 2, 2, |context, args| match args {
        [one, two] => Ok(GoValue::Bool(!equal(context, one, two)?)),
        _ => wrong_arity(),
    }),
    function("lt", 2, 2, |_, args| compare(args, Ordering::is_lt)),
    function("le", 2, 2, |_, args| compare(args, Ordering::is_le)),
    function("gt", 2, 2, |_, args| compare(args, Ordering::is_gt)),
    function("ge", 2, 2, |_, args| compare(args, Ordering::is_ge)),
    function("len", 1, 1, |_, args| match one_argument(args)? {
        GoValue::Text(text) => Ok(count_value(text.len())),
        GoValue::List(list) => Ok(count_value(list.items.len())),
        GoValue::Map(map) => Ok(count_value(map.len())),
        other => Err(format!("len of type {}", other.type_name())),
    }),
    function("index", 1, ANY, |context, args| match args {
        [item, keys @ ..] => keys.iter().try_fold(item.clone(), |item, key| index_value(context, &item, key)),
        [] => wrong_arity(),
    }),
    // Sprig has `slice` too, for lists only.
    function("slice", 1, 3, |_, args| match args {
        [item, bounds @ ..] => slice_value(item, bounds),
        [] => wrong_arity(),
    }),
    function("mustSlice", 1, 3, |_, args| match args {
        [item, bounds @ ..] => slice_value(item, bounds),
        [] => wrong_arity(),
    }),
    function("print", 0, ANY, |context, args| Ok(GoValue::text(format::print(args, context)?))),
    function("println", 0, ANY, |context, args| Ok(GoValue::text(format::println(args, context)?))),
    function("printf", 1, ANY, |context, args| match args {
        [wanted, args @ ..] => Ok(GoValue::text(format::printf(&as_text(context, wanted)?, args, context)?)),
        [] => wrong_arity(),
    }),
    function("html", 0, ANY, |context, args| Ok(GoValue::text(html(&format::print(args, context)?)))),
    function("js", 0, ANY, |context, args| Ok(GoValue::text(js(&format::print(args, context)?)))),
    function("urlquery", 0, ANY, |context, args| Ok(GoValue::text(urlquery(&format::print(args, context)?)))),
];

fn equal(context: &GoContext<'_>, one: &GoValue, two: &GoValue) -> Result<bool, String> {
    let simple = |item: &GoValue| !matches!(item, GoValue::List(_) | GoValue::Map(_));
    if !simple(one) || !simple(two) {
        return Err("lists and maps can't be compared with eq; use deepEqual".to_owned());
    }
    let alike = one.number().is_some() && two.number().is_some() || one.type_name() == two.type_name();
    if !alike && !matches!(one, GoValue::Nil) && !matches!(two, GoValue::Nil) {
        return Err(format!("incompatible types for comparison: {} and {}", one.type_name(), two.type_name()));
    }
    one.equals(two, context)
}

fn compare(args: &[GoValue], holds: fn(Ordering) -> bool) -> Result<GoValue, String> {
    let order = match args {
        [GoValue::Text(one), GoValue::Text(two)] => one.cmp(two),
        [GoValue::Time(one), GoValue::Time(two)] => one.zoned().cmp(two.zoned()),
        [one, two] => match (one.number(), two.number()) {
            (Some(Numeric::Float(value)), _) | (_, Some(Numeric::Float(value))) if value.is_nan() => {
                return Ok(GoValue::Bool(false));
            }
            (Some(one), Some(two)) => one.cmp(&two),
            _ => {
                return Err(format!("incompatible types for comparison: {} and {}", one.type_name(), two.type_name()));
            }
        },
        _ => return wrong_arity(),
    };
    Ok(GoValue::Bool(holds(order)))
}

fn index_value(context: &GoContext<'_>, item: &GoValue, key: &GoValue) -> Result<GoValue, String> {
    let place = |length: usize| match key {
        GoValue::Int(at) => {
            usize::try_from(*at).ok().filter(|at| *at < length).ok_or_else(|| format!("index out of range: {at}"))
        }
        other => Err(format!("cannot index a list or text with type {}", other.type_name())),
    };
    match item {
        GoValue::List(list) => Ok(list.items.get(place(list.items.len())?).cloned().unwrap_or(GoValue::Nil)),
        GoValue::Text(text) => Ok(GoValue::Int(i64::from(text.as_bytes().get(place(text.len())?).copied().unwrap_or(0)))),
        GoValue::Map(map) => Ok(map.get(&as_text(context, key)?).unwrap_or(GoValue::Nil)),
        GoValue::Nil => Err("index of untyped nil".to_owned()),
        other => Err(format!("can't index item of type {}", other.type_name())),
    }
}

fn slice_value(item: &GoValue, bounds: &[GoValue]) -> Result<GoValue, String> {
    let length = match item {
        GoValue::List(list) => list.items.len(),
        GoValue::Text(text) => text.len(),
        other => return Err(format!("can't slice item of type {}", other.type_name())),
    };
    let bound = |at: usize, default: usize| match bounds.get(at) {
        None => Ok(default),
        Some(item) => {
            let wanted = as_integer(item);
            let place = usize::try_from(wanted).ok().filter(|place| *place <= length);
            place.ok_or_else(|| format!("index out of range: {wanted}"))
        }
    };
    let (from, to) = (bound(0, 0)?, bound(1, length)?);
    match item {
        GoValue::List(list) => GoValue::list(list.items.get(from..to).ok_or("the bounds are the wrong way round")?.to_vec()),
        GoValue::Text(text) => {
            Ok(GoValue::text(text.get(from..to).ok_or("the bounds are within a character, or the wrong way round")?))
        }
        _ => wrong_arity(),
    }
}
