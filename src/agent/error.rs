//! Errors at the start of an agent.

use std::path::PathBuf;

use crate::host::fs::FsError;
use crate::store::StoreError;
use crate::transport::TransportError;

use super::durable::node_key::NodeKeyError;
use super::trust::anchor::TrustAnchorError;

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
