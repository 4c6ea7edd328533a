//! The functions of the Go template language itself.

use std::cmp::Ordering;

use super::super::Context;
use super::super::format;
use super::super::item::{Item, Numeric};
use super::{ANY, Function, Shape, arity, count, function, int, one, string};
use crate::template::escape::{html, js, urlquery};

pub(super) static TABLE: &[Function] = &[
    Function { name: "and", shape: Shape::And },
    Function { name: "or", shape: Shape::Or },
    function("not", 1, 1, |_, args| Ok(Item::Bool(!one(args)?.truth()))),
    function("eq", 2, ANY, |context, args| match args {
        [first, rest @ ..] => {
            for other in rest {
                if equal(context, first, other)? {
                    return Ok(Item::Bool(true));
                }
            }
            Ok(Item::Bool(false))
        }
        [] => arity(),
    }),
    function("ne", 2, 2, |context, args| match args {
        [one, two] => Ok(Item::Bool(!equal(context, one, two)?)),
        _ => arity(),
    }),
    function("lt", 2, 2, |_, args| compared(args, Ordering::is_lt)),
    function("le", 2, 2, |_, args| compared(args, Ordering::is_le)),
    function("gt", 2, 2, |_, args| compared(args, Ordering::is_gt)),
    function("ge", 2, 2, |_, args| compared(args, Ordering::is_ge)),
    function("len", 1, 1, |_, args| match one(args)? {
        Item::Text(text) => Ok(count(text.len())),
        Item::List(list) => Ok(count(list.items.len())),
        Item::Map(map) => Ok(count(map.len())),
        other => Err(format!("len of type {}", other.type_name())),
    }),
    function("index", 1, ANY, |context, args| match args {
        [item, keys @ ..] => keys.iter().try_fold(item.clone(), |item, key| indexed(context, &item, key)),
        [] => arity(),
    }),
    // Sprig has `slice` too, for lists only.
    function("slice", 1, 3, |_, args| match args {
        [item, bounds @ ..] => sliced(item, bounds),
        [] => arity(),
    }),
    function("mustSlice", 1, 3, |_, args| match args {
        [item, bounds @ ..] => sliced(item, bounds),
        [] => arity(),
    }),
    function("print", 0, ANY, |context, args| Ok(Item::text(format::print(args, context)?))),
    function("println", 0, ANY, |context, args| Ok(Item::text(format::println(args, context)?))),
    function("printf", 1, ANY, |context, args| match args {
        [wanted, args @ ..] => Ok(Item::text(format::printf(&string(context, wanted)?, args, context)?)),
        [] => arity(),
    }),
    function("html", 0, ANY, |context, args| Ok(Item::text(html(&format::print(args, context)?)))),
    function("js", 0, ANY, |context, args| Ok(Item::text(js(&format::print(args, context)?)))),
    function("urlquery", 0, ANY, |context, args| Ok(Item::text(urlquery(&format::print(args, context)?)))),
];

fn equal(context: &Context<'_>, one: &Item, two: &Item) -> Result<bool, String> {
    let simple = |item: &Item| !matches!(item, Item::List(_) | Item::Map(_));
    if !simple(one) || !simple(two) {
        return Err("lists and maps can't be compared with eq; use deepEqual".to_owned());
    }
    let alike = one.number().is_some() && two.number().is_some() || one.type_name() == two.type_name();
    if !alike && !matches!(one, Item::Nil) && !matches!(two, Item::Nil) {
        return Err(format!("incompatible types for comparison: {} and {}", one.type_name(), two.type_name()));
    }
    one.same(two, context)
}

fn compared(args: &[Item], holds: fn(Ordering) -> bool) -> Result<Item, String> {
    let order = match args {
        [Item::Text(one), Item::Text(two)] => one.cmp(two),
        [Item::Time(one), Item::Time(two)] => one.zoned().cmp(two.zoned()),
        [one, two] => match (one.number(), two.number()) {
            (Some(Numeric::Float(value)), _) | (_, Some(Numeric::Float(value))) if value.is_nan() => {
                return Ok(Item::Bool(false));
            }
            (Some(one), Some(two)) => one.cmp(&two),
            _ => {
                return Err(format!("incompatible types for comparison: {} and {}", one.type_name(), two.type_name()));
            }
        },
        _ => return arity(),
    };
    Ok(Item::Bool(holds(order)))
}

fn indexed(context: &Context<'_>, item: &Item, key: &Item) -> Result<Item, String> {
    let place = |length: usize| match key {
        Item::Int(at) => usize::try_from(*at).ok().filter(|at| *at < length).ok_or_else(|| format!("index out of range: {at}")),
        other => Err(format!("cannot index a list or text with type {}", other.type_name())),
    };
    match item {
        Item::List(list) => Ok(list.items.get(place(list.items.len())?).cloned().unwrap_or(Item::Nil)),
        Item::Text(text) => Ok(Item::Int(i64::from(text.as_bytes().get(place(text.len())?).copied().unwrap_or(0)))),
        Item::Map(map) => Ok(map.get(&string(context, key)?).unwrap_or(Item::Nil)),
        Item::Nil => Err("index of untyped nil".to_owned()),
        other => Err(format!("can't index item of type {}", other.type_name())),
    }
}

fn sliced(item: &Item, bounds: &[Item]) -> Result<Item, String> {
    let length = match item {
        Item::List(list) => list.items.len(),
        Item::Text(text) => text.len(),
        other => return Err(format!("can't slice item of type {}", other.type_name())),
    };
    let bound = |at: usize, default: usize| match bounds.get(at) {
        None => Ok(default),
        Some(item) => {
            let wanted = int(item);
            let place = usize::try_from(wanted).ok().filter(|place| *place <= length);
            place.ok_or_else(|| format!("index out of range: {wanted}"))
        }
    };
    let (from, to) = (bound(0, 0)?, bound(1, length)?);
    match item {
        Item::List(list) => Item::list(list.items.get(from..to).ok_or("the bounds are the wrong way round")?.to_vec()),
        Item::Text(text) => {
            Ok(Item::text(text.get(from..to).ok_or("the bounds are within a character, or the wrong way round")?))
        }
        _ => arity(),
    }
}
