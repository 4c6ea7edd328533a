//! The shape of a property's values, from its schema, for flags and documentation.

use serde_json::Value;

/// The shape of a property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PropertyShape {
    /// Text, or one of these words.
    Text(Vec<String>),
    /// `true` or `false`.
    Bool,
    /// A whole number.
    Integer,
    /// A list of values of one shape.
    List(Box<Self>),
    /// A map of names to values.
    Map,
    /// Any value.
    Any,
}

impl PropertyShape {
    /// Returns the shape that a schema describes; `definitions` are the `$defs` of its root.
    pub fn from_schema(schema: &Value, definitions: &Value) -> Self {
        let referenced =
            schema.get("$ref").and_then(Value::as_str).and_then(|path| definitions.get(path.trim_start_matches("#/$defs/")));
        if let Some(target) = referenced {
            return Self::from_schema(target, definitions);
        }
        let words = words(schema);
        if !words.is_empty() {
            return Self::Text(words);
        }
        let not_null = |one: &&Value| one.get("type").and_then(Value::as_str) != Some("null");
        if let Some(first) = schema.get("anyOf").and_then(Value::as_array).and_then(|any| any.iter().find(not_null)) {
            return Self::from_schema(first, definitions);
        }
        let name = match schema.get("type") {
            Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).find(|one| *one != "null"),
            Some(Value::String(one)) => Some(one.as_str()),
            _ => None,
        };
        match name {
            Some("string") => Self::Text(Vec::new()),
            Some("boolean") => Self::Bool,
            Some("integer") => Self::Integer,
            Some("array") => {
                Self::List(Box::new(schema.get("items").map_or(Self::Any, |items| Self::from_schema(items, definitions))))
            }
            Some("object") => Self::Map,
            _ => Self::Any,
        }
    }

    /// Describes the shape in words.
    pub fn describe(&self) -> String {
        match self {
            Self::Text(words) if words.is_empty() => "text".to_owned(),
            Self::Text(words) => words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" or "),
            Self::Bool => "true or false".to_owned(),
            Self::Integer => "number".to_owned(),
            Self::List(items) => format!("list of {}", items.describe()),
            Self::Map => "map".to_owned(),
            Self::Any => "any".to_owned(),
        }
    }
}

/// Returns the words of an enumeration, in either form that schemas have for it.
fn words(schema: &Value) -> Vec<String> {
    let listed = ["oneOf", "enum"].into_iter().filter_map(|key| schema.get(key)?.as_array()).flatten();
    let constant = schema.get("const").into_iter();
    listed.chain(constant).filter_map(|one| one.get("const").unwrap_or(one).as_str().map(str::to_owned)).collect()
}
