//! The law of effects: every property of every type decides about effects, or is listed as harmless with a reason. A property
//! that is neither, because it is new, breaks it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use schemars::SchemaGenerator;
use serde_json::{Map, Value, json};

use super::super::{TYPES, find};
use crate::model::effects::EffectKind;
use crate::model::{Effect, Effects};

/// Of each type all of its properties, and other values. A list of two is a change that the other value needs beside itself.
fn samples() -> Vec<(&'static str, Value, Value)> {
    vec![
        (
            "file",
            json!({"name": "/a", "ensure": "directory", "content": "x", "source": "/s", "owner": "o", "group": "g", "mode": "0644",
                "force": true, "validate": "v %s", "recurse": false, "purge": false, "backup": "/b", "backup_keep": 3, "follow": false}),
            json!({"name": "/c", "ensure": "absent", "content": "y", "source": "/t", "owner": "p", "group": "h", "mode": "0600",
                "force": [{"ensure": "absent"}, false], "validate": "w %s", "recurse": true, "purge": true, "backup": "/d",
                "backup_keep": 4, "follow": true}),
        ),
        (
            "package",
            json!({"name": "a", "ensure": "present", "cache_valid": "1h", "lock_timeout": "1m"}),
            json!({"name": "b", "ensure": "1.0", "cache_valid": "2h", "lock_timeout": "2m"}),
        ),
        (
            "service",
            json!({"name": "a", "ensure": "running", "enable": true, "refresh": "restart", "timeout": "1m"}),
            json!({"name": "b", "ensure": "stopped", "enable": false, "refresh": "reload", "timeout": "2m"}),
        ),
        (
            "exec",
            json!({"name": "a", "ensure": "present", "command": "c", "cwd": "/w", "environment": ["A=b"], "path": "/p",
                "returns": [0], "timeout": "1m", "creates": "/x", "onlyif": "o", "unless": "u", "refreshonly": false,
                "logoutput": false}),
            json!({"name": "b", "ensure": "present", "command": "d", "cwd": "/v", "environment": ["A=c"], "path": "/q",
                "returns": [1], "timeout": "2m", "creates": "/y", "onlyif": "p", "unless": "v", "refreshonly": true,
                "logoutput": true}),
        ),
        (
            "archive",
            json!({"name": "/a.tgz", "ensure": "present", "url": "https://h/a.tgz", "headers": {"A": "b"}, "username": "u",
                "password": "p", "checksum": "0", "extract_parent": "/x", "creates": "/c", "cleanup": false, "owner": "o",
                "group": "g", "follow": false}),
            json!({"name": "/b.tgz", "ensure": "absent", "url": "https://i/a.tgz", "headers": {"A": "c"}, "username": "v",
                "password": "q", "checksum": "1", "extract_parent": "/y", "creates": "/d", "cleanup": true, "owner": "p",
                "group": "h", "follow": true}),
        ),
        (
            "scaffold",
            json!({"name": "/a", "ensure": "present", "source": "/s", "engine": "jinja", "left_delimiter": "<", "right_delimiter": ">",
                "skip_empty": false, "purge": false, "data": {"a": 1}, "post": [{"*": "c"}], "follow": false}),
            json!({"name": "/b", "ensure": "absent", "source": "/t", "engine": "go", "left_delimiter": "[", "right_delimiter": "]",
                "skip_empty": true, "purge": true, "data": {"a": 2}, "post": [{"*": "d"}], "follow": true}),
        ),
        (
            "apply",
            json!({"name": "a.yaml", "ensure": "present", "noop": false, "health_check_only": false, "allow_apply": true, "data": {"a": 1}}),
            json!({"name": "b.yaml", "ensure": "present", "noop": true, "health_check_only": true, "allow_apply": false, "data": {"a": 2}}),
        ),
        (
            "symlink",
            json!({"name": "/a", "ensure": "present", "target": "/t", "owner": "o", "group": "g", "force": false, "follow": false}),
            json!({"name": "/b", "ensure": "absent", "target": "/u", "owner": "p", "group": "h", "force": true, "follow": true}),
        ),
        (
            "line",
            json!({"name": "/a", "ensure": "present", "path": "", "line": "l", "match": "m", "all": false, "after": "a",
                "before": "b", "at": "start", "create": false, "owner": "o", "group": "g", "mode": "0644", "validate": "v %s",
                "backup": "/b", "backup_keep": 3, "follow": false}),
            json!({"name": "/b", "ensure": "absent", "path": "/p", "line": "k", "match": "n", "all": true, "after": "c",
                "before": "d", "at": "end", "create": true, "owner": "p", "group": "h", "mode": "0600", "validate": "w %s",
                "backup": "/c", "backup_keep": 4, "follow": true}),
        ),
        (
            "user",
            json!({"name": "a", "ensure": "present", "uid": 1, "group": "g", "groups": ["x"], "append": false, "home": "/h",
                "manage_home": false, "shell": "/s", "comment": "c", "system": false, "password_hash": "*", "locked": false,
                "expires": "never"}),
            json!({"name": "b", "ensure": "absent", "uid": 0, "group": "h", "groups": ["y"], "append": true, "home": "/i",
                "manage_home": true, "shell": "/t", "comment": "d", "system": true, "password_hash": "!", "locked": true,
                "expires": "2030-01-01"}),
        ),
        (
            "group",
            json!({"name": "a", "ensure": "present", "gid": 1, "system": false, "members": ["x"], "append": false}),
            json!({"name": "b", "ensure": "absent", "gid": 2, "system": true, "members": ["y"], "append": true}),
        ),
        (
            "cron",
            json!({"name": "a", "ensure": "present", "command": "c", "user": "u", "schedule": "@daily", "minute": "1", "hour": "1",
                "day": "1", "month": "1", "weekday": "1", "environment": ["SHELL=/s"]}),
            json!({"name": "b", "ensure": "absent", "command": "d", "user": "v", "schedule": "@hourly", "minute": "2", "hour": "2",
                "day": "2", "month": "2", "weekday": "2", "environment": ["SHELL=/t"]}),
        ),
        (
            "mount",
            json!({"name": "/a", "ensure": "mounted", "device": "/d", "fstype": "ext4", "options": "ro", "dump": 0, "pass": 0}),
            json!({"name": "/b", "ensure": "absent", "device": "/e", "fstype": "fuse.x", "options": "bind,lowerdir=/l,credentials=/c",
                "dump": 1, "pass": 1}),
        ),
        (
            "sysctl",
            json!({"name": "kernel.core_pattern", "ensure": "present", "value": "|/a", "persist": true, "runtime": true}),
            json!({"name": "kernel.modprobe", "ensure": "absent", "value": "/b", "persist": false, "runtime": false}),
        ),
    ]
}

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
    assert_eq!(samples().len(), TYPES.len(), "every type has a sample");
    for (kind, sample, others) in samples() {
        let resource = find(kind).unwrap();
        let schema = resource.schema(&mut SchemaGenerator::default());
        let known: BTreeSet<&str> =
            schema.as_object().unwrap()["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        let given: BTreeSet<&str> = sample.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(known, given, "{kind}: the sample has every property");
        let harmless: BTreeMap<&str, &str> = resource.harmless().iter().copied().collect();
        assert!(harmless.keys().all(|key| known.contains(key)), "{kind}: what is harmless is a property");
        for key in known {
            let other = &others[key];
            let base = base(&sample, other);
            let same = effects(kind, &base) == effects(kind, &changed(&base, key, other));
            match harmless.get(key) {
                Some(reason) => assert!(same && !reason.is_empty(), "{kind}: {key} is not harmless"),
                None => assert!(!same, "{kind}: {key} decides nothing: let it decide, or list it as harmless with the reason"),
            }
        }
        assert!(!effects(kind, &sample).iter().any(|effect| effect.kind().is_none()), "{kind}: everything is told");
    }
}

#[test]
fn what_can_not_be_read_is_unknown_and_the_rest_is_told() {
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

/// The table of types and effects, as the documentation has it.
fn table() -> String {
    let mut text = String::from("| type |");
    for aspect in EffectKind::ALL {
        write!(text, " {} |", aspect.verb()).unwrap();
    }
    text.push_str("\n|---|");
    text.push_str(&"---|".repeat(EffectKind::ALL.len()));
    text.push('\n');
    for (kind, sample, others) in samples() {
        let mut found: BTreeSet<EffectKind> = effects(kind, &sample).iter().filter_map(Effect::kind).collect();
        let keys: Map<String, Value> = sample.as_object().unwrap().clone();
        for key in keys.keys() {
            let more = effects(kind, &changed(&base(&sample, &others[key]), key, &others[key]));
            found.extend(more.iter().filter_map(Effect::kind));
        }
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
