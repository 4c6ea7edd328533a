//! State that must survive the process: sessions, the history of runs, the ledger of accepted commands, the outbox. Also
//! desired state with its blobs, the overrides of rollouts, and cancelled jobs.
//!
//! Everything here survives `kill -9` at any point. Files are appended to and a torn end is truncated, or files are replaced
//! in one step. `host` has general access to files; this module owns the files of the program. This module decides nothing:
//! `trust` decides about acceptance, the agent about runs.

mod append_log;
pub mod blob_cache;
pub mod cancelled_jobs;
mod convergence;
pub mod desired_state;
pub mod history;
pub mod ledger;
pub mod outbox;
mod pending_refreshes;
mod reversals;
pub mod rollout_state;
pub mod session;
pub mod signed_values;
pub mod state_dir;

use std::path::PathBuf;

use uuid::Uuid;

use crate::host::FsError;

pub use blob_cache::BlobCache;
pub use cancelled_jobs::{CancelledJob, CancelledJobStore};
pub use convergence::Convergence;
pub use desired_state::{ChannelRecord, DesiredStateStore};
pub use history::History;
pub use ledger::{Acceptance, Ledger, LedgerOrigin, LostState, UnfinishedCommand};
pub use outbox::{ChainHead, MakeReceipt, Outbox, OutboxMessage, Priority, QueuedMessage, StreamQueue};
pub use pending_refreshes::PendingRefreshes;
pub use reversals::Reversals;
pub use rollout_state::{HealthGateStore, Override, OverrideStore};
pub use session::{DirectorySession, LastResourceEvent, MemorySession, Session};
pub use signed_values::ValueStore;

/// State that could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The operating system refused an operation.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// Another process works with the same directory.
    #[error("{} is in use by another process{}", path.display(), pid.as_ref().map_or_else(String::new, |pid| format!(" ({pid})")))]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The process, when it is recorded.
        pid: Option<String>,
    },
    /// An open file was removed or replaced.
    #[error(
        "{} was removed or replaced while the agent ran: the agent accepts and runs no command until a restart",
        .0.display()
    )]
    Displaced(PathBuf),
    /// A damaged line in the middle of a file.
    #[error("{}, line {line}, is damaged", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
    /// A record could not be encoded.
    #[error("could not encode a record")]
    Encode(#[from] serde_json::Error),
    /// An event without type or name.
    #[error("an event must have a type and a name")]
    NamelessEvent,
    /// No recorded run has this id.
    #[error("unknown run {0}")]
    UnknownRun(String),
    /// Several runs have an id with this beginning.
    #[error("several runs have an id that begins with {0}")]
    AmbiguousRun(String),
    /// The directory of a session does not exist.
    #[error("the session store {} does not exist", .0.display())]
    MissingSession(PathBuf),
    /// A command of this id was accepted before.
    #[error("the command {0} was accepted before")]
    AlreadyAccepted(Uuid),
    /// No command of this id was accepted.
    #[error("the command {0} was never accepted")]
    NeverAccepted(Uuid),
    /// A message that is larger than the outbox.
    #[error("a message of {size} bytes does not fit an outbox of {limit}")]
    TooLarge {
        /// Its size on disk.
        size: u64,
        /// The size of the outbox.
        limit: u64,
    },
}
