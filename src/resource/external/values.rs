//! The values of properties: from a manifest, and from the program.

use serde_json::{Map, Value, json};

use super::description::Description;
use super::property::{PropertyDescription, check_value};
use super::text_pattern::plain_text;
use crate::diag::did_you_mean;
use crate::resource::core::text;
use crate::resource::{Common, DecodeError};
use crate::template::is_template;

/// The properties of a resource.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Values {
    pub(super) name: String,
    pub(super) ensure: String,
    /// The properties of the type, with defaults and without those that are left out.
    pub(super) own: Map<String, Value>,
}

impl Values {
    /// Reads the properties of a manifest.
    ///
    /// # Errors
    /// The property at fault.
    pub(super) fn read(description: &Description, given: &Map<String, Value>) -> Result<Self, DecodeError> {
        let mut values =
            Self { name: String::new(), ensure: description.default_ensure().to_owned(), own: defaults(description) };
        for (key, value) in given.iter().filter(|(_, value)| !value.is_null()) {
            let wrong = |message: String| DecodeError { property: Some(key.clone()), message, hint: None };
            match (key.as_str(), description.properties.get(key)) {
                ("name", _) => values.name = plain_text(value).ok_or_else(|| wrong("name: expected text".to_owned()))?,
                ("ensure", _) => {
                    values.ensure = read_ensure(description, value).map_err(wrong)?;
                }
                (_, Some(property)) => {
                    let value = check_value(property, value).map_err(|why| wrong(format!("{key}: {why}")))?;
                    values.own.insert(key.clone(), value);
                }
                (_, None) => return Err(unknown(description, key)),
            }
        }
        if values.name.trim().is_empty() {
            return Err(missing("name"));
        }
        if values.ensure != ABSENT
            && let Some((key, _)) =
                description.properties.iter().find(|(key, property)| property.required && !values.own.contains_key(*key))
        {
            return Err(missing(key));
        }
        for path in description.paths(&values.with_name()).iter().filter(|path| !is_template(path)) {
            text::check_path("path", "the path", path).map_err(|invalid| DecodeError {
                property: None,
                message: invalid.message,
                hint: None,
            })?;
        }
        Ok(values)
    }

    /// Returns the values with name and state, as patterns use them.
    pub(super) fn with_name(&self) -> Map<String, Value> {
        let mut all = self.own.clone();
        all.insert("name".to_owned(), json!(self.name));
        all.insert("ensure".to_owned(), json!(self.ensure));
        all
    }
}

/// The state in which the properties do not count.
pub(super) const ABSENT: &str = "absent";

/// Returns the default values of properties.
pub(super) fn defaults(description: &Description) -> Map<String, Value> {
    let default = |(key, property): (&String, &PropertyDescription)| Some((key.clone(), property.default.clone()?));
    description.properties.iter().filter_map(default).collect()
}

fn missing(key: &str) -> DecodeError {
    DecodeError { property: None, message: format!("{key} is required"), hint: None }
}

fn unknown(description: &Description, key: &str) -> DecodeError {
    let known = || description.properties.keys().map(String::as_str).chain(["name", "ensure"]);
    let hint = did_you_mean(key, known().chain(Common::KEYS.iter().copied()))
        .map(|near| format!("did you mean \"{near}\"?"))
        .or_else(|| Some(format!("known properties are {}", known().collect::<Vec<_>>().join(", "))));
    DecodeError { property: Some(key.to_owned()), message: format!("unknown property \"{key}\""), hint }
}

fn read_ensure(description: &Description, value: &Value) -> Result<String, String> {
    let text = plain_text(value).unwrap_or_default();
    if description.ensure.contains(&text) || is_template(&text) {
        return Ok(text);
    }
    let known: Vec<String> = description.ensure.iter().map(|state| format!("\"{state}\"")).collect();
    Err(format!("invalid ensure value: must be {}, not \"{text}\"", known.join(" or ")))
}
