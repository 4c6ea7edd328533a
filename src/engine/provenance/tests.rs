use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use uuid::Uuid;

use super::super::{BusData, RunInputs, RunSettings, plan_manifest, plan_one, run};
use crate::host::Host;
use crate::host::fake::{FakeRunner, host};
use crate::manifest::ManifestText;
use crate::model::registration::RegistrationFilter;
use crate::model::{BusValue, DiscoveryClient, ReadAccess, Registration, TemplateRead, TransactionEvent};
use crate::store::MemorySession;

/// A server that says what it likes; the key "signed" is signed.
struct Bus;

impl DiscoveryClient for Bus {
    fn value(&self, _: &str, key: &str) -> Result<BusValue<String>, String> {
        Ok(BusValue { value: "/tmp/evil".to_owned(), signed: key == "signed" })
    }

    fn registrations(&self, _: &RegistrationFilter) -> Result<BusValue<Vec<Registration>>, String> {
        Ok(BusValue { value: Vec::new(), signed: false })
    }

    fn register(&self, _: &Registration) -> Result<(), String> {
        Ok(())
    }
}

/// A rule that allows all reads, or none.
struct Reads(bool);

impl ReadAccess for Reads {
    fn may_read(&self, _: &TemplateRead<'_>) -> Result<(), String> {
        if self.0 { Ok(()) } else { Err("the rule allows no reads".to_owned()) }
    }
}

fn inputs(reads: bool) -> RunInputs {
    let environ = BTreeMap::from([("TOKEN".to_owned(), "geheim7".to_owned())]);
    let mut inputs = RunInputs::new(|| json!({"os": "linux"}), environ, None);
    inputs.exchange = Some(Arc::new(Bus));
    inputs.access = Arc::new(Reads(reads));
    inputs.bus = BusData::Signed { unsigned: json!({"from": {"bus": "/tmp/evil"}}) };
    inputs.data = Some(json!({"from": {"bus": "/tmp/evil", "owner": "/tmp/fine"}}));
    inputs
}

fn dry() -> RunSettings {
    RunSettings {
        noop: true,
        health_check_only: false,
        selection: None,
        outputs: crate::engine::OutputStore::default(),
        parallelism: crate::engine::default_parallelism(),
        diff: crate::engine::Diff::None,
        omit_details: false,
        run_id: Uuid::nil(),
        node: None,
        authorizer: None,
        refreshes: None,
        reversals: None,
        registrar: None,
        pseudonymize: None,
        unconfined_thread: None,
    }
}

/// All that a resource says on its way: why it can't be planned, or its event.
fn said(kind: &str, properties: &Value, inputs: &RunInputs, host: &Host) -> (String, bool) {
    let plan = match plan_one(kind, properties, inputs, host) {
        Ok(plan) => plan,
        Err(errors) => return (errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"), true),
    };
    let mut events: Vec<TransactionEvent> = Vec::new();
    run(&plan, &dry(), host, &mut MemorySession::default(), &mut |event| events.push(event.clone()));
    let failed = events.iter().any(|event| event.failed);
    (serde_json::to_string(&events).unwrap(), failed)
}

/// A property of each kind, made of an expression.
fn shaped(expression: &str) -> Vec<(&'static str, Value)> {
    let text = format!("{{{{ {expression} }}}}");
    let file = |key: &str| json!({"name": "/tmp/x", "ensure": "present", "content": "c", "owner": "root", "group": "root", "mode": "0644", key: text});
    vec![
        ("file", file("name")),
        ("file", file("alias")),
        ("file", file("ensure")),
        ("file", file("mode")),
        ("file", file("owner")),
        ("file", file("group")),
        ("file", file("provider")),
        (
            "file",
            json!({"name": "/tmp/x", "ensure": "present", "owner": "root", "group": "root", "mode": "0644", "source": text}),
        ),
        (
            "file",
            json!({"name": "/tmp/x", "ensure": "present", "content": "c", "owner": "root", "group": "root", "mode": "0644", "control": {"if": format!("{expression} == 'x'")}}),
        ),
        (
            "file",
            json!({"name": "/tmp/x", "ensure": "present", "content": "c", "owner": "root", "group": "root", "mode": "0644", "control": {"unless": format!("{expression} == 'x'")}}),
        ),
        (
            "file",
            json!({"name": "/tmp/x", "ensure": "present", "content": "c", "owner": "root", "group": "root", "mode": "0644", "control": {"if": format!("get([{expression}], 0)")}}),
        ),
        (
            "file",
            json!({"name": "/tmp/x", "ensure": "present", "content": "c", "owner": "root", "group": "root", "mode": "0644", "health_checks": [{"name": text, "command": "/bin/true"}]}),
        ),
        (
            "file",
            json!({"name": "/tmp/x", "ensure": "present", "content": "c", "owner": "root", "group": "root", "mode": "0644", "health_checks": [{"command": text}]}),
        ),
        (
            "file",
            json!({"name": "/tmp/x", "ensure": "present", "content": "c", "owner": "root", "group": "root", "mode": "0644", "health_checks": [{"goss_rules": {"file": {text.clone(): {"exists": true}}}}]}),
        ),
        (
            "file",
            json!({"name": "/tmp/x", "ensure": "present", "content": "c", "owner": "root", "group": "root", "mode": "0644", "register_when_stable": [
                {"cluster": text, "service": "s", "protocol": "p", "address": "10.0.0.1", "port": 1, "priority": 1}]}),
        ),
        ("exec", json!({"name": text})),
        ("exec", json!({"name": "x", "command": text})),
        ("exec", json!({"name": "/bin/true", "onlyif": text})),
        ("exec", json!({"name": "/bin/true", "cwd": text})),
        ("exec", json!({"name": "/bin/true", "environment": [format!("A={text}")]})),
        ("archive", json!({"name": "/tmp/a.tar.gz", "ensure": "present", "url": text})),
        ("user", json!({"name": "u", "ensure": "present", "shell": text})),
        ("service", json!({"name": text, "ensure": "running"})),
        ("service", json!({"name": "nginx", "ensure": text})),
        ("mount", json!({"name": "/tmp/m", "ensure": "mounted", "device": text, "fstype": "tmpfs"})),
        (
            "scaffold",
            json!({"name": "/tmp/t", "ensure": "present", "owner": "root", "group": "root", "mode": "0644", "source": text}),
        ),
        ("scaffold", json!({"name": "/tmp/t", "ensure": "present", "source": "/nope", "post": [{"*": text}]})),
    ]
}

#[test]
fn values_of_the_bus_shape_content_alone() {
    let host = host(FakeRunner::exiting(&[0; 100]));
    for expression in [
        "kvGet('a', 'b')",
        "len(registrations('', '', '', '')) == 0 ? 'present' : 'absent'",
        "Data.from.bus",
        "lookup('data.from.bus')",
        "Data['from']['bus']",
        "get(Data.from, 'bus')",
        "toJSON(Data)",
        "lookup('data.from.@values.0')",
        "jet('[[ data.from.bus ]]')",
        "jet('[[ kvGet(\"a\", \"b\") ]]')",
        "template('{{ kvGet(\\'a\\', \\'b\\') }}')",
        "len($env) > 0 ? 'present' : 'absent'",
    ] {
        for (kind, properties) in shaped(expression) {
            let (said, failed) = said(kind, &properties, &inputs(true), &host);
            assert!(failed && said.contains("has no signature"), "{kind} {properties}: {said}");
        }
        let content = json!({"name": "/tmp/ensign-no-such/x", "ensure": "present", "owner": "root", "group": "root", "mode": "0644", "content": format!("{{{{ {expression} }}}}")});
        let (said, _) = said("file", &content, &inputs(true), &host);
        assert!(!said.contains("has no signature"), "{expression}: {said}");
    }
    // What was signed, and what the owner gave, are values like any other.
    for expression in ["kvGet('a', 'signed')", "Data.from.owner", "lookup('data.from.owner')"] {
        let (said, _) =
            said("file", &json!({"name": format!("{{{{ {expression} }}}}"), "ensure": "absent"}), &inputs(true), &host);
        assert!(!said.contains("has no signature"), "{expression}: {said}");
    }
    // A value of the bus does not choose what is read.
    for expression in ["readFile(kvGet('a', 'b'))", "secret('file:' + kvGet('a', 'b'))", "template(kvGet('a', 'b') + '.templ')"] {
        let content = json!({"name": "/tmp/x", "ensure": "present", "owner": "root", "group": "root", "mode": "0644", "content": format!("{{{{ {expression} }}}}")});
        let (_, failed) = said("file", &content, &inputs(true), &host);
        assert!(failed, "{expression}");
    }
    let mut any = inputs(true);
    any.bus = BusData::Any;
    let (said, _) = said("exec", &json!({"name": "x", "command": "{{ kvGet('a', 'b') }}"}), &any, &host);
    assert!(!said.contains("has no signature"), "{said}");
}

#[test]
fn what_was_read_is_not_said() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("secret");
    std::fs::write(&file, "Qz7").unwrap();
    let host = host(FakeRunner::exiting(&[0; 1000]));
    let path = file.display();
    for expression in [
        format!("readFile('{path}')"),
        format!("file('{path}') + ''"),
        format!("trim(readFile('{path}'))"),
        format!("int(readFile('{path}'))"),
        format!("Data[readFile('{path}')].x.y"),
        format!("readFile(readFile('{path}'))"),
        format!("jet(readFile('{path}') + '[[ nope(')"),
        format!("jet('[[ readFile(\"{path}\") ]]')"),
        format!("template('{{{{ readFile(\\'{path}\\') }}}}')"),
        format!("secret('file:{path}')"),
        "Environ.TOKEN[0:3]".to_owned(),
        "secret('env:TOKEN')".to_owned(),
    ] {
        for (kind, properties) in shaped(&expression) {
            let (said, failed) = said(kind, &properties, &inputs(false), &host);
            let shown = said.contains("Qz7") || said.contains("geheim7");
            assert!(failed && !shown, "{kind} {properties}: {said}");
            // With the right to read, errors do not repeat it either. An identity is what everybody sees.
            let identity =
                ["name", "alias"].iter().any(|key| properties[*key].as_str().is_some_and(|text| text.starts_with("{{")));
            let (said, _) = self::said(kind, &properties, &inputs(true), &host);
            let is_read = |text: &str| text.contains("Qz7") || text.contains("geh");
            match serde_json::from_str::<Value>(&said) {
                Ok(events) => {
                    let errors = events[0]["error"].to_string();
                    assert!(!is_read(&errors) && (!is_read(&said) || identity), "{kind} {properties}: {said}");
                }
                Err(_) => assert!(!is_read(&said), "{kind} {properties}: {said}"),
            }
        }
    }
}

/// A bus that keeps what is registered.
#[derive(Default)]
struct Registry(Mutex<Vec<Registration>>);

impl DiscoveryClient for Registry {
    fn value(&self, _: &str, _: &str) -> Result<BusValue<String>, String> {
        Err("there is none".to_owned())
    }

    fn registrations(&self, _: &RegistrationFilter) -> Result<BusValue<Vec<Registration>>, String> {
        Err("there are none".to_owned())
    }

    fn register(&self, registration: &Registration) -> Result<(), String> {
        self.0.lock().unwrap().push(registration.clone());
        Ok(())
    }
}

#[test]
fn a_registration_that_holds_a_secret_is_not_published() {
    let registered = |cluster: &str| {
        let host = host(FakeRunner::exiting(&[0; 10]));
        let entry = json!({"cluster": cluster, "service": "s", "protocol": "p", "address": "10.0.0.1", "port": 1, "priority": 1});
        let properties = json!({"name": "/bin/true", "register_when_stable": [entry]});
        let plan = plan_one("exec", &properties, &inputs(true), &host).map_err(|errors| format!("{errors:?}")).unwrap();
        let registry = Arc::new(Registry::default());
        let settings = RunSettings { noop: false, registrar: Some(Arc::clone(&registry) as Arc<dyn DiscoveryClient>), ..dry() };
        let mut errors = String::new();
        run(&plan, &settings, &host, &mut MemorySession::default(), &mut |event| errors += &event.errors.join("; "));
        let clusters = registry.0.lock().unwrap().iter().map(|entry| entry.cluster.clone()).collect::<Vec<_>>();
        (clusters, errors)
    };
    assert_eq!(registered("web"), (vec!["web".to_owned()], String::new()));
    let (published, errors) = registered("{{ secret('env:TOKEN') }}");
    assert!(published.is_empty() && !errors.is_empty() && !errors.contains("geheim7"), "{errors}");
}

#[test]
fn rendered_resources_are_not_of_the_bus() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(
        directory.path().join("r.jet"),
        "[[ if kvGet(\"a\", \"b\") ]]- file:\n    - /tmp/x: {ensure: absent}\n[[ end ]]",
    )
    .unwrap();
    let text = "ccm:\n  resources_jet_file: r.jet\n";
    let source = ManifestText {
        text: text.to_owned(),
        name: "m.yaml".to_owned(),
        directory: Some(directory.path().to_owned()),
        digest: None,
    };
    let host = host(FakeRunner::exiting(&[])).with_directory(directory.path());
    let errors = plan_manifest(&source, &inputs(true), &host).err().unwrap();
    assert!(errors[0].to_string().contains("has no signature"), "{errors:?}");
}
