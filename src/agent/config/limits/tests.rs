use std::path::PathBuf;

use serde_json::{Value, json};

use super::*;
use crate::engine::effects::of_signed;
use crate::host::fake::{FakeRunner, host};
use crate::resource::Types;

fn limits(paths: &[PathBuf]) -> NodeLimits {
    NodeLimits { paths: Some(paths.iter().map(|path| path.display().to_string()).collect()), ..NodeLimits::default() }
}

fn rights(rule: &Value) -> Rights {
    Rights::from_rule(&serde_json::from_value(rule.clone()).unwrap())
}

fn permit(permitted: &RunAuthorizer, kind: &str, properties: &Value) -> Result<(), String> {
    let effects = of_signed(&Types::default(), kind, properties.as_object().unwrap());
    permitted.permit(kind, &effects, &host(FakeRunner::exiting(&[])))
}

#[test]
fn links_lead_nowhere_else() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    std::fs::create_dir_all(root.join("own/sub")).unwrap();
    std::fs::create_dir(root.join("other")).unwrap();
    std::os::unix::fs::symlink(root.join("other"), root.join("own/out")).unwrap();
    std::os::unix::fs::symlink(root.join("own/sub"), root.join("own/in")).unwrap();
    std::os::unix::fs::symlink(root.join("own"), root.join("alias")).unwrap();
    for prefix in ["own", "alias"] {
        let prefix = root.join(prefix);
        let open = json!({"keys": ["a"]});
        let named = json!({"keys": ["a"], "names": [format!("{}/**", prefix.display())]});
        for (limits, rule) in [(limits(std::slice::from_ref(&prefix)), &open), (NodeLimits::default(), &named)] {
            let permitted = RunAuthorizer::new(limits, rights(rule), &[], None);
            for (kind, below, more, allowed) in [
                ("file", "a", json!({}), true),
                ("file", "sub/new/deep", json!({}), true),
                ("file", "in/a", json!({}), true),
                ("file", "out/a", json!({}), false),
                ("file", "out/new/deep", json!({}), false),
                ("file", "a", json!({"source": prefix.join("sub/x")}), true),
                ("file", "a", json!({"source": prefix.join("out/x")}), false),
                ("file", "a", json!({"backup": prefix.join("out")}), false),
                ("scaffold", "out", json!({"source": prefix.join("sub")}), false),
                ("symlink", "out", json!({"target": "sub"}), true),
                ("symlink", "a", json!({"target": "out"}), false),
                ("symlink", "a", json!({"target": "out/x"}), false),
            ] {
                let mut properties = json!({"name": prefix.join(below), "ensure": "present"});
                properties.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                let found = permit(&permitted, kind, &properties);
                assert_eq!(found.is_ok(), allowed, "{kind} {properties}: {found:?}");
            }
        }
    }
}

#[test]
fn the_nodes_that_the_agent_trusts_are_among_its_own_files() {
    let text = "fleet = \"f\"\n[nats]\nservers = [\"nats://127.0.0.1:4222\"]\n[trust]\nroot = [\"ed25519:AAAA\"]\n\
                [registration]\nknown_nodes = \"/etc/ensign/known_nodes\"\n";
    let around =
        config::HostDefaults { hostname: "web1".into(), state_dir: "/var/lib/ensign".into(), directory: "/etc/ensign".into() };
    let settings = config::AgentSettings::read(text, "agent.toml", &around).unwrap();
    assert!(own_files(&settings).contains(&PathBuf::from("/etc/ensign/known_nodes")));
}

#[test]
fn the_agents_own_files_are_out_of_reach() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    std::fs::create_dir_all(root.join("lib/ensign")).unwrap();
    std::fs::create_dir(root.join("www")).unwrap();
    std::os::unix::fs::symlink(root.join("lib"), root.join("www/link")).unwrap();
    let permitted = RunAuthorizer::new(
        NodeLimits { exec: true, ..NodeLimits::default() },
        rights(&json!({"keys": ["a"]})),
        &[root.join("lib/ensign"), root.join("agent.toml")],
        None,
    );
    let at = |path: &str| root.join(path).display().to_string();
    for (kind, properties, allowed) in [
        ("file", json!({"name": at("www/a"), "ensure": "present"}), true),
        ("file", json!({"name": at("agent.toml"), "ensure": "present"}), false),
        ("file", json!({"name": at("lib/ensign/ledger.jsonl"), "ensure": "absent"}), false),
        ("file", json!({"name": at("www/link/ensign/ledger.jsonl"), "ensure": "absent"}), false),
        ("file", json!({"name": at("lib"), "ensure": "directory", "recurse": true}), false),
        ("file", json!({"name": at("lib"), "ensure": "absent", "force": true}), false),
        ("file", json!({"name": "/", "ensure": "directory"}), false),
        ("file", json!({"name": at("www/a"), "ensure": "present", "source": at("lib/ensign/node.key")}), false),
        ("file", json!({"name": at("www/a"), "ensure": "directory", "recurse": true, "source": at("lib")}), false),
        ("symlink", json!({"name": at("lib"), "target": "x", "force": true}), false),
        ("symlink", json!({"name": at("www/a"), "target": at("lib/ensign")}), false),
        ("line", json!({"name": "x", "path": at("agent.toml"), "line": "x"}), false),
        ("mount", json!({"name": at("lib"), "ensure": "mounted", "device": "tmpfs", "fstype": "tmpfs"}), false),
        ("mount", json!({"name": at("www"), "ensure": "mounted", "device": "/", "options": "rbind"}), false),
        ("mount", json!({"name": at("www"), "ensure": "mounted", "device": "tmpfs", "fstype": "tmpfs"}), true),
        (
            "archive",
            json!({"name": at("www/a.tgz"), "ensure": "present", "url": "https://h/a.tgz", "extract_parent": at("lib")}),
            false,
        ),
        (
            "service",
            json!({"name": "x", "health_checks": [
                {"goss_rules": {"file": {at("agent.toml"): {"exists": true, "contents": ["x"]}}}},
            ]}),
            false,
        ),
    ] {
        let found = permit(&permitted, kind, &properties);
        assert_eq!(found.is_ok(), allowed, "{kind} {properties}: {found:?}");
    }
    assert!(permitted.may_read(&TemplateRead::File(&root.join("lib/ensign/node.key"))).is_err());
}

#[test]
fn files_of_the_bundle_may_be_read() {
    let directory = tempfile::tempdir().unwrap();
    let bundle = directory.path().join("state/work/bundle");
    std::fs::create_dir_all(bundle.join("sub")).unwrap();
    let strict = rights(&json!({"keys": ["a"], "noop_only": true}));
    let permitted = RunAuthorizer::new(limits(&["/srv".into()]), strict, &[directory.path().join("state")], Some(&bundle));
    let of = |source: &str, below: &str| {
        let host = host(FakeRunner::exiting(&[])).with_directory(bundle.join(below));
        permitted.permit("file", &[Effect::write("/srv/a"), Effect::read(source)].into_iter().collect(), &host)
    };
    std::fs::write(bundle.join("x"), "").unwrap();
    assert_eq!(of("x", ""), Ok(()));
    assert_eq!(of("../x", "sub"), Ok(()));
    assert!(of("../x", "").is_err());
    assert!(of("../../../x", "sub").is_err());
    assert!(of("/etc/shadow", "").is_err());
}

#[test]
fn content_is_shown_to_those_who_may_read_it() {
    let directory = tempfile::tempdir().unwrap();
    let (file, other) = (directory.path().join("a"), directory.path().join("b"));
    std::fs::write(&file, "x").unwrap();
    let shows = |rule: &Value| {
        let permitted = RunAuthorizer::new(NodeLimits::default(), rights(rule), &[], None);
        let properties = json!({"name": file, "ensure": "present", "content": "y"});
        permitted
            .may_show(&of_signed(&Types::default(), "file", properties.as_object().unwrap()), &host(FakeRunner::exiting(&[])))
    };
    assert!(shows(&json!({"keys": ["a"]})));
    // Who may only write it has no business with what is in it.
    assert!(!shows(&json!({"keys": ["a"], "names": [file]})));
    assert!(!shows(&json!({"keys": ["a"], "noop_only": true})));
    assert!(!shows(&json!({"keys": ["a"], "names": [file], "reads": [other]})));
    assert!(shows(&json!({"keys": ["a"], "names": [file], "reads": [file]})));
}
