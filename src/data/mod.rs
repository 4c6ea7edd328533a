//! Hierarchical data: what `data`, `hierarchy` and `overrides` of a document come to on this host.
//!
//! Neighbours: `template` resolves the texts in a scope that has only facts; `engine` merges the
//! result with data from outside.

use serde_json::{Map, Value};

use crate::model::merge::{deep_merge, shallow_merge};
use crate::template::{Scope, TemplateError};

/// Data that could not be resolved.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A section has the wrong form.
    #[error("{message}")]
    Form {
        /// Where, from the top of the document.
        path: Vec<String>,
        /// What is wrong.
        message: String,
    },
    /// A template in it has an error.
    #[error("resolving {}", path.join("."))]
    Template {
        /// Where, from the top of the document.
        path: Vec<String>,
        /// What is wrong.
        #[source]
        source: TemplateError,
    },
}

impl DataError {
    /// Where it is, from the top of the document.
    pub fn path(&self) -> &[String] {
        match self {
            Self::Form { path, .. } | Self::Template { path, .. } => path,
        }
    }

    fn form(path: &[&str], message: impl Into<String>) -> Self {
        Self::Form { path: path.iter().map(|key| (*key).to_owned()).collect(), message: message.into() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Merge {
    /// The first override that exists replaces top-level keys, and ends the search.
    First,
    /// Every override that matches is merged in.
    Deep,
}

struct Hierarchy<'a> {
    order: Vec<&'a str>,
    merge: Merge,
}

/// Resolves the data of a document.
///
/// # Errors
/// When a section has the wrong form, or a template an error.
pub fn resolve(document: &Value, scope: &Scope) -> Result<Value, DataError> {
    let hierarchy = hierarchy(document)?;
    let mut data = match document.get("data") {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(data @ Value::Object(_)) => tree(data, scope, &["data"])?,
        Some(_) => return Err(DataError::form(&["data"], "data must be a map")),
    };
    let overrides = match document.get("overrides") {
        None | Some(Value::Null) => &Map::new(),
        Some(Value::Object(overrides)) => overrides,
        Some(_) => return Err(DataError::form(&["overrides"], "overrides must be a map of maps")),
    };
    for entry in hierarchy.order {
        let Some(name) = matched(entry, scope)? else { continue };
        let Some(found @ Value::Object(_)) = overrides.get(&name).filter(|_| name != "data") else { continue };
        let found = tree(found, scope, &["overrides", &name])?;
        match hierarchy.merge {
            Merge::Deep => data = deep_merge(data, found),
            Merge::First => return Ok(shallow_merge(data, found)),
        }
    }
    Ok(data)
}

fn hierarchy(document: &Value) -> Result<Hierarchy<'_>, DataError> {
    let default = Hierarchy { order: vec!["default"], merge: Merge::First };
    let section = match document.get("hierarchy") {
        None | Some(Value::Null) => return Ok(default),
        Some(Value::Object(section)) => section,
        Some(_) => return Err(DataError::form(&["hierarchy"], "hierarchy must be a map with order and merge")),
    };
    if let Some(key) = section.keys().find(|key| !["order", "merge"].contains(&key.as_str())) {
        return Err(DataError::form(
            &["hierarchy", key],
            format!("unknown key \"{key}\" in hierarchy: known keys are order, merge"),
        ));
    }
    let order = section
        .get("order")
        .and_then(Value::as_array)
        .ok_or_else(|| DataError::form(&["hierarchy"], "hierarchy.order must be a list"))?;
    let order = order
        .iter()
        .map(|entry| {
            entry.as_str().ok_or_else(|| DataError::form(&["hierarchy", "order"], "hierarchy.order must contain only strings"))
        })
        .collect::<Result<_, _>>()?;
    let merge = match section.get("merge").map(|merge| merge.as_str().map(str::to_lowercase)) {
        None => Merge::First,
        Some(Some(word)) if word == "first" => Merge::First,
        Some(Some(word)) if word == "deep" => Merge::Deep,
        Some(word) => {
            let message = format!("unsupported merge mode: {}: must be first or deep", word.unwrap_or_default());
            return Err(DataError::form(&["hierarchy", "merge"], message));
        }
    };
    Ok(Hierarchy { order, merge })
}

/// The name that an entry of the order stands for here; none when none of its expressions gives anything.
fn matched(entry: &str, scope: &Scope) -> Result<Option<String>, DataError> {
    let (name, matched) = scope
        .matched(entry)
        .map_err(|source| DataError::Template { path: vec!["hierarchy".to_owned(), "order".to_owned()], source })?;
    Ok(matched.then_some(name))
}

/// Every text of a tree resolved; whole numbers written as floats become whole.
fn tree(value: &Value, scope: &Scope, path: &[&str]) -> Result<Value, DataError> {
    match value {
        Value::String(text) => scope
            .value(text)
            .map(whole)
            .map_err(|source| DataError::Template { path: path.iter().map(|key| (*key).to_owned()).collect(), source }),
        Value::Array(list) => list.iter().map(|item| tree(item, scope, path)).collect(),
        Value::Object(map) => map
            .iter()
            .map(|(key, item)| tree(item, scope, &[path, &[key.as_str()]].concat()).map(|item| (key.clone(), item)))
            .collect(),
        other => Ok(whole(other.clone())),
    }
}

fn whole(value: Value) -> Value {
    // Beyond 2^53 a float does not tell whole numbers apart.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match value.as_f64() {
        Some(number) if value.is_f64() && number.fract() == 0.0 && number.abs() <= EXACT => {
            #[expect(clippy::cast_possible_truncation, reason = "bounded by the line above")]
            let number = number as i64;
            Value::from(number)
        }
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::Arc;

    fn with(facts: Value, document: &Value) -> Result<Value, String> {
        let scope = Scope::restricted(Arc::new(move || facts.clone()));
        resolve(document, &scope).map_err(|error| crate::diag::chain(&error))
    }

    #[test]
    fn order_and_merge() {
        let overrides = json!({
            "env:prod": {"log": "WARN", "packages": ["ca"], "web": {"tls": true}},
            "role:web": {"packages": ["nginx"], "web": {"port": 80}, "log": "TRACE"},
            "default": {"log": "DEFAULT"},
        });
        let data = json!({"log": "INFO", "packages": [], "web": {"port": 1}});
        let order =
            json!(["host:{{ lookup('facts.host', '') }}", "env:{{ lookup('facts.env') }}", "role:{{ lookup('facts.role') }}"]);
        let document = |merge: &str| json!({"data": data, "overrides": overrides, "hierarchy": {"order": order, "merge": merge}});
        let facts = json!({"env": "prod", "role": "web"});
        assert_eq!(
            with(facts.clone(), &document("deep")).unwrap(),
            json!({"log": "TRACE", "packages": ["ca", "nginx"], "web": {"port": 80, "tls": true}})
        );
        assert_eq!(with(facts, &document("first")).unwrap(), json!({"log": "WARN", "packages": ["ca"], "web": {"tls": true}}));
        assert_eq!(with(json!({}), &document("deep")).unwrap(), data);
        assert_eq!(with(json!({}), &json!({"data": data, "overrides": overrides})).unwrap()["log"], "DEFAULT");
    }

    #[test]
    fn values_keep_their_type() {
        let document =
            json!({"data": {"n": "{{ lookup('facts.n') }}", "f": 10.0, "t": "n={{ Facts.n }}", "l": ["{{ Facts.n }}"]}});
        assert_eq!(with(json!({"n": 5}), &document).unwrap(), json!({"n": 5, "f": 10, "t": "n=5", "l": [5]}));
    }

    #[test]
    fn wrong_forms() {
        for (document, message) in [
            (json!({"hierarchy": []}), "hierarchy must be a map"),
            (json!({"hierarchy": {"merge": "deep"}}), "hierarchy.order must be a list"),
            (json!({"hierarchy": {"order": [1]}}), "hierarchy.order must contain only strings"),
            (json!({"hierarchy": {"order": [], "merge": "sideways"}}), "unsupported merge mode: sideways"),
            (json!({"data": [1]}), "data must be a map"),
            (json!({"data": {"a": {"b": "{{ nosuch }}"}}}), "resolving data.a.b"),
            (json!({"data": {"a": "{{ readFile('x') }}"}}), "readFile"),
        ] {
            assert!(with(json!({}), &document).unwrap_err().contains(message), "{document}");
        }
    }
}
