//! Reversals of types that act on the whole host: on a node with a real systemd and dpkg.

use crate::support::node::{Node, Output};
use crate::watch::node::PREPARE;

const REST: &str = "ccm:\n  resources:\n    - exec: {name: rest, command: \"true\"}\n";

fn apply(node: &Node, resources: &str) -> Output {
    node.write("/root/manifest.yaml", &format!("{REST}{resources}"));
    node.ensign(&["apply", "/root/manifest.yaml"])
}

/// Runs a manifest with these resources, and then one without.
#[track_caller]
fn reverses(node: &Node, resources: &str, during: &[&str], after: &[&str]) {
    for (resources, checks) in [(resources, during), ("", after)] {
        let ran = apply(node, resources);
        assert_eq!(ran.code, 0, "{ran:?}");
        for check in checks {
            assert_eq!(node.exec(&["/bin/sh", "-c", check]).code, 0, "{check}: {resources}: {ran:?}");
        }
    }
}

/// The resources with this `on_removal`.
fn created(on_removal: &str) -> String {
    [
        "group: {name: web, system: true",
        "user: {name: alice, groups: [web], shell: /bin/sh",
        "cron: {name: site, user: root, minute: 5, command: \"/usr/bin/true\"",
        "sysctl: {name: vm.swappiness, value: 7, runtime: false",
        "package: {name: site-tool, ensure: present, provider: apt",
    ]
    .map(|resource| format!("    - {resource}, on_removal: {on_removal}}}\n"))
    .concat()
}

const IS_CREATED: [&str; 5] = [
    "getent group web",
    "id -nG alice | grep -w web",
    "grep /usr/bin/true /etc/cron.d/site",
    "grep -rq vm.swappiness /etc/sysctl.d",
    "dpkg -s site-tool",
];

#[test]
fn accounts_packages_services_and_settings_are_as_before() {
    let Some(node) = Node::start() else { return };
    node.sh(PREPARE);
    let is_gone = IS_CREATED.map(|check| format!("! {{ {check}; }}"));
    let is_gone = is_gone.each_ref().map(String::as_str);
    for on_removal in ["revert", "absent"] {
        reverses(&node, &created(on_removal), &IS_CREATED, &is_gone);
    }

    // A service that did not run, and one that ran.
    let service = |ensure: &str, enable: bool| {
        format!("    - service: {{name: site, ensure: {ensure}, enable: {enable}, on_removal: revert}}\n")
    };
    let (on, off) = (
        ["systemctl is-active site", "systemctl is-enabled site"],
        ["! systemctl is-active site", "! systemctl is-enabled site"],
    );
    reverses(&node, &service("running", true), &on, &off);
    node.sh("systemctl enable --now site");
    reverses(&node, &service("stopped", false), &off, &on);

    // What was there before the first run stays, or comes back.
    node.sh("groupadd old; useradd -M -g old bob; apt-get install -y -qq site-tool");
    let before = "    - cron: {name: site, user: root, minute: 1, command: \"/usr/bin/id\"}\n\
                  \x20   - sysctl: {name: vm.swappiness, value: 5, runtime: false}\n";
    assert_eq!(apply(&node, before).code, 0);
    let resources = created("revert").replace("name: web", "name: old").replace("name: alice, groups: [web]", "name: bob");
    let stays =
        ["getent group old", "id bob", "dpkg -s site-tool", "grep /usr/bin/id /etc/cron.d/site", "grep -rqw 5 /etc/sysctl.d"];
    reverses(&node, &resources, &["grep /usr/bin/true /etc/cron.d/site", "grep -rqw 7 /etc/sysctl.d"], &stays);
}
