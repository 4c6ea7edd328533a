//! The agent: takes signed work over the bus, runs it through the engine, publishes what happened.
//!
//! - `intake.rs` verifies and writes down, and never runs anything;
//! - `supervisor.rs` runs one command at a time, `work.rs` is that work;
//! - `reporter.rs` brings results and events from the outbox to the streams;
//! - `beat.rs` says the state of the node, `board.rs` holds it, `say.rs` puts it into words;
//! - `disk.rs` is what must survive, `recover.rs` what is done with it at the start;
//! - `anchor.rs`, `limits.rs`, `connect.rs` turn the settings into trust, limits and a connection;
//! - `notify.rs` talks to the service manager.
//!
//! One thread for all of that, a second one while something runs. Who may ask is decided in `trust`,
//! what the messages look like in `wire`, what a run does in `engine`.

pub mod anchor;
mod beat;
mod board;
pub mod connect;
mod disk;
mod intake;
mod jitter;
mod limits;
mod notify;
mod recover;
mod reporter;
mod say;
mod supervisor;
mod work;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use uuid::Uuid;

use crate::config::Settings;
use crate::host::fs::{self, FsError};
use crate::host::Host;
use crate::store::StoreError;
use crate::transport::{Bus, TransportError};
use crate::trust::{Limits, TrustedBundle, Verifier};
use crate::wire::subject::{EventKind, Stage};
use crate::wire::command::{Command, Action};
use crate::wire::report::ChannelState;
use crate::wire::{Done, DoneOutcome, Subjects};

use board::{Board, Standing, Topic};
use disk::{Disk, Post};

/// How long stopping may take after the run has ended: the last results, the last state, the connection.
const FAREWELL: Duration = Duration::from_secs(2);

/// Gives the facts of this host, anew each time.
pub type Facts = Arc<dyn Fn() -> Value + Send + Sync>;

/// Evaluates an expression over facts.
pub type Condition = Arc<dyn Fn(&str, Value) -> Result<bool, String> + Send + Sync>;

/// What an agent is made of, beside its settings: what only the edge of the program knows.
#[derive(Clone)]
pub struct Parts {
    /// The settings.
    pub settings: Settings,
    /// Gathers the facts of the host.
    pub facts: Facts,
    /// `Environ` in templates.
    pub environ: BTreeMap<String, String>,
    /// Where bare command names are looked for.
    pub search_path: Option<String>,
}

/// An agent that could not start.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// No trust bundle.
    #[error("the agent has nobody to obey")]
    Anchor(#[from] anchor::AnchorError),
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
    /// The connection can't even be tried.
    #[error("the agent can't use its connection")]
    Bus(#[from] TransportError),
    /// The system refuses threads, timers or signals.
    #[error("the agent can't run on this system")]
    System(#[source] std::io::Error),
}

/// What every part of the agent shares.
struct Node {
    settings: Settings,
    subjects: Subjects,
    /// For the clock and ids. Runs have a machine of their own.
    host: Host,
    search_path: Option<String>,
    environ: BTreeMap<String, String>,
    facts: Facts,
    trust: TrustedBundle,
    limits: Limits,
    disk: Disk,
    board: Board,
    boot: Uuid,
    started: Timestamp,
}

/// Runs an agent until it is asked to stop.
///
/// # Errors
/// When it can't start. Once it runs, troubles are logged and shown in its state.
pub fn run(parts: Parts) -> Result<(), AgentError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // One for a run, one for looking up names, one to spare.
        .max_blocking_threads(3)
        .thread_keep_alive(Duration::from_secs(2))
        .build()
        .map_err(AgentError::System)?;
    let result = runtime.block_on(serve(parts));
    // A run that hangs in the kernel must not keep the process.
    runtime.shutdown_timeout(Duration::from_millis(200));
    result
}

async fn serve(parts: Parts) -> Result<(), AgentError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(AgentError::System)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(AgentError::System)?;
    let settings = connect::bus_settings(&parts.settings)?;
    let node = Arc::new(Node::open(parts)?);
    let left = recover::recover(&node);
    let bus = Bus::connect(&settings).await?;
    let (stopper, stop) = watch::channel(false);

    let reporter = reporter::Handle::spawn(Arc::clone(&node), bus.clone());
    let supervisor = supervisor::Handle::spawn(Arc::clone(&node), bus.clone(), left, stop.clone());
    let intake = intake::Handle::spawn(Arc::clone(&node), bus.clone(), supervisor.queue.clone(), stop.clone()).await?;
    let beat = tokio::spawn(beat::run(Arc::clone(&node), bus.clone(), stop));
    let watchdog = tokio::spawn(notify::watchdog());
    node.post_life("started");
    notify::ready(&format!("node {} of fleet {}", node.settings.node, node.settings.fleet));
    tracing::info!(node = %node.settings.node, fleet = node.settings.fleet, trust = node.trust.version(), "started");

    // Cancel-safe: a signal that came is remembered by its stream.
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopping");
    notify::stopping();
    stopper.send_replace(true);
    intake.ended().await;
    supervisor.ended().await;
    node.post_life("stopped");
    reporter.ended(FAREWELL).await;
    beat.abort();
    beat::say_state(&node, &bus, false).await;
    bus.drain(Instant::now() + FAREWELL).await;
    watchdog.abort();
    tracing::info!("stopped");
    Ok(())
}

impl Node {
    fn open(parts: Parts) -> Result<Self, AgentError> {
        let Parts { settings, facts, environ, search_path } = parts;
        let host = Host::system(search_path.as_deref());
        fs::create_directory(&settings.state_dir, 0o700)?;
        let trust = anchor::find(&settings)?;
        anchor::keep(&settings, &trust)?;
        // Only what a command that died left behind.
        fs::remove_all(&settings.state_dir.join("work"))?;
        let store = |source| AgentError::Store { path: settings.state_dir.clone(), source };
        let disk = Disk::open(&settings, host.now()).map_err(store)?;
        let board = Board::new(Standing { channels: disk.channels(), ..Standing::default() });
        Ok(Self {
            subjects: Subjects::new(settings.fleet.clone()),
            limits: limits::of(&settings.limits),
            boot: host.new_id(),
            started: host.now(),
            settings,
            host,
            search_path,
            environ,
            facts,
            trust,
            disk,
            board,
        })
    }

    fn now(&self) -> Timestamp {
        self.host.now()
    }

    /// Lends the verifier as it is now.
    fn verify<T>(&self, work: impl FnOnce(&Verifier<'_>) -> T) -> T {
        let condition = |expression: &str| limits::holds(expression, &self.facts);
        work(&Verifier {
            trust: &self.trust,
            node: &self.settings.node,
            groups: &self.settings.groups,
            limits: &self.limits,
            subjects: &self.subjects,
            now: self.disk.time_floor().max(self.now()),
            seen: &self.disk,
            condition: &condition,
        })
    }

    /// Notes on the board what a command changes by being accepted.
    fn accepted(&self, command: &Command) {
        let (Some(channel), Action::Apply(apply)) = (&command.channel, &command.action) else { return };
        let state = ChannelState { epoch: channel.epoch, serial: channel.serial, digest: apply.sha256.clone() };
        self.board.change(|standing| {
            standing.channels.insert(channel.name.clone(), state);
        });
    }

    /// Puts a message into the outbox.
    fn post(&self, post: &Post) {
        self.noted(self.disk.post(post));
    }

    /// Shows on the board whether the disk still takes what must survive.
    fn noted(&self, written: Result<(), StoreError>) {
        match written {
            Ok(()) => self.board.fine(Topic::Disk),
            Err(error) => self.board.trouble(Topic::Disk, crate::diag::chain(&error)),
        }
    }

    /// The end of a command: on disk, in the outbox.
    fn finish(&self, done: &Done) {
        if let Some(id) = done.id {
            self.noted(self.disk.finish(id, done, &self.done_post(id, done, false)));
        }
    }

    fn done_post(&self, id: Uuid, done: &Done, unique: bool) -> Post {
        let node = &self.settings.node;
        let message = if unique { self.host.new_id().to_string() } else { format!("{id}.{node}.done") };
        Post { subject: self.subjects.job(id, node, Stage::Done), id: message, payload: say::json(done), lasting: true }
    }

    /// Publishes the result of a command that was not taken, unless it has or will have another one:
    /// what is sent a second time must not change how the first time ended.
    fn post_done(&self, done: &Done) {
        if let Some(id) = done.id.filter(|id| done.outcome != DoneOutcome::Expired && !self.disk.knows(*id)) {
            self.post(&self.done_post(id, done, true));
        }
    }

    fn post_refusal(&self, done: &Done, subject: &str, keyids: Vec<String>) {
        let refused = say::refused(self, done, subject, keyids);
        self.post(&Post {
            subject: self.subjects.event(&self.settings.node, EventKind::Refused),
            id: refused.event_id.to_string(),
            payload: say::json(&refused),
            lasting: true,
        });
    }

    fn post_life(&self, what: &str) {
        let life = say::life(self, what);
        self.post(&Post {
            subject: self.subjects.event(&self.settings.node, EventKind::Life),
            id: life.event_id.to_string(),
            payload: say::json(&life),
            lasting: true,
        });
    }

    /// Sends something that may get lost.
    async fn courtesy(&self, bus: &Bus, subject: &str, payload: Vec<u8>) {
        // Without a connection the client would keep it, and send it to nobody much later.
        if !bus.is_connected() {
            return;
        }
        if let Err(error) = bus.publish(subject, &[], payload).await {
            tracing::debug!(subject, error = %crate::diag::chain(&error), "not sent");
        }
    }
}
