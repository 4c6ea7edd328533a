//! Facts in Jet templates, under their own names and under the field names of the Go system.

use std::collections::BTreeMap;
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, Serde, Value as Item};
use serde_json::Value;

use crate::template::expr::is_go_field_name;

/// A map of facts.
#[derive(Debug)]
struct FactsMap(BTreeMap<String, Item>);

impl Object for FactsMap {
    fn get_value(self: &Arc<Self>, key: &Item) -> Option<Item> {
        let key = key.as_str()?;
        let by_old_name = || self.0.iter().find(|(name, _)| is_go_field_name(key, name)).map(|(_, item)| item);
        self.0.get(key).or_else(by_old_name).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.keys().map(|name| Item::from(name.as_str())).collect())
    }
}

/// Returns facts as templates see them.
pub(in crate::template) fn facts_item(value: &Value) -> Item {
    match value {
        Value::Object(map) => {
            Item::from_object(FactsMap(map.iter().map(|(key, value)| (key.clone(), facts_item(value))).collect()))
        }
        Value::Array(items) => items.iter().map(facts_item).collect(),
        plain => Item::from(Serde(plain)),
    }
}
