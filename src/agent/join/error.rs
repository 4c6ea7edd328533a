//! Errors of joining a fleet.

use std::path::PathBuf;
use std::time::Duration;

use crate::agent::durable::node_key::NodeKeyError;
use crate::host::fs::FsError;
use crate::store::StoreError;
use crate::transport::TransportError;
use crate::trust::KeyError;
use crate::trust::decide::join::AdmissionError;

/// A host that did not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The host has a configuration that this join did not write.
    #[error("{} exists: this host belongs to a fleet already", .0.display())]
    Configured(PathBuf),
    /// A file can't be read or written.
    #[error(transparent)]
    File(#[from] FsError),
    /// The state directory can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The node key can't be used.
    #[error(transparent)]
    NodeKey(#[from] NodeKeyError),
    /// The key of the token, or of the user on the server, can't be used.
    #[error("cannot use the {0}")]
    UserKey(&'static str, #[source] KeyError),
    /// A key can't be made.
    #[error("cannot make the key of the node's user on the server")]
    MakeKey(#[source] TransportError),
    /// The system has no random bytes.
    #[error("could not get random bytes")]
    Random(#[source] getrandom::Error),
    /// The server does not accept the token, or does not answer.
    #[error("cannot connect with the join token")]
    Connect(#[source] TransportError),
    /// The request can't be stored, or its answer can't be read.
    #[error("cannot ask to join the fleet")]
    Send(#[source] TransportError),
    /// An operator refused the host.
    #[error("an operator refused this host: {0}")]
    Refused(String),
    /// No answer that verifies within the time.
    #[error("no operator admitted this host within {} s", .0.as_secs())]
    NoAnswer(Duration, #[source] Option<AdmissionError>),
    /// The decision is no admission.
    #[error("the decision of the operator is no admission")]
    NotAdmitted,
}
