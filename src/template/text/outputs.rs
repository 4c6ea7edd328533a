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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::template::Scope;

    fn scope(uses: ValueUses) -> Scope {
        let reference = |name: &str| ResourceRef::new("exec", name);
        let values = json!({"stdout": "text", "exitcode": 3, "lines": ["a", "b"]});
        let values = values.as_object().cloned().unwrap();
        let scope = Scope::new(Arc::new(|| json!({})), json!({}), BTreeMap::new()).with_unsigned_data(json!({}));
        scope.with_outputs(OutputTable::new([
            (reference("a"), OutputsOfResource::Present { values, uses, absence: "it did not run".to_owned() }),
            (reference("b"), OutputsOfResource::Unavailable("exec#b failed".to_owned())),
        ]))
    }

    #[test]
    fn outputs_have_values_or_errors() {
        for (expression, wanted) in [
            ("resources['exec#a'].stdout", Ok(json!("text"))),
            ("resources['exec#a'].exitcode + 1", Ok(json!(4))),
            ("resources['exec#a'].lines[1]", Ok(json!("b"))),
            ("resources['exec#a']?.stderr", Ok(json!(null))),
            ("resources['exec#a']?.stderr ?? 'none'", Ok(json!("none"))),
            ("resources['exec#a'].stderr ?? 'none'", Err("exec#a has no stderr: it did not run; resources['exec#a']?.stderr")),
            ("resources['exec#b']?.stdout ?? 'none'", Err("exec#b failed")),
            ("resources['exec#c'].stdout", Err("exec#c is not available here")),
            ("resources['a'].stdout", Err("needs the resource and its output as literal texts")),
            ("let x = 'exec#a'; resources[x].stdout", Err("needs the resource and its output as literal texts")),
            ("resources['exec#a']", Err("needs the resource and its output as literal texts")),
            ("Resources['exec#a'].stdout", Err("did you mean resources?")),
        ] {
            let found = scope(ValueUses::default()).resolve_value(&format!("{{{{ {expression} }}}}"));
            match (found.map_err(|error| error.to_string()), wanted) {
                (Err(error), Err(part)) => assert!(error.contains(part), "{expression}: {error}"),
                (found, wanted) => assert_eq!(found, wanted.map_err(str::to_owned), "{expression}"),
            }
        }
    }

    #[test]
    fn a_use_of_an_output_uses_what_its_resource_used() {
        for bus in [false, true] {
            for secret in [false, true] {
                let scope = scope(ValueUses { read: false, bus, secret });
                let before = scope.mark();
                scope.resolve_text("{{ resources['exec#a'].stdout }}").unwrap();
                let used = scope.since(before);
                assert_eq!((used.bus, used.secret), (bus, secret));
            }
        }
    }

    #[test]
    fn the_uses_of_a_text_are_known_before_the_run() {
        let scope = scope(ValueUses::default());
        for (text, wanted) in [
            ("resources['exec#a'].stdout", vec![]),
            ("{{ Data.resources }}", vec![]),
            ("{{ resources['exec#a'].stdout }}", vec!["exec#a stdout"]),
            ("${ resources['file#/a b'].size } {{ [resources['exec#a']?.exitcode] }}", vec!["file#/a b size", "exec#a exitcode"]),
            ("{{ Facts.x == 1 ? resources['exec#a'].stdout : 'b' }}", vec!["exec#a stdout"]),
        ] {
            let found = scope.outputs(text).into_iter().map(|found| format!("{} {}", found.resource, found.output));
            assert_eq!(found.collect::<Vec<_>>(), wanted, "{text}");
        }
    }
}
