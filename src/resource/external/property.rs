//! A property of a type: its description, and the form of its values.

use serde::Deserialize;
use serde_json::Value;

use super::text_pattern::plain_text;

/// Maximum length of a description of the type or of a property, in bytes.
const MAX_ABOUT: usize = 1000;
/// Maximum number of words of an enumeration.
const MAX_WORDS: usize = 64;

/// A property of a type.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PropertyDescription {
    #[serde(rename = "type")]
    pub(super) kind: PropertyType,
    pub(super) about: String,
    #[serde(default)]
    pub(super) required: bool,
    #[serde(default)]
    pub(super) secret: bool,
    /// True for a property that unsigned values may shape.
    #[serde(default)]
    pub(super) content: bool,
    pub(super) default: Option<Value>,
    /// The allowed words; every text when empty.
    #[serde(default, rename = "enum")]
    pub(super) words: Vec<String>,
}

/// The type of a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PropertyType {
    Text,
    Integer,
    Boolean,
    /// A list of texts.
    List,
    /// Any keys with any values.
    Map,
}

impl PropertyDescription {
    /// Checks the description.
    ///
    /// # Errors
    /// The first part that is wrong.
    pub(super) fn check(&self) -> Result<(), String> {
        check_about(&self.about)?;
        if self.words.len() > MAX_WORDS || (!self.words.is_empty() && self.kind != PropertyType::Text) {
            return Err(format!("enum is a list of at most {MAX_WORDS} words, for a text"));
        }
        if self.secret && (self.content || !matches!(self.kind, PropertyType::Text | PropertyType::List)) {
            return Err("a secret is a text or a list, and no content".to_owned());
        }
        let Some(default) = &self.default else { return Ok(()) };
        if self.required {
            return Err("a required property has no default".to_owned());
        }
        check_value(self, default).map(drop).map_err(|why| format!("the default is wrong: {why}"))
    }
}

/// Checks a line for the documentation.
///
/// # Errors
/// When the text is empty, too long, or more than one line.
pub(super) fn check_about(text: &str) -> Result<(), String> {
    if text.trim().is_empty() || text.len() > MAX_ABOUT || text.chars().any(char::is_control) {
        return Err(format!("about is one line of 1 to {MAX_ABOUT} bytes"));
    }
    Ok(())
}

/// Reads a value of a property. Text without quotes is a number or a flag in YAML, and a template resolves to text.
///
/// # Errors
/// The expected form.
pub(super) fn check_value(property: &PropertyDescription, value: &Value) -> Result<Value, String> {
    let read = match property.kind {
        PropertyType::Text => plain_text(value).map(Value::String),
        PropertyType::Integer => integer(value),
        PropertyType::Boolean => match value {
            Value::String(text) => text.parse().ok().map(Value::Bool),
            other => other.as_bool().map(Value::Bool),
        },
        PropertyType::List => match value {
            Value::Array(items) => {
                let texts: Option<Vec<Value>> = items.iter().map(|item| plain_text(item).map(Value::String)).collect();
                texts.map(Value::Array)
            }
            _ => None,
        },
        PropertyType::Map => value.is_object().then(|| value.clone()),
    };
    let read = read.ok_or_else(|| format!("expected {}", form(property.kind)))?;
    match read.as_str().filter(|text| !property.words.is_empty() && !property.words.iter().any(|word| word == text)) {
        Some(text) => Err(format!("\"{text}\" is not one of {}", property.words.join(", "))),
        None => Ok(read),
    }
}

fn integer(value: &Value) -> Option<Value> {
    match value {
        Value::Number(number) => (number.is_i64() || number.is_u64()).then(|| value.clone()),
        Value::String(text) => text.trim().parse::<i64>().ok().map(Value::from),
        _ => None,
    }
}

fn form(kind: PropertyType) -> &'static str {
    match kind {
        PropertyType::Text => "text",
        PropertyType::Integer => "a whole number",
        PropertyType::Boolean => "true or false",
        PropertyType::List => "a list of text",
        PropertyType::Map => "a map",
    }
}
