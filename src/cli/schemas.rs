//! The JSON schemas, generated from the types that they describe. A test compares them with the files in `schemas/`.

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::model::{ApplyState, EnsureRequest, EnsureResponse, TransactionEvent};
use crate::resource::{Common, ResourceOutput, ResourceType, Types};
use crate::wire;

/// A schema by name.
pub struct NamedSchema {
    /// The name of the schema: its file name without `.json`.
    pub name: &'static str,
    /// Generates the schema, with the properties of these types where it has any.
    pub make: fn(&Types) -> Value,
}

/// Every schema.
pub static ALL: &[NamedSchema] = &[
    NamedSchema { name: "manifest", make: manifest },
    NamedSchema { name: "resource_ensure_request", make: request },
    NamedSchema { name: "resource_ensure_response", make: |_| schema_of::<EnsureResponse>() },
    NamedSchema { name: "event", make: |_| schema_of::<TransactionEvent>() },
    NamedSchema { name: "apply_state", make: |_| schema_of::<ApplyState>() },
    NamedSchema { name: "command", make: |_| schema_of::<wire::Command>() },
    NamedSchema { name: "data", make: |_| schema_of::<wire::data::SignedData>() },
    NamedSchema { name: "trust", make: |_| schema_of::<wire::TrustBundle>() },
    NamedSchema { name: "job_ack", make: |_| schema_of::<wire::Ack>() },
    NamedSchema { name: "job_done", make: |_| schema_of::<wire::CommandResult>() },
    NamedSchema { name: "rollout_ok", make: |_| schema_of::<wire::report::RolloutResult>() },
    NamedSchema { name: "rollout_failed", make: |_| schema_of::<wire::report::RolloutResult>() },
    NamedSchema { name: "stable", make: |_| schema_of::<wire::report::StableRuns>() },
    NamedSchema { name: "lifecycle", make: |_| schema_of::<wire::report::LifecycleEvent>() },
    NamedSchema { name: "refused", make: |_| schema_of::<wire::RejectionEvent>() },
    NamedSchema { name: "node_state", make: |_| schema_of::<wire::NodeState>() },
    NamedSchema { name: "receipt", make: |_| schema_of::<wire::receipt::ReceiptBody>() },
    NamedSchema { name: "join_request", make: |_| schema_of::<wire::join::JoinRequest>() },
    NamedSchema { name: "admission", make: |_| schema_of::<wire::join::AdmissionStatement>() },
    NamedSchema { name: "agent_status", make: |_| schema_of::<wire::AgentStatus>() },
    NamedSchema { name: "agent", make: |_| schema_of::<crate::config::AgentSettings>() },
];

/// Returns a generator with our settings: JSON Schema 2020-12.
pub fn generator() -> SchemaGenerator {
    SchemaSettings::draft2020_12().into_generator()
}

fn schema_of<T: schemars::JsonSchema>() -> Value {
    generator().into_root_schema_for::<T>().to_value()
}

/// Returns the properties of a type with the common ones. Types that they refer to go into `definitions`.
fn properties(kind: &dyn ResourceType, definitions: &mut Map<String, Value>) -> Value {
    let mut own = scoped(kind.schema(&mut generator()).to_value(), kind.name(), definitions);
    let common = scoped(schema_of::<Common>(), "common", definitions);
    let required = own.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    if let (Some(Value::Object(all)), Value::Object(shared)) =
        (own.get_mut("properties"), common.get("properties").unwrap_or(&Value::Null))
    {
        all.extend(shared.clone());
        for (name, property) in all.iter_mut().filter(|(name, _)| !Common::LITERAL.contains(&name.as_str())) {
            accept_manifest_forms(property, required.contains(&json!(name)));
        }
    }
    own
}

/// Extends a property to the forms that a manifest may have. A string without quotes is a number to YAML. An optional string
/// may be null. Any other value may be a template.
fn accept_manifest_forms(property: &mut Value, required: bool) {
    let Some(map) = property.as_object_mut() else { return };
    let is_text = match map.get("type") {
        Some(Value::String(one)) => one == "string",
        Some(Value::Array(several)) => several.iter().any(|one| one == "string"),
        _ => false,
    };
    let is_list = map.get("type").is_some_and(|kind| kind == "array" || kind == &json!(["array", "null"]));
    let is_free = is_text && !map.contains_key("pattern") && !map.contains_key("enum");
    if is_text {
        let mut types = vec!["string", "number", "boolean"];
        types.extend((!required).then_some("null"));
        map.insert("type".to_owned(), json!(types));
    }
    if is_list
        && let Some(items) = map.get_mut("items").filter(|items| {
            ["integer", "number", "boolean"].iter().any(|kind| items.get("type").is_some_and(|found| found == *kind))
        })
    {
        *items = json!({"anyOf": [items.take(), {"type": "string", "pattern": TEMPLATE}]});
    }
    if is_free || is_list {
        return;
    }
    // Description and default stay outside, where editors look for them.
    let kept: Map<String, Value> =
        ["description", "default"].iter().filter_map(|key| map.remove(*key).map(|value| ((*key).to_owned(), value))).collect();
    let plain = std::mem::take(map);
    map.insert("anyOf".to_owned(), json!([plain, {"type": "string", "pattern": TEMPLATE}]));
    map.extend(kept);
}

/// The pattern of a text with a template.
const TEMPLATE: &str = r"\{\{|\$\{";

/// Returns a schema without the keys of a root. `scope` separates types of the same name in two resource types.
fn scoped(schema: Value, scope: &str, definitions: &mut Map<String, Value>) -> Value {
    let text = schema.to_string().replace("\"#/$defs/", &format!("\"#/$defs/{scope}."));
    let Ok(Value::Object(mut schema)) = serde_json::from_str(&text) else { return schema };
    schema.remove("$schema");
    schema.remove("title");
    if let Some(Value::Object(found)) = schema.remove("$defs") {
        definitions.extend(found.into_iter().map(|(name, definition)| (format!("{scope}.{name}"), definition)));
    }
    Value::Object(schema)
}

fn manifest(types: &Types) -> Value {
    let mut definitions = Map::new();
    let types = types.iter().map(|kind| {
        let single = properties(kind, &mut definitions);
        let mut element = single.clone();
        if let Some(map) = element.as_object_mut() {
            map.remove("required");
        }
        let element = json!({"anyOf": [element, {"type": "null"}]});
        let list = json!({"type": "array", "items": {"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": element}});
        let output = |output: &ResourceOutput| (output.name.to_string(), json!({"type": output.kind.name(), "description": output.about}));
        let outputs: Map<String, Value> = kind.outputs().iter().map(output).collect();
        let forms = json!({"description": kind.about(), "anyOf": [single, list], "x-outputs": outputs});
        json!({"type": "object", "required": [kind.name()], "additionalProperties": false, "properties": {kind.name(): forms}})
    });
    let resources: Vec<Value> = types.collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Manifest",
        "description": "A manifest: data, and an ordered list of resources.",
        "type": "object",
        "required": ["ccm"],
        "additionalProperties": false,
        "patternProperties": {"^x-": {"description": "Places for YAML anchors; not read."}},
        "properties": {
            "data": {"type": "object", "description": "Data for templates."},
            "hierarchy": {
                "type": "object",
                "description": "The overrides that apply, in order.",
                "additionalProperties": false,
                "properties": {
                    "order": {"type": "array", "items": {"type": "string"}},
                    "merge": {"type": "string", "enum": ["first", "deep"]},
                },
            },
            "overrides": {"type": "object", "description": "Data by hierarchy entry.", "additionalProperties": {"type": "object"}},
            "ccm": {
                "type": "object",
                "additionalProperties": false,
                "properties": {
                    "resources": {"type": "array", "minItems": 1, "items": {"oneOf": resources}},
                    "resources_jet_file": {"type": "string", "description": "A Jet template beside the manifest that makes the list of resources."},
                    "fail_on_error": {"type": "boolean", "default": false, "description": "Stop after the first resource that fails."},
                    "ordering": {"type": "string", "enum": crate::manifest::Ordering::NAMES, "default": "list", "description": "The order of the resources: as written, or as they depend on each other."},
                    "pre_message": {"type": "string", "description": "Printed before the run."},
                    "post_message": {"type": "string", "description": "Printed after a run without errors."},
                },
                "oneOf": [{"required": ["resources"]}, {"required": ["resources_jet_file"]}],
            },
        },
        "$defs": definitions,
    })
}

fn request(types: &Types) -> Value {
    let mut definitions = Map::new();
    let forms: Vec<Value> = types
        .iter()
        .map(|kind| json!({"properties": {"type": {"const": kind.name()}, "properties": {"anyOf": [properties(kind, &mut definitions), {"type": "array", "minItems": 1, "maxItems": 1}]}}}))
        .collect();
    let mut schema = schema_of::<EnsureRequest>();
    if let Some(map) = schema.as_object_mut() {
        map.insert("required".to_owned(), json!(["protocol", "type", "properties"]));
        map.insert("oneOf".to_owned(), Value::Array(forms));
        map.insert("$defs".to_owned(), Value::Object(definitions));
    }
    schema
}
