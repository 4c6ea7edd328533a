//! The functions of Jet that depend only on their arguments.

use serde_json::{Map, Value};

use super::arithmetic;
use crate::template::functions::limits::MAX_RESULT;
use crate::template::functions::print::{self, to_text};
use crate::template::functions::{escape, json};

/// A function: takes the arguments, returns the result or the error message.
pub(super) type JetFunction = fn(&[Value]) -> Result<Value, String>;

/// The functions that templates call.
pub(super) static TABLE: &[(&str, JetFunction)] = &[
    ("len", |args| match args {
        [Value::Array(items)] => Ok(items.len().into()),
        [Value::Object(map)] => Ok(map.len().into()),
        [Value::String(text)] => Ok(text.len().into()),
        _ => Err("len takes a list, a map or a text".to_owned()),
    }),
    ("lower", |args| Ok(print::lower(&one_text("lower", args)?).into())),
    ("upper", |args| Ok(print::upper(&one_text("upper", args)?).into())),
    ("trimSpace", |args| Ok(one_text("trimSpace", args)?.trim().into())),
    ("html", |args| Ok(escape::html(&one_text("html", args)?).into())),
    ("safeHtml", |args| Ok(escape::html(&one_text("safeHtml", args)?).into())),
    ("safeJs", |args| Ok(escape::js(&one_text("safeJs", args)?).into())),
    ("url", |args| Ok(escape::urlquery(&one_text("url", args)?).into())),
    ("raw", |args| Ok(one_text("raw", args)?.into())),
    ("unsafe", |args| Ok(one_text("unsafe", args)?.into())),
    ("hasPrefix", |args| {
        let [text, part] = two_texts("hasPrefix", args)?;
        Ok(text.starts_with(&part).into())
    }),
    ("hasSuffix", |args| {
        let [text, part] = two_texts("hasSuffix", args)?;
        Ok(text.ends_with(&part).into())
    }),
    ("split", |args| {
        let [text, separator] = two_texts("split", args)?;
        Ok(text.split(&separator).collect::<Vec<_>>().into())
    }),
    ("repeat", |args| match args {
        [text, count] => {
            let (text, count) = (to_text(text), arithmetic::to_integer(count).and_then(|count| usize::try_from(count).ok()));
            let count = count.filter(|count| text.len().saturating_mul(*count) <= MAX_RESULT);
            Ok(text.repeat(count.ok_or("repeat takes a count that is not too large")?).into())
        }
        _ => Err("repeat takes a text and a count".to_owned()),
    }),
    ("replace", |args| match args {
        [text, from, to, rest @ ..] if rest.len() <= 1 => {
            let (text, from, to) = (to_text(text), to_text(from), to_text(to));
            // As in Go: a negative count replaces all.
            let count = rest.first().and_then(arithmetic::to_integer).and_then(|count| usize::try_from(count).ok());
            Ok(count.map_or_else(|| text.replace(&from, &to), |count| text.replacen(&from, &to, count)).into())
        }
        _ => Err("replace takes a text, what to replace, by what, and how often".to_owned()),
    }),
    ("map", |args| {
        let mut map = Map::new();
        for pair in args.chunks(2) {
            let [key, value] = pair else { return Err("map takes keys and values".to_owned()) };
            map.insert(to_text(key), value.clone());
        }
        Ok(Value::Object(map))
    }),
    ("slice", |args| Ok(args.to_vec().into())),
    ("array", |args| Ok(args.to_vec().into())),
    ("ints", |args| match args {
        [from, to] => {
            let (from, to) = (arithmetic::to_integer(from), arithmetic::to_integer(to));
            if from.zip(to).is_some_and(|(from, to)| to <= from) {
                return Err("ints takes two numbers, the larger one last".to_owned());
            }
            let bounds = from.zip(to).filter(|(from, to)| usize::try_from(to.saturating_sub(*from)).unwrap_or(0) <= MAX_RESULT);
            let (from, to) = bounds.ok_or("ints takes two numbers that are not too far apart")?;
            Ok((from..to).collect::<Vec<_>>().into())
        }
        _ => Err("ints takes two numbers".to_owned()),
    }),
    ("json", |args| Ok(json::compact(one_argument("json", args)?).into())),
    ("writeJson", |args| Ok(format!("{}\n", json::compact(one_argument("writeJson", args)?)).into())),
];

/// Returns an upper bound of the memory for a call, beside its arguments.
pub(super) fn memory_bound(name: &str, args: &[Value]) -> usize {
    let given: usize = args.iter().map(|value| value.as_str().map_or_else(|| value.to_string().len(), str::len)).sum();
    let text = |at: usize| args.get(at).map_or(0, |value| to_text(value).len());
    match name {
        // Each replaced place is at least as long as the sought text.
        "replace" => text(0).saturating_add((text(0) / text(1).max(1) + 1).saturating_mul(text(2))),
        // Escaping takes up to six bytes a character.
        "html" | "safeHtml" | "safeJs" | "url" | "json" | "writeJson" => given.saturating_mul(6),
        "split" => given.saturating_mul(2 + crate::model::budget::VALUE_WEIGHT),
        _ => given.saturating_mul(2),
    }
}

/// The functions behind operators.
pub(super) static OPERATORS: &[(&str, JetFunction)] = &[
    ("plus", |args| match args {
        [Value::String(left), right] => Ok(format!("{left}{}", to_text(right)).into()),
        _ => arithmetic::plus(args),
    }),
    ("minus", arithmetic::minus),
    ("times", arithmetic::times),
    ("div", arithmetic::div),
    ("rem", arithmetic::rem),
    ("signed", arithmetic::signed),
    ("part", |args| match args {
        [value, from, to] => {
            let bound = |bound: &Value, default: usize| {
                arithmetic::to_integer(bound).and_then(|at| usize::try_from(at).ok()).unwrap_or(default)
            };
            match value {
                Value::Array(items) => {
                    let (from, to) = (bound(from, 0), bound(to, items.len()));
                    items.get(from..to).map(|part| part.to_vec().into()).ok_or_else(|| "slice out of range".to_owned())
                }
                Value::String(text) => {
                    let (from, to) = (bound(from, 0), bound(to, text.len()));
                    text.get(from..to).map(Into::into).ok_or_else(|| "slice out of range".to_owned())
                }
                _ => Err("only lists and texts have slices".to_owned()),
            }
        }
        _ => Err("a slice has two bounds".to_owned()),
    }),
];

fn one_argument<'a>(name: &str, args: &'a [Value]) -> Result<&'a Value, String> {
    if let [value] = args { Ok(value) } else { Err(format!("{name} takes one argument")) }
}

fn one_text(name: &str, args: &[Value]) -> Result<String, String> {
    one_argument(name, args).map(to_text)
}

fn two_texts(name: &str, args: &[Value]) -> Result<[String; 2], String> {
    if let [first, second] = args { Ok([to_text(first), to_text(second)]) } else { Err(format!("{name} takes two texts")) }
}
