//! The fallback parser, which most other tools use, for texts that the strict parser refuses.
//!
//! The fallback is slower, and gives neither the places of values nor numbers as written. `1e6` is a number here. `1_000`
//! and numbers that do not fit into 64 bits are texts.

use serde_json::{Map, Number, Value};
use serde_yaml::Value as Yaml;

use super::error::YamlError;

fn refused(message: impl Into<String>) -> YamlError {
    YamlError { message: message.into(), hint: None, at: None, is_syntax_error: false, unclosed: None }
}

fn parse_error(error: &serde_yaml::Error) -> YamlError {
    let shown = error.to_string();
    let message = shown.split(" at line ").next().unwrap_or(&shown);
    let message = plain_message(message).unwrap_or_else(|| message.to_owned());
    YamlError {
        at: error.location().map(|location| (location.line(), location.column())),
        is_syntax_error: true,
        ..refused(message)
    }
}

/// A plain message for an error of the YAML library; none when its own message is plain.
fn plain_message(message: &str) -> Option<String> {
    if message.contains("repetition limit exceeded") {
        return Some("the aliases expand to more than a document may hold".to_owned());
    }
    let (_, number) = message.split_once("integer `")?;
    let (number, _) = number.split_once("` as ")?;
    Some(format!("the number {number} is too large; put the number in quotes for a text"))
}

/// Parses a text. An empty text is null.
pub(super) fn load(text: &str) -> Result<Value, YamlError> {
    let mut tree: Yaml = serde_yaml::from_str(text).map_err(|error| parse_error(&error))?;
    tree.apply_merge().map_err(|error| parse_error(&error))?;
    to_json(tree)
}

fn to_json(tree: Yaml) -> Result<Value, YamlError> {
    match tree {
        Yaml::Null => Ok(Value::Null),
        Yaml::Bool(value) => Ok(Value::Bool(value)),
        Yaml::String(text) => Ok(Value::String(text)),
        Yaml::Number(number) => {
            let whole = number.as_i64().map(Number::from).or_else(|| number.as_u64().map(Number::from));
            let number_here = whole.or_else(|| number.as_f64().and_then(Number::from_f64));
            // Infinite numbers and NaN become texts.
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
        Yaml::Sequence(items) => items.into_iter().map(to_json).collect::<Result<_, _>>().map(Value::Array),
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
                map.insert(key, to_json(item)?);
            }
            Ok(Value::Object(map))
        }
        Yaml::Tagged(tagged) => Err(refused(format!("the tag {} is not supported", tagged.tag))),
    }
}
