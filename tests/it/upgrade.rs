//! The fleet upgrades its own agents: with a real package manager and a real systemd, on three hosts.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::fleet::Fleet;
use crate::support::nats::binaries;
use crate::support::node::Node;
use crate::support::relay::relay;

const NODES: [(&str, &str); 3] = [("web1", "web"), ("web2", "web"), ("web3", "web")];

/// A program that its own configuration check stops.
const REJECTING: &str = "#!/bin/sh\necho 'error: agent.toml, line 1: `fleet` is gone, use `realm`' >&2\nexit 2\n";

const SOCKET: &str = "[Socket]\nListenStream=127.0.0.1:4222\n";
const PROXY: &str = "[Service]\nExecStart=/lib/systemd/systemd-socket-proxyd /srv/nats/nats.sock\n";

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A package of the agent. Its scripts do not restart the unit: the agent sees itself that its program was replaced.
fn package(repository: &Path, version: &str, program: &[u8]) {
    let tree = tempfile::tempdir().unwrap();
    let at = |path: &str| {
        let path = tree.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    };
    std::fs::write(at("usr/bin/ensign"), program).unwrap();
    run(Command::new("chmod").arg("0755").arg(tree.path()).arg(at("usr/bin/ensign")));
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/systemd/ensign-agent.service");
    std::fs::copy(unit, at("lib/systemd/system/ensign-agent.service")).unwrap();
    let control = format!("Package: ensign\nVersion: {version}\nArchitecture: all\nMaintainer: test\nDescription: test\n");
    std::fs::write(at("DEBIAN/control"), control).unwrap();
    run(Command::new("dpkg-deb").args(["--build", "-Znone", "--root-owner-group"]).arg(tree.path()).arg(repository));
}

/// A directory that all nodes see: the packages, and the way to the server.
struct Shared(TempDir);

impl Shared {
    fn new(fleet: &Fleet) -> Self {
        let shared = tempfile::tempdir().unwrap();
        let repository = shared.path().join("repo");
        std::fs::create_dir(&repository).unwrap();
        let small = shared.path().join("ensign");
        run(Command::new("strip").arg("-o").arg(&small).arg(env!("CARGO_BIN_EXE_ensign")));
        let program = std::fs::read(&small).unwrap();
        package(&repository, "1.0", &program);
        package(&repository, "1.1", &[&program[..], b"another version"].concat());
        package(&repository, "1.2", REJECTING.as_bytes());
        let index = run(Command::new("dpkg-scanpackages").args(["--multiversion", "."]).current_dir(&repository));
        std::fs::write(repository.join("Packages"), index).unwrap();
        relay(&shared.path().join("nats.sock"), fleet.server.url().replace("nats://", ""));
        Self(shared)
    }

    /// A host with version 1.0 of the agent. None where this machine can't run one.
    fn host(&self, fleet: &Fleet, name: &str) -> Option<Node> {
        let node = Node::start_with(&[format!("--bind={}:/srv/nats", self.0.path().display())])?;
        node.write("/etc/systemd/system/nats.socket", SOCKET);
        node.write("/etc/systemd/system/nats.service", PROXY);
        node.write("/etc/apt/sources.list", "deb [trusted=yes] file:/srv/nats/repo ./\n");
        node.sh(
            "systemctl daemon-reload; systemctl start nats.socket; apt-get update -qq; apt-get install -y -qq ensign=1.0 2>&1",
        );
        let text = |file: &str| std::fs::read_to_string(fleet.path(file)).unwrap();
        let config = format!(
            "fleet = \"test\"\nnode = \"{name}\"\ngroups = [\"web\"]\nheartbeat = \"5s\"\n[nats]\nservers = [\"nats://127.0.0.1:4222\"]\nnkey = \"node.nk\"\n{}",
            text("trust.toml")
        );
        node.write("/etc/ensign/agent.toml", &config);
        node.write("/etc/ensign/node.nk", &text(&format!("{name}.nk")));
        node.write("/etc/ensign/trust.dsse.json", &text("trust.dsse.json"));
        node.sh("chmod 0600 /etc/ensign/node.nk; systemctl enable --now ensign-agent");
        fleet.wait_for("the node", || row(fleet, name)["presence"] == "alive");
        Some(node)
    }
}

fn row(fleet: &Fleet, node: &str) -> Value {
    fleet.node_row(node).unwrap_or_default()
}

/// The file of the running agent of a host.
fn running_program(node: &Node) -> String {
    node.sh("readlink /proc/$(systemctl show -p MainPID --value ensign-agent)/exe").trim().to_owned()
}

/// The outcomes of the nodes, sorted, and the first message.
fn outcomes(document: &Value) -> (Vec<&str>, &str) {
    let rows = document["nodes"].as_array().unwrap();
    let mut outcomes: Vec<_> = rows.iter().map(|row| row["outcome"].as_str().unwrap()).collect();
    outcomes.sort_unstable();
    let failed = rows.iter().find(|row| row["outcome"] == "failed");
    (outcomes, failed.and_then(|row| row["done"]["message"].as_str()).unwrap_or_default())
}

#[test]
fn a_fleet_upgrades_its_agents_in_waves_and_stops_at_a_bad_version() {
    let fleet = Fleet::new(&binaries()[0], &NODES);
    let shared = Shared::new(&fleet);
    let hosts: Vec<_> = std::thread::scope(|scope| {
        let started = NODES.map(|(name, _)| {
            let (shared, fleet) = (&shared, &fleet);
            scope.spawn(move || shared.host(fleet, name))
        });
        started.into_iter().filter_map(|host| host.join().unwrap()).collect()
    });
    let [first, ..] = hosts.as_slice() else { return };
    assert_eq!(running_program(first), "/usr/bin/ensign");

    let boots = NODES.map(|(name, _)| row(&fleet, name)["boot"].clone());
    let upgrade = |version: &str, target: &[&str]| {
        let args = ["ensure", "package", "ensign", version, "--timeout", "2m", "--output", "json"];
        fleet.run(&[&args, target].concat())
    };
    let waves = ["--all", "--waves", "1,100%", "--hold", "5s"];
    let good = upgrade("1.1", &waves);
    assert_eq!((good.code, outcomes(&good.json())), (0, (vec!["changed"; 3], "")), "{}{}", good.stdout, good.stderr);
    for ((name, _), before) in NODES.iter().zip(&boots) {
        fleet.wait_for("another agent", || row(&fleet, name)["presence"] == "alive" && row(&fleet, name)["boot"] != *before);
    }
    for host in &hosts {
        assert_eq!(running_program(host), "/usr/bin/ensign");
        assert_eq!(host.sh("dpkg-query -W -f '${db:Status-Status} ${Version}' ensign"), "installed 1.1");
    }

    // The first node keeps its agent and says why. The others keep their package.
    let boots = NODES.map(|(name, _)| row(&fleet, name)["boot"].clone());
    let bad = upgrade("1.2", &waves);
    let document = bad.json();
    let (ended, why) = outcomes(&document);
    assert_eq!((bad.code, ended), (1, vec!["failed", "halted", "halted"]), "{}{}", bad.stdout, bad.stderr);
    assert!(why.contains("cannot upgrade to the program at /usr/bin/ensign") && why.contains("use `realm`"), "{why}");
    let position = document["nodes"].as_array().unwrap().iter().position(|row| row["outcome"] == "failed").unwrap();
    let failed = NODES[position].0;
    assert_eq!(NODES.map(|(name, _)| row(&fleet, name)["boot"].clone()), boots);
    assert!(fleet.run(&["status"]).stdout.contains("the old program goes on"));
    assert_eq!(running_program(&hosts[position]), "/usr/bin/ensign (deleted)");

    // The way back restarts the agent, as another file is there.
    let back = upgrade("1.1", &["--node", failed]);
    assert_eq!(back.code, 0, "{}{}", back.stdout, back.stderr);
    fleet.wait_for("the agent of before", || row(&fleet, failed)["boot"] != boots[position]);
    assert_eq!(running_program(&hosts[position]), "/usr/bin/ensign");
    assert!(!fleet.run(&["status"]).stdout.contains("the old program goes on"));
}
