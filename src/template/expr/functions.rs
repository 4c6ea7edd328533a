//! Functions of the language that the crate has otherwise.

use std::fmt::Write;

use ::expr::{Environment, Error, Value as Item};
use serde_json::Value;

use super::{operate, to_item, to_value};
use crate::template::text;

/// The most repetitions of a text.
const MAX_REPEAT: i64 = 1_000_000;

/// Lays them over those of the crate.
pub(super) fn add(environment: &mut Environment<'static>) {
    type Function = fn(&[Item]) -> Result<Item, String>;
    let functions: [(&str, Function); 8] = [
        ("trimPrefix", |args| trim(args, |text, part| text.strip_prefix(part).unwrap_or(text))),
        ("trimSuffix", |args| trim(args, |text, part| text.strip_suffix(part).unwrap_or(text))),
        ("split", |args| split("split", args, false)),
        ("splitAfter", |args| split("splitAfter", args, true)),
        ("repeat", repeat),
        ("type", kind),
        ("fromJSON", from_json),
        ("join", join),
    ];
    for (name, function) in functions {
        environment.add_function(name, move |call| function(&call.args).map_err(Error::ExprError));
    }
    environment.add_function("toJSON", |call| {
        let [item] = call.args.as_slice() else { return Err(Error::ExprError("toJSON takes one argument".to_owned())) };
        Ok(Item::String(to_json(&to_value(item.clone(), call.env))))
    });
    environment.add_function("int", |call| match call.args.as_slice() {
        [Item::Month(number) | Item::Weekday(number)] => Ok(Item::Integer(i64::from(*number))),
        [item @ Item::Float(_)] => Ok(operate::whole(item).map_or(Item::Nil, Item::Integer)),
        [Item::Integer(_)] => Ok(call.args.into_iter().next().unwrap_or(Item::Nil)),
        [Item::String(text)] => {
            text.parse().map(Item::Integer).map_err(|_| Error::ExprError(format!("invalid operation: int({text})")))
        }
        [Item::Duration(value)] => Ok(Item::Integer(*value)),
        [other] => Err(Error::ExprError(format!("invalid operation: int({})", operate::kind(other)))),
        _ => Err(Error::ExprError("int takes one argument".to_owned())),
    });
}

fn wrong(name: &str, args: &[Item]) -> String {
    let kinds: Vec<_> = args.iter().map(operate::kind).collect();
    format!("invalid arguments for {name}: {}", kinds.join(", "))
}

fn trim(args: &[Item], trimmed: impl for<'t> Fn(&'t str, &str) -> &'t str) -> Result<Item, String> {
    match args {
        [Item::String(text)] => Ok(Item::from(trimmed(text, " "))),
        [Item::String(text), Item::String(part)] => Ok(Item::from(trimmed(text, part))),
        _ => Err(wrong("trim", args)),
    }
}

/// As Go's `SplitN`: at most that many parts, all when below zero, none when zero; between all characters when the
/// separator is empty.
fn split(name: &str, args: &[Item], keep: bool) -> Result<Item, String> {
    let (text, separator, most) = match args {
        [Item::String(text), Item::String(separator)] => (text, separator, -1),
        [Item::String(text), Item::String(separator), most] => {
            (text, separator, operate::whole(most).ok_or_else(|| wrong(name, args))?)
        }
        _ => return Err(wrong(name, args)),
    };
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let mut parts = Vec::new();
    let mut rest = text.as_str();
    while parts.len() + 1 < most {
        let end = if separator.is_empty() { rest.chars().next().map(char::len_utf8) } else { rest.find(separator.as_str()) };
        let Some(end) = end.filter(|end| !separator.is_empty() || *end < rest.len()) else { break };
        let (part, behind) = rest.split_at(end + if keep { separator.len() } else { 0 });
        parts.push(Item::from(part));
        rest = if keep { behind } else { behind.strip_prefix(separator.as_str()).unwrap_or(behind) };
    }
    if most > 0 && !(separator.is_empty() && rest.is_empty()) {
        parts.push(Item::from(rest));
    }
    Ok(Item::Array(parts))
}

fn repeat(args: &[Item]) -> Result<Item, String> {
    let [Item::String(text), times] = args else { return Err(wrong("repeat", args)) };
    match operate::whole(times).ok_or_else(|| wrong("repeat", args))? {
        times if times < 0 => Err(format!("invalid argument for repeat (expected positive integer, got {times})")),
        times if times > MAX_REPEAT || text.len().saturating_mul(usize::try_from(times).unwrap_or(0)) > 64 << 20 => {
            Err("memory budget exceeded".to_owned())
        }
        times => Ok(Item::String(text.repeat(usize::try_from(times).unwrap_or(0)))),
    }
}

fn kind(args: &[Item]) -> Result<Item, String> {
    Ok(Item::from(match args {
        [Item::Nil] => "nil",
        [Item::Bool(_)] => "bool",
        [Item::Integer(_)] => "int",
        [Item::Float(_)] => "float",
        [Item::String(_)] => "string",
        [Item::Array(_) | Item::Bytes(_)] => "array",
        [Item::Map(_) | Item::KeyedMap(_)] => "map",
        [Item::DateTime(_)] => "time.Time",
        [Item::Duration(_)] => "time.Duration",
        [Item::Month(_)] => "time.Month",
        [Item::Weekday(_)] => "time.Weekday",
        [Item::Timezone(_)] => "time.Location",
        _ => return Err("type takes one argument".to_owned()),
    }))
}

fn join(args: &[Item]) -> Result<Item, String> {
    let (items, glue) = match args {
        [Item::Array(items)] => (items, ""),
        [Item::Array(items), Item::String(glue)] => (items, glue.as_str()),
        _ => return Err(wrong("join", args)),
    };
    let text = |item: &Item| item.as_string().map(str::to_owned).ok_or_else(|| not_text(item));
    Ok(Item::String(items.iter().map(text).collect::<Result<Vec<_>, _>>()?.join(glue)))
}

fn not_text(item: &Item) -> String {
    format!("join takes texts, this is {}: map(list, string(#)) makes texts", operate::kind(item))
}

fn from_json(args: &[Item]) -> Result<Item, String> {
    let [Item::String(text)] = args else { return Err(wrong("fromJSON", args)) };
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    Ok(floats(to_item(&value)))
}

/// Numbers of JSON are floats there.
fn floats(item: Item) -> Item {
    match item {
        Item::Integer(_) => operate::float(&item).map_or(item, Item::Float),
        Item::Array(items) => Item::Array(items.into_iter().map(floats).collect()),
        Item::Map(map) => map.into_iter().map(|(key, item)| (key, floats(item))).collect(),
        other => other,
    }
}

/// As Go's `MarshalIndent` with two spaces: keys in order, `<`, `>` and `&` escaped.
fn to_json(value: &Value) -> String {
    let mut out = String::new();
    push_json(&mut out, value, 0);
    out
}

fn push_json(out: &mut String, value: &Value, depth: usize) {
    let line = |out: &mut String, depth: usize| {
        out.push('\n');
        out.push_str(&"  ".repeat(depth));
    };
    match value {
        Value::Array(items) if !items.is_empty() => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                line(out, depth + 1);
                push_json(out, item, depth + 1);
            }
            line(out, depth);
            out.push(']');
        }
        Value::Object(map) if !map.is_empty() => {
            let mut pairs: Vec<_> = map.iter().collect();
            pairs.sort_by_key(|(key, _)| key.as_str());
            out.push('{');
            for (index, (key, item)) in pairs.into_iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                line(out, depth + 1);
                push_text(out, key);
                out.push_str(": ");
                push_json(out, item, depth + 1);
            }
            line(out, depth);
            out.push('}');
        }
        Value::String(text) => push_text(out, text),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            // Plain digits where Go has them, else an exponent.
            Some(float) if float == 0.0 || (1e-6..1e21).contains(&float.abs()) => out.push_str(&float.to_string()),
            Some(float) => out.push_str(&text::float_text(float)),
            None => out.push_str(&number.to_string()),
        },
        plain => out.push_str(&plain.to_string()),
    }
}

fn push_text(out: &mut String, text: &str) {
    for c in Value::from(text).to_string().chars() {
        match c {
            // Writing to a string can't fail.
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => drop(write!(out, "\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
}
