//! What one resource touches besides what its name says.
//!
//! Rules and limits speak of types and names. A resource could say one name and do another thing:
//! an `exec` has its `command`, an archive unpacks elsewhere, any resource brings commands as
//! health checks. All of these are given here as further pairs of type and name, so that whoever
//! checks names checks them too. Health checks are in `health.rs`.

pub(super) mod health;

use serde_json::Value;

use crate::wire::command::Ensure;

/// The type of everything that runs a command.
pub(super) const EXEC: &str = "exec";
/// What stands for a command that can't be read from the properties.
const UNREADABLE: &str = "(not readable)";

/// A type and a name that a resource acts under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reach<'a> {
    /// The resource type.
    pub(super) kind: &'a str,
    /// The name, path or command.
    pub(super) name: &'a str,
}

/// Everything that a resource acts on, its own name first.
pub(super) fn reaches(ensure: &Ensure) -> Vec<Reach<'_>> {
    let kind = ensure.kind.as_str();
    let property = |name: &str| ensure.properties.get(name).filter(|value| !value.is_null());
    let mut found = vec![Reach { kind, name: ensure.name().unwrap_or(UNREADABLE) }];
    match kind {
        EXEC => found.extend(["command", "onlyif", "unless"].into_iter().filter_map(property).map(command)),
        "archive" => found.extend(property("extract_parent").map(|value| Reach { kind, name: text(value) })),
        // Read, not written; but what may be read here ends in a file that others may read.
        "file" | "scaffold" => found.extend(property("source").map(|value| Reach { kind, name: text(value) })),
        _ => {}
    }
    found.extend(property("post").into_iter().flat_map(commands));
    found.extend(health::reaches(&ensure.properties));
    found
}

/// The URLs that a resource fetches from.
pub(super) fn urls(ensure: &Ensure) -> Vec<&str> {
    let url = ensure.properties.get("url").filter(|value| !value.is_null()).map(text);
    let source = ensure.properties.get("source").and_then(Value::as_str).filter(|source| source.contains("://"));
    url.into_iter().chain(source).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or(UNREADABLE)
}

fn command(value: &Value) -> Reach<'_> {
    Reach { kind: EXEC, name: text(value) }
}

/// The commands in a list of objects, under all of their keys.
fn commands(value: &Value) -> Vec<Reach<'_>> {
    let unreadable = || vec![Reach { kind: EXEC, name: UNREADABLE }];
    let Value::Array(items) = value else { return unreadable() };
    items
        .iter()
        .flat_map(|item| match item {
            Value::Object(item) => item.values().map(command).collect(),
            _ => unreadable(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(kind: &str, properties: &Value) -> Vec<(String, String)> {
        let ensure = Ensure { kind: kind.into(), properties: properties.as_object().unwrap().clone() };
        reaches(&ensure).iter().map(|r| (r.kind.into(), r.name.into())).collect()
    }

    #[test]
    fn commands_and_further_paths_are_found() {
        for (kind, properties, wanted) in [
            ("file", json!({"name": "/a"}), vec![("file", "/a")]),
            ("file", json!({"name": "/a", "source": "/b"}), vec![("file", "/a"), ("file", "/b")]),
            ("file", json!({"name": "/a", "source": null, "health_checks": []}), vec![("file", "/a")]),
            ("exec", json!({"name": "n", "command": "c", "unless": "u"}), vec![("exec", "n"), ("exec", "c"), ("exec", "u")]),
            ("archive", json!({"name": "/a", "extract_parent": "/b"}), vec![("archive", "/a"), ("archive", "/b")]),
            ("service", json!({"name": "s", "health_checks": [{"command": "c"}]}), vec![("service", "s"), ("exec", "c")]),
            ("service", json!({"name": "s", "health_checks": {"command": "c"}}), vec![("service", "s"), ("exec", UNREADABLE)]),
            ("service", json!({"name": "s", "health_checks": [{"name": "x"}]}), vec![("service", "s"), ("exec", UNREADABLE)]),
            ("service", json!({"name": "s", "health_checks": [{"goss_rules": {}}]}), vec![("service", "s")]),
            (
                "service",
                json!({"name": "s", "health_checks": [{"goss_rules": {"command": {"a": {"exec": "c"}, "d": {}, "e": null}}}]}),
                vec![("service", "s"), ("exec", "c"), ("exec", "d"), ("exec", "e")],
            ),
            (
                "service",
                json!({"name": "s", "health_checks": [{"command": "b", "goss_rules": {"command": ["x"], "file": 7}}]}),
                vec![("service", "s"), ("exec", "b"), ("exec", UNREADABLE), ("file", UNREADABLE)],
            ),
            (
                "service",
                json!({"name": "s", "health_checks": [{"goss_rules": {"file": {
                    "/a": {"exists": true}, "/b": {"contains": ["x"]}, "c": {"path": "/d", "sha256": "x"},
                }}}]}),
                vec![("service", "s"), ("file", "/b"), ("file", "/d")],
            ),
            ("scaffold", json!({"name": "/a", "post": [{"*": "c"}]}), vec![("scaffold", "/a"), ("exec", "c")]),
            ("exec", json!({"name": "n", "command": ["c"]}), vec![("exec", "n"), ("exec", UNREADABLE)]),
        ] {
            let wanted: Vec<(String, String)> = wanted.into_iter().map(|(k, n)| (k.into(), n.into())).collect();
            assert_eq!(of(kind, &properties), wanted, "{properties}");
        }
    }
}
