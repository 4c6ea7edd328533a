//! The agent: takes signed commands over the bus, runs them through the engine, repairs drift, publishes events.
//!
//! ```text
//!  bus ──> intake::commands ── verified, on disk ──> queue ──> exec::executor ── a thread a run ──> engine
//!            │    ▲   └─ in waves ──> rollout::queue ──┘  ▲                └─ result ──> durable (outbox, ledger)
//!            │    └── intake::desired_state_sync          │                                 │
//!            ├─ assignments ──> reconcile::reconciler ────┘ one run at a time               ▼
//!            └─ queries ──> exec::queries                                      durable::outbox_sender ──> streams
//!  bus ──> trust::updates (trust bundles)        status::heartbeat ──> bus        endpoints (socket, micro service)
//! ```
//!
//! `context.rs` opens the state and wires the handles; every task takes only the handles that it needs. One thread drives
//! all tasks, and never blocks and never evaluates; a second one exists while something runs. `trust` decides who may ask,
//! `wire` has the forms of the messages, `engine` runs.

pub mod config;
mod context;
mod durable;
pub mod endpoints;
pub mod exec;
mod intake;
mod jitter;
mod reconcile;
mod rollout;
mod start;
pub mod status;
pub mod trust;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use crate::config::Settings;
use crate::host::fs::FsError;
use crate::store::StoreError;
use crate::transport::TransportError;

pub use durable::node_key::{NodeKeyError, public_key};
pub use exec::simulation::{Simulate, SimulatedRun, Work};
pub use start::{Agent, QueueStats};

use config::reload::{self, Reload};
use endpoints::systemd;
use status::view::SidecarTask;

/// Gathers the facts of this host, anew each time.
type Facts = Arc<dyn Fn() -> Value + Send + Sync>;
/// Gathers the facts of this host with those of the administrator in these directories, anew each time.
pub type Gather = Arc<dyn Fn(&[PathBuf]) -> Value + Send + Sync>;

/// The parts of an agent that only the edge of the program knows.
#[derive(Clone)]
pub struct AgentOptions {
    /// The settings.
    pub settings: Settings,
    /// Gathers the facts of the host.
    pub facts: Gather,
    /// `Environ` in templates.
    pub environ: BTreeMap<String, String>,
    /// The directories in which bare command names are looked up.
    pub search_path: Option<String>,
    /// The operating system, as states name it.
    pub platform: Option<String>,
    /// The engine, or a simulation.
    pub work: Work,
}

/// An agent that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// No trust bundle.
    #[error("cannot load a trust bundle")]
    Anchor(#[from] trust::anchor::TrustAnchorError),
    /// A file.
    #[error("cannot use a file of the agent")]
    File(#[from] FsError),
    /// The state on disk.
    #[error("cannot use the state in {}", path.display())]
    Store {
        /// The state directory.
        path: PathBuf,
        /// The reason.
        #[source]
        source: StoreError,
    },
    /// The key of the node.
    #[error("cannot use the key of the node")]
    Key(#[from] NodeKeyError),
    /// The connection cannot even be tried.
    #[error("cannot use the connection")]
    Bus(#[from] TransportError),
    /// The kernel cannot enforce the limits.
    #[error("the kernel cannot enforce the limits, as `confine = \"required\"` demands: {0}")]
    Confinement(String),
    /// The system refuses threads, timers or signals.
    #[error("cannot run on this system")]
    System(#[source] std::io::Error),
}

/// Runs an agent until it is asked to stop.
///
/// # Errors
/// When it cannot start. A running agent logs its alarms and shows them in its state.
pub fn run(options: AgentOptions, reload: Reload, sidecar: SidecarTask) -> Result<(), AgentError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // One for a run, one for looking up names, one to spare.
        .max_blocking_threads(3)
        .thread_keep_alive(Duration::from_secs(2))
        .build()
        .map_err(AgentError::System)?;
    let result = runtime.block_on(serve(options, reload, sidecar));
    // A run that hangs in the kernel must not keep the process.
    runtime.shutdown_timeout(Duration::from_millis(200));
    result
}

/// Runs an agent for the service manager: reports when it is ready, stops on a signal.
async fn serve(options: AgentOptions, reload: Reload, sidecar: SidecarTask) -> Result<(), AgentError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(AgentError::System)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(AgentError::System)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(AgentError::System)?;
    let agent = Agent::start(options).await?;
    let watchdog = tokio::spawn(systemd::watchdog());
    let endpoints = agent.open_endpoints(sidecar);
    let reloading = agent.reload_handles();

    loop {
        // Cancel-safe: a stream remembers a signal that came.
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => reload::reload(&reloading, &reload).await,
        }
    }
    tracing::info!("stopping");
    endpoints.close_network();
    systemd::stopping();
    agent.stop().await;
    watchdog.abort();
    endpoints.close();
    tracing::info!("stopped");
    Ok(())
}
