//! A simulated fleet: a real server, an operator, and many agents in one process (`ensign-sim`). All end with this value.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ensign::transport::{Bus, BusSettings};
use ensign::trust::SigningKey;
use ensign::wire::Subjects;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use super::fleet::{Ran, ensign, ensign_in};
use super::nats::{NatsServer, Options};

pub const FLEET: &str = "simulated";
/// The longest wait for a condition; the machine may be busy with other things.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running simulator.
pub struct Sim {
    child: Child,
    /// The last line of figures of the simulator.
    latest: Arc<Mutex<Value>>,
    errors: PathBuf,
    /// The state of the nodes, unless the test names a directory. Removed with this value, also after a kill.
    _state: Option<TempDir>,
}

impl Sim {
    /// Starts nodes of the fleet [`FLEET`] against this server, and waits until all are connected. `trust` is the file with the
    /// output of `ensign trust init`. `more` are further flags, as `["--fail-rate", "3%"]`.
    pub fn start(server: &str, trust: &Path, nodes: u32, more: &[&str]) -> Self {
        let errors = trust.with_file_name("sim.log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_ensign-sim"));
        command.args(["--fleet", FLEET, "--server", server, "--nodes", &nodes.to_string(), "--trust"]).arg(trust).args(more);
        let state = (!more.contains(&"--state-dir")).then(|| {
            // The speed of this machine's disk is not under test.
            let memory = Path::new("/dev/shm");
            if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() }.unwrap()
        });
        if let Some(state) = &state {
            command.arg("--state-dir").arg(state.path());
        }
        let log = std::fs::File::options().create(true).append(true).open(&errors).unwrap();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let latest = Arc::new(Mutex::new(Value::Null));
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let heard = Arc::clone(&latest);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                *heard.lock().unwrap() = serde_json::from_str(&line).unwrap();
            }
        });
        let sim = Self { child, latest, errors, _state: state };
        sim.wait_for("all nodes are connected", |figures| figures["all_connected_at"].is_number());
        sim
    }

    /// The latest figures: `connected`, `accepted`, `played`, `ended`, `waiting`, ... The simulator prints them every second.
    pub fn figures(&self) -> Value {
        self.latest.lock().unwrap().clone()
    }

    /// Waits until the figures have this property.
    pub fn wait_for(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + PATIENCE;
        loop {
            let figures = self.figures();
            if holds(&figures) {
                return figures;
            }
            let log = || std::fs::read_to_string(&self.errors).unwrap_or_default();
            assert!(Instant::now() < until, "not within {PATIENCE:?}: {what}\n{figures}\n{}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Stops the simulator in order.
    pub fn stop(mut self) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), Signal::SIGTERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }

    /// Kills the simulator as a power cut would.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        let _ended = self.child.kill().and_then(|()| self.child.wait());
    }
}

/// A server without accounts, its streams, an operator with all rights; no nodes yet.
pub struct SimulatedFleet {
    pub server: NatsServer,
    pub subjects: Subjects,
    dir: TempDir,
}

impl SimulatedFleet {
    pub fn new(binary: &Path) -> Self {
        let server = NatsServer::start_binary(binary, &Options { jetstream: true, ..Options::default() });
        let fleet = Self { server, subjects: Subjects::new(FLEET), dir: tempfile::tempdir().unwrap() };
        let path = |name: &str| fleet.path(name).to_str().unwrap().to_owned();
        for key in ["root.key", "ops.key"] {
            assert_eq!(ensign(&["key", "new", "--no-passphrase", &path(key)]).code, 0);
        }
        let (root, operator, out) = (path("root.key"), format!("ops={}", path("ops.key.pub")), path(""));
        let made = ensign(&["trust", "init", "--fleet", FLEET, "--root", &root, "--operator", &operator, "--out", &out]);
        assert_eq!(made.code, 0, "{}", made.stderr);
        std::fs::write(fleet.path("trust.toml"), &made.stdout).unwrap();
        let operator = format!("fleet = \"{FLEET}\"\nkeys = [\"ops.key\"]\n[nats]\nservers = [\"{}\"]\n", fleet.server.url());
        std::fs::write(fleet.path("operator.toml"), operator).unwrap();
        let made = fleet.run(&["init"]);
        assert_eq!(made.code, 0, "{}", made.stderr);
        fleet
    }

    /// Starts nodes, and waits until the fleet knows all of them.
    pub fn start(&self, nodes: u32, more: &[&str]) -> Sim {
        let sim = Sim::start(&self.server.url(), &self.path("trust.toml"), nodes, more);
        let until = Instant::now() + PATIENCE;
        loop {
            if nodes as usize > ensign::fleet::targeting::node_identity::MAX_NEW_NODES {
                self.run(&["node", "trust", "--all-new"]);
            }
            let status = self.run(&["status", "--output", "json"]).json();
            if status["nodes"] == nodes {
                return sim;
            }
            assert!(Instant::now() < until, "{status}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// A path below the directory of the fleet.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs `ensign fleet` as the operator.
    pub fn run(&self, args: &[&str]) -> Ran {
        let config = self.path("operator.toml");
        ensign_in(&self.path("home"), &[&["fleet", "--operator", config.to_str().unwrap()], args].concat())
    }

    /// `ensign fleet` as the operator, before its start, for tests that kill it.
    pub fn process(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ensign"));
        command.arg("fleet").arg("--operator").arg(self.path("operator.toml")).args(args);
        command.stdin(Stdio::null()).env("NO_COLOR", "1").env("XDG_STATE_HOME", self.path("home"));
        command
    }

    /// A connection for the test itself.
    pub async fn connect(&self) -> Bus {
        let settings =
            BusSettings { servers: vec![self.server.url()], backlog: BusSettings::GATHER_BACKLOG, ..BusSettings::default() };
        Bus::connect(&settings).await.unwrap()
    }

    /// The key of the operator.
    pub fn key(&self) -> SigningKey {
        SigningKey::from_openssh(&std::fs::read_to_string(self.path("ops.key")).unwrap(), None).unwrap()
    }
}
