//! The agent: takes signed work over the bus, runs it through the engine, publishes what happened.
//!
//! - `intake.rs` verifies and writes down, and never runs anything;
//! - `supervisor.rs` runs one command at a time, `work.rs` is that work, `obtain.rs` fetches for it;
//! - `waiting.rs` keeps commands in waves until their turn, `rollout.rs` says whether it has come, `looks.rs` has the looks
//!   at the health that come after it;
//! - `forged.rs` bounds what forged messages cost, `fair.rs` shares the places in queues out between keys;
//! - `ask.rs` answers what needs no run, also while one is on; `approve.rs` compares dry runs with what was approved,
//!   `health.rs` looks at the checks of what stands when somebody asks;
//! - `enforcer.rs` reconciles the node with its assignments, `standing.rs` has those, `catch_up.rs` asks whether there is more,
//!   `divergence.rs` finds what is at odds with it;
//! - `reporter.rs` brings results and events from the outbox to the streams;
//! - `beat.rs` says the state of the node, `board.rs` holds it, `say.rs` puts it into words; `clock.rs` and `room.rs`
//!   look at what it says about this host;
//! - `disk.rs` is what must survive, `steady.rs` how far the clock is believed that it is dated by, `recover.rs` what is done with it at the start;
//! - `succession.rs` puts the next trust bundle in the place of the one in force;
//! - `values.rs` verifies what others put into buckets;
//! - `outside.rs` has the data that the owner of the host lays over that of manifests;
//! - `known.rs` answers what a command asks about the facts of the host, `wheres.rs` has it evaluated;
//! - `notary.rs` has the key of the node, and signs what it says;
//! - `confinement.rs` has the two threads of a run, and what the kernel holds of the limits;
//! - `anchor.rs`, `limits.rs`, `connect.rs` turn the settings into trust, limits and a connection;
//! - `live.rs` has the settings in force, `reload.rs` puts others in force;
//! - `socket.rs` answers on this host and `local.rs` asks, `view.rs` is what they and others see, `count.rs` counts;
//! - `discover.rs` answers the tools of NATS;
//! - `leftovers.rs` ends what an agent before this one left running;
//! - `lost.rs` finds out at the start whether something of its state was lost;
//! - `notify.rs` talks to the service manager.
//!
//! One thread for all of that, a second one while something runs. Who may ask is decided in `trust`,
//! what the messages look like in `wire`, what a run does in `engine`.

pub mod config;
mod durable;
pub mod endpoints;
pub mod exec;
mod intake;
mod jitter;
mod reconcile;
mod rollout;
pub mod status;
pub mod trust;

use crate::agent::durable::outbox_sender;
use crate::agent::durable::state_loss;
use crate::agent::endpoints::micro_service;
use crate::agent::endpoints::socket;
use crate::agent::endpoints::systemd as systemd_notify;
use crate::agent::exec::bus_values;
use crate::agent::exec::confinement;
use crate::agent::exec::executor;
use crate::agent::exec::queries;
use crate::agent::exec::recovery;
use crate::agent::exec::stable_runs;
use crate::agent::intake::commands as command_intake;
use crate::agent::intake::desired_state_sync;
use crate::agent::reconcile::desired_state;
use crate::agent::reconcile::reconciler;
use crate::agent::rollout::gate;
use crate::agent::rollout::health_gate;
use crate::agent::rollout::queue as rollout_queue;
use crate::agent::status::clock_skew;
use crate::agent::status::heartbeat;
use crate::agent::trust::anchor as trust_anchor;
use crate::agent::trust::updates as trust_updates;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::config::Settings;
use crate::engine::effects::of_signed;
use crate::host::Host;
use crate::host::confine::Kernel;
use crate::host::fs::{self, FsError};
use crate::store::StoreError;
use crate::transport::{Bus, Link, TransportError};
use crate::trust::{NodeLimits, TrustedBundle, Verifier};
use crate::wire::command::Command;
use crate::wire::{ConfinementState, Subjects};

pub use crate::agent::durable::node_key::{NodeKeyError, public_key};

use crate::agent::config::reload::Reload;
use crate::agent::config::settings_handle::SettingsHandle;
use crate::agent::durable::state::DurableState;
use crate::agent::exec::orphaned_runs::OrphanedRuns;
use crate::agent::status::board::{AgentSnapshot, StatusBoard};
use crate::agent::status::counters::Counters;
use crate::agent::status::facts_cache::FactsCache;
use crate::agent::status::view::{SidecarTask, StatusView};

pub use crate::agent::exec::run::{Played, Rehearse, Work};

/// What the verifier is told about a `where` that was not evaluated yet.
const NOT_EVALUATED: &str = "it was not evaluated yet";

/// How long stopping may take after the run has ended: the last results, the last state, the connection.
const FAREWELL: Duration = Duration::from_secs(2);

/// The longest pause before a result is tried to be written once more: it only costs this host something.
const SOON: Duration = Duration::from_secs(5);

/// Gives the facts of this host, anew each time.
type Facts = Arc<dyn Fn() -> Value + Send + Sync>;
/// Gathers the facts of this host with those of the administrator in these directories, anew each time.
pub type Gather = Arc<dyn Fn(&[PathBuf]) -> Value + Send + Sync>;

/// What an agent is made of, beside its settings: what only the edge of the program knows.
#[derive(Clone)]
pub struct AgentOptions {
    /// The settings.
    pub settings: Settings,
    /// Gathers the facts of the host.
    pub facts: Gather,
    /// `Environ` in templates.
    pub environ: BTreeMap<String, String>,
    /// Where bare command names are looked for.
    pub search_path: Option<String>,
    /// The operating system, as states name it.
    pub platform: Option<String>,
    /// What runs the commands.
    pub work: Work,
}

/// An agent that could not start.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// No trust bundle.
    #[error("the agent has nobody to obey")]
    Anchor(#[from] trust_anchor::TrustAnchorError),
    /// A file it needs.
    #[error("the agent can't use its files")]
    File(#[from] FsError),
    /// Its state on disk.
    #[error("the agent can't use its state in {}", path.display())]
    Store {
        /// The state directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: StoreError,
    },
    /// Its key.
    #[error("the agent can't sign what it says")]
    Notary(#[from] NodeKeyError),
    /// The connection can't even be tried.
    #[error("the agent can't use its connection")]
    Bus(#[from] TransportError),
    /// The kernel can't hold what it must.
    #[error("the kernel can't hold the limits, as `confine = \"required\"` wants: {0}")]
    Confinement(String),
    /// The system refuses threads, timers or signals.
    #[error("the agent can't run on this system")]
    System(#[source] std::io::Error),
}

/// What every part of the agent shares.
struct Node {
    settings: SettingsHandle,
    subjects: Subjects,
    /// For the clock and ids. Runs have a machine of their own.
    host: Host,
    search_path: Option<String>,
    environ: BTreeMap<String, String>,
    facts: Facts,
    work: Work,
    /// What the kernel can hold runs to; not asked where none runs.
    kernel: Option<Kernel>,
    known: FactsCache,
    /// Behind [`Node::trust`], as it may be replaced at any time.
    trust: RwLock<Arc<TrustedBundle>>,
    disk: DurableState,
    leftovers: OrphanedRuns,
    standing: desired_state::DesiredState,
    board: StatusBoard,
    count: Counters,
    /// What the operators said of jobs in waves.
    words: gate::Overrides,
    /// The looks at the health that are to be taken before the next wave.
    looks: health_gate::HealthGates,
    room: rollout_queue::RolloutQueue,
    values: bus_values::Values,
    stable: Mutex<stable_runs::StableRuns>,
    platform: Option<String>,
    boot: Uuid,
    started: Timestamp,
}

/// Runs an agent until it is asked to stop.
///
/// # Errors
/// When it can't start. Once it runs, alarms are logged and shown in its state.
pub fn run(parts: AgentOptions, reload: Reload, beside: SidecarTask) -> Result<(), AgentError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // One for a run, one for looking up names, one to spare.
        .max_blocking_threads(3)
        .thread_keep_alive(Duration::from_secs(2))
        .build()
        .map_err(AgentError::System)?;
    let result = runtime.block_on(serve(parts, reload, beside));
    // A run that hangs in the kernel must not keep the process.
    runtime.shutdown_timeout(Duration::from_millis(200));
    result
}

/// An agent in the service manager's hands: told when it is ready, stopped by a signal.
async fn serve(parts: AgentOptions, reload: Reload, beside: SidecarTask) -> Result<(), AgentError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(AgentError::System)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(AgentError::System)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(AgentError::System)?;
    let agent = Agent::start(parts).await?;
    let watchdog = tokio::spawn(systemd_notify::watchdog());
    let ready = tokio::spawn(systemd_notify::ready(Arc::clone(&agent.node), agent.bus.clone()));
    let socket = tokio::spawn(socket::serve(Arc::clone(&agent.node), agent.bus.clone(), agent.intake.carried.clone()));
    let clock = tokio::spawn(clock_skew::run(Arc::clone(&agent.node), agent.bus.clone()));
    let discover = tokio::spawn(micro_service::run(Arc::clone(&agent.node), agent.bus.clone()));
    let beside = tokio::spawn(beside(StatusView::new(Arc::clone(&agent.node), agent.bus.clone())));

    loop {
        // Cancel-safe: a signal that came is remembered by its stream.
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => config::reload::reload(&agent.node, &reload).await,
        }
    }
    tracing::info!("stopping");
    ready.abort();
    discover.abort();
    clock.abort();
    systemd_notify::stopping();
    agent.stop().await;
    watchdog.abort();
    socket.abort();
    beside.abort();
    tracing::info!("stopped");
    Ok(())
}

/// What an agent has on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueStats {
    /// Commands that were accepted, as far as they are remembered.
    pub accepted: usize,
    /// Those of them that have ended.
    pub ended: usize,
    /// Messages that wait for the server.
    pub waiting: u64,
    /// Messages that had to be dropped, ever.
    pub dropped: u64,
}

/// A running agent. It has nothing of the process that it runs in: there may be many in one.
pub struct Agent {
    node: Arc<Node>,
    bus: Bus,
    stopper: watch::Sender<bool>,
    reporter: outbox_sender::Handle,
    supervisor: executor::Handle,
    questions: queries::Handle,
    intake: command_intake::Handle,
    enforcer: JoinHandle<()>,
    catch_up: JoinHandle<()>,
    succession: JoinHandle<()>,
    beat: JoinHandle<()>,
}

impl Agent {
    /// Starts all its parts on the runtime that this is called on.
    ///
    /// # Errors
    /// When it can't start. A server that is not there is no error: the agent waits for it.
    pub async fn start(parts: AgentOptions) -> Result<Self, AgentError> {
        let settings = config::connection::bus_settings(&parts.settings)?;
        let node = Arc::new(Node::open(parts)?);
        let left = recovery::recover(&node);
        let looks = health_gate::restore(&node, &left);
        let bus = Bus::connect(&settings).await?;
        let (stopper, stop) = watch::channel(false);

        let reporter = outbox_sender::Handle::spawn(&node, &bus);
        let supervisor = executor::Handle::spawn(Arc::clone(&node), bus.clone(), left, stop.clone());
        for (job, done) in &looks {
            rollout_queue::look(&node, &supervisor.queue, job, done);
        }
        let questions = queries::Handle::spawn(Arc::clone(&node), bus.clone(), stop.clone());
        let queues = command_intake::Queues { work: supervisor.queue.clone(), questions: questions.queue.clone() };
        let intake = command_intake::Handle::spawn(Arc::clone(&node), bus.clone(), queues, stop.clone()).await?;
        let enforcer = reconciler::spawn(Arc::clone(&node), bus.clone(), supervisor.runs.clone(), stop.clone());
        let catch_up = tokio::spawn(desired_state_sync::run(Arc::clone(&node), bus.clone(), intake.hall.clone(), stop.clone()));
        let succession = tokio::spawn(trust_updates::run(Arc::clone(&node), bus.clone()));
        let beat = tokio::spawn(heartbeat::run(Arc::clone(&node), bus.clone(), stop));
        node.post_started();
        let settings = node.settings();
        tracing::info!(node = %settings.node, fleet = settings.fleet, trust = node.trust().version(), "started");
        Ok(Self { node, bus, stopper, reporter, supervisor, questions, intake, enforcer, catch_up, succession, beat })
    }

    /// The state of its connection as it changes.
    pub fn link(&self) -> watch::Receiver<Link> {
        self.bus.watch()
    }

    /// What its ledger and outbox hold.
    pub fn figures(&self) -> QueueStats {
        let (accepted, ended) = self.node.disk.counts();
        let waiting = self.node.disk.outbox_state();
        QueueStats { accepted, ended, waiting: waiting.outbox, dropped: waiting.dropped }
    }

    /// Cuts the connection for good: for simulators, whose nodes fall silent without dying.
    pub fn cut(&self) -> impl Future<Output = ()> + Send + use<> {
        let bus = self.bus.clone();
        async move { bus.drain(Instant::now() + FAREWELL).await }
    }

    /// Lets what runs end, says the last state, and closes the connection. What is left stays on disk.
    pub async fn stop(self) {
        self.stopper.send_replace(true);
        self.catch_up.abort();
        self.succession.abort();
        self.intake.ended().await;
        self.node.room.close();
        self.supervisor.ended().await;
        self.questions.ended().await;
        if let Err(error) = self.enforcer.await {
            tracing::error!(%error, "the enforcer broke");
        }
        self.node.post_stable_runs();
        self.node.post_lifecycle("stopped");
        self.reporter.ended(FAREWELL).await;
        self.beat.abort();
        self.node.publish_final_state(&self.bus).await;
        self.bus.drain(Instant::now() + FAREWELL).await;
    }
}

impl Node {
    fn open(parts: AgentOptions) -> Result<Self, AgentError> {
        let AgentOptions { settings, facts, environ, search_path, platform, work } = parts;
        let host = Host::system(search_path.as_deref());
        let kernel = matches!(work, Work::Engine).then(confinement::kernel);
        kernel.map_or(Ok(()), |kernel| confinement::begin(&settings, kernel)).map_err(AgentError::Confinement)?;
        fs::create_directory(&settings.state_dir, 0o700)?;
        fs::check_trusted(&settings.state_dir)?;
        let store = |source| AgentError::Store { path: settings.state_dir.clone(), source };
        // The ledger first, and the key of the node last: whoever finds the one without the other knows that it was lost.
        let ledger = state_loss::open_ledger(&settings, host.now()).map_err(store)?;
        let trust = trust_anchor::load(&settings)?;
        trust_anchor::persist(&settings, &trust).map_err(store)?;
        let boot = host.new_id();
        let disk = DurableState::open(&settings, ledger, boot, host.now())?;
        disk.start_trust(trust.version()).map_err(store)?;
        // Before anything else is done to the host, and before a command is told to have been interrupted.
        let leftovers = OrphanedRuns::end(&settings)?;
        // Only what a command that died left behind: the directory is this agent's alone now.
        fs::remove_all(&settings.state_dir.join("work"))?;
        let subjects = Subjects::new(settings.fleet.clone());
        let verifier = Verifier {
            trust: &trust,
            node: &settings.node,
            groups: &settings.groups,
            limits: &config::limits::of(&settings),
            subjects: &subjects,
            now: disk.monotonic_now(host.now()),
            seen: &disk,
            condition: &|_| Err("facts are asked when it runs".to_owned()),
            effects: &of_signed,
        };
        let standing = desired_state::DesiredState::open(&settings, &disk, |envelope| verifier.reverify_assignment(envelope))
            .map_err(store)?;
        let (words, looks) =
            (gate::Overrides::open(&settings).map_err(store)?, health_gate::HealthGates::open(&settings).map_err(store)?);
        let values = bus_values::Values::open(&settings).map_err(store)?;
        // After what stands was opened, which may have told the ledger something.
        let board =
            StatusBoard::new(AgentSnapshot { trust: trust.version(), channels: disk.channels(), ..AgentSnapshot::default() });
        let settings = SettingsHandle::new(settings);
        let facts: Facts = {
            let settings = settings.clone();
            Arc::new(move || facts(&settings.facts_dirs()))
        };
        Ok(Self {
            subjects,
            boot,
            started: host.now(),
            settings,
            host,
            search_path,
            environ,
            known: FactsCache::new(Arc::clone(&facts)),
            facts,
            work,
            kernel,
            trust: RwLock::new(Arc::new(trust)),
            disk,
            leftovers,
            standing,
            board,
            count: Counters::default(),
            words,
            looks,
            room: rollout_queue::RolloutQueue::default(),
            values,
            stable: Mutex::default(),
            platform,
        })
    }

    fn now(&self) -> Timestamp {
        self.host.now()
    }

    /// The trust bundle in force at this moment. Who takes it for one decision takes it once.
    fn trust(&self) -> Arc<TrustedBundle> {
        // One pointer is behind it, which no panic can leave half written.
        Arc::clone(&self.trust.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The settings as they are now: for one piece of work, as a reload may exchange them.
    fn settings(&self) -> Arc<Settings> {
        self.settings.now()
    }

    /// What of the limits the kernel holds.
    fn confinement(&self) -> Option<ConfinementState> {
        Some(confinement::Report::of(&self.settings(), self.kernel?).state())
    }

    /// The limits of this host as they are now.
    fn limits(&self) -> NodeLimits {
        config::limits::of(&self.settings())
    }

    /// Lends the verifier as it is now.
    fn verify<T>(&self, work: impl FnOnce(&Verifier<'_>) -> T) -> T {
        // The thread that verifies evaluates nothing: see `verify_or_ask`.
        let condition = |expression: &str| self.known.answer(expression).unwrap_or_else(|| Err(NOT_EVALUATED.to_owned()));
        self.verify_with(&condition, work)
    }

    /// The same, with the expression that must be evaluated first, where there is one: then what `work` gave counts for
    /// nothing.
    fn verify_or_ask<T>(&self, work: impl FnOnce(&Verifier<'_>) -> T) -> (T, Option<String>) {
        let unknown = RefCell::new(None);
        let condition = |expression: &str| {
            self.known.answer(expression).unwrap_or_else(|| {
                unknown.replace(Some(expression.to_owned()));
                Err(NOT_EVALUATED.to_owned())
            })
        };
        let given = self.verify_with(&condition, work);
        (given, unknown.into_inner())
    }

    fn verify_with<T>(&self, condition: &dyn Fn(&str) -> Result<bool, String>, work: impl FnOnce(&Verifier<'_>) -> T) -> T {
        let trust = self.trust();
        let (settings, limits) = (self.settings(), self.limits());
        work(&Verifier {
            trust: &trust,
            node: &settings.node,
            groups: &settings.groups,
            limits: &limits,
            subjects: &self.subjects,
            now: self.disk.monotonic_now(self.now()),
            seen: &self.disk,
            condition,
            effects: &of_signed,
        })
    }

    /// Notes on the board what a command changes by being accepted.
    fn accepted(&self, command: &Command) {
        if let Some((channel, state)) = command.channel_state() {
            self.board.change(|standing| {
                standing.channels.insert(channel.to_owned(), state);
            });
        }
    }
}
