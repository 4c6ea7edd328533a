//! Lookups by path: `facts.host.info.os`, `data.list.#`, `data.users.#(name=="x").uid`.
//!
//! Paths follow GJSON. Plain paths are walked on the values. All others need the values as JSON text, written once.

use std::borrow::Cow;

use serde_json::Value;

use crate::model::EvaluationBudget;

use crate::template::functions::limits;

/// Returns the value at a GJSON path, or `None` when the path leads to nothing.
pub fn query(value: &Value, path: &str) -> Option<Value> {
    match plain_steps(path) {
        Some(steps) => find_plain(value, &steps).cloned(),
        None => find_gjson(&value.to_string(), path, &EvaluationBudget::default()).ok().flatten(),
    }
}

/// Returns the value at a plain path below `root`, or `None` when a step finds nothing.
pub(in crate::template) fn find_plain<'a>(root: &'a Value, steps: &[&str]) -> Option<&'a Value> {
    steps.iter().try_fold(root, |here, step| match here {
        Value::Object(map) => map.get(*step),
        Value::Array(items) => items.get(step.parse::<usize>().ok()?),
        _ => None,
    })
}

/// Splits a plain path into steps. Returns `None` for a path with GJSON syntax.
pub(in crate::template) fn plain_steps(path: &str) -> Option<Vec<&str>> {
    let is_plain =
        |step: &&str| !step.is_empty() && step.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | ':' | '/'));
    let steps: Vec<_> = path.split('.').collect();
    steps.iter().all(is_plain).then_some(steps)
}

/// A GJSON modifier: returns the changed value, or `None` for a value of the wrong type.
type Modifier = fn(Value) -> Option<Value>;

/// GJSON modifiers that the crate `gjson` lacks.
const MODIFIERS: &[(&str, Modifier)] = &[
    ("@keys", |value| match value {
        Value::Object(map) => Some(map.into_iter().map(|(key, _)| Value::String(key)).collect()),
        _ => Some(Value::Array(Vec::new())),
    }),
    ("@values", |value| match value {
        Value::Object(map) => Some(map.into_iter().map(|(_, value)| value).collect()),
        Value::Array(_) => Some(value),
        _ => Some(Value::Array(Vec::new())),
    }),
    ("@tostr", |value| Some(Value::String(value.to_string()))),
    ("@fromstr", |value| serde_json::from_str(value.as_str()?).ok()),
];

/// The maximum of wildcards in a path: each one multiplies the matching time.
const MAX_WILDCARDS: usize = 4;
/// The maximum of steps and brackets in a path: the crate recurses into each.
const MAX_STEPS: usize = 128;
/// The maximum length of a path, in bytes.
const MAX_PATH: usize = 4 << 10;

/// Returns the value at a GJSON path in a JSON text.
pub(in crate::template) fn find_gjson(json: &str, path: &str, budget: &EvaluationBudget) -> Result<Option<Value>, String> {
    let count = |signs: &[char]| path.matches(signs).count();
    if path.len() > MAX_PATH || count(&['*']) > MAX_WILDCARDS || count(&['.', '|', '#', '(', '[', '{']) > MAX_STEPS {
        return Err(format!("a path has at most {MAX_PATH} bytes, {MAX_STEPS} steps and {MAX_WILDCARDS} wildcards"));
    }
    let (mut json, mut path) = (Cow::Borrowed(json), path);
    loop {
        let Some((before, modifier, after)) = split_modifier(path) else { return call_gjson(&json, path, budget) };
        let value = if before.is_empty() { parse_json(&json, budget)? } else { call_gjson(&json, before, budget)? };
        let Some(made) = value.and_then(modifier) else { return Ok(None) };
        if after.is_empty() {
            return Ok(Some(made));
        }
        // Escapes can double the length of a text.
        limits::charge_value(&made, budget)
            .and_then(|()| limits::charge_value(&made, budget))
            .map_err(|spent| spent.to_string())?;
        (json, path) = (Cow::Owned(made.to_string()), after);
    }
}

fn parse_json(json: &str, budget: &EvaluationBudget) -> Result<Option<Value>, String> {
    budget.charge(json.len()).map_err(|spent| spent.to_string())?;
    Ok(serde_json::from_str(json).ok())
}

type ModifierSplit<'p> = (&'p str, Modifier, &'p str);

/// Splits a path at the first of [`MODIFIERS`]: the path before, the modifier, the path after.
fn split_modifier(path: &str) -> Option<ModifierSplit<'_>> {
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    for (at, c) in path.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            _ if quoted => {}
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            '@' if depth == 0 => {
                let (before, rest) = path.split_at(at);
                let before = if at == 0 { before } else { before.strip_suffix(['.', '|'])? };
                let end = rest.find(['.', '|']).unwrap_or(rest.len());
                let (name, after) = rest.split_at(end);
                let after = after.strip_prefix(['.', '|']).unwrap_or(after);
                if let Some((_, modifier)) = MODIFIERS.iter().find(|(known, _)| *known == name) {
                    return Some((before, *modifier, after));
                }
            }
            _ => {}
        }
    }
    None
}

fn call_gjson(json: &str, path: &str, budget: &EvaluationBudget) -> Result<Option<Value>, String> {
    budget.charge(json.len().saturating_mul(growth(path))).map_err(|spent| spent.to_string())?;
    budget.charge_work(wildcard_work(json, path)).map_err(|spent| spent.to_string())?;
    let found = gjson::get(json, path);
    Ok(found.exists().then(|| serde_json::from_str(found.json()).unwrap_or_else(|_| Value::String(found.str().to_owned()))))
}

/// The most times that a result can be as long as the value. Each part of `[a,b]` can be the whole value, and the next `[a,b]`
/// repeats that. The product is largest for groups of equal size.
fn growth(path: &str) -> usize {
    let (groups, commas) = (path.matches(['[', '{']).count(), path.matches(',').count());
    let parts = 1 + commas.div_ceil(groups.max(1));
    let copies = parts.saturating_pow(u32::try_from(groups).unwrap_or(u32::MAX));
    // Texts of the path are repeated for each element, and `@pretty` repeats one on each line.
    let has_texts = path.contains('{') || (path.contains('[') && path.contains('!'));
    let repeats = path.contains("@pretty") || (path.contains('#') && has_texts);
    copies.saturating_mul(if repeats { path.len() } else { 1 })
}

/// The work of the wildcards. The crate goes back for each of them, so the length of a text counts once for each.
fn wildcard_work(json: &str, path: &str) -> usize {
    let wildcards = u32::try_from(wildcards_of_a_part(path)).unwrap_or(u32::MAX);
    if wildcards < 2 {
        return 0;
    }
    let (mut work, mut length, mut escaped) = (0_usize, 0_usize, false);
    for byte in json.bytes().chain([b'"']) {
        if byte == b'"' && !escaped {
            work = work.saturating_add(length.saturating_pow(wildcards));
            length = 0;
        } else {
            length += 1;
        }
        escaped = byte == b'\\' && !escaped;
    }
    work
}

/// The most wildcards in a part of a path: between two steps, or in a whole bracket.
fn wildcards_of_a_part(path: &str) -> usize {
    let (mut most, mut here, mut depth, mut escaped) = (0, 0, 0_usize, false);
    for c in path.chars() {
        match c {
            _ if escaped => {}
            '.' | '|' if depth == 0 => here = 0,
            '*' => here += 1,
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        escaped = c == '\\' && !escaped;
        most = most.max(here);
    }
    most
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
            ("data.users.0.@keys", Some(json!(["name", "uid"]))),
            ("data.users.0|@values|1", Some(json!(1))),
            ("data.users.@reverse.0.@keys.#", Some(json!(2))),
            ("data.port.@tostr", Some(json!("8080"))),
            ("data.port.@tostr.@fromstr", Some(json!(8080))),
            ("data.name.@fromstr", None),
            ("data.nope.@keys", None),
        ];
        for (path, expected) in cases {
            assert_eq!(find_gjson(&text, path, &EvaluationBudget::default()), Ok(expected.clone()), "{path}");
            if let Some(steps) = plain_steps(path) {
                assert_eq!(find_plain(&root, &steps).cloned(), expected, "{path}");
            }
        }
        assert_eq!(plain_steps("data.list.#"), None);
    }

    #[test]
    fn costly_paths_are_refused_before_their_work() {
        let long = "a".repeat(20_000);
        let json = json!({"list": [{"s": long}, {"s": "b"}], long.as_str(): 1}).to_string();
        let key = "k".repeat(3000);
        for path in [
            "[@this,@this]|".repeat(20),
            "[@this,@this].".repeat(20),
            "{\"a\":@this,\"b\":@this}|".repeat(20),
            "[[@this,@this],[@this,@this]]|".repeat(6),
            "list.#(s%\"*a*a*b\")".to_owned(),
            "list.#(s%*a*.*a*)".to_owned(),
            "*a*a*b".to_owned(),
            "x\\.*a*\\.*b".to_owned(),
            format!("list.#.{{\"{key}\":s}}"),
            "[".repeat(1000),
            "#(".repeat(1000),
            "@this|".repeat(500),
        ] {
            let error = find_gjson(&json, &path, &EvaluationBudget::default()).unwrap_err();
            assert!(["MiB", "work", "at most"].iter().any(|part| error.contains(part)), "{error}");
        }
        for (path, expected) in [
            ("list.#(s%\"b*\").s", Some(json!("b"))),
            ("li*.1.*", Some(json!("b"))),
            ("[list.1.s,list.1.s,list.1.s,list.1.s]|#", Some(json!(4))),
        ] {
            assert_eq!(find_gjson(&json, path, &EvaluationBudget::default()), Ok(expected), "{path}");
        }
    }

    proptest! {
        #[test]
        fn any_path_is_answered(path in "[a-c.#@|(){}\\[\\]\"'\\\\*?=!~:,0-9]{0,16}") {
            drop(find_gjson(r#"{"a":{"b":[1,{"c":"d"}]},"c":"e"}"#, &path, &EvaluationBudget::default()));
        }
    }
}
