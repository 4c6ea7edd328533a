//! The page "From nothing to three nodes", as a reader follows it: three hosts with systemd, no edited file.

use std::path::Path;
use std::process::{Command, Output};

use crate::support::nats::{NatsServer, binaries};
use crate::support::node::{ENSIGN, Node};
use crate::support::port::Port;
use crate::support::relay::relay;
use crate::support::single_node::PATIENCE;

const PAGE: &str = "docs/operations/first-fleet.md";
const PROXY: &str = "[Service]\nExecStart=/lib/systemd/systemd-socket-proxyd /srv/nats/nats.sock\n";

/// The blocks of the page.
fn blocks() -> Vec<String> {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE)).unwrap();
    page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap().trim().to_owned()).collect()
}

/// Runs a block in the shell of the operator.
fn paste(home: &Path, block: &str) -> Output {
    let program = Path::new(env!("CARGO_BIN_EXE_ensign")).parent().unwrap().display().to_string();
    let path = format!("{program}:{}", std::env::var("PATH").unwrap());
    Command::new("/bin/sh").args(["-ec", block]).env("HOME", home).env("PATH", path).output().unwrap()
}

fn succeed(home: &Path, block: &str) -> String {
    let ran = paste(home, block);
    assert!(ran.status.success(), "{block}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}

/// A host with the program and its unit, and the way to the server.
fn host(shared: &Path, port: u16) -> Option<Node> {
    let node = Node::start_with(&[format!("--bind={}:/srv/nats", shared.display())])?;
    node.write("/etc/systemd/system/nats.socket", &format!("[Socket]\nListenStream=127.0.0.1:{port}\n"));
    node.write("/etc/systemd/system/nats.service", PROXY);
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/systemd/ensign-agent.service");
    node.write("/etc/systemd/system/ensign-agent.service", &std::fs::read_to_string(unit).unwrap());
    node.sh(&format!("ln -s {ENSIGN} /usr/bin/ensign; systemctl daemon-reload; systemctl start nats.socket"));
    Some(node)
}

#[test]
fn the_page_leads_from_nothing_to_three_nodes() {
    let [create, server, init, token, join, admit] = blocks().try_into().expect("six commands");
    let (home, shared, port) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Port::new());
    let Some(first) = host(shared.path(), port.number()) else { return };
    let hosts = [Some(first), host(shared.path(), port.number()), host(shared.path(), port.number())].map(Option::unwrap);

    succeed(home.path(), &create.replace("nats.example.org:4222", &format!("127.0.0.1:{}", port.number())));
    assert_eq!(server, "nats-server -c ~/.config/ensign/nats-server.conf &");
    let config = home.path().join(".config/ensign/nats-server.conf");
    let running = NatsServer::start_file(&binaries()[0], &config, tempfile::tempdir().unwrap(), port);
    relay(&shared.path().join("nats.sock"), running.url().replace("nats://", ""));
    succeed(home.path(), &init);
    let token = succeed(home.path(), &token);

    let join = join.replace("sudo ", "");
    let start = std::time::Instant::now();
    std::thread::scope(|scope| {
        let joins = hosts.each_ref().map(|host| scope.spawn(|| host.exec_with(&["/bin/sh", "-ec", &join], &token)));
        // The operator comes back once the hosts have asked, and may come too early.
        while !joins.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            assert!(start.elapsed() < PATIENCE, "the hosts wait");
            succeed(home.path(), &admit);
        }
        for join in joins {
            join.join().unwrap().ok();
        }
    });
    loop {
        let nodes = succeed(home.path(), "ensign fleet nodes --group web --output json");
        let nodes: serde_json::Value = serde_json::from_str(&nodes).unwrap();
        if nodes.as_array().unwrap().iter().filter(|node| node["presence"] == "alive").count() == 3 {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "{nodes}");
    }
    for host in &hosts {
        assert_eq!(host.sh("systemctl is-enabled ensign-agent; systemctl is-active ensign-agent"), "enabled\nactive\n");
    }
    // Removing one is one command.
    let retired = hosts[0].sh("hostname").trim().to_lowercase();
    succeed(home.path(), &format!("ensign fleet node revoke {retired}"));
}
