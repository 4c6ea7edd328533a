//! Merging trees of data.

use serde_json::Value;

/// Merges `over` into `base`. Maps merge key by key at every depth, and lists are joined with `base` first. Any other value
/// of `over` replaces that of `base`.
pub fn deep_merge(base: Value, over: Value) -> Value {
    match (base, over) {
        (Value::Object(mut base), Value::Object(over)) => {
            for (key, value) in over {
                let merged = match base.get_mut(&key).map(Value::take) {
                    Some(existing) => deep_merge(existing, value),
                    None => value,
                };
                base.insert(key, merged);
            }
            Value::Object(base)
        }
        (Value::Array(mut base), Value::Array(over)) => {
            base.extend(over);
            Value::Array(base)
        }
        (_, over) => over,
    }
}

/// Merges `over` into `base`: top-level keys of `over` replace those of `base`.
pub fn shallow_merge(base: Value, over: Value) -> Value {
    match (base, over) {
        (Value::Object(mut base), Value::Object(over)) => {
            base.extend(over);
            Value::Object(base)
        }
        (_, over) => over,
    }
}

/// Removes the parts of a value that a deep merge with `over` would replace. Lists stay, because a merge joins them.
pub fn remove_overridden(value: &mut Value, over: &Value) {
    let (Value::Object(map), Value::Object(over)) = (value, over) else { return };
    for (key, over) in over {
        match (map.get_mut(key), over) {
            (Some(Value::Object(_)), Value::Object(_)) => {
                if let Some(inner) = map.get_mut(key) {
                    remove_overridden(inner, over);
                }
            }
            (Some(Value::Array(_)), Value::Array(_)) | (None, _) => {}
            (Some(_), _) => drop(map.shift_remove(key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn merging() {
        let base = json!({"a": {"x": 1, "y": [1]}, "b": [1, 2], "c": 1});
        let over = json!({"a": {"y": [2], "z": 3}, "b": {"now": "a map"}, "d": null});
        assert_eq!(
            deep_merge(base.clone(), over.clone()),
            json!({"a": {"x": 1, "y": [1, 2], "z": 3}, "b": {"now": "a map"}, "c": 1, "d": null})
        );
        assert_eq!(shallow_merge(base, over), json!({"a": {"y": [2], "z": 3}, "b": {"now": "a map"}, "c": 1, "d": null}));
    }
}
