//! The options of an agent, and the reasons why one cannot start.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;

use crate::config::AgentSettings;
use crate::host::fs::FsError;
use crate::store::StoreError;
use crate::transport::TransportError;

use super::durable::node_key::NodeKeyError;
use super::exec::simulation::RunBackend;
use super::trust::anchor::TrustAnchorError;

/// Gathers the facts of this host with those of the administrator in these directories, anew each time.
pub type FactsGatherer = Arc<dyn Fn(&[PathBuf]) -> Value + Send + Sync>;

/// The parts of an agent that only the edge of the program knows.
#[derive(Clone)]
pub struct AgentOptions {
    /// The settings.
    pub settings: AgentSettings,
    /// Gathers the facts of the host.
    pub facts: FactsGatherer,
    /// `Environ` in templates.
    pub environ: BTreeMap<String, String>,
    /// The directories in which bare command names are looked up.
    pub search_path: Option<String>,
    /// The operating system, as states name it.
    pub platform: Option<String>,
    /// The engine, or a simulation.
    pub backend: RunBackend,
}

/// An agent that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// No trust bundle.
    #[error("cannot load a trust bundle")]
    Anchor(#[from] TrustAnchorError),
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
