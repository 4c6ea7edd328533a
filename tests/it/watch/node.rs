//! Drift of a whole host, which systemd, dpkg and the files of accounts report.

use std::time::Instant;

use crate::support::node::{ENSIGN, Node};
use crate::support::single_node::PATIENCE;

const MANIFEST: &str = r#"
ccm:
  resources:
    - group: {name: web, system: true}
    - user: {name: alice, groups: [web], shell: /bin/sh}
    - cron: {name: site, user: alice, minute: 5, command: "/usr/bin/true"}
    - sysctl: {name: vm.swappiness, value: 7, runtime: false}
    - service: {name: site, enable: true}
    - package: {name: site-tool, ensure: present, provider: apt}
"#;

/// A package in a repository of the node, and a unit.
pub const PREPARE: &str = r#"
mkdir -p /etc/cron.d /etc/sysctl.d
mkdir -p /tmp/p/DEBIAN /srv/series
printf 'Package: site-tool\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: x\n' >/tmp/p/DEBIAN/control
dpkg-deb -b /tmp/p /srv/series/site-tool.deb
cd /srv/series
{ cat /tmp/p/DEBIAN/control; echo "Filename: ./site-tool.deb"; echo "Size: $(stat -c %s site-tool.deb)"
  echo "SHA256: $(sha256sum site-tool.deb | cut -d' ' -f1)"; echo; } >Packages
echo 'deb [trusted=yes] copy:/srv/series ./' >/etc/apt/sources.list
apt-get update -qq
printf '[Service]\nExecStart=sleep infinity\n[Install]\nWantedBy=multi-user.target\n' >/etc/systemd/system/site.service
systemctl daemon-reload
"#;

/// A change of the host, and the check that succeeds when it is repaired.
const DRIFTS: &[(&str, &str, &str)] = &[
    ("a stopped service", "systemctl stop site", "systemctl is-active site"),
    ("a killed service", "systemctl kill -s KILL site", "systemctl is-active site"),
    ("a disabled service", "systemctl disable site", "systemctl is-enabled site"),
    ("a removed package", "apt-get purge -y -qq site-tool", "dpkg -s site-tool"),
    ("a user without its group", "gpasswd -d alice web", "id -nG alice | grep -w web"),
    ("a removed user", "userdel alice", "id alice"),
    (
        "a removed group",
        "gpasswd -d alice web; sed -i '/^web:/d' /etc/group /etc/gshadow",
        "getent group web && id -nG alice | grep -w web",
    ),
    ("a changed cron file", "sed -i s/true/false/ /etc/cron.d/site", "grep /usr/bin/true /etc/cron.d/site"),
    ("a removed cron file", "rm /etc/cron.d/site", "grep /usr/bin/true /etc/cron.d/site"),
    ("a removed sysctl file", "rm $(grep -rl vm.swappiness /etc/sysctl.d)", "grep -rq vm.swappiness /etc/sysctl.d"),
];

#[track_caller]
fn until(node: &Node, what: &str, script: &str) {
    let began = Instant::now();
    while node.exec(&["/bin/sh", "-c", script]).code != 0 {
        let log = || node.exec(&["/bin/sh", "-c", "tail -n 5 /root/out; cat /root/err; ls -l /etc/sysctl.d /etc/cron.d"]);
        assert!(began.elapsed() < PATIENCE, "{what}: {script}\n{:#?}", log());
    }
}

#[test]
fn services_packages_and_accounts_are_repaired() {
    let Some(node) = Node::start() else { return };
    node.sh(PREPARE);
    node.write("/root/manifest.yaml", MANIFEST);
    let watch = format!(
        "systemd-run -q --unit watch -p StandardOutput=file:/root/out -p StandardError=file:/root/err \
         {ENSIGN} apply --watch /root/manifest.yaml --converged-timeout 100ms"
    );
    node.sh(&watch);
    until(&node, "the first pass", "grep -q '^converged' /root/err");
    for (what, drift, check) in DRIFTS {
        until(&node, &format!("before {what}"), check);
        let told = node.sh("wc -l </root/out").trim().to_owned();
        node.exec(&["/bin/sh", "-c", drift]);
        // The state alone could be that before the drift: the output tells of the repair.
        until(&node, what, &format!("[ $(wc -l </root/out) -gt {told} ] && {check}"));
    }
    // The end of the service: no failure, and no process left.
    until(&node, "the end of the repairs", "[ \"$(tail -n 1 /root/err)\" = 'converged: everything is as wanted' ]");
    node.sh("systemctl stop watch; ! pgrep -x ensign");
    assert_eq!(node.exec(&["systemctl", "is-failed", "watch"]).stdout.trim(), "inactive");
}
