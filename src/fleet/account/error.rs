//! Errors of the account of a fleet: its files, keys and JWTs.

use std::path::PathBuf;

use crate::host::fs::FsError;
use crate::transport::TransportCause;

/// An error of the account of a fleet.
#[derive(Debug, thiserror::Error)]
pub enum FleetAccountError {
    /// A file can't be read or written.
    #[error(transparent)]
    File(#[from] FsError),
    /// A key can't be made or used.
    #[error("could not make a NATS key or sign with it")]
    Key(#[source] TransportCause),
    /// A file that holds another seed, or none.
    #[error("{} is not the expected NATS seed", path.display())]
    Seed {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: TransportCause,
    },
    /// A JWT that is invalid, or of another issuer.
    #[error("invalid NATS JWT")]
    Claims(#[source] TransportCause),
    /// An account without the scoped key of this role.
    #[error("the account has no signing key with the role \"{0}\"")]
    NoRole(&'static str),
}
