//! Look-ups by path: `facts.host.info.os`, `data.list.#`, `data.users.#(name=="x").uid`.
//!
//! Paths are those of GJSON. Plain ones are walked on the values; the others need the values as
//! JSON text, which is written once.

use serde_json::Value;

/// What a plain path leads to below `root`; nothing when a step finds none.
pub(super) fn plain<'a>(root: &'a Value, steps: &[&str]) -> Option<&'a Value> {
    steps.iter().try_fold(root, |here, step| match here {
        Value::Object(map) => map.get(*step),
        Value::Array(items) => items.get(step.parse::<usize>().ok()?),
        _ => None,
    })
}

/// The steps of a path that means the same to everybody.
pub(super) fn steps(path: &str) -> Option<Vec<&str>> {
    let is_plain =
        |step: &&str| !step.is_empty() && step.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | ':' | '/'));
    let steps: Vec<_> = path.split('.').collect();
    steps.iter().all(is_plain).then_some(steps)
}

/// What any path leads to in a JSON text.
pub(super) fn by_gjson(json: &str, path: &str) -> Option<Value> {
    let found = gjson::get(json, path);
    found.exists().then(|| serde_json::from_str(found.json()).unwrap_or_else(|_| Value::String(found.str().to_owned())))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_lead_to_values() {
        let root = json!({"data": {
            "name": "shop", "port": 8080, "ratio": 3.25159, "none": null, "list": ["a", "b"], "a.b": 1,
            "users": [{"name": "x", "uid": 1}, {"name": "y", "uid": 2}], "text": "a\"\né",
        }});
        let text = root.to_string();
        let cases = [
            ("data.name", Some(json!("shop"))),
            ("data.port", Some(json!(8080))),
            ("data.ratio", Some(json!(3.25159))),
            ("data.none", Some(json!(null))),
            ("data.list.1", Some(json!("b"))),
            ("data.list.7", None),
            ("data.list.x", None),
            ("data.nope", None),
            ("data.name.x", None),
            ("data.list.#", Some(json!(2))),
            ("data.a\\.b", Some(json!(1))),
            ("data.users.#.name", Some(json!(["x", "y"]))),
            ("data.users.#(name==\"y\").uid", Some(json!(2))),
            ("data.n*e", Some(json!("shop"))),
            ("data.list|@reverse", Some(json!(["b", "a"]))),
            ("data.text", Some(json!("a\"\né"))),
            ("data.te?t", Some(json!("a\"\né"))),
        ];
        for (path, expected) in cases {
            assert_eq!(by_gjson(&text, path), expected, "{path}");
            if let Some(steps) = steps(path) {
                assert_eq!(plain(&root, &steps).cloned(), expected, "{path}");
            }
        }
        assert_eq!(steps("data.list.#"), None);
    }

    proptest! {
        #[test]
        fn any_path_is_answered(path in "[a-c.#@|(){}\\[\\]\"'\\\\*?=!~:,0-9]{0,16}") {
            drop(by_gjson(r#"{"a":{"b":[1,{"c":"d"}]},"c":"e"}"#, &path));
        }
    }
}
