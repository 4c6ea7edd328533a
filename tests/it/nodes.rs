//! The hosts that tests start for themselves.

use std::path::Path;

use crate::support::node::Node;

#[test]
fn a_test_node_runs_systemd_and_ends_with_its_value() {
    let Some(node) = Node::start() else { return };
    let name = node.sh("hostname").trim().to_owned();
    assert!(name.starts_with("ensign-node-"), "{name}");
    assert_eq!(node.sh("cat /proc/1/comm"), "systemd\n");
    assert_eq!(node.sh("ls /sys/class/net"), "lo\n");
    node.write("/etc/deep/er/file", "text\n");
    assert_eq!(node.sh("cat /etc/deep/er/file"), "text\n");
    assert!(!Path::new("/etc/deep").exists());
    let other = node.exec(&["sh", "-c", "echo out; echo err >&2; exit 3"]);
    assert_eq!((other.code, other.stdout.as_str(), other.stderr.as_str()), (3, "out\n", "err\n"));
    assert!(node.ensign(&["--version"]).ok().starts_with("ensign "));
    let place = std::env::temp_dir().join(&name);
    assert!(place.exists());
    drop(node);
    assert!(!place.exists());
    let cgroups = std::fs::read_dir("/sys/fs/cgroup").unwrap().map(|entry| entry.unwrap().path());
    assert!([Path::new("/sys/fs/cgroup").to_owned()].into_iter().chain(cgroups).all(|dir| !dir.join(&name).exists()));
}
