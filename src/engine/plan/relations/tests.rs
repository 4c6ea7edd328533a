use crate::engine::{RunInputs, plan_manifest, plan_next, plan_one, precheck, precheck_one};
use crate::host::fake::{FakeRunner, host};
use crate::host::{Host, fs};
use crate::manifest::ManifestText;
use crate::resource::Types;

fn site() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// What planning says of resources in this directory, and what is said without a node.
fn said_in(directory: &std::path::Path, resources: &str) -> (String, String) {
    let path = directory.join("site.yaml");
    std::fs::write(&path, format!("ccm:\n  resources:\n{resources}")).unwrap();
    let (source, host) = (ManifestText::file(&path).unwrap(), host(FakeRunner::exiting(&[])).with_directory(directory));
    let text = |errors: Vec<crate::diag::Diagnostic>| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let planned = plan_manifest(&source, &inputs(), &host).map(drop).map_err(text);
    (planned.err().unwrap_or_default(), precheck(&source, &Types::default(), &host).map_err(text).err().unwrap_or_default())
}

fn inputs() -> RunInputs {
    RunInputs::new(|| serde_json::json!({"site": "x"}), std::collections::BTreeMap::new(), None)
}

fn exec(name: &str, more: &str) -> String {
    format!("    - exec: {{name: {name}, command: \"true\"{more}}}\n")
}

fn file(name: &str, more: &str) -> String {
    format!("    - file: {{name: {name}, ensure: present, owner: root, group: root, mode: '0644'{more}}}\n")
}

#[test]
fn every_wrong_reference_is_refused_at_its_place() {
    let directory = site();
    for (resources, wanted) in [
        (exec("a", ", require: ['exec#a']"), "site.yaml:3:51: invalid manifest resource 1: require: exec#a names itself"),
        (exec("a", ", require: ['exce#b']"), "did you mean \"exec#b\"?"),
        (exec("a", ", subscribe: ['nothing#b']"), "known types are file"),
        (exec("first", "") + &exec("b", ", require: ['exec#frist']"), "did you mean \"exec#first\"?"),
        (exec("a", ", require: ['exec#b']") + &exec("b", ""), "names exec#b, which comes later"),
        (exec("a", ", require: ['exec#b']") + &exec("b", ""), "hint: resources run in their written order: move exec#b up"),
        (
            exec("a", ", subscribe: ['exec#c']") + &exec("b", ", require: ['exec#a']") + &exec("c", ", require: ['exec#b']"),
            "needs itself: exec#a → exec#c → exec#b → exec#a",
        ),
        (exec("a", ", alias: x") + &exec("b", ", alias: x"), "alias \"x\" of exec#b is also the alias of exec#a"),
        (exec("a", "") + &exec("b", ", alias: a"), "alias \"a\" of exec#b is the name of another exec"),
        (file("/n/a", ", content: x") + &file("/n/a", ", content: y"), "disagree about content: the other is in line 3"),
        (file("/n/a", "") + "    - file: {name: /n/a, ensure: absent}\n", "disagree about ensure"),
        (file("/n/a", "") + "    - symlink: {name: /n/a, target: /x}\n", "disagree about ensure"),
    ] {
        let (planned, ahead) = said_in(directory.path(), &resources);
        assert!(planned.contains(wanted), "{resources}: {planned}");
        assert_eq!(ahead, planned, "{resources}");
    }
}

#[test]
fn what_can_be_met_is_left_alone() {
    let directory = site();
    std::fs::write(
        directory.path().join("child.yaml"),
        "ccm:\n  resources:\n    - exec: {name: inner, require: ['exec#outer']}\n",
    )
    .unwrap();
    for resources in [
        exec("a", "") + &exec("b", ", require: ['exec#a'], subscribe: ['exec#a']"),
        exec("a", ", alias: x") + &exec("b", ", require: ['exec#x']"),
        // The same name again, and each is meant.
        exec("a", "") + &exec("a", ", require: ['exec#a']"),
        exec("a", ", alias: a"),
        file("/n/a", ", content: x") + &file("/n/a", ", content: x"),
        file("/n/a", ", content: x") + &file("/n/a", ", content: y, control: {if: 'false'}"),
        file("/n/a", ", content: x") + &file("/n/a", ", content: \"{{ Facts.site }}\""),
        file("/n/a", ", content: x") + &file("/n/a", ""),
        exec("outer", "") + "    - apply: {name: child.yaml}\n" + &exec("b", ", require: ['exec#inner', 'apply#child.yaml']"),
    ] {
        assert_eq!(said_in(directory.path(), &resources), (String::new(), String::new()), "{resources}");
    }
}

#[test]
fn children_are_looked_at_before_anything_runs() {
    let directory = site();
    for (name, text) in [
        ("bad.yaml", "ccm:\n  resources:\n    - file: {name: /x, ensure: nope}\n"),
        ("text.yaml", "- just\n- a list\n"),
        ("itself.yaml", "ccm:\n  resources:\n    - apply: {name: other.yaml}\n"),
        ("other.yaml", "ccm:\n  resources:\n    - apply: {name: itself.yaml}\n"),
        ("fine.yaml", "ccm:\n  resources:\n    - exec: {name: fine, command: \"true\"}\n"),
        ("order.yaml", "ccm:\n  resources:\n    - exec: {name: a, require: ['exec#later']}\n"),
        ("maybe.yaml", "ccm:\n  resources:\n    - apply: {name: maybe.yaml, control: {if: 'false'}}\n"),
    ] {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    let apply = |name: &str, more: &str| format!("    - apply: {{name: {name}{more}}}\n");
    let own = directory.path().display().to_string();
    for (resources, wanted) in [
        (apply("none.yaml", ""), Some("none.yaml")),
        (exec("x", ", creates: /other") + &apply("none.yaml", ""), Some("none.yaml")),
        (apply("none.yaml", ", control: {if: 'false'}"), None),
        (exec("make", ", creates: none.yaml") + &apply("none.yaml", ""), None),
        (exec("make", "") + &apply("none.yaml", ", require: ['exec#make']"), None),
        (file(&format!("{own}/none.yaml"), ", content: x") + &apply("none.yaml", ""), None),
        (apply("bad.yaml", ""), Some("bad.yaml:3:")),
        (apply("text.yaml", ""), Some("text.yaml")),
        (apply("itself.yaml", ""), Some("is applied within itself")),
        (apply("site.yaml", ""), Some("is applied within itself")),
        (apply("maybe.yaml", ""), None),
        (apply("itself.yaml", ", allow_apply: false"), Some("denied in this manifest by allow_apply")),
        (apply("order.yaml", "") + &exec("later", ""), Some("there is no such resource")),
        (apply("fine.yaml", "") + &exec("b", ", require: ['exec#fien']"), Some("did you mean \"exec#fine\"?")),
        (apply("\"{{ Facts.site }}.yaml\"", ", control: {if: 'false'}") + &exec("b", ", require: ['exec#what']"), None),
    ] {
        let (planned, ahead) = said_in(directory.path(), &resources);
        for said in [planned, ahead] {
            assert_eq!(said.is_empty(), wanted.is_none(), "{resources}: {said}");
            assert!(said.contains(wanted.unwrap_or_default()), "{resources}: {said}");
        }
    }
}

#[test]
fn files_beside_a_manifest_that_is_sent_alone_are_missing() {
    let text = "ccm: {resources: [{apply: {name: child.yaml}}]}".to_owned();
    let source = ManifestText { text, name: "m.yaml".into(), directory: None, digest: None };
    let errors = precheck(&source, &Types::default(), &Host::system(None)).unwrap_err();
    assert!(errors[0].to_string().contains("the manifest without the files beside it"), "{}", errors[0]);
    // A file of the node is the node's.
    let text = "ccm: {resources: [{apply: {name: /etc/none.yaml}}]}".to_owned();
    assert!(precheck(&ManifestText { text, ..source }, &Types::default(), &Host::system(None)).is_ok());
    assert!(!fs::resolve_links("/etc/none.yaml".as_ref()).exists());
}

#[test]
fn one_resource_refers_to_nothing_unless_a_session_knows() {
    let host = host(FakeRunner::exiting(&[]));
    let of = |reference: &str| serde_json::json!({"name": "a", "command": "true", "require": [reference]});
    let say = |errors: Vec<crate::diag::Diagnostic>| errors[0].to_string();
    for (reference, alone, next) in [
        ("exec#b", "it is the only resource of this request", ""),
        ("exec#a", "names itself", "names itself"),
        ("exce#b", "there is no resource type", "there is no resource type"),
    ] {
        let one = plan_one("exec", &of(reference), &inputs(), &host).map(drop).map_err(say).unwrap_err();
        assert!(one.contains(alone), "{one}");
        assert_eq!(precheck_one("exec", &of(reference), &Types::default(), &host).map_err(say), Err(one));
        let after = plan_next("exec", &of(reference), &inputs(), &host).map(drop).map_err(say).err().unwrap_or_default();
        assert!(after.contains(next) && after.is_empty() == next.is_empty(), "{after}");
    }
}
