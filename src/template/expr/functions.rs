//! Functions of the language that the crate has otherwise.

use ::expr::{Context, Environment, Error, Value as Item};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::{each, operate, to_item, to_value};
use crate::template::{json, text};

/// The most repetitions of a text.
const MAX_REPEAT: i64 = 1_000_000;

/// Lays them over those of the crate.
pub(super) fn add(environment: &mut Environment<'static>) {
    type Function = fn(&[Item]) -> Result<Item, String>;
    let functions: [(&str, Function); 15] = [
        ("trimPrefix", |args| trim(args, |text, part| text.strip_prefix(part).unwrap_or(text))),
        ("trimSuffix", |args| trim(args, |text, part| text.strip_suffix(part).unwrap_or(text))),
        ("split", |args| split("split", args, false)),
        ("splitAfter", |args| split("splitAfter", args, true)),
        ("repeat", repeat),
        ("type", kind),
        ("fromJSON", from_json),
        ("join", join),
        ("upper", |args| one_text("upper", args).map(|text| Item::String(text::upper(text)))),
        ("lower", |args| one_text("lower", args).map(|text| Item::String(text::lower(text)))),
        ("first", |args| end("first", args, 0)),
        ("last", |args| end("last", args, -1)),
        ("get", get),
        ("sort", sort),
        ("timezone", timezone),
    ];
    for (name, function) in functions {
        environment.add_function(name, move |call| function(&call.args).map_err(Error::ExprError));
    }
    environment.add_function("toJSON", |call| {
        let [item] = call.args.as_slice() else { return Err(Error::ExprError("toJSON takes one argument".to_owned())) };
        Ok(Item::String(json::indented(&json_value(item, call.env)?)))
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

/// A value as JSON has it: times by RFC 3339, spans of time in nanoseconds, bytes in Base64.
fn json_value(item: &Item, environment: &Environment<'_>) -> Result<Value, Error> {
    Ok(match item {
        Item::Array(items) => Value::Array(items.iter().map(|item| json_value(item, environment)).collect::<Result<_, _>>()?),
        Item::Map(map) => {
            let pairs = map.iter().map(|(key, item)| Ok((key.clone(), json_value(item, environment)?)));
            Value::Object(pairs.collect::<Result<_, Error>>()?)
        }
        Item::Duration(nanoseconds) => Value::from(*nanoseconds),
        Item::Month(number) | Item::Weekday(number) => Value::from(*number),
        Item::Bytes(bytes) => Value::from(STANDARD.encode(bytes)),
        Item::DateTime(_) => {
            let mut context = Context::default();
            context.insert("of", item.clone());
            to_value(::expr::eval("of.Format('2006-01-02T15:04:05.999999999Z07:00')", &context)?, environment)
        }
        other => to_value(other.clone(), environment),
    })
}

fn one_text<'a>(name: &str, args: &'a [Item]) -> Result<&'a str, String> {
    match args {
        [Item::String(text)] => Ok(text),
        _ => Err(wrong(name, args)),
    }
}

/// The first or last element; nothing where there is none.
fn end(name: &str, args: &[Item], at: i64) -> Result<Item, String> {
    match args {
        [of] => Ok(operate::member(of, &Item::Integer(at)).unwrap_or(Item::Nil)),
        _ => Err(wrong(name, args)),
    }
}

/// What a key or an index leads to; nothing where it leads nowhere.
fn get(args: &[Item]) -> Result<Item, String> {
    match args {
        [Item::Array(_) | Item::String(_) | Item::Bytes(_), key] if operate::whole(key).is_none() => Err(wrong("get", args)),
        [Item::Map(_), key] if !matches!(key, Item::String(_) | Item::Nil) => Err(wrong("get", args)),
        [of, key] => Ok(operate::member(of, key).unwrap_or(Item::Nil)),
        _ => Err(wrong("get", args)),
    }
}

fn sort(args: &[Item]) -> Result<Item, String> {
    let (items, order) = match args {
        [Item::Array(items)] => (items.as_slice(), None),
        [Item::Array(items), order] => (items.as_slice(), Some(order)),
        [Item::Nil] => (&[][..], None),
        _ => return Err(wrong("sort", args)),
    };
    each::sorted(items.iter().map(|item| (item.clone(), item.clone())).collect(), order).map(Item::Array)
}

fn timezone(args: &[Item]) -> Result<Item, String> {
    let name = one_text("timezone", args)?;
    let mut context = Context::default();
    context.insert("name", Item::from(if name.is_empty() { "UTC" } else { name }));
    ::expr::eval("timezone(name)", &context).map_err(|error| error.to_string())
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
