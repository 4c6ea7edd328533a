//! A node in a directory of its own: configuration, state, log, and the files of its resources. For tests that have several
//! nodes at once, or one after the other, on one server.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ensign::model::NodeId;
use ensign::store::{ChainHead, OutboxMessage as Waiting};
use ensign::transport::{Bus, Inbox, Message, StartAt};
use ensign::trust::SigningKey;
use ensign::wire::command::{Action, Command, Target};
use ensign::wire::receipt::Receipt;
use ensign::wire::subject::ReportStage;
use ensign::wire::{CommandResult, NodeState, Subjects};
use serde::de::DeserializeOwned;
use tempfile::TempDir;
use uuid::Uuid;

use super::fleet::{Ran, ensign};
use super::single_node::{Agent, FLEET, PATIENCE, SeenBoots, SingleNodeFleet};

/// Further settings of a node.
#[derive(Debug, Default, Clone)]
pub struct NodeSettings {
    /// The state directory; `state` when empty.
    pub state: String,
    /// Lines above the first table.
    pub head: String,
    /// The interval of heartbeats; every second when empty. An operator takes a node for silent after twice this time.
    pub heartbeat: String,
    /// Lines in `[nats]`.
    pub nats: String,
    /// Lines in `[limits]`.
    pub limits: String,
}

/// A node in a directory that goes away with this value.
pub struct NodeDir {
    dir: TempDir,
    pub node: NodeId,
    state: PathBuf,
    subjects: Subjects,
    boots: SeenBoots,
}

impl NodeDir {
    /// A node of this fleet; `server` is the URL that it connects to.
    pub fn new(fleet: &SingleNodeFleet, node: &str, server: &str, wishes: &NodeSettings) -> Self {
        let dir = TempDir::new().unwrap();
        let state = if wishes.state.is_empty() { "state" } else { &wishes.state };
        let NodeSettings { head, nats, limits, .. } = wishes;
        let heartbeat = if wishes.heartbeat.is_empty() { "1s" } else { &wishes.heartbeat };
        let text = format!(
            "fleet = \"{FLEET}\"\nnode = \"{node}\"\ngroups = [\"web\"]\nstate_dir = \"{state}\"\nfacts_dirs = []\nheartbeat = \"{heartbeat}\"\n{head}\n\
             [http]\nlisten = \"off\"\n[nats]\nservers = [\"{server}\"]\n{nats}\n[trust]\nroot = [\"{}\"]\nbundle = \"{}\"\n[limits]\nexec = true\n{limits}\n",
            SigningKey::from_seed(&[1; 32]).public(),
            fleet.path("trust.json").display(),
        );
        std::fs::write(dir.path().join("agent.toml"), text).unwrap();
        std::fs::create_dir(dir.path().join("site")).unwrap();
        let state = dir.path().join(state);
        Self { state, dir, node: node.parse().unwrap(), subjects: Subjects::new(FLEET), boots: SeenBoots::default() }
    }

    /// A path in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The directory that its resources write to.
    pub fn site(&self) -> PathBuf {
        self.path("site")
    }

    pub fn state_dir(&self) -> &Path {
        &self.state
    }

    /// The agent before its start. Its log is appended to a file.
    pub fn process(&self) -> Process {
        self.process_in(&[])
    }

    /// The same, started by another program, as `ip netns exec NAME`.
    pub fn process_in(&self, starter: &[&str]) -> Process {
        let log = File::options().create(true).append(true).open(self.path("agent.log")).unwrap();
        let words: Vec<OsString> = starter
            .iter()
            .map(OsString::from)
            .chain([env!("CARGO_BIN_EXE_ensign"), "agent", "run", "--config"].map(OsString::from))
            .chain([self.path("agent.toml").into_os_string()])
            .collect();
        let mut process = Process::new(&words[0]);
        process.args(&words[1..]);
        process.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0);
        process
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("agent.log")).unwrap_or_default()
    }

    /// Starts this process, and waits until the agent listens.
    pub async fn start(&self, bus: &Bus, process: &mut Process) -> Agent {
        let mut states = self.states(bus).await;
        let mut agent = Agent::start(process);
        let alive = async { while !self.boots.is_new(&states.next().await.unwrap()) {} };
        let alive = tokio::time::timeout(PATIENCE, alive).await;
        assert!(alive.is_ok(), "{} did not publish its state ({:?}):\n{}", self.node, agent.0.try_wait(), self.log());
        agent
    }

    /// Subscribes to the states of the node from now on.
    pub async fn states(&self, bus: &Bus) -> Inbox {
        let states = bus.subscribe(self.subjects.state(&self.node).as_str()).await.unwrap();
        bus.flush_roundtrip().await.unwrap();
        states
    }

    /// Waits for a state with this property.
    pub async fn until(&self, bus: &Bus, what: &str, holds: impl Fn(&NodeState) -> bool) -> NodeState {
        let mut states = self.states(bus).await;
        let mut last = None;
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let Ok(Some(message)) = tokio::time::timeout(Duration::from_secs(1), states.next()).await else { continue };
            let Some(state) = read::<NodeState>(&message) else { continue };
            if holds(&state) {
                return state;
            }
            last = Some(state);
        }
        panic!("waited for {what} on {}; last state {last:?}\n{}", self.node, self.log());
    }

    /// A command for this node alone.
    pub fn command(&self, fleet: &SingleNodeFleet, action: Action) -> Command {
        Command { to: Target::nodes(vec![self.node.clone()]), ..fleet.command(action) }
    }

    /// An `exec` that appends a line to a file of the site each time that it runs.
    pub fn append_command(&self, fleet: &SingleNodeFleet, name: &str) -> Command {
        let script = format!("echo line >> {}", self.site().join(name).display());
        let properties = serde_json::json!({"name": name, "command": script, "provider": "shell"});
        self.command(fleet, super::single_node::ensure_action("exec", &properties))
    }

    pub fn lines(&self, name: &str) -> usize {
        std::fs::read_to_string(self.site().join(name)).unwrap_or_default().lines().count()
    }

    /// Sends a command, and returns the first answer, or none within `patience`.
    pub async fn first_answer(
        &self,
        fleet: &SingleNodeFleet,
        command: &Command,
        envelope: &[u8],
        patience: Duration,
    ) -> Option<Message> {
        let (reply, mut inbox) = fleet.bus.request_inbox().await.unwrap();
        fleet.publish(command, envelope.to_vec(), &format!("{reply}.1")).await;
        loop {
            let message = tokio::time::timeout(patience, inbox.next()).await.ok()??;
            if !message.no_responders {
                return Some(message);
            }
        }
    }

    /// Waits for the result of a command in the stream.
    pub async fn result(&self, bus: &Bus, id: Uuid) -> CommandResult {
        let subject = self.subjects.job(id, &self.node, ReportStage::Done).to_string();
        let mut feed = bus.follow(&self.subjects.stream("JOBS"), &subject, StartAt::Beginning).await.unwrap();
        match tokio::time::timeout(PATIENCE, feed.next()).await {
            Ok(message) => read(&message.unwrap().unwrap()).unwrap(),
            Err(_) => panic!("no result of {id} on {}:\n{}", self.node, self.log()),
        }
    }

    /// Returns every result of a command in the stream now.
    pub async fn results(&self, bus: &Bus, id: Uuid) -> Vec<CommandResult> {
        let subject = self.subjects.job(id, &self.node, ReportStage::Done).to_string();
        stored(bus, &self.subjects.stream("JOBS"), &subject).await.iter().map(|message| read(message).unwrap()).collect()
    }

    /// The one result of a command.
    pub async fn only_result(&self, bus: &Bus, id: Uuid) -> CommandResult {
        self.result(bus, id).await;
        let mut results = self.results(bus, id).await;
        assert_eq!(results.len(), 1, "{results:?}");
        results.remove(0)
    }

    /// Waits until the server has stored all messages of the node so far.
    pub fn wait_until_published(&self) {
        super::single_node::wait_until_published(&self.path("agent.toml"));
    }

    /// Returns all events of the node so far.
    pub async fn events(&self, bus: &Bus) -> Vec<Message> {
        stored(bus, &self.subjects.stream("EVENTS"), self.subjects.events(Some(&self.node)).as_str()).await
    }

    /// Returns temporary files below the node's directory, which must never remain.
    pub fn leftovers(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        below(self.dir.path(), &mut found);
        if !self.state.starts_with(self.dir.path()) {
            below(&self.state, &mut found);
        }
        let is_left = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            name.starts_with(".new-")
                || name.ends_with(".new")
                || name.contains(".ensign-")
                || path.parent().is_some_and(|parent| parent.ends_with("work"))
        };
        found.retain(is_left);
        found
    }
}

impl Drop for NodeDir {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the log of {}:\n{}", self.node, self.log());
        }
    }
}

fn below(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten() {
        let entry = entry.unwrap();
        found.push(entry.path());
        if entry.file_type().unwrap().is_dir() {
            below(&entry.path(), found);
        }
    }
}

/// Runs `ensign fleet` as an operator of this fleet, whose known nodes are in a directory of it.
pub fn as_operator(fleet: &SingleNodeFleet, args: &[&str]) -> Ran {
    let (config, key) = (fleet.path("operator.toml"), fleet.path("ops"));
    if !config.exists() {
        std::fs::write(&key, fleet.operator.to_openssh("ops", None).unwrap().as_bytes()).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let text = format!("fleet = \"{FLEET}\"\nkeys = [\"ops\"]\n[nats]\nservers = [\"{}\"]\n", fleet.server.url());
        std::fs::write(&config, text).unwrap();
    }
    ensign(&[&["fleet", "--operator", config.to_str().unwrap()], args].concat())
}

/// The receipt of a message in an outbox from before nodes signed their messages.
pub fn no_receipt(_: &Waiting, _: &ChainHead) -> Receipt {
    Receipt { statement: Vec::new(), signature: Vec::new() }
}

/// Returns the messages of a stream on these subjects.
pub async fn stored(bus: &Bus, stream: &str, subject: &str) -> Vec<Message> {
    let mut feed = bus.follow(stream, subject, StartAt::Beginning).await.unwrap();
    let mut messages = Vec::new();
    for _ in 0..feed.backlog() {
        messages.push(tokio::time::timeout(PATIENCE, feed.next()).await.unwrap().unwrap().unwrap());
    }
    messages
}

/// Reads a message of this kind; none for another kind.
pub fn read<T: DeserializeOwned>(message: &Message) -> Option<T> {
    serde_json::from_slice(&message.payload).ok()
}

/// Waits for the end of a process without blocking other tasks.
pub async fn wait_for_exit(agent: &mut Agent) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = agent.0.try_wait().unwrap() {
            return status;
        }
        assert!(start.elapsed() < PATIENCE, "the agent does not end");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Sends the stop signal to an agent, and waits for its end.
pub async fn stop(agent: &mut Agent) -> ExitStatus {
    if agent.0.try_wait().unwrap().is_none() {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(agent.0.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    }
    wait_for_exit(agent).await
}
