use super::super::description::PROTOCOL;
use super::*;

fn description() -> Description {
    Description::read(&json!({
        "protocol": PROTOCOL,
        "about": "Things.",
        "properties": {
            "port": {"type": "integer", "about": "x"},
            "hosts": {"type": "list", "about": "x"},
            "token": {"type": "text", "about": "x", "secret": true},
            "text": {"type": "text", "about": "x", "content": true},
        },
        "outputs": {"version": {"type": "text", "about": "x"}},
    }))
    .unwrap()
}

fn observed(response: &Value) -> Result<ObservedValues, String> {
    ObservedValues::read(&description(), response.as_object().unwrap().clone())
}

/// The decision table: properties, the response of the program, the changes.
#[test]
fn decisions() {
    for (wanted, response, changes) in [
        (json!({"port": 1}), json!({"ensure": "present", "properties": {"port": 1}}), vec![]),
        (json!({"port": "1"}), json!({"ensure": "present", "properties": {"port": 1}}), vec![]),
        (json!({"port": 1}), json!({"ensure": "present"}), vec![]),
        (json!({}), json!({"ensure": "present", "properties": {"port": 1}}), vec![]),
        (json!({"port": 2}), json!({"ensure": "present", "properties": {"port": 1}}), vec!["port 1 → 2"]),
        (json!({"port": 2}), json!({"ensure": "absent"}), vec!["ensure absent → present"]),
        (
            json!({"ensure": "absent", "port": 2}),
            json!({"ensure": "present", "properties": {"port": 1}}),
            vec!["ensure present → absent"],
        ),
        (json!({"ensure": "absent"}), json!({"ensure": "absent"}), vec![]),
        (
            json!({"hosts": ["a", "b"]}),
            json!({"ensure": "present", "properties": {"hosts": ["b"]}}),
            vec![r#"hosts ["b"] → ["a","b"]"#],
        ),
        (json!({"token": "hunter2"}), json!({"ensure": "present", "properties": {"token": "hunter1"}}), vec!["token *** → ***"]),
    ] {
        let values = Values::read(
            &description(),
            &[(&json!({"name": "a"})), &wanted].map(|map| map.as_object().unwrap().clone()).into_iter().flatten().collect(),
        )
        .unwrap();
        let found: Vec<String> = difference(&description(), &values, &observed(&response).unwrap())
            .into_iter()
            .flat_map(|step| step.details)
            .collect();
        assert_eq!(found, changes, "{wanted} {response}");
    }
}

#[test]
fn content_and_secrets_are_not_shown() {
    let state = observed(&json!({"ensure": "present", "properties": {"token": "hunter2", "text": "hunter2"}})).unwrap();
    let shown = state.redacted(&description());
    assert!(!format!("{shown:?}").contains("hunter2"), "{shown:?}");
    assert_eq!((&shown["ensure"], &shown["token"]), (&json!("present"), &json!("***")));
}

#[test]
fn a_response_is_read_strictly() {
    for (response, wrong) in [
        (json!({}), "ensure: expected text"),
        (json!({"ensure": 1}), "ensure: expected text"),
        (json!({"ensure": "\u{1b}[31m"}), "is no state of the type"),
        (json!({"ensure": "present", "properties": []}), "properties: expected a map"),
        (json!({"ensure": "present", "properties": {"port": "many"}}), "properties.port: expected a whole number"),
        (json!({"ensure": "present", "properties": {"port": 1.5}}), "properties.port: expected a whole number"),
        (json!({"ensure": "present", "properties": {"colour": 1}}), "properties.colour is no property"),
        (json!({"ensure": "present", "outputs": {"version": 1}}), "outputs.version: expected text"),
        (json!({"ensure": "present", "outputs": {"other": "1"}}), "outputs.other is no output"),
        (json!({"ensure": "present", "more": 1}), "unknown key \"more\""),
    ] {
        let found = observed(&response).unwrap_err();
        assert!(found.contains(wrong), "{response}: {found}");
    }
}
