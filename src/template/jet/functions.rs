//! The functions of Jet that need nothing but their arguments.

use serde_json::{Map, Value};

use super::super::escape;
use super::super::text::to_text;

/// A function: its arguments to its result, or to what is wrong.
pub(super) type Function = fn(&[Value]) -> Result<Value, String>;

/// The longest text and the longest list that a function makes.
const MAX_MADE: usize = 1 << 20;

/// The functions that templates call.
pub(super) static TABLE: &[(&str, Function)] = &[
    ("len", |args| match args {
        [Value::Array(items)] => Ok(items.len().into()),
        [Value::Object(map)] => Ok(map.len().into()),
        [Value::String(text)] => Ok(text.len().into()),
        _ => Err("len takes a list, a map or a text".to_owned()),
    }),
    ("lower", |args| Ok(one_text("lower", args)?.to_lowercase().into())),
    ("upper", |args| Ok(one_text("upper", args)?.to_uppercase().into())),
    ("trimSpace", |args| Ok(one_text("trimSpace", args)?.trim().into())),
    ("html", |args| Ok(escape::html(&one_text("html", args)?).into())),
    ("safeHtml", |args| Ok(escape::html(&one_text("safeHtml", args)?).into())),
    ("safeJs", |args| Ok(escape::js(&one_text("safeJs", args)?).into())),
    ("url", |args| Ok(escape::urlquery(&one_text("url", args)?).into())),
    ("raw", |args| Ok(one_text("raw", args)?.into())),
    ("unsafe", |args| Ok(one_text("unsafe", args)?.into())),
    ("hasPrefix", |args| {
        let [text, part] = texts("hasPrefix", args)?;
        Ok(text.starts_with(&part).into())
    }),
    ("hasSuffix", |args| {
        let [text, part] = texts("hasSuffix", args)?;
        Ok(text.ends_with(&part).into())
    }),
    ("split", |args| {
        let [text, separator] = texts("split", args)?;
        Ok(text.split(&separator).collect::<Vec<_>>().into())
    }),
    ("repeat", |args| match args {
        [text, count] => {
            let (text, count) = (to_text(text), count.as_u64().and_then(|count| usize::try_from(count).ok()));
            let count = count.filter(|count| text.len().saturating_mul(*count) <= MAX_MADE);
            Ok(text.repeat(count.ok_or("repeat takes a count that is not too large")?).into())
        }
        _ => Err("repeat takes a text and a count".to_owned()),
    }),
    ("replace", |args| match args {
        [text, from, to, rest @ ..] if rest.len() <= 1 => {
            let (text, from, to) = (to_text(text), to_text(from), to_text(to));
            // As in Go: a count below zero is all of them.
            let count = rest.first().and_then(Value::as_i64).and_then(|count| usize::try_from(count).ok());
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
            let (from, to) = (from.as_i64(), to.as_i64());
            let bounds = from.zip(to).filter(|(from, to)| usize::try_from(to.saturating_sub(*from)).unwrap_or(0) <= MAX_MADE);
            let (from, to) = bounds.ok_or("ints takes two numbers that are not too far apart")?;
            Ok((from..to).collect::<Vec<_>>().into())
        }
        _ => Err("ints takes two numbers".to_owned()),
    }),
    ("json", |args| Ok(escape::for_html(&one("json", args)?.to_string()).into())),
    ("writeJson", |args| Ok(escape::for_html(&one("writeJson", args)?.to_string()).into())),
];

/// The most memory that a call may take beside its arguments.
pub(super) fn made(name: &str, args: &[Value]) -> usize {
    let given: usize = args.iter().map(|value| value.as_str().map_or_else(|| value.to_string().len(), str::len)).sum();
    let text = |at: usize| args.get(at).map_or(0, |value| to_text(value).len());
    match name {
        // Each place that is replaced is at least as long as what is sought.
        "replace" => text(0).saturating_add((text(0) / text(1).max(1) + 1).saturating_mul(text(2))),
        // A character takes up to six where it is escaped.
        "html" | "safeHtml" | "safeJs" | "url" | "json" | "writeJson" => given.saturating_mul(6),
        "split" => given.saturating_mul(2 + crate::model::budget::VALUE_WEIGHT),
        _ => given.saturating_mul(2),
    }
}

/// What operators become.
pub(super) static INTERNAL: &[(&str, Function)] = &[
    ("plus", |args| match args {
        [left, right] if left.is_string() || right.is_string() => Ok(format!("{}{}", to_text(left), to_text(right)).into()),
        [left, right] => match (left.as_i64(), right.as_i64()) {
            (Some(left), Some(right)) => Ok(left.checked_add(right).ok_or("the sum is too large")?.into()),
            _ => float_of("+", left, right, |left, right| left + right),
        },
        _ => Err("+ has two sides".to_owned()),
    }),
    ("times", |args| match args {
        [left, right] => match (left.as_i64(), right.as_i64()) {
            (Some(left), Some(right)) => Ok(left.checked_mul(right).ok_or("the product is too large")?.into()),
            _ => float_of("*", left, right, |left, right| left * right),
        },
        _ => Err("* has two sides".to_owned()),
    }),
    ("div", |args| match args {
        [left, right] => match (left.as_i64(), right.as_i64()) {
            (Some(left), Some(right)) => Ok(left.checked_div(right).ok_or("division by zero")?.into()),
            _ => float_of("/", left, right, |left, right| left / right),
        },
        _ => Err("/ has two sides".to_owned()),
    }),
    ("part", |args| match args {
        [value, from, to] => {
            let bound = |bound: &Value, default: usize| bound.as_u64().and_then(|at| usize::try_from(at).ok()).unwrap_or(default);
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

/// What a loop runs over: keys or indexes, each with its value.
pub(super) fn entries(value: &Value) -> Result<Value, String> {
    match value {
        Value::Array(items) => Ok(items.iter().enumerate().map(|(index, item)| (index.into(), item.clone())).map(pair).collect()),
        Value::Object(map) => Ok(map.iter().map(|(key, item)| (key.as_str().into(), item.clone())).map(pair).collect()),
        Value::Number(most) if most.is_i64() || most.is_u64() => {
            let most = most.as_i64().filter(|most| usize::try_from(*most).unwrap_or(0) <= MAX_MADE);
            let most = most.ok_or_else(|| format!("a range over more than {MAX_MADE} numbers"))?;
            Ok((0..most).map(|at| (at.into(), at.into())).map(pair).collect())
        }
        // A key without a value is an empty list, as in Go.
        Value::Null => Ok(Value::Array(Vec::new())),
        _ => Err("nothing to range over: neither a list nor a map nor a number".to_owned()),
    }
}

fn pair((key, item): (Value, Value)) -> Value {
    Value::Array(vec![key, item])
}

fn float_of(sign: &str, left: &Value, right: &Value, operate: fn(f64, f64) -> f64) -> Result<Value, String> {
    let sides = left.as_f64().zip(right.as_f64());
    sides.map(|(left, right)| operate(left, right).into()).ok_or_else(|| format!("{sign} takes numbers"))
}

fn one<'a>(name: &str, args: &'a [Value]) -> Result<&'a Value, String> {
    if let [value] = args { Ok(value) } else { Err(format!("{name} takes one argument")) }
}

fn one_text(name: &str, args: &[Value]) -> Result<String, String> {
    one(name, args).map(to_text)
}

fn texts(name: &str, args: &[Value]) -> Result<[String; 2], String> {
    if let [first, second] = args { Ok([to_text(first), to_text(second)]) } else { Err(format!("{name} takes two texts")) }
}
