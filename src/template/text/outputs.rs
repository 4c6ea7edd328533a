//! Outputs of resources, as templates see them: `resources['exec#build'].stdout`.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::trace::ValueUses;
use crate::model::ResourceRef;

/// The use of an output in a template.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OutputReference {
    /// The resource, by its name or alias.
    pub resource: ResourceRef,
    /// The output.
    pub output: String,
}

impl OutputReference {
    /// Creates the reference to an output; none for a resource that is not of the form `type#name`.
    pub(super) fn new(resource: &str, output: &str) -> Option<Self> {
        Some(Self { resource: resource.parse().ok()?, output: output.to_owned() })
    }
}

/// The outputs of one resource for templates.
#[derive(Debug, Clone, PartialEq)]
pub enum OutputsOfResource {
    /// The outputs that have a value.
    Present {
        /// The values by name.
        values: Map<String, Value>,
        /// The values that the properties of the resource were made of.
        uses: ValueUses,
        /// The reason for which an output has no value, for people.
        absence: String,
    },
    /// No output may be used, for this reason.
    Unavailable(String),
}

/// The outputs that the templates of a resource may use, by `type#name`.
#[derive(Debug)]
pub struct OutputTable {
    /// The values by resource and output, as the root `resources` of expressions.
    values: Value,
    /// The uses or the reason of each resource.
    resources: BTreeMap<String, Result<(ValueUses, String), String>>,
}

impl OutputTable {
    /// Creates the table.
    pub fn new(all: impl IntoIterator<Item = (ResourceRef, OutputsOfResource)>) -> Self {
        let (mut values, mut resources) = (Map::new(), BTreeMap::new());
        for (resource, outputs) in all {
            let name = resource.to_string();
            let entry = match outputs {
                OutputsOfResource::Present { values: own, uses, absence } => {
                    values.insert(name.clone(), Value::Object(own));
                    Ok((uses, absence))
                }
                OutputsOfResource::Unavailable(why) => Err(why),
            };
            resources.insert(name, entry);
        }
        Self { values: Value::Object(values), resources }
    }

    pub(super) fn values(&self) -> &Value {
        &self.values
    }

    /// Returns the uses behind an output. Without a value, the output must be optional.
    pub(super) fn check(&self, resource: &str, output: &str, optional: bool) -> Result<ValueUses, String> {
        let entry = self.resources.get(resource).ok_or_else(|| {
            format!("{resource} is not available here: write resources['{resource}'] into the property itself, not into a template in it")
        })?;
        let (uses, absence) = entry.as_ref().map_err(Clone::clone)?;
        let found = self.values.get(resource).and_then(|values| values.get(output)).is_some_and(|value| !value.is_null());
        if found || optional {
            return Ok(*uses);
        }
        Err(format!("{resource} has no {output}: {absence}; resources['{resource}']?.{output} ?? \"a default\" allows for that"))
    }
}
