//! A hand-made fleet of one node: the server, the operator, and agents as processes whose logs go to a file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ensign::model::{HumanDuration, NodeId};
use ensign::transport::{Bus, BusSettings, Message, StartAt, StreamReader, StreamSpec};
use ensign::trust::{SigningKey, sign_envelope};
use ensign::wire::bundle::{OperatorKey, Roots, Rule};
use ensign::wire::command::{Action, Apply, Assign, Channel, Command, CommandOptions, Ensure, Target};
use ensign::wire::{COMMAND_TYPE, CommandResult, NodeState, Subjects, TRUST_TYPE, TrustBundle};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tempfile::TempDir;
use uuid::Uuid;

use super::nats::{NatsServer, Options as ServerOptions, binaries};

pub const FLEET: &str = "test";
/// The longest wait for a condition: more than ten times the time on an idle machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
const LOG: &str = "agent.log";

/// Runs a test on every server, on all of them at once.
pub fn on_every_server(test: impl AsyncFn(&Path) + Sync) {
    let run = |binary: &Path| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test(binary));
    };
    std::thread::scope(|scope| {
        for binary in binaries() {
            scope.spawn(move || run(&binary));
        }
    });
}

/// A fleet of one node: the server, the operator, and the directory of the agent.
pub struct SingleNodeFleet {
    pub server: NatsServer,
    pub bus: Bus,
    pub dir: TempDir,
    pub operator: SigningKey,
    pub subjects: Subjects,
    boots: SeenBoots,
}

/// The starts of agents that a test has seen. A state in flight when its agent is killed is no sign of the next start.
#[derive(Default)]
pub struct SeenBoots(Mutex<BTreeSet<Uuid>>);

impl SeenBoots {
    /// True for the first state of a start.
    pub fn is_new(&self, message: &Message) -> bool {
        let state = super::node_dir::read::<NodeState>(message);
        state.is_some_and(|state| state.alive && self.0.lock().unwrap().insert(state.boot))
    }
}

pub fn node() -> NodeId {
    "web1".parse().unwrap()
}

impl SingleNodeFleet {
    /// A server, its streams, and the configuration of a node with these `[limits]`; no agent yet.
    pub async fn new(binary: &Path, limits: &str) -> Self {
        let server = NatsServer::start_binary(binary, &ServerOptions { jetstream: true, ..ServerOptions::default() });
        let settings = BusSettings { servers: vec![server.url()], retry_initial: true, ..BusSettings::default() };
        let bus = Bus::connect(&settings).await.unwrap();
        bus.watch().wait_for(|link| link.connected).await.unwrap();
        let subjects = Subjects::new(FLEET);
        for (name, subject) in [("JOBS", "job"), ("EVENTS", "event"), ("STATE", "state"), ("ROLLOUTS", "rollout")] {
            let spec = StreamSpec {
                name: subjects.stream(name),
                subjects: vec![format!("ensign.v1.{FLEET}.{subject}.>")],
                max_age: None,
                max_bytes: None,
                max_per_subject: ["STATE", "ROLLOUTS"].contains(&name).then_some(1),
                allow_direct: true,
                dedupe_window: Duration::from_secs(120),
                replicas: 1,
                ..StreamSpec::default()
            };
            bus.ensure_stream(&spec).await.unwrap();
        }
        let as_made = ensign::fleet::setup::init::stream_specs(&subjects, ensign::fleet::setup::init::Retention::default());
        for name in ["TRUST", "DESIRED"] {
            let spec = as_made.iter().find(|spec| spec.name == subjects.stream(name)).unwrap();
            bus.ensure_stream(spec).await.unwrap();
        }
        let (dir, operator) = (TempDir::new().unwrap(), SigningKey::from_seed(&[2; 32]));
        let fleet = Self { server, bus, dir, operator, subjects, boots: SeenBoots::default() };
        fleet.write_trust();
        fleet.write_config(limits);
        fleet
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write_trust(&self) {
        std::fs::write(self.path("trust.json"), self.trust(1)).unwrap();
    }

    /// A version of the trust bundle, signed. All versions have the same content.
    pub fn trust(&self, version: u64) -> Vec<u8> {
        self.trust_with(version, |_| {})
    }

    /// A version of the trust bundle, changed and signed.
    pub fn trust_with(&self, version: u64, change: impl FnOnce(&mut TrustBundle)) -> Vec<u8> {
        let root = SigningKey::from_seed(&[1; 32]);
        let mut bundle = TrustBundle {
            fleet: FLEET.into(),
            version,
            expires: Timestamp::now() + SignedDuration::from_hours(24 * 365),
            root: Roots { threshold: 1, keys: vec![root.public().to_string()] },
            keys: vec![OperatorKey {
                id: "ops".into(),
                key: self.operator.public().to_string(),
                not_before: None,
                not_after: None,
            }],
            revoked: vec![],
            rules: vec![Rule { keys: vec!["ops".into()], quorum: 1, ..Rule::default() }],
        };
        change(&mut bundle);
        sign_envelope(TRUST_TYPE, serde_json::to_vec(&bundle).unwrap(), &[("root", &root)]).encode()
    }

    /// Stores a version of the trust bundle in its stream; the server sends it to the nodes.
    pub async fn store_trust(&self, version: u64) {
        self.bus.publish_stored(self.subjects.trust(version).as_str(), &[], self.trust(version)).await.unwrap();
    }

    /// A command of the channel `base`, for all nodes.
    pub fn assignment(&self, serial: u64, action: Action) -> Command {
        let channel = Some(Channel { name: "base".into(), epoch: 1, serial });
        Command { channel, to: Target::all(), ..self.command(action) }
    }

    /// Stores a command of a channel in its stream; the server sends it to the nodes.
    pub async fn store_assignment(&self, command: &Command) {
        self.bus.publish_stored(self.subjects.desired("base").as_str(), &[], self.sign(command)).await.unwrap();
    }

    pub fn write_config(&self, limits: &str) {
        let text = format!(
            "fleet = \"{FLEET}\"\nnode = \"web1\"\ngroups = [\"web\"]\nstate_dir = \"state\"\nfacts_dirs = []\nqueue = 2\nheartbeat = \"1s\"\n\
             [http]\nlisten = \"off\"\n[nats]\nservers = [\"{}\"]\n[trust]\nroot = [\"{}\"]\nbundle = \"trust.json\"\n[limits]\nexec = true\n{limits}\n",
            self.server.url(),
            SigningKey::from_seed(&[1; 32]).public()
        );
        std::fs::write(self.path("agent.toml"), text).unwrap();
    }

    /// Starts the agent, and waits until it listens.
    pub async fn start_agent(&self) -> Agent {
        self.start_agent_process(&mut self.process()).await
    }

    /// The agent before its start. Its log is appended to a file.
    pub fn process(&self) -> Process {
        let log = File::options().create(true).append(true).open(self.path(LOG)).unwrap();
        let mut process = Process::new(env!("CARGO_BIN_EXE_ensign"));
        process.args(["agent", "run", "--config"]).arg(self.path("agent.toml"));
        process.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0);
        process
    }

    /// The log of all agents so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path(LOG)).unwrap_or_default()
    }

    /// Starts this process, and waits until the agent listens.
    pub async fn start_agent_process(&self, process: &mut Process) -> Agent {
        let mut states = self.bus.subscribe(self.subjects.state(&node()).as_str()).await.unwrap();
        self.bus.flush_roundtrip().await.unwrap();
        let agent = Agent::start(process);
        let first = async { while !self.boots.is_new(&states.next().await.unwrap()) {} };
        tokio::time::timeout(PATIENCE, first).await.expect("the agent publishes its state");
        agent
    }

    pub fn command(&self, action: Action) -> Command {
        let now = Timestamp::now();
        Command {
            id: Uuid::now_v7(),
            fleet: FLEET.into(),
            to: Target::nodes(vec![node()]),
            issued: now,
            not_before: None,
            expires: now + SignedDuration::from_mins(5),
            channel: None,
            action,
            options: CommandOptions { timeout: HumanDuration::seconds(60), ..CommandOptions::default() },
            reason: None,
        }
    }

    pub fn file_command(&self, name: &str, content: &str) -> Command {
        self.command(ensure_action("file", &json!({"name": self.path(name), "ensure": "present", "content": content, "owner": "root", "group": "root", "mode": "0644"})))
    }

    /// A command that appends to a file each time that it runs, after `seconds`.
    pub fn slow_command(&self, name: &str, seconds: u32) -> Command {
        let script = format!("echo begun >> {0}; sleep {seconds}; echo ended >> {0}", self.path(name).display());
        self.command(ensure_action("exec", &json!({"name": name, "command": script, "provider": "shell"})))
    }

    /// A command that appends to a file at its beginning, and at its end: not before [`Fleet::open`].
    pub fn gated_command(&self, name: &str) -> Command {
        let script = format!(
            "echo begun >> {0}; while [ ! -e {0}.open ]; do sleep 0.05; done; echo ended >> {0}",
            self.path(name).display()
        );
        self.command(ensure_action("exec", &json!({"name": name, "command": script, "provider": "shell"})))
    }

    /// Lets the [gated](Fleet::gated) command end.
    pub fn open_gate(&self, name: &str) {
        std::fs::write(self.path(&format!("{name}.open")), "").unwrap();
    }

    /// Waits until the server has stored all messages of the agent so far.
    pub fn wait_until_published(&self) {
        wait_until_published(&self.path("agent.toml"));
    }

    pub fn sign(&self, command: &Command) -> Vec<u8> {
        sign_envelope(COMMAND_TYPE, serde_json::to_vec(command).unwrap(), &[("ops", &self.operator)]).encode()
    }

    pub async fn publish(&self, command: &Command, envelope: Vec<u8>, reply: &str) {
        let subjects = self.subjects.command(command);
        self.bus.publish_with_reply(subjects[0].as_str(), reply, &[], envelope).await.unwrap();
    }

    pub async fn send(&self, command: &Command) {
        self.publish(command, self.sign(command), "_INBOX.nobody").await;
    }

    /// Sends a command, and returns the first answers, at most `count`.
    pub async fn answers(&self, command: &Command, envelope: Vec<u8>, count: usize) -> Vec<Value> {
        let (reply, mut inbox) = self.bus.request_inbox().await.unwrap();
        self.publish(command, envelope, &format!("{reply}.1")).await;
        let mut answers = Vec::new();
        while answers.len() < count {
            let message = tokio::time::timeout(PATIENCE, inbox.next()).await.expect("an answer").unwrap();
            answers.push(serde_json::from_slice(&message.payload).unwrap());
        }
        answers
    }

    pub async fn events(&self) -> StreamReader {
        self.bus.follow(&self.subjects.stream("EVENTS"), self.subjects.events(None).as_str(), StartAt::Beginning).await.unwrap()
    }

    /// Waits for a result of a job; returns all results of the agent so far.
    pub async fn results(&self, id: Uuid) -> Vec<CommandResult> {
        let filter = format!("ensign.v1.{FLEET}.job.{id}.web1.done");
        let stream = self.subjects.stream("JOBS");
        let mut feed = self.bus.follow(&stream, &filter, StartAt::Beginning).await.unwrap();
        let first = tokio::time::timeout(PATIENCE, feed.next()).await;
        first.unwrap_or_else(|_| panic!("no result of {id}")).unwrap().unwrap();
        self.wait_until_published();
        let all = super::node_dir::stored(&self.bus, &stream, &filter).await;
        all.iter().map(|message| serde_json::from_slice(&message.payload).unwrap()).collect()
    }

    pub async fn only_result(&self, id: Uuid) -> CommandResult {
        let results = self.results(id).await;
        assert_eq!(results.len(), 1, "{results:?}");
        results.into_iter().next().unwrap()
    }

    pub fn lines(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.path(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Changes the configuration. A running agent does not notice this by itself.
    pub fn edit_config(&self, from: &str, to: &str) {
        let text = std::fs::read_to_string(self.path("agent.toml")).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(self.path("agent.toml"), text.replacen(from, to, 1)).unwrap();
    }

    /// Waits for a wanted state of the node, and returns the state.
    pub async fn state(&self, what: &str, wanted: impl Fn(&NodeState) -> bool) -> NodeState {
        let stream = self.subjects.stream("STATE");
        let start = Instant::now();
        loop {
            let last = self.bus.last_per_subject(&stream, self.subjects.states().as_str()).await.unwrap();
            let state = last.first().map(|message| serde_json::from_slice::<NodeState>(&message.payload).unwrap());
            match state {
                Some(state) if wanted(&state) => return state,
                state => assert!(start.elapsed() < PATIENCE, "waited for {what}: {state:?}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub async fn until(&self, what: &str, condition: impl Fn() -> bool) {
        self.until_none(what, || (!condition()).then_some("it does not hold")).await;
    }

    /// Waits until nothing is missing.
    pub async fn until_none<T: std::fmt::Display>(&self, what: &str, missing: impl Fn() -> Option<T>) {
        let start = Instant::now();
        while let Some(missing) = missing() {
            assert!(start.elapsed() < PATIENCE, "waited for {what}: {missing}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for SingleNodeFleet {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the log of the agent, with {}:\n{}", self.server.binary().display(), self.log());
        }
    }
}

/// Waits until the server has all messages of the agent with this configuration. A stopped agent sends no further message.
pub fn wait_until_published(config: &Path) {
    let start = Instant::now();
    loop {
        let status = super::fleet::ensign(&["agent", "status", "--output", "json", "--config", config.to_str().unwrap()]);
        let told = serde_json::from_str::<Value>(&status.stdout).ok();
        if status.stderr.contains("no agent runs") || told.is_some_and(|told| told["outbox"] == 0) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "messages still wait for the server: {}{}", status.stdout, status.stderr);
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn ensure_action(kind: &str, properties: &Value) -> Action {
    Action::Ensure(Ensure { kind: kind.into(), properties: properties.as_object().unwrap().clone() })
}

pub fn apply(path: &Path) -> Apply {
    let bytes = std::fs::read(path).unwrap();
    Apply {
        url: format!("file://{}", path.display()),
        sha256: ensign::host::fs::sha256(&bytes),
        size: bytes.len() as u64,
        data: BTreeMap::new(),
    }
}

/// Returns the assignment of this manifest.
pub fn assign_action(manifest: Apply) -> Action {
    let interval = HumanDuration::seconds(300);
    Action::Assign(Assign {
        manifest,
        interval,
        health_interval: None,
        splay: HumanDuration::seconds(0),
        enforce: true,
        watch: false,
    })
}

/// The process of the agent; killed when dropped.
pub struct Agent(pub Child);

impl Agent {
    pub fn start(process: &mut Process) -> Self {
        Self(process.spawn().unwrap())
    }

    /// Kills the agent, like the kernel when memory is short.
    pub fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Sends SIGHUP, like `systemctl reload`.
    pub fn hangup(&self) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.0.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGHUP).unwrap();
    }

    /// Stops the agent, like the service manager; returns the exit code.
    pub fn stop(mut self) -> Option<i32> {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.0.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        self.0.wait().unwrap().code()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // No later start ends its commands.
        let running = super::processes::descendants(self.0.id());
        let _ended = self.0.kill().and_then(|()| self.0.wait());
        super::processes::kill(&running);
    }
}
