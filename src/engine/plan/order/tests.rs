use crate::diag::Diagnostic;
use crate::engine::{Plan, RunInputs, plan_manifest, precheck};
use crate::host::fake::{FakeRunner, host};
use crate::manifest::ManifestText;
use crate::resource::Types;

fn source(resources: &str) -> ManifestText {
    let text = format!("ccm:\n  ordering: graph\n  resources:\n{resources}");
    ManifestText { text, name: "site.yaml".into(), directory: None, digest: None }
}

fn plan(resources: &str) -> Result<Plan, Vec<Diagnostic>> {
    let inputs = RunInputs::new(|| serde_json::json!({}), std::collections::BTreeMap::new(), None);
    plan_manifest(&source(resources), &inputs, &host(FakeRunner::exiting(&[])))
}

/// The edges of a manifest, each as "LATER after EARLIER: REASONS".
fn edges(resources: &str) -> Vec<String> {
    let plan = plan(resources).map_err(|errors| errors[0].to_string()).unwrap();
    assert_eq!(plan.warnings, [], "{resources}");
    let name = |at: usize| plan.resources[at].reference().to_string();
    let reasons = |edge: &crate::engine::graph::Edge| edge.reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    plan.graph()
        .edges()
        .iter()
        .map(|edge| format!("{} after {}: {}", name(edge.after), name(edge.before), reasons(edge)))
        .collect()
}

const FILE: &str = "ensure: present, owner: root, group: root, mode: '0644'";

#[test]
fn every_type_waits_for_what_it_needs() {
    let file = |name: &str| format!("    - file: {{name: {name}, {FILE}}}\n");
    let directory = |name: &str| file(name).replace("present", "directory");
    for (resources, expected) in [
        (
            "    - file: {name: /s/a, ensure: present, owner: u, group: g, mode: '0644', source: /t/a}\n".to_owned()
                + "    - user: {name: u, group: root}\n    - group: {name: g}\n"
                + &directory("/s")
                + &directory("/t"),
            vec![
                "file#/s/a after user#u: automatic: user u",
                "file#/s/a after group#g: automatic: group g",
                "file#/s/a after file#/s: automatic: parent directory /s",
                "file#/s/a after file#/t: automatic: parent directory /t",
            ],
        ),
        (
            "    - file: {name: /s, ensure: absent, force: true}\n    - file: {name: /s/a, ensure: absent}\n".to_owned(),
            vec!["file#/s after file#/s/a: automatic: path below /s"],
        ),
        (
            "    - symlink: {name: /s/link, target: ../t/a}\n    - symlink: {name: /t/l, target: a}\n".to_owned()
                + &directory("/s")
                + &file("/t/a"),
            vec![
                "symlink#/s/link after file#/s: automatic: parent directory /s",
                "symlink#/t/l after file#/t/a: automatic: path /t/a",
            ],
        ),
        (
            "    - line: {name: one, path: /s/a, line: x}\n    - line: {name: two, path: /s/a, line: y}\n".to_owned() + &file("/s/a"),
            vec![
                "line#one after file#/s/a: automatic: path /s/a, automatic: same path /s/a",
                "line#two after line#one: automatic: same path /s/a",
                "line#two after file#/s/a: automatic: path /s/a",
            ],
        ),
        (
            file("/opt/a/b/c")
                + "    - archive: {name: /var/a.tgz, ensure: present, url: 'https://x.test/a.tgz', owner: root, group: root, extract_parent: /opt/a, creates: /opt/a/b}\n"
                + &directory("/opt/a"),
            vec![
                "file#/opt/a/b/c after archive#/var/a.tgz: automatic: parent directory /opt/a/b",
                "archive#/var/a.tgz after file#/opt/a: automatic: path /opt/a",
            ],
        ),
        (
            file("/etc/app/x")
                + "    - scaffold: {name: /etc/app, ensure: present, source: /srv/t, engine: jinja}\n    - package: {name: app, ensure: present}\n"
                + &directory("/srv/t"),
            vec![
                "file#/etc/app/x after scaffold#/etc/app: automatic: parent directory /etc/app",
                "file#/etc/app/x after package#app: automatic: package app",
                "scaffold#/etc/app after file#/srv/t: automatic: path /srv/t",
            ],
        ),
        (
            "    - cron: {name: job, command: /opt/run -v, user: u, schedule: '@daily'}\n    - user: {name: u, group: root}\n".to_owned()
                + &file("/opt/run"),
            vec!["cron#job after user#u: automatic: user u", "cron#job after file#/opt/run: automatic: path /opt/run"],
        ),
        (
            "    - user: {name: u, groups: [g], home: /h/u, manage_home: true, shell: /bin/zsh}\n    - group: {name: g}\n    - group: {name: u}\n".to_owned()
                + &directory("/h")
                + "    - package: {name: zsh, ensure: present}\n"
                + &file("/h/u/a"),
            vec![
                "user#u after group#g: automatic: group g",
                "user#u after group#u: automatic: group u, automatic: same group u",
                "user#u after file#/h: automatic: parent directory /h",
                "user#u after package#zsh: automatic: package zsh",
                "file#/h/u/a after user#u: automatic: parent directory /h/u",
            ],
        ),
        (
            "    - group: {name: g, ensure: absent}\n    - user: {name: u, ensure: absent, group: g}\n".to_owned(),
            vec!["group#g after user#u: automatic: use of group g before its removal"],
        ),
        (
            "    - group: {name: g, members: [u]}\n    - user: {name: u}\n".to_owned(),
            vec!["group#g after user#u: automatic: user u"],
        ),
        (
            "    - service: {name: app@1}\n".to_owned()
                + &file("/etc/systemd/system/app@.service")
                + &file("/etc/systemd/system/app@1.service.d/x.conf")
                + &file("/etc/default/app")
                + &file("/etc/app/x")
                + &file("/etc/systemd/system/apps.service")
                + "    - package: {name: 'app:amd64', ensure: latest}\n",
            vec![
                "service#app@1 after file#/etc/systemd/system/app@.service: automatic: path /etc/systemd/system/app@.service",
                "service#app@1 after file#/etc/systemd/system/app@1.service.d/x.conf: automatic: path below /etc/systemd/system/app@1.service.d",
                "service#app@1 after file#/etc/default/app: automatic: path /etc/default/app",
                "service#app@1 after file#/etc/app/x: automatic: path below /etc/app",
                "service#app@1 after package#app:amd64: automatic: package app",
                "file#/etc/default/app after package#app:amd64: automatic: package app",
                "file#/etc/app/x after package#app:amd64: automatic: package app",
            ],
        ),
        (
            "    - service: {name: app.timer}\n".to_owned() + &file("/etc/systemd/system/app.service"),
            vec!["service#app.timer after file#/etc/systemd/system/app.service: automatic: path /etc/systemd/system/app.service"],
        ),
        (
            "    - exec: {name: run, command: jq ., cwd: /srv/a, creates: /srv/b/c}\n    - package: {name: jq, ensure: present}\n".to_owned()
                + &directory("/srv/a")
                + &directory("/srv/b")
                + &file("/srv/b/c/d"),
            vec![
                "exec#run after package#jq: automatic: package jq",
                "exec#run after file#/srv/a: automatic: path /srv/a",
                "exec#run after file#/srv/b: automatic: parent directory /srv/b",
                "file#/srv/b/c/d after exec#run: automatic: parent directory /srv/b/c",
            ],
        ),
        (
            file("/m/a")
                + "    - mount: {name: /m, ensure: mounted, device: /img/disk}\n"
                + &directory("/m")
                + &file("/img/disk"),
            vec![
                "file#/m/a after mount#/m: automatic: mount point /m",
                "file#/m/a after file#/m: automatic: parent directory /m",
                "mount#/m after file#/m: automatic: path /m",
                "mount#/m after file#/img/disk: automatic: path /img/disk",
            ],
        ),
        (
            "    - file: {name: /m, ensure: absent}\n    - mount: {name: /m, ensure: absent}\n".to_owned(),
            vec!["file#/m after mount#/m: automatic: use of path /m before its removal"],
        ),
        ("    - sysctl: {name: vm.swappiness, value: 1}\n    - package: {name: vm, ensure: absent}\n".to_owned(), vec![]),
    ] {
        let expected: std::collections::BTreeSet<String> = expected.into_iter().map(str::to_owned).collect();
        assert_eq!(edges(&resources).into_iter().collect::<std::collections::BTreeSet<_>>(), expected, "{resources}");
    }
}

#[test]
fn references_may_name_later_resources() {
    let resources = "    - exec: {name: a, command: 'true', require: ['exec#b', 'exec#x']}\n    - exec: {name: b, command: 'true'}\n    - exec: {name: c, command: 'true', alias: x}\n";
    assert_eq!(edges(resources), ["exec#a after exec#b: require", "exec#a after exec#c: require"]);
    // The earlier resource of a name that comes twice.
    let twice = "    - exec: {name: a, command: 'true'}\n    - exec: {name: b, command: 'true', require: ['exec#a']}\n    - exec: {name: a, command: 'true', require: ['exec#b']}\n";
    assert_eq!(edges(twice), ["exec#b after exec#a: require", "exec#a after exec#b: require"]);
}

#[test]
fn a_circle_of_references_is_refused_with_and_without_a_node() {
    let resources = "    - exec: {name: a, command: 'true', require: ['exec#c']}\n    - exec: {name: b, command: 'true', require: ['exec#a']}\n    - exec:\n        name: c\n        command: 'true'\n        subscribe:\n          - exec#b\n";
    let planned = plan(resources).map(drop).unwrap_err();
    let text = planned[0].to_string();
    for wanted in [
        "site.yaml:4:51: invalid manifest resource 1: resources wait for each other:\n",
        "\nsite.yaml:4: exec#a: require exec#c\nsite.yaml:10: exec#c: subscribe exec#b\nsite.yaml:5: exec#b: require exec#a\n",
        "hint: remove one of these references",
    ] {
        assert!(text.contains(wanted), "{text}");
    }
    assert_eq!(precheck(&source(resources), &Types::default(), &host(FakeRunner::exiting(&[]))).unwrap_err(), planned);
}

#[test]
fn an_automatic_edge_that_closes_a_circle_is_left_out_with_a_warning() {
    let resources = "    - file: {name: /etc/app/x, ensure: present, owner: root, group: root, mode: '0644'}\n    - package: {name: app, ensure: present, require: ['file#/etc/app/x']}\n";
    let plan = plan(resources).map_err(|errors| errors[0].to_string()).unwrap();
    let warnings: Vec<String> = plan.warnings.iter().map(ToString::to_string).collect();
    assert!(warnings[0].contains("file#/etc/app/x does not wait for package#app (automatic: package app)"), "{warnings:?}");
    assert_eq!((warnings.len(), plan.graph().edges().len()), (1, 1));
}
