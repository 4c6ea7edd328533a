//! Users, groups, cron entries and kernel settings on a host of their own, checked with its other programs.

use serde_json::Value;

use crate::support::node::Node;

const MANIFEST: &str = r#"
ccm:
  resources:
    - group: {name: web, system: true}
    - user:
        name: alice
        groups: [web]
        home: /srv/homes/alice
        manage_home: true
        shell: /bin/sh
        password_hash: "$6$saltsalt$hashhashhash"
    - file: {name: /srv/site, ensure: directory, owner: alice, group: web, mode: "0750"}
    - cron: {name: site, user: alice, minute: 5, command: "/usr/bin/true %"}
    - sysctl: {name: vm.swappiness, value: 7, runtime: false}
"#;

fn outcomes(text: &str) -> Vec<(String, bool, bool)> {
    let document: Value = serde_json::from_str(text).unwrap_or_else(|_| panic!("{text}"));
    let events = document["events"].as_array().unwrap();
    let is = |event: &Value, what: &str| event[what].as_bool().unwrap_or_default();
    events.iter().map(|event| (event["type"].as_str().unwrap().to_owned(), is(event, "changed"), is(event, "failed"))).collect()
}

#[test]
fn resources_use_accounts_and_files_that_earlier_ones_made() {
    let Some(node) = Node::start() else { return };
    node.write("/root/manifest.yaml", MANIFEST);
    node.sh("mkdir -p /etc/cron.d");
    let apply = || node.ensign(&["apply", "/root/manifest.yaml", "--output", "json"]).ok();
    let first = apply();
    assert!(!first.contains("saltsalt"));
    assert_eq!(outcomes(&first).iter().filter(|(_, changed, _)| *changed).count(), 5, "{first}");
    assert!(outcomes(&apply()).iter().all(|(_, changed, failed)| !changed && !failed));

    assert_eq!(node.sh("su alice -c 'id -Gn; cd; pwd'"), "alice web\n/srv/homes/alice\n");
    assert_eq!(node.sh("stat -c '%U:%G %a' /srv/site /srv/homes/alice/.profile | head -n 1"), "alice:web 750\n");
    assert_eq!(node.sh("getent shadow alice | cut -d: -f2"), "$6$saltsalt$hashhashhash\n");
    assert_eq!(node.sh("pwck -rq; grpck -r && echo sound"), "sound\n");
    // sysctl.d(5) as systemd reads it: the last of several wins.
    node.sh("echo 'vm.swappiness = 60' >/etc/sysctl.d/99-sysctl.conf.test.conf");
    let read = node.sh("/lib/systemd/systemd-sysctl --cat-config | grep '^vm.swappiness' | tail -n 1");
    assert_eq!(read, "vm.swappiness = 7\n");

    // The kernel of a container belongs to its host.
    let refused = node.ensign(&["ensure", "sysctl", "vm.swappiness", "--value", "7", "--output", "json"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stdout.contains("read-only") && refused.stdout.contains("'runtime: false'"), "{refused:?}");

    // The type removes no user with running processes.
    node.sh("systemd-run -q --unit=work --uid=alice sleep infinity");
    let absent = ["ensure", "user", "alice", "absent", "--home", "/srv/homes/alice", "--manage-home", "--output", "json"];
    let busy = node.ensign(&absent);
    assert!(busy.code == 1 && busy.stdout.contains("currently used by process"), "{busy:?}");
    node.sh("systemctl stop work");
    node.ensign(&absent).ok();
    assert_eq!(node.sh("ls /srv/homes; getent passwd alice || echo gone"), "gone\n");
}
