use std::path::Path;

use serde_json::{Value, json};

use super::*;

fn rights(rule: &Value) -> Rights {
    Rights::from_rule(&serde_json::from_value(rule.clone()).unwrap())
}

#[test]
fn reads_are_those_of_the_rule() {
    let file = |path| TemplateRead::File(Path::new(path));
    let listed = json!({"keys": ["a"], "reads": ["/etc/app/**", "env:APP_*", "credential:db", "kv:app/*", "registrations"]});
    for (rule, read, wanted) in [
        (json!({"keys": ["a"]}), file("/etc/shadow"), true),
        (json!({"keys": ["a"]}), TemplateRead::Environ("X"), true),
        (json!({"keys": ["a"], "types": ["file"]}), file("/etc/shadow"), false),
        (json!({"keys": ["a"], "names": ["**"]}), file("/etc/shadow"), false),
        (json!({"keys": ["a"], "noop_only": true}), TemplateRead::Registrations, false),
        (json!({"keys": ["a"], "types": ["file"], "reads": ["/etc/**"]}), file("/etc/shadow"), true),
        (listed.clone(), file("/etc/app/x"), true),
        (listed.clone(), file("/etc/app/../shadow"), false),
        (listed.clone(), file("env:APP_X"), false),
        (listed.clone(), TemplateRead::Environ("APP_X"), true),
        (listed.clone(), TemplateRead::Environ("OTHER"), false),
        (listed.clone(), TemplateRead::Credential("db"), true),
        (listed.clone(), TemplateRead::Credential("other"), false),
        (listed.clone(), TemplateRead::Value { bucket: "app", key: "x" }, true),
        (listed.clone(), TemplateRead::Value { bucket: "other", key: "x" }, false),
        (listed, TemplateRead::Registrations, true),
    ] {
        assert_eq!(rights(&rule).may_read(&read).is_ok(), wanted, "{rule} {read}");
    }
}

#[test]
fn rights_only_become_fewer() {
    let all = rights(&json!({"keys": ["a"]}));
    let some = rights(&json!({"keys": ["a"], "reads": ["/etc/a", "/etc/b"]}));
    let other = rights(&json!({"keys": ["a"], "reads": ["/etc/b", "/etc/c"]}));
    assert_eq!(all.intersect(&some), some);
    let both = some.intersect(&other);
    assert!(both.may_read(&TemplateRead::File(Path::new("/etc/b"))).is_ok());
    assert!(both.may_read(&TemplateRead::File(Path::new("/etc/a"))).is_err());
    assert!(Rights::minimal().may_read(&TemplateRead::Registrations).is_err());
    assert!(all.intersect(&rights(&json!({"keys": ["a"], "noop_only": true}))).may_read(&TemplateRead::Registrations).is_err());
}

#[test]
fn names_alone_allow_no_change_that_nothing_describes() {
    let effects = Effects::from_iter([Effect::System("db1".to_owned())]);
    for (rule, allowed) in [
        (json!({"keys": ["a"]}), true),
        (json!({"keys": ["a"], "types": ["cluster"]}), true),
        (json!({"keys": ["a"], "types": ["cluster"], "names": ["db*"]}), true),
        (json!({"keys": ["a"], "types": ["cluster"], "names": ["web*"]}), false),
        (json!({"keys": ["a"], "types": ["other"]}), false),
        (json!({"keys": ["a"], "names": ["db*"]}), false),
        (json!({"keys": ["a"], "names": ["/srv/**"]}), false),
    ] {
        assert_eq!(rights(&rule).check_effects("cluster", &effects).is_ok(), allowed, "{rule}");
    }
}
