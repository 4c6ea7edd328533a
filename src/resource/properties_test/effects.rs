//! The test of effects: every property of every type influences effects, or is listed as harmless with a reason. A new property
//! without either fails the test.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use schemars::SchemaGenerator;
use serde_json::{Value, json};

use crate::model::effects::EffectKind;
use crate::model::{Effect, Effects};
use crate::resource::{ResourceType, TYPES, find};

fn effects(kind: &str, properties: &Value) -> Effects {
    find(kind).unwrap().effects(properties.as_object().unwrap())
}

/// A sample with one property changed.
fn changed(sample: &Value, key: &str, other: &Value) -> Value {
    let mut all = sample.clone();
    match other.as_array().map(Vec::as_slice) {
        Some([Value::Object(_), value]) => all[key] = value.clone(),
        _ => all[key] = other.clone(),
    }
    all
}

/// A sample as the change of a property needs it.
fn base(sample: &Value, other: &Value) -> Value {
    let mut all = sample.clone();
    if let Some([Value::Object(more), _]) = other.as_array().map(Vec::as_slice) {
        all.as_object_mut().unwrap().extend(more.clone());
    }
    all
}

#[test]
fn every_property_decides_about_effects_or_is_harmless() {
    for resource in TYPES {
        let (kind, (sample, others)) = (resource.name(), resource.fixture().samples);
        let schema = resource.schema(&mut SchemaGenerator::default());
        let known: BTreeSet<&str> =
            schema.as_object().unwrap()["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        let given: BTreeSet<&str> = sample.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(known, given, "{kind}: the sample must have every property of the schema, and no other");
        let harmless: BTreeMap<&str, &str> = resource.no_effects().iter().copied().collect();
        assert!(harmless.keys().all(|key| known.contains(key)), "{kind}: a name in NO_EFFECTS is no property");
        for key in known {
            let other = &others[key];
            let base = base(&sample, other);
            let same = effects(kind, &base) == effects(kind, &changed(&base, key, other));
            match harmless.get(key) {
                Some(reason) => assert!(
                    same && !reason.is_empty(),
                    "{kind}: {key} is in NO_EFFECTS, but influences effects or lacks a reason"
                ),
                None => assert!(
                    !same,
                    "{kind}: {key} does not influence effects: make it do so, or list it in NO_EFFECTS with the reason"
                ),
            }
        }
        assert!(
            !effects(kind, &sample).iter().any(|effect| effect.kind().is_none()),
            "{kind}: no effect of the sample is unknown"
        );
    }
}

#[test]
fn unreadable_properties_have_unknown_effects_and_others_are_listed() {
    let of =
        |kind: &str, properties: Value| effects(kind, &properties).iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    assert_eq!(of("file", json!({"name": "/a"})), "writes \"/a\"");
    assert_eq!(of("file", json!({"name": "/a", "ensure": "present", "mode": "{{ x }}"})), "writes \"/a\"");
    let unknown = of("file", json!({"name": "/a", "ensure": "present", "recurse": "{{ x }}"}));
    assert!(unknown.starts_with("writes \"/a\"; has an effect that is not known: recurse"), "{unknown}");
    let unknown = of("user", json!({"name": "a", "nope": 1}));
    assert!(unknown.contains("the account \"a\"") && unknown.contains("is not known: nope"), "{unknown}");
    assert!(of("file", json!({"name": ["/a"]})).contains("is not known"));
}

/// Returns the effects of the sample of a type, and of the sample with each property changed.
fn variants(resource: &dyn ResourceType) -> Vec<Effects> {
    let (kind, (sample, others)) = (resource.name(), resource.fixture().samples);
    let change = |key: &String| effects(kind, &changed(&base(&sample, &others[key]), key, &others[key]));
    let keys = sample.as_object().unwrap().keys();
    std::iter::once(effects(kind, &sample)).chain(keys.map(change)).collect()
}

#[test]
fn types_of_the_system_reach_the_system() {
    for resource in TYPES {
        for effects in variants(*resource) {
            assert_eq!(effects.affect_system(), resource.changes_system(), "{}: {effects:?}", resource.name());
        }
    }
}

/// Returns the table of types and effects of the documentation.
fn table() -> String {
    let mut text = String::from("| type |");
    for aspect in EffectKind::ALL {
        write!(text, " {} |", aspect.verb()).unwrap();
    }
    text.push_str("\n|---|");
    text.push_str(&"---|".repeat(EffectKind::ALL.len()));
    text.push('\n');
    for resource in TYPES {
        let kind = resource.name();
        let found: BTreeSet<EffectKind> = variants(*resource).iter().flatten().filter_map(Effect::kind).collect();
        write!(text, "| `{kind}` |").unwrap();
        for aspect in EffectKind::ALL {
            text.push_str(if found.contains(aspect) { " x |" } else { " |" });
        }
        text.push('\n');
    }
    text
}

#[test]
fn the_documentation_has_the_table_of_effects() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/security.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (head, rest) = page.split_once("<!-- effects: generated from the types -->\n").unwrap();
    let (found, tail) = rest.split_once("<!-- end of effects -->").unwrap();
    if std::env::var_os("ENSIGN_BLESS").is_some() {
        let text = format!("{head}<!-- effects: generated from the types -->\n{}<!-- end of effects -->{tail}", table());
        std::fs::write(path, text).unwrap();
        return;
    }
    assert_eq!(found, table(), "run the tests with ENSIGN_BLESS=1");
}
