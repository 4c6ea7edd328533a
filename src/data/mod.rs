//! The data of a manifest, with the overrides that match this host.
//!
//! A document has `data`, `overrides` by name, and a `hierarchy`: an order of those names. A name may be a template over
//! facts. `annotations.rs` reads and checks the annotations in comments. `source.rs` reads documents from a file, a URL or a
//! bucket. Neighbours: `template` resolves the texts, `manifest` passes the document, and [`crate::model::merge`] merges
//! values.

mod annotations;
pub mod source;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::model::{deep_merge, shallow_merge};
use crate::template::{Scope, TemplateError};

pub use annotations::Annotations;

/// The reason why data can't be resolved.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum DataResolveError {
    /// The document has the wrong form.
    #[error("{message}")]
    Shape {
        /// The reason.
        message: String,
        /// The keys and indexes that lead to the error.
        path: Vec<String>,
    },
    /// A text could not be resolved.
    #[error("could not resolve {}", path.join("."))]
    Template {
        /// The keys and indexes that lead to the text.
        path: Vec<String>,
        /// The reason.
        #[source]
        source: Box<TemplateError>,
    },
}

impl DataResolveError {
    fn shape(message: impl Into<String>, path: &[&str]) -> Self {
        Self::Shape { message: message.into(), path: to_owned_path(path) }
    }

    fn template(mut error: TemplateError, path: &[&str]) -> Self {
        let mut path = to_owned_path(path);
        path.append(&mut error.path);
        Self::Template { path, source: Box::new(error) }
    }

    /// The keys and indexes that lead to the error, from the root of the document.
    pub fn path(&self) -> &[String] {
        match self {
            Self::Shape { path, .. } | Self::Template { path, .. } => path,
        }
    }
}

fn to_owned_path(path: &[&str]) -> Vec<String> {
    path.iter().map(|step| (*step).to_owned()).collect()
}

/// The mode in which matching overrides merge into the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MergeMode {
    /// Only the first matching override, whole values at a time.
    First,
    /// All matching overrides, at every depth.
    Deep,
}

/// The result for an entry of the hierarchy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryStatus {
    /// The entry matched, and its override was merged into the data.
    Used,
    /// The entry matched, and no override has its name.
    NoOverride,
    /// No expression of the entry had a value.
    NoMatch,
    /// An earlier entry was used, and the mode is `first`.
    NotReached,
}

/// An entry of the hierarchy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HierarchyEntry {
    /// The entry as written.
    pub entry: String,
    /// The name with its expressions resolved on this host; none for an entry that was not reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The result for the entry.
    pub fate: EntryStatus,
}

/// Resolved data, with the result for each entry of the hierarchy.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedData {
    /// The data.
    pub data: Value,
    /// The mode in which overrides merged.
    pub merge: MergeMode,
    /// The entries, in the order of the hierarchy.
    pub order: Vec<HierarchyEntry>,
}

/// Resolves the data of a document, and merges the matching overrides into the data.
///
/// `scope` is a restricted scope: data sees facts. A text that is a single expression keeps the type of its value. Whole
/// numbers become integers, also when written as `1.0`.
///
/// An entry of the hierarchy without expressions matches. An entry with expressions matches when any expression has a value
/// that is not empty; `false` and 0 are values. An entry without an override is skipped.
///
/// # Errors
/// Fails when the document has the wrong form. Fails when a text in `data`, in a matching override or in the hierarchy
/// can't be resolved.
pub fn resolve(document: &Value, scope: &Scope) -> Result<ResolvedData, DataResolveError> {
    let (order, merge) = hierarchy(document)?;
    let data = section(document, "data")?;
    let overrides = section(document, "overrides")?;
    let resolved = scope.resolve_tree(&data).map_err(|error| DataResolveError::template(error, &["data"]))?;
    let mut resolved = ResolvedData { data: resolved, merge, order: Vec::with_capacity(order.len()) };
    let mut used = false;
    for (index, entry) in order.into_iter().enumerate() {
        if used && merge == MergeMode::First {
            resolved.order.push(HierarchyEntry { entry, name: None, fate: EntryStatus::NotReached });
            continue;
        }
        let at = index.to_string();
        let path = ["hierarchy", "order", at.as_str()];
        let (name, holds) = scope.match_text(&entry).map_err(|error| DataResolveError::template(error, &path))?;
        let candidate = match overrides.get(&name) {
            // The entry `data` names the data itself, which always exists.
            Some(candidate) if holds && name != "data" && !candidate.is_null() => candidate,
            _ => {
                let fate = if holds { EntryStatus::NoOverride } else { EntryStatus::NoMatch };
                resolved.order.push(HierarchyEntry { entry, name: Some(name), fate });
                continue;
            }
        };
        if !candidate.is_object() {
            return Err(DataResolveError::shape(format!("the override \"{name}\" must be a map"), &["overrides", &name]));
        }
        let over = scope.resolve_tree(candidate).map_err(|error| DataResolveError::template(error, &["overrides", &name]))?;
        let lay_over = if merge == MergeMode::First { shallow_merge } else { deep_merge };
        resolved.data = lay_over(resolved.data, over);
        resolved.order.push(HierarchyEntry { entry, name: Some(name), fate: EntryStatus::Used });
        used = true;
    }
    Ok(resolved)
}

/// The order of the overrides, and their merge mode.
fn hierarchy(document: &Value) -> Result<(Vec<String>, MergeMode), DataResolveError> {
    let Some(hierarchy) = document.get("hierarchy") else {
        return Ok((vec!["default".to_owned()], MergeMode::First));
    };
    if !hierarchy.is_object() {
        return Err(DataResolveError::shape("hierarchy section is required", &["hierarchy"]));
    }
    let order = hierarchy.get("order").and_then(Value::as_array);
    let order = order.ok_or_else(|| DataResolveError::shape("hierarchy.order must be a list", &["hierarchy", "order"]))?;
    let mut names = Vec::with_capacity(order.len());
    for (index, entry) in order.iter().enumerate() {
        let Some(name) = entry.as_str() else {
            let path = ["hierarchy", "order", &index.to_string()];
            return Err(DataResolveError::shape("hierarchy.order must contain only strings", &path));
        };
        names.push(name.to_owned());
    }
    let mode = match hierarchy.get("merge") {
        None | Some(Value::Null) => "first".to_owned(),
        Some(Value::String(mode)) => mode.to_lowercase(),
        Some(other) => other.to_string(),
    };
    let merge = match mode.as_str() {
        "first" => MergeMode::First,
        "deep" => MergeMode::Deep,
        _ => return Err(DataResolveError::shape(format!("unsupported merge mode: {mode}"), &["hierarchy", "merge"])),
    };
    Ok((names, merge))
}

/// A section of the document: a map, empty when the document lacks the section.
fn section(document: &Value, name: &str) -> Result<Value, DataResolveError> {
    match document.get(name) {
        None | Some(Value::Null) => Ok(Value::Object(Map::new())),
        Some(Value::Object(map)) => Ok(with_whole_numbers(&Value::Object(map.clone()))),
        Some(_) => Err(DataResolveError::shape(format!("{name} must be a map"), &[name])),
    }
}

/// Converts floats that are whole numbers to integers, at every depth.
fn with_whole_numbers(value: &Value) -> Value {
    match value {
        Value::Number(number) => {
            number.as_f64().filter(|_| number.is_f64()).and_then(whole_number).unwrap_or_else(|| value.clone())
        }
        Value::Array(items) => Value::Array(items.iter().map(with_whole_numbers).collect()),
        Value::Object(map) => Value::Object(map.iter().map(|(key, item)| (key.clone(), with_whole_numbers(item))).collect()),
        plain => plain.clone(),
    }
}

/// Converts a float that is a whole number to an integer.
fn whole_number(value: f64) -> Option<Value> {
    // A whole float below 2^63 is an exact integer, so the conversion loses nothing.
    #[expect(clippy::cast_possible_truncation, reason = "whole and within bounds")]
    (value.fract() == 0.0 && value.abs() < 9.2e18).then(|| Value::from(value as i64))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::yaml::YamlDocument;

    const BODY: &str = r#"
data: {level: INFO, pk: [core], web: {port: 8080, host: localhost}, all: "no"}
overrides:
  "host:web01": {level: TRACE}
  "role:web": {web: {port: 80, tls: true}, pk: [nginx]}
  "env:prod": {level: WARN, pk: [ca], web: {host: prod.example}}
  global: {all: "yes", pk: [base]}
"#;
    const ORDER: &str = r#"
hierarchy:
  order: ["host:{{ lookup('facts.hostname2') }}", "role:{{ lookup('facts.role') }}", "env:{{ lookup('facts.env') }}", global]
"#;

    fn run(text: &str, facts: Value) -> Result<Value, DataResolveError> {
        let document = YamlDocument::parse(text, "m.yaml").unwrap();
        let before = document.value().clone();
        let resolved = resolve(document.value(), &Scope::restricted(Arc::new(move || facts.clone())));
        assert_eq!(document.value(), &before);
        resolved.map(|resolved| resolved.data)
    }

    #[test]
    fn overrides_merge_in_order() {
        let web = json!({"port": 80, "tls": true});
        let cases = [
            ("first", json!({"role": "web", "env": "prod"}), json!({"level": "INFO", "pk": ["nginx"], "web": web, "all": "no"})),
            (
                "First",
                json!({"hostname2": "web01", "role": "web"}),
                json!({"level": "TRACE", "pk": ["core"], "web": {"port": 8080, "host": "localhost"}, "all": "no"}),
            ),
            (
                "first",
                json!({"role": "db", "env": "dev"}),
                json!({"level": "INFO", "pk": ["base"], "web": {"port": 8080, "host": "localhost"}, "all": "yes"}),
            ),
            (
                "deep",
                json!({"role": "web", "env": "prod"}),
                json!({
                    "level": "WARN", "pk": ["core", "nginx", "ca", "base"],
                    "web": {"port": 80, "host": "prod.example", "tls": true}, "all": "yes",
                }),
            ),
        ];
        for (merge, facts, expected) in cases {
            let text = format!("{BODY}{ORDER}  merge: {merge}\n");
            assert_eq!(run(&text, facts.clone()), Ok(expected), "{merge} {facts}");
        }
        let text = format!("{BODY}{ORDER}");
        assert_eq!(run(&text, json!({"role": "web"})).unwrap()["pk"], json!(["nginx"]));
    }

    #[test]
    fn values_keep_their_types() {
        for (text, expected) in [
            (
                "a: 1_000\nb: 0o17\nc: 0x1F\nd: 0b101\ne: 1e6\nf: 1.5e3\n",
                json!({"a": 1000, "b": 15, "c": 31, "d": 5, "e": "1e6", "f": 1500}),
            ),
            ("a: 10.0\nb: 1.50\nc: -0.5\nd: 5.\ne: .5\n", json!({"a": 10, "b": 1.5, "c": -0.5, "d": 5, "e": 0.5})),
            ("a: .inf\nb: -.Inf\nc: .nan\nd: inf\n", json!({"a": "+Inf", "b": "-Inf", "c": "NaN", "d": "inf"})),
            ("a: 0644\nb: 08\nc: 12:30\nd: 1.2.3\ne: 1_\n", json!({"a": "0644", "b": "08", "c": "12:30", "d": "1.2.3", "e": 1})),
            ("a: 18446744073709551615\nb: 18446744073709551616\n", json!({"a": u64::MAX, "b": "18446744073709551616"})),
            (
                "a: yes\nb: True\nc: ~\nd: 'x'\ne: \"{{ 1_000 + 0o17 }}\"\n",
                json!({"a": "yes", "b": true, "c": null, "d": "x", "e": 1015}),
            ),
            ("a: \"{{ 10 / 4 }}\"\nb: \"{{ 10 / 5 }}\"\nc: \"{{ 1e6 }}\"\n", json!({"a": 2.5, "b": 2.0, "c": 1_000_000.0})),
        ] {
            let text = format!("data:\n{}", text.lines().map(|line| format!("  {line}\n")).collect::<String>());
            assert_eq!(run(&text, json!({})), Ok(expected), "{text}");
        }
        let text = r#"{"data": {"a": 1e6, "b": 10.0, "c": "1e6", "d": [1E3], "e": 18446744073709551616, "f": "\ud83d\ude00"}}"#;
        let expected =
            json!({"a": 1_000_000, "b": 10, "c": "1e6", "d": [1000], "e": 18_446_744_073_709_551_616.0_f64, "f": "\u{1f600}"});
        assert_eq!(run(text, json!({})), Ok(expected));
    }

    #[test]
    fn each_entry_has_its_status() {
        let facts = json!({"role": "web", "env": "prod"});
        for (merge, expected) in [
            ("first", [EntryStatus::NoMatch, EntryStatus::Used, EntryStatus::NotReached, EntryStatus::NotReached]),
            ("deep", [EntryStatus::NoMatch, EntryStatus::Used, EntryStatus::Used, EntryStatus::Used]),
        ] {
            let document = YamlDocument::parse(&format!("{BODY}{ORDER}  merge: {merge}\n"), "m.yaml").unwrap();
            let facts = facts.clone();
            let resolved = resolve(document.value(), &Scope::restricted(Arc::new(move || facts.clone()))).unwrap();
            assert_eq!(resolved.order.iter().map(|entry| entry.fate).collect::<Vec<_>>(), expected);
            assert_eq!(resolved.order[1].name.as_deref(), Some("role:web"));
            assert_eq!(resolved.order[0].entry, "host:{{ lookup('facts.hostname2') }}");
        }
        let document = YamlDocument::parse("hierarchy: {order: [x]}", "m.yaml").unwrap();
        let resolved = resolve(document.value(), &Scope::restricted(Arc::new(|| json!({})))).unwrap();
        assert_eq!((resolved.merge, resolved.order[0].fate), (MergeMode::First, EntryStatus::NoOverride));
    }

    #[test]
    fn a_match_without_overrides_does_not_end_the_search() {
        let text = "data: {level: INFO}\noverrides: {'env:prod': {level: E}}\nhierarchy: {order: ['role:{{ lookup(\"facts.role\") }}', \
                    'env:{{ lookup(\"facts.env\") }}']}\n";
        assert_eq!(run(text, json!({"role": "web", "env": "prod"})), Ok(json!({"level": "E"})));
        let text = "data: {a: 1}\noverrides: {data: {a: 2}, 'x:': {a: 3}, '': {a: 4}}\nhierarchy: {order: [data, \
                    'x:{{ lookup(\"facts.no\") }}', '']}\n";
        assert_eq!(run(text, json!({})), Ok(json!({"a": 1})));
    }

    #[test]
    fn without_a_hierarchy_the_default_is_taken() {
        let text = "data: {level: INFO, web: {port: 1}}\noverrides: {default: {level: D}, other: {level: O}}\n";
        assert_eq!(run(text, json!({})), Ok(json!({"level": "D", "web": {"port": 1}})));
        assert_eq!(run("ccm: {}\n", json!({})), Ok(json!({})));
        assert_eq!(run("", json!({})), Ok(json!({})));
    }

    #[test]
    fn values_are_templates_over_facts_and_keep_their_type() {
        let text = r#"
data:
  num: "{{ 1 + 1 }}"
  flag: "{{ lookup('facts.role') == 'web' }}"
  txt: "n={{ 1 + 1 }}"
  lst: ["{{ lookup('facts.role') }}", b]
  "{{ key }}": "[{{ lookup('facts.nope') }}]"
  w: "{{ lookup('facts.nope', 'd') }}"
  f: 10.0
  g: 2.5
  n: "{{ lookup('facts.value') | int() }}"
overrides:
  all: {level: "{{ lookup('facts.role') }}-x", list: "{{ lookup('facts.list') }}"}
hierarchy: {order: ["{{ lower('ALL') }}"]}
"#;
        let facts = json!({"role": "web", "value": "1", "list": [1]});
        assert_eq!(
            run(text, facts),
            Ok(json!({
                "num": 2, "flag": true, "txt": "n=2", "lst": ["web", "b"], "{{ key }}": "[]", "w": "d", "f": 10, "g": 2.5, "n": 1,
                "level": "web-x", "list": [1],
            }))
        );
    }

    #[test]
    fn an_override_of_another_type_replaces() {
        let text = "data: {level: INFO, pk: [core], web: {port: 1}}\noverrides: {o: {pk: text, web: text, level: [l]}}\n\
                    hierarchy: {order: [o], merge: deep}\n";
        assert_eq!(run(text, json!({})), Ok(json!({"level": ["l"], "pk": "text", "web": "text"})));
    }

    #[test]
    fn errors_have_their_path() {
        let cases = [
            ("hierarchy: {order: [o], merge: shallow}", "unsupported merge mode: shallow", "hierarchy.merge"),
            ("hierarchy: [o]", "hierarchy section is required", "hierarchy"),
            ("hierarchy: {merge: deep}", "hierarchy.order must be a list", "hierarchy.order"),
            ("hierarchy: {order: [a, 1]}", "hierarchy.order must contain only strings", "hierarchy.order.1"),
            ("hierarchy: {order: [a, '{{ no }}']}", "could not resolve hierarchy.order.1", "hierarchy.order.1"),
            ("data: [1]", "data must be a map", "data"),
            ("data: {a: [{b: '{{ Data.x }}'}]}", "could not resolve data.a.0.b", "data.a.0.b"),
            ("overrides: {default: 1}", "the override \"default\" must be a map", "overrides.default"),
            ("overrides: {default: {x: '{{ nope }}'}}", "could not resolve overrides.default.x", "overrides.default.x"),
        ];
        for (text, message, path) in cases {
            let error = run(text, json!({})).unwrap_err();
            assert_eq!((error.to_string().as_str(), error.path().join(".").as_str()), (message, path));
        }
    }
}
