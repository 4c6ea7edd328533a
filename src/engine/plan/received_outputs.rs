//! The outputs of other resources that the templates of a resource use, found before the run.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::diag::{Diagnostic, did_you_mean};
use crate::manifest::Declaration;
use crate::model::ResourceRef;
use crate::resource::{Common, ResourceType};
use crate::template::{OutputReference, Scope};
use crate::yaml::YamlDocument;

/// The use of an output in a property.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::engine) struct ReceivedOutput {
    /// The property with the template.
    pub(in crate::engine) property: String,
    /// The output.
    pub(in crate::engine) reference: OutputReference,
}

/// Finds the outputs that the properties of a resource use.
///
/// # Errors
/// A property that is needed before the resource runs, and so can use none.
pub(super) fn find(
    properties: &Map<String, Value>,
    kind: &dyn ResourceType,
    declaration: &Declaration,
    document: &YamlDocument,
    scope: &Scope,
) -> Result<Vec<ReceivedOutput>, Diagnostic> {
    let mut found = BTreeSet::new();
    for (property, value) in properties {
        let mut used = Vec::new();
        let outputs = |text: &str| if property == "control" { scope.expression_outputs(text) } else { scope.outputs(text) };
        collect(value, &outputs, &mut used);
        if !used.is_empty() && !may_receive(kind, property) {
            let message =
                format!("{property}: resources[...] has no values here, as {property} is needed before the resource runs");
            let hint = if kind.nests() {
                "pass the value to the other manifest in data"
            } else {
                "the properties of the type other than name can use outputs, and so can control"
            };
            return Err(declaration.diagnose(document, Some(property), message).hint(hint));
        }
        found.extend(used.into_iter().map(|reference| ReceivedOutput { property: property.clone(), reference }));
    }
    Ok(found.into_iter().collect())
}

fn collect(value: &Value, outputs: &dyn Fn(&str) -> Vec<OutputReference>, found: &mut Vec<OutputReference>) {
    match value {
        Value::String(text) => found.extend(outputs(text)),
        Value::Array(items) => items.iter().for_each(|item| collect(item, outputs, found)),
        Value::Object(map) => map.iter().for_each(|(key, item)| {
            found.extend(outputs(key));
            collect(item, outputs, found);
        }),
        _ => {}
    }
}

/// Returns true for a property that the run can resolve right before the resource.
fn may_receive(kind: &dyn ResourceType, property: &str) -> bool {
    let is_of_type = property != "name" && !Common::KEYS.contains(&property);
    property == "control" || (is_of_type && (!kind.nests() || kind.is_content(property)))
}

/// Returns the used resources, each with the property that uses it.
pub(super) fn senders(received: &[ReceivedOutput]) -> impl Iterator<Item = (&str, ResourceRef)> {
    let all: BTreeSet<_> = received.iter().map(|one| (one.property.as_str(), &one.reference.resource)).collect();
    all.into_iter().map(|(property, resource)| (property, resource.clone()))
}

/// Returns the error for an output that the type does not have, and the remedy.
pub(super) fn unknown_output(sender: &dyn ResourceType, output: &str) -> Option<(String, String)> {
    let names = || sender.outputs().iter().map(|output| output.name.as_ref());
    if names().any(|name| name == output) {
        return None;
    }
    let kind = sender.name();
    let hint = match (did_you_mean(output, names()), sender.outputs().is_empty()) {
        (Some(near), _) => format!("did you mean \"{near}\"?"),
        (None, true) => format!("{kind} resources have no outputs"),
        (None, false) => format!("outputs of {kind} are {}", names().collect::<Vec<_>>().join(", ")),
    };
    Some((format!("uses the output \"{output}\", which {kind} resources do not have"), hint))
}
