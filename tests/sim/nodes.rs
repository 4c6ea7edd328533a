//! The nodes: an agent each, with a directory, a group and facts of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ensign::agent::{Agent, AgentOptions, RunBackend};
use ensign::config::{AgentSettings, HostDefaults};
use ensign::model::NodeId;
use ensign::transport::ConnectionState;
use futures_util::future::join_all;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

use super::StartError;
use super::options::{Fraction, Group, Options};
use super::play::{CommandOutcomes, dice};

/// Open files of a node: the connection, the ledger and its lock, the outbox.
const FILES: u64 = 4;
/// Open files of the process itself, and temporary ones.
const SPARE: u64 = 100;

/// The state directory of all nodes: removed with this value if the simulator made it.
pub(crate) enum State {
    Kept(PathBuf),
    Temporary(tempfile::TempDir),
}

impl State {
    fn path(&self) -> &Path {
        match self {
            Self::Kept(path) => path,
            Self::Temporary(directory) => directory.path(),
        }
    }
}

/// A node.
pub(crate) struct Node {
    number: u32,
    offline: bool,
    link: OnceLock<watch::Receiver<ConnectionState>>,
    /// None before the start, and after the stop.
    agent: Mutex<Option<Agent>>,
}

impl Node {
    /// The state of the connection.
    pub(crate) fn link(&self) -> ConnectionState {
        self.link.get().map_or_else(ConnectionState::default, |link| *link.borrow())
    }

    /// True for a node that leaves.
    pub(crate) fn is_offline(&self) -> bool {
        self.offline
    }

    /// Calls `look` with the agent while there is one.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&Agent) -> T) -> Option<T> {
        self.agent.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(look)
    }

    fn take(&self) -> Option<Agent> {
        self.agent.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// All nodes of this process.
pub(crate) struct SimulatedNodes {
    pub(crate) nodes: Vec<Node>,
    pub(crate) play: Arc<CommandOutcomes>,
    /// Nodes that left, each counted once the server has its last state.
    pub(crate) left: AtomicU64,
    settings: AgentSettings,
    groups: Vec<Group>,
    seed: u64,
}

impl SimulatedNodes {
    /// Makes the shared parts of the nodes; no node runs yet.
    pub(crate) fn prepare(options: &Options, silent: UnboundedSender<NodeId>) -> Result<(Self, State), StartError> {
        raise_limit(options)?;
        let state = match (&options.state_dir, options.no_fsync) {
            (Some(path), _) => State::Kept(std::path::absolute(path)?),
            (None, true) => State::Temporary(tempfile::Builder::new().prefix("ensign-sim-").tempdir_in("/dev/shm")?),
            (None, false) => State::Temporary(tempfile::Builder::new().prefix("ensign-sim-").tempdir()?),
        };
        let settings = settings(options, state.path())?;
        let node = |number| {
            let [away] = dice(options.seed, &[b"offline", id(number).as_bytes()]);
            Node { number, offline: away < options.offline_rate.0, link: OnceLock::new(), agent: Mutex::new(None) }
        };
        let play = CommandOutcomes {
            seed: options.seed,
            fails: options.fail_rate,
            changes: options.change_rate,
            takes: options.work,
            silences: options.silent_rate,
            silent,
            played: AtomicU64::new(0),
        };
        let fleet = Self {
            nodes: (options.first..options.first.saturating_add(options.nodes)).map(node).collect(),
            play: Arc::new(play),
            left: AtomicU64::new(0),
            settings,
            groups: options.groups.clone(),
            seed: options.seed,
        };
        Ok((fleet, state))
    }

    /// Starts every node, as fast as their disks allow.
    pub(crate) async fn start(self: Arc<Self>, threads: usize) -> Result<(), String> {
        let start = |thread: usize| {
            let fleet = Arc::clone(&self);
            tokio::spawn(async move {
                for node in fleet.nodes.iter().skip(thread).step_by(threads) {
                    fleet.start_one(node).await?;
                    // The other tasks of this thread have work to do.
                    tokio::task::yield_now().await;
                }
                Ok::<_, String>(())
            })
        };
        for started in join_all((0..threads).map(start)).await {
            started.map_err(|error| error.to_string())??;
        }
        let leave = self.nodes.iter().filter(|node| node.offline).map(|node| async {
            if let Some(mut link) = node.link.get().cloned() {
                // The sender lives as long as the agent.
                let _connected = link.wait_for(|link| link.connected).await.is_ok();
            }
            if let Some(agent) = node.take() {
                agent.stop().await;
                self.left.fetch_add(1, Ordering::Relaxed);
            }
        });
        join_all(leave).await;
        Ok(())
    }

    async fn start_one(&self, node: &Node) -> Result<(), String> {
        let agent = Agent::start(self.parts(node)?).await.map_err(|error| ensign::diag::error_chain(&error))?;
        let _first = node.link.set(agent.link());
        *node.agent.lock().unwrap_or_else(PoisonError::into_inner) = Some(agent);
        Ok(())
    }

    fn parts(&self, node: &Node) -> Result<AgentOptions, String> {
        let name = id(node.number);
        let mut settings = self.settings.clone();
        settings.node = name.parse().map_err(|_| format!("{name} is no node id"))?;
        settings.hostname = format!("{name}.example.org");
        settings.groups = group(node.number, &self.groups).into_iter().collect();
        settings.state_dir = settings.state_dir.join(&name);
        let facts = facts(self.seed, node.number);
        let platform = facts.pointer("/host/info/platformFamily").and_then(Value::as_str).map(str::to_owned);
        let work = RunBackend::Simulation(Arc::clone(&self.play) as Arc<_>);
        Ok(AgentOptions {
            program: None,
            settings,
            facts: Arc::new(move |_| facts.clone()),
            environ: BTreeMap::new(),
            search_path: None,
            platform,
            backend: work,
        })
    }

    /// Cuts the connection of a node.
    pub(crate) async fn silence(&self, name: &NodeId) {
        let node = self.nodes.iter().find(|node| id(node.number) == name.as_str());
        if let Some(cut) = node.and_then(|node| node.with(Agent::cut)) {
            cut.await;
        }
    }

    /// Stops all nodes, together.
    pub(crate) async fn stop(&self) {
        join_all(self.nodes.iter().filter_map(Node::take).map(Agent::stop)).await;
    }
}

fn id(number: u32) -> String {
    format!("sim{number:05}")
}

/// The group of a node. Of each hundred consecutive nodes, every group has exactly its share.
fn group(number: u32, groups: &[Group]) -> Option<String> {
    let place = f64::from((number - 1) % 100) / 100.0;
    let mut end = 0.0;
    for Group { name, share: Fraction(share) } in groups {
        end += share;
        if place < end - 1e-9 {
            return Some(name.clone());
        }
    }
    None
}

/// Few facts with different values: each data centre has a quarter of the nodes. A fifth is of the family of Red Hat.
fn facts(seed: u64, number: u32) -> Value {
    let [family, cpus] = dice(seed, &[b"facts", id(number).as_bytes()]);
    let platform = if family < 0.2 { "rhel" } else { "debian" };
    let cpus = if cpus < 0.5 {
        2
    } else if cpus < 0.8 {
        8
    } else {
        64
    };
    json!({"host": {"info": {"os": "linux", "platformFamily": platform}}, "cpus": cpus, "datacenter": format!("dc{}", number % 4 + 1)})
}

/// The common settings of all nodes, read as every agent reads its own.
fn settings(options: &Options, state: &Path) -> Result<AgentSettings, StartError> {
    let trust = std::fs::read_to_string(&options.trust).map_err(|error| format!("{}: {error}", options.trust.display()))?;
    let trust = trust.split_once("[trust]").map(|(_, table)| table).ok_or("the file of --trust has no [trust] table")?;
    let text = format!(
        "fleet = {:?}\nnode = \"sim\"\nfacts_dirs = []\nheartbeat = \"{}\"\nstable_interval = \"{}\"\n[nats]\nservers = [{:?}]\n[trust]{trust}",
        options.fleet, options.heartbeat, options.stable_interval, options.server
    );
    let directory = std::path::absolute(&options.trust)?.parent().unwrap_or(Path::new("/")).to_owned();
    let around = HostDefaults { hostname: "sim".to_owned(), state_dir: state.to_owned(), directory };
    AgentSettings::read(&text, "the settings of the nodes", &around)
        .map_err(|wrong| wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n").into())
}

/// Raises the limit of open files to the maximum. Fails if the maximum is too low.
fn raise_limit(options: &Options) -> Result<(), StartError> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let needed = FILES * u64::from(options.nodes) + SPARE;
    if needed > most {
        let share = (most - SPARE) / FILES;
        return Err(format!(
            "{} nodes need {needed} open files, and the system lets a process have {most}: start several with at most {share} nodes each, and --first",
            options.nodes
        )
        .into());
    }
    Ok(())
}
