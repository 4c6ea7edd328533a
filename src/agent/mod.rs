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
//! `context.rs` opens the state and wires the handles; every task takes only the handles that it needs. A single thread drives
//! all tasks, and never blocks and never evaluates. A second one exists while something runs. `trust` decides who may ask, `wire`
//! has the forms of the messages, `engine` runs.

pub mod config;
mod context;
mod durable;
pub mod endpoints;
mod error;
pub mod exec;
mod identity;
mod intake;
mod jitter;
pub mod join;
mod options;
mod reconcile;
mod rollout;
mod start;
pub mod status;
pub mod trust;

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

pub use durable::node_key::{NodeKeyError, public_key};
pub use error::AgentError;
pub use exec::backend::{RunBackend, Simulate, SimulatedRun};
pub use exec::upgrade::RestartableProgram;
pub use options::{AgentOptions, FactsGatherer};
pub use start::{Agent, QueueStats};

use config::reload::{self, Reload};
use endpoints::systemd;
use status::status_view::SidecarTask;

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
    let mut upgrade = agent.upgrade_due();
    let watchdog = tokio::spawn(systemd::watchdog());
    let endpoints = agent.open_endpoints(sidecar);
    let reloading = agent.reload_handles();

    loop {
        // Cancel-safe: a stream remembers a signal that came, and a watch its value.
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = upgrade.wait_for(|is_due| *is_due) => break,
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
