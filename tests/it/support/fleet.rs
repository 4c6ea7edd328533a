//! A fleet in a directory: a real server with the permissions of the sample, keys, trust, real agents.
//! Everything is made with the program itself, as its users do.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ensign::fleet::setup::permissions::{Role, ServerUser, authorization};
use ensign::model::Secret;
use ensign::transport::nkey::UserKey;
use ensign::transport::{Bus, BusSettings, Credentials};
use ensign::trust::SigningKey;
use ensign::wire::Subjects;
use serde_json::Value;
use tempfile::TempDir;

use super::nats::{NatsServer, Options};
use super::port::Port;
use super::single_node::PATIENCE;

pub const FLEET: &str = "test";

/// The end of a command of the program.
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// Its output as one JSON document.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}\n{}", self.stdout, self.stderr))
    }
}

/// A fleet that ends with this value.
pub struct Fleet {
    agents: Vec<(String, Child)>,
    /// The `[nats]` lines of nodes that connect elsewhere than to `server`.
    pub connections: BTreeMap<String, String>,
    pub server: NatsServer,
    pub subjects: Subjects,
    /// The form of the credentials of nodes in `agent.toml`: `nkey`, or `creds` with the inbox of operator mode.
    login: &'static str,
    base: PathBuf,
    _dir: TempDir,
}

impl Fleet {
    /// A server, its streams, an operator `ops-alice` with all rights, and `ops-bob` with few; no agents yet.
    pub fn new(binary: &Path, nodes: &[(&str, &str)]) -> Self {
        let start = |users: &str| NatsServer::start_binary(binary, &Options { jetstream: true, config: users.to_owned() });
        let fleet = Self::on(nodes, None, start);
        assert_eq!(fleet.run(&["init"]).code, 0);
        fleet
    }

    /// The same on the server that `start` starts with these users, whose JetStream has this domain; no streams yet.
    pub fn on(nodes: &[(&str, &str)], domain: Option<&str>, start: impl FnOnce(&str) -> NatsServer) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let subjects = Subjects::new(FLEET);
        let path = |name: &str| dir.path().join(name);
        let nkey = |name: &str| ensign(&["key", "new", "--nats", path(name).to_str().unwrap()]).stdout.trim().to_owned();
        let mut users = vec![
            ServerUser { role: Role::Operator, nkey: nkey("operator.nk") },
            ServerUser { role: Role::Monitor, nkey: nkey("monitor.nk") },
        ];
        for (node, group) in nodes {
            let role = Role::Node(node.parse().unwrap(), vec![(*group).to_owned()]);
            users.push(ServerUser { role, nkey: nkey(&format!("{node}.nk")) });
        }
        let server = start(&authorization(&users, &subjects, domain));
        for key in ["root", "ops-alice", "ops-bob"] {
            let made = ensign(&["key", "new", "--no-passphrase", path(&format!("{key}.key")).to_str().unwrap()]);
            assert_eq!(made.code, 0, "{}", made.stderr);
        }
        let operator = format!(
            "fleet = \"{FLEET}\"\nkeys = [\"ops-alice.key\"]\n[nats]\nservers = [\"{}\"]\nnkey = \"operator.nk\"\n",
            server.url()
        );
        let domain = domain.map(|domain| format!("jetstream_domain = \"{domain}\"\n")).unwrap_or_default();
        std::fs::write(path("operator.toml"), operator + &domain).unwrap();
        let base = dir.path().to_owned();
        let fleet = Self {
            agents: Vec::new(),
            connections: BTreeMap::new(),
            server,
            subjects,
            login: "nkey = \"../@.nk\"",
            base,
            _dir: dir,
        };
        fleet.make_trust();
        fleet
    }

    /// A fleet as `ensign fleet create` makes it, on a server in operator mode with the unedited configuration.
    /// With its streams; no nodes yet.
    pub fn created(binary: &Path) -> Self {
        let (dir, port) = (tempfile::tempdir().unwrap(), Port::new());
        let base = dir.path().join("fleet");
        let url = format!("nats://127.0.0.1:{}", port.number());
        let made = ensign(&["fleet", "create", FLEET, "--server", &url, "--no-passphrase", "--dir", base.to_str().unwrap()]);
        assert_eq!(made.code, 0, "{}", made.stderr);
        let server = NatsServer::start_file(binary, &base.join("nats-server.conf"), tempfile::tempdir().unwrap(), port);
        let root = std::fs::read_to_string(base.join("root.key.pub")).unwrap();
        let trust = format!("[trust]\nroot = [\"{}\"]\nbundle = \"trust.dsse.json\"\n", root.trim());
        std::fs::write(base.join("trust.toml"), trust).unwrap();
        let fleet = Self {
            agents: Vec::new(),
            connections: BTreeMap::new(),
            server,
            subjects: Subjects::new(FLEET),
            login: "creds = \"../@.creds\"\ninbox_prefix = \"_INBOX_NODE.@\"",
            base,
            _dir: dir,
        };
        let init = fleet.run(&["init"]);
        assert_eq!(init.code, 0, "{}", init.stderr);
        fleet
    }

    /// The bundle of `trust init`, edited and signed again: `ops-bob` may manage files of one name pattern, on web1.
    fn make_trust(&self) {
        let [root, alice, bob, out] =
            ["root.key", "ops-alice.key.pub", "ops-bob.key.pub", ""].map(|name| self.path(name).display().to_string());
        let (alice, bob) = (format!("ops-alice={alice}"), format!("ops-bob={bob}"));
        let made = ensign(&[
            "trust",
            "init",
            "--fleet",
            FLEET,
            "--root",
            &root,
            "--operator",
            &alice,
            "--operator",
            &bob,
            "--out",
            &out,
        ]);
        assert_eq!(made.code, 0, "{}", made.stderr);
        assert!(made.stdout.starts_with("[trust]\nroot = [\"ed25519:"), "{}", made.stdout);
        std::fs::write(self.path("trust.toml"), &made.stdout).unwrap();
        let plain = self.path("trust.json");
        let mut bundle: Value = serde_json::from_slice(&std::fs::read(&plain).unwrap()).unwrap();
        bundle["rules"] = serde_json::json!([
            {"keys": ["ops-alice"]},
            {"keys": ["ops-bob"], "actions": ["ensure"], "types": ["file"], "names": [format!("{}/web1/site/bob*", self.base.display())], "nodes": ["web1"]},
        ]);
        std::fs::write(&plain, bundle.to_string()).unwrap();
        let signed = ensign(&["trust", "sign", plain.to_str().unwrap(), "--root", &root]);
        assert_eq!(signed.code, 0, "{}", signed.stderr);
    }

    /// A path below the directory of the fleet.
    pub fn path(&self, name: &str) -> PathBuf {
        self.base.join(name)
    }

    /// Starts the agent of a node, and waits for its first state.
    ///
    /// The operator's side takes a node for silent after twice the heartbeat. On a busy machine the heartbeat must be long. A
    /// stopped agent ([`Fleet::stop`]) is offline at once.
    pub fn start(&mut self, node: &str, group: &str) {
        self.start_with(node, group, "", "");
    }

    /// The same, with more settings and more limits.
    pub fn start_with(&mut self, node: &str, group: &str, settings: &str, limits: &str) {
        let home = self.path(node);
        std::fs::create_dir_all(home.join("facts")).unwrap();
        std::fs::create_dir_all(home.join("site")).unwrap();
        let facts = serde_json::json!({"site": home.join("site"), "role": group});
        std::fs::write(home.join("facts/facts.json"), facts.to_string()).unwrap();
        let trust = std::fs::read_to_string(self.path("trust.toml")).unwrap().replace("trust.dsse.json", "../trust.dsse.json");
        let config = format!(
            "fleet = \"{FLEET}\"\nnode = \"{node}\"\ngroups = [\"{group}\"]\nstate_dir = \"state\"\nfacts_dirs = [\"facts\"]\nheartbeat = \"5s\"\n{settings}\
             [http]\nlisten = \"off\"\n[nats]\n{}\n{}\n{trust}\n[limits]\npaths = [\"{}\"]\n{limits}\n",
            self.connections.get(node).cloned().unwrap_or_else(|| format!("servers = [\"{}\"]", self.server.url())),
            self.login.replace("@", node),
            home.display()
        );
        std::fs::write(home.join("agent.toml"), config).unwrap();
        let before = self.node_row(node).map(|row| row["boot"].clone());
        self.spawn(node);
        self.wait_for(&format!("{node} is online"), || {
            self.node_row(node).is_some_and(|row| row["presence"] == "alive" && Some(&row["boot"]) != before.as_ref())
        });
    }

    /// The row of a node in the operator's list of nodes.
    pub fn node_row(&self, node: &str) -> Option<Value> {
        let nodes = self.run(&["nodes", "--output", "json"]).json();
        nodes.as_array().unwrap().iter().find(|row| row["node"] == node).cloned()
    }

    /// Waits until a node is offline for the operator.
    pub fn wait_until_offline(&self, node: &str) {
        self.wait_for(&format!("{node} is known to be away"), || {
            self.node_row(node).is_some_and(|row| row["presence"] != "alive")
        });
    }

    /// Starts the agent of a node that was started before. Does not wait.
    pub fn spawn(&mut self, node: &str) {
        let home = self.path(node);
        let log = std::fs::File::options().create(true).append(true).open(home.join("agent.log")).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_ensign"))
            .args(["agent", "run", "--config"])
            .arg(home.join("agent.toml"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.agents.retain(|(name, _)| name != node);
        self.agents.push((node.to_owned(), child));
    }

    /// Kills the agent of a node as a power cut would.
    pub fn kill(&mut self, node: &str) {
        for (_, child) in self.agents.iter_mut().filter(|(name, _)| name == node) {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Stops the agent of a node in order: its last state is offline, so no operator waits for it.
    pub fn stop(&mut self, node: &str) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.pid(node)).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        for (_, child) in self.agents.iter_mut().filter(|(name, _)| name == node) {
            child.wait().unwrap();
        }
        self.wait_until_offline(node);
    }

    /// Waits until the server has stored all messages of a node so far.
    pub fn wait_until_published(&self, node: &str) {
        super::single_node::wait_until_published(&self.path(node).join("agent.toml"));
    }

    /// The process of the agent of a node.
    pub fn pid(&self, node: &str) -> u32 {
        self.agents.iter().find(|(name, _)| name == node).unwrap().1.id()
    }

    pub fn wait_for(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let until = Instant::now() + PATIENCE;
        while !holds() {
            assert!(Instant::now() < until, "not within {PATIENCE:?}: {what}\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn logs(&self) -> String {
        let log = |(node, _): &(String, Child)| std::fs::read_to_string(self.path(node).join("agent.log")).unwrap_or_default();
        self.agents.iter().map(log).collect()
    }

    /// Runs `ensign fleet` as the operator.
    pub fn run(&self, args: &[&str]) -> Ran {
        let config = self.path("operator.toml");
        let state = self.path("home");
        ensign_in(&state, &[&["fleet", "--operator", config.to_str().unwrap()], args].concat())
    }

    /// A connection as the user of this name.
    pub async fn connect(&self, user: &str, inbox: Option<&str>) -> Bus {
        let seed = Secret::new(std::fs::read_to_string(self.path(&format!("{user}.nk"))).unwrap());
        assert!(UserKey::from_seed(&seed).is_ok());
        let settings = BusSettings {
            servers: vec![self.server.url()],
            credentials: Some(Credentials::NkeySeed(Secret::new(seed.reveal().trim()))),
            inbox_prefix: inbox.map(str::to_owned),
            ..BusSettings::default()
        };
        Bus::connect(&settings).await.unwrap()
    }

    /// Returns the number of results of a job in the stream.
    pub fn stored_results(&self, id: &str) -> usize {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let bus = self.connect("operator", None).await;
            let reports = self.subjects.job_reports(id.parse().unwrap()).to_string();
            let messages = bus.last_per_subject(&self.subjects.stream("JOBS"), &reports).await.unwrap();
            messages.iter().filter(|message| message.subject.ends_with(".done")).count()
        })
    }

    /// The private key of this name.
    pub fn key(&self, name: &str) -> SigningKey {
        SigningKey::from_openssh(&std::fs::read_to_string(self.path(&format!("{name}.key"))).unwrap(), None).unwrap()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.logs());
        }
        for (_, child) in &mut self.agents {
            let _ended = child.kill().and_then(|()| child.wait());
        }
    }
}

/// The user and group of the tests, by number.
pub fn owner() -> [String; 2] {
    let own = std::fs::metadata("/proc/self").unwrap();
    [own.uid().to_string(), own.gid().to_string()]
}

/// Runs the program.
pub fn ensign(args: &[&str]) -> Ran {
    ran(Command::new(env!("CARGO_BIN_EXE_ensign")).args(args))
}

/// Runs the program for a user with this state directory.
pub fn ensign_in(state: &Path, args: &[&str]) -> Ran {
    ran(Command::new(env!("CARGO_BIN_EXE_ensign")).args(args).env("XDG_STATE_HOME", state))
}

fn ran(program: &mut Command) -> Ran {
    let output = program.stdin(Stdio::null()).env("NO_COLOR", "1").output().unwrap();
    Ran {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}
