//! Redaction tests: no resource shows a secret or content.

use serde_json::{Value, json};

use crate::model::Secrets;
use crate::model::secret::REDACTED;

use crate::resource::core::common::TemplateScope;
use crate::resource::{TYPES, find};

const CANARY: &str = "CANARY";
/// Words in the names of properties that contain a secret or content, in any type.
const TELLING: &[&str] = &["content", "line", "password", "secret", "token", "environment", "headers", "hash", "credential"];

/// Returns the types with redacted properties, each with properties that contain the canary.
fn hidden() -> Vec<(&'static str, Value)> {
    TYPES.iter().filter_map(|kind| Some((kind.name(), kind.fixture().canary?))).collect()
}

#[test]
fn no_type_shows_its_secrets() {
    for (kind, properties) in hidden() {
        let decoded = find(kind).unwrap().decode(properties.as_object().unwrap(), &TemplateScope::default().scope());
        let decoded = decoded.map_err(|error| format!("{kind}: {error:?}")).unwrap();
        let shown = decoded.redacted().to_string();
        assert!(!shown.contains(CANARY), "{kind}: {shown}");
        assert!(shown.contains("name"), "{kind}: {shown}");
    }
}

#[test]
fn every_secret_that_a_program_could_print_is_named() {
    for (kind, properties) in hidden() {
        let decoded = find(kind).unwrap().decode(properties.as_object().unwrap(), &TemplateScope::default().scope()).unwrap();
        let secrets = Secrets::default();
        decoded.report_secrets(&mut |hidden| secrets.add_hidden(hidden));
        // Content is replaced by its digest. It is part of the desired state, and no credential.
        let stars = decoded.redacted().to_string().matches(REDACTED).count();
        assert_eq!(secrets.redacts_nothing(), stars == 0, "{kind}");
        let has_content = properties.as_object().unwrap().keys().any(|key| find(kind).unwrap().is_content(key));
        let given = properties.to_string();
        let printed = secrets.redact_output(&given);
        assert_eq!(printed.matches(CANARY).count(), usize::from(has_content), "{kind}: {printed}");
    }
}

#[test]
fn properties_without_secrets_are_not_redacted() {
    for (kind, key, properties) in [
        ("exec", "command", json!({"name": "x", "command": "echo CANARY"})),
        (
            "mount",
            "options",
            json!({"name": "/x", "ensure": "present", "device": "d", "fstype": "nfs", "options": "ro,x=CANARY"}),
        ),
        ("scaffold", "data", json!({"name": "/x", "ensure": "present", "source": "t", "data": {"a": "CANARY"}})),
        ("apply", "data", json!({"name": "m.yaml", "data": {"a": "CANARY"}})),
    ] {
        let decoded = find(kind).unwrap().decode(properties.as_object().unwrap(), &TemplateScope::default().scope());
        let shown = decoded.map_err(|error| format!("{kind}: {error:?}")).unwrap().redacted().to_string();
        assert!(shown.contains(CANARY), "{kind}.{key}: {shown}");
    }
}

#[test]
fn no_property_that_holds_a_secret_is_forgotten() {
    let hidden = hidden();
    for kind in TYPES {
        let schema = kind.schema(&mut schemars::SchemaGenerator::default()).to_value();
        let Some(properties) = schema["properties"].as_object() else { continue };
        for (name, property) in properties {
            let marked = property["writeOnly"] == true || property.to_string().contains("/Secret\"");
            if !marked && !TELLING.iter().any(|word| name.contains(word)) {
                continue;
            }
            let tested =
                hidden.iter().any(|(of, properties)| *of == kind.name() && properties[name].to_string().contains(CANARY));
            assert!(tested, "{}: {name} has no canary in the fixture, or its name is misleading", kind.name());
        }
    }
}
