//! Patterns: texts of a description in which `{property}` is replaced by the value of that property.

use serde::Deserialize;
use serde_json::{Map, Value};

/// A text with placeholders.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct TextPattern(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Property(String),
}

/// The texts that a pattern becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Filled {
    /// These texts: one, or one for each item of a list. None where a property is left out.
    Texts(Vec<String>),
    /// A property has a value that is no text. With the name of the property.
    Unreadable(String),
}

impl TryFrom<String> for TextPattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let (mut parts, mut rest) = (Vec::new(), text.as_str());
        while let Some((before, after)) = rest.split_once('{') {
            let Some((property, after)) = after.split_once('}') else { return Err(format!("\"{text}\" has no }} after its {{")) };
            parts.extend((!before.is_empty()).then(|| Part::Text(before.to_owned())));
            parts.push(Part::Property(property.to_owned()));
            rest = after;
        }
        parts.extend((!rest.is_empty()).then(|| Part::Text(rest.to_owned())));
        if parts.is_empty() { Err("a pattern is empty".to_owned()) } else { Ok(Self(parts)) }
    }
}

impl TextPattern {
    /// Returns the properties in the pattern.
    pub(super) fn properties(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Property(name) => Some(name.as_str()),
        })
    }

    /// Replaces the properties by their values. A list makes one text of each item.
    pub(super) fn fill(&self, values: &Map<String, Value>) -> Filled {
        let mut texts = vec![String::new()];
        for part in &self.0 {
            let found = match part {
                Part::Text(text) => vec![text.clone()],
                Part::Property(name) => match values.get(name) {
                    None | Some(Value::Null) => return Filled::Texts(Vec::new()),
                    Some(value) => match item_texts(value) {
                        Some(found) => found,
                        None => return Filled::Unreadable(name.clone()),
                    },
                },
            };
            texts = texts.iter().flat_map(|head| found.iter().map(move |tail| format!("{head}{tail}"))).collect();
        }
        Filled::Texts(texts)
    }
}

/// Returns the texts of a value: one, or those of a list.
fn item_texts(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::Array(items) => items.iter().map(plain_text).collect(),
        other => plain_text(other).map(|text| vec![text]),
    }
}

/// Returns a text, number or flag as text.
pub(super) fn plain_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn placeholders_become_values() {
        let values = json!({"path": "/etc/hosts", "port": 80, "hosts": ["a", "b"], "map": {}, "none": null});
        let texts = |texts: &[&str]| Filled::Texts(texts.iter().map(|text| (*text).to_owned()).collect());
        for (pattern, filled) in [
            ("{path}", texts(&["/etc/hosts"])),
            ("/srv/{port}.conf", texts(&["/srv/80.conf"])),
            ("{hosts}:{port}", texts(&["a:80", "b:80"])),
            ("/fixed", texts(&["/fixed"])),
            ("{none}", texts(&[])),
            ("/x/{missing}", texts(&[])),
            ("{map}", Filled::Unreadable("map".to_owned())),
        ] {
            let pattern = TextPattern::try_from(pattern.to_owned()).unwrap();
            assert_eq!(pattern.fill(values.as_object().unwrap()), filled, "{pattern:?}");
        }
        assert_eq!(TextPattern::try_from("/{a}/{b}".to_owned()).unwrap().properties().collect::<Vec<_>>(), ["a", "b"]);
        assert!(TextPattern::try_from("/{a".to_owned()).is_err() && TextPattern::try_from(String::new()).is_err());
    }
}
