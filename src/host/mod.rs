//! The only access to the operating system: commands, files, accounts, the clock.
//!
//! Every provider gets a [`Host`]. Commands and the clock are behind traits, so that unit tests can script them (`fake.rs`).
//! Files are real, and tests use temporary directories. Only `store` writes files beside this module: the program's own state.

pub mod account;
mod cancel;
pub mod checkpoint;
pub mod child;
mod clock;
pub mod command;
pub mod confine;
pub mod dpkg;
mod dry_run_effects;
#[cfg(test)]
pub mod fake;
pub mod file_writers;
pub mod fs;
pub mod inotify;
pub mod journal;
pub mod kernel;
pub mod lock;
pub mod lstat;
mod machine;
mod meter;
pub mod mount_events;
pub mod mountinfo;
pub mod orphans;
mod package_cache;
pub mod passwd;
pub mod paths;
pub mod program;
pub mod progress;
pub mod resumable_file;
pub mod rpm;
pub mod run_lock;
mod run_scope;
pub mod ssh_agent;
pub mod systemd;
pub mod terminal;
pub mod tree;
pub mod unit_events;
mod unit_table;
pub mod waker;
pub mod watch_probe;

pub use account::{AccountError, Accounts};
pub use cancel::Cancel;
pub use checkpoint::{Checkpoint, checkpoint};
pub use clock::{Clock, SystemClock};
pub use command::{CommandError, Output, ProcessCommand, Runner, SystemRunner};
pub use fs::{FsError, WriteSpec};
pub use journal::Journal;
pub use machine::{Host, ReadableFile};
pub use meter::Meter;
pub use orphans::Orphans;
pub use package_cache::{DPKG_DIRECTORY, package_databases};
pub use paths::{DirEntryHandle, PathInfo, PathResolver};
pub use progress::{Progress, ProgressEvent, ProgressListener};
pub use run_lock::{LockMode, RunLock, RunLockError};
pub use run_scope::RunScope;
pub use systemd::{Systemd, SystemdError, Unit};
