use serde_json::json;

use super::super::values::defaults;
use super::*;

fn described(more: &Value) -> Value {
    let mut description = json!({"protocol": PROTOCOL, "about": "Things."});
    description.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    description
}

#[test]
fn a_description_is_read_strictly() {
    let property = |more: Value| {
        let mut property = json!({"type": "text", "about": "A property."});
        property.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"properties": {"path": property}})
    };
    let many: Vec<String> = (0..65).map(|number| format!("state{number}")).collect();
    for (more, wrong) in [
        (json!({}), ""),
        (property(json!({"default": "/x", "enum": ["/x", "/y"]})), ""),
        (json!({"effects": ["system", {"write": "/etc/{name}"}], "watches": [{"poll": 5}, {"path": "/etc"}]}), ""),
        (json!({"protocol": "io.ensign.resource.v2"}), "protocol: \"io.ensign.resource.v2\" is unknown"),
        (json!({"colour": "red"}), "unknown field `colour`"),
        (json!({"about": "two\nlines"}), "about: about is one line"),
        (json!({"about": "\u{1b}[31mred"}), "about: about is one line"),
        (json!({"about": ""}), "about: about is one line"),
        (json!({"ensure": []}), "ensure: at least one state"),
        (json!({"ensure": many}), "ensure: 65 entries"),
        (json!({"ensure": ["Present"]}), "ensure: \"Present\" is no name"),
        (property(json!({"type": "float"})), "unknown variant `float`"),
        (property(json!({"required": true, "default": "x"})), "properties.path: a required property has no default"),
        (property(json!({"type": "integer", "default": "x"})), "properties.path: the default is wrong: expected a whole number"),
        (property(json!({"type": "integer", "enum": ["1"]})), "properties.path: enum is"),
        (property(json!({"type": "map", "secret": true})), "properties.path: a secret is a text"),
        (json!({"properties": {"require": {"type": "list", "about": "x"}}}), "every resource has a property of this name"),
        (json!({"properties": {"name": {"type": "text", "about": "x"}}}), "every resource has a property of this name"),
        (json!({"effects": [{"write": "{path}"}]}), "effects: {path} is no property of the type"),
        (json!({"effects": [{"write": "/{name"}]}), "has no } after its {"),
        (json!({"effects": [{"explode": "/x"}]}), "unknown variant `explode`"),
        (json!({"watches": [{"poll": 0}]}), "watches: a poll has at least one second"),
        (json!([]), "the description"),
    ] {
        let description = if more.is_object() { described(&more) } else { more };
        let read = Description::read(&description).map(drop).map_err(|error| error.to_string());
        match (read, wrong) {
            (Ok(()), "") => {}
            (Err(error), wrong) if !wrong.is_empty() && error.contains(wrong) => {}
            (read, wrong) => panic!("{description}: {read:?}, expected {wrong:?}"),
        }
    }
}

#[test]
fn effects_follow_from_properties() {
    let description = Description::read(&described(&json!({
        "properties": {
            "path": {"type": "text", "about": "x", "default": "/etc/hosts"},
            "hosts": {"type": "list", "about": "x"},
            "command": {"type": "text", "about": "x"},
            "map": {"type": "map", "about": "x"},
        },
        "effects": [
            {"write": "{path}"}, {"read_below": "/usr/share/{name}"}, {"connect": "{hosts}"}, {"run": "{command}"}, {"user": "{map}"},
        ],
    })))
    .unwrap();
    let effects = |values: Value| {
        let mut all = defaults(&description);
        all.extend(values.as_object().unwrap().clone());
        description.effects(&all).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(effects(json!({"name": "a"})), ["writes \"/etc/hosts\"", "reads everything below \"/usr/share/a\""]);
    let all = json!({"name": "a", "path": "/srv/h", "hosts": ["h1", "h2"], "command": "true", "map": {}});
    assert_eq!(
        effects(all),
        [
            "writes \"/srv/h\"",
            "reads everything below \"/usr/share/a\"",
            "connects to \"h1\"",
            "connects to \"h2\"",
            "runs \"true\"",
            "has an effect that is not known: map"
        ]
    );
    let system = Description::read(&described(&json!({"effects": ["system"]}))).unwrap();
    let values = json!({"name": "a"});
    let system: Vec<Effect> = system.effects(values.as_object().unwrap()).into_iter().collect();
    assert_eq!(system, [Effect::System("a".to_owned())]);
    // Rules and limits deny what a type does not say.
    let silent = Description::read(&described(&json!({}))).unwrap();
    assert_eq!(silent.effects(&Map::new()).iter().map(Effect::kind).collect::<Vec<_>>(), [None]);
    let none = Description::read(&described(&json!({"effects": []}))).unwrap();
    assert_eq!(none.effects(&Map::new()).iter().count(), 0);
}

#[test]
fn a_type_of_the_system_says_so() {
    for (effects, system) in [
        (json!([]), false),
        (json!([{"write": "/etc/x"}]), false),
        (json!(["system"]), true),
        (json!([{"unit": "{name}"}]), true),
        (json!([{"package": "x"}]), true),
        (json!([{"user": "x"}]), true),
    ] {
        let description = Description::read(&described(&json!({"effects": effects}))).unwrap();
        assert_eq!(description.changes_system(), system, "{effects}");
    }
}
