//! From text to value by the parser that most others use, for what the strict one refuses.
//!
//! Slower, and it does not tell where a value stands, nor how a number was written: `1e6` is one, `1_000` and what does not
//! fit into 64 bits are texts.

use serde_json::{Map, Number, Value};
use serde_yaml::Value as Yaml;

use super::load::Refused;

fn refused(message: impl Into<String>) -> Refused {
    Refused { message: message.into(), hint: None, at: None, syntax: false, opener: None }
}

fn said(error: &serde_yaml::Error) -> Refused {
    let shown = error.to_string();
    let message = shown.split(" at line ").next().unwrap_or(&shown);
    let message = kinder(message).unwrap_or_else(|| message.to_owned());
    Refused { at: error.location().map(|location| (location.line(), location.column())), syntax: true, ..refused(message) }
}

/// What the YAML library says in its own terms, in ours.
fn kinder(message: &str) -> Option<String> {
    if message.contains("repetition limit exceeded") {
        return Some("its aliases stand for more than a document may hold".to_owned());
    }
    let (_, number) = message.split_once("integer `")?;
    let (number, _) = number.split_once("` as ")?;
    Some(format!("the number {number} is too large; in quotes it is a text"))
}

/// What a text says; nothing is null.
pub(super) fn load(text: &str) -> Result<Value, Refused> {
    let mut tree: Yaml = serde_yaml::from_str(text).map_err(|error| said(&error))?;
    tree.apply_merge().map_err(|error| said(&error))?;
    data(tree)
}

fn data(tree: Yaml) -> Result<Value, Refused> {
    match tree {
        Yaml::Null => Ok(Value::Null),
        Yaml::Bool(value) => Ok(Value::Bool(value)),
        Yaml::String(text) => Ok(Value::String(text)),
        Yaml::Number(number) => {
            let whole = number.as_i64().map(Number::from).or_else(|| number.as_u64().map(Number::from));
            let number_here = whole.or_else(|| number.as_f64().and_then(Number::from_f64));
            // Numbers without end are what they print as.
            let endless = || {
                number.as_f64().map_or("NaN", |float| {
                    if float > 0.0 {
                        "+Inf"
                    } else if float < 0.0 {
                        "-Inf"
                    } else {
                        "NaN"
                    }
                })
            };
            Ok(number_here.map_or_else(|| Value::from(endless()), Value::Number))
        }
        Yaml::Sequence(items) => items.into_iter().map(data).collect::<Result<_, _>>().map(Value::Array),
        Yaml::Mapping(pairs) => {
            let mut map = Map::with_capacity(pairs.len());
            for (key, item) in pairs {
                let key = match key {
                    Yaml::String(text) => text,
                    Yaml::Bool(value) => value.to_string(),
                    Yaml::Number(number) => number.to_string(),
                    Yaml::Null => "null".to_owned(),
                    _ => return Err(refused("a key must be a text")),
                };
                if map.contains_key(&key) {
                    return Err(refused(format!("duplicate key: the key \"{key}\" is there twice")));
                }
                map.insert(key, data(item)?);
            }
            Ok(Value::Object(map))
        }
        Yaml::Tagged(tagged) => Err(refused(format!("the tag {} is not supported", tagged.tag))),
    }
}
