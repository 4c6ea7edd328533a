//! Laying one value over another: data over defaults, facts over facts.

use serde_json::{Value, map::Entry};

/// `over` laid over `base`: maps merge key by key at every depth, lists join (`base` first),
/// everything else is replaced, also where the kinds differ.
#[must_use]
pub fn deep_merge(base: Value, over: Value) -> Value {
    match (base, over) {
        (Value::Object(mut base), Value::Object(over)) => {
            for (key, incoming) in over {
                match base.entry(key) {
                    Entry::Occupied(mut held) => {
                        let merged = deep_merge(held.get_mut().take(), incoming);
                        held.insert(merged);
                    }
                    Entry::Vacant(free) => {
                        free.insert(incoming);
                    }
                }
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

/// `over` laid over `base`: its keys replace those of `base`, whole values at a time.
#[must_use]
pub fn shallow_merge(base: Value, over: Value) -> Value {
    match (base, over) {
        (Value::Object(mut base), Value::Object(over)) => {
            base.extend(over);
            Value::Object(base)
        }
        (_, over) => over,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_laid_over() {
        let base = json!({"a": 1, "m": {"x": 1, "l": [1, 2]}, "l": [1], "t": {"a": 1}});
        let over = json!({"m": {"y": 2, "l": [2, 3]}, "l": "text", "t": [1], "n": null});
        assert_eq!(
            deep_merge(base.clone(), over.clone()),
            json!({"a": 1, "m": {"x": 1, "l": [1, 2, 2, 3], "y": 2}, "l": "text", "t": [1], "n": null})
        );
        assert_eq!(shallow_merge(base, over), json!({"a": 1, "m": {"y": 2, "l": [2, 3]}, "l": "text", "t": [1], "n": null}));
    }
}
