//! Reconciliation: keeps the node in its desired state, channel by channel.
//!
//! `channel` is the state machine of a channel, `reconciler.rs` the task that drives it. `desired_state.rs` has the
//! channels with their assignments, `restore.rs` reads them at the start. `revert.rs` goes back from an assignment whose
//! rollout failed. `watchers.rs` has a `watcher.rs` for each channel whose
//! drift is repaired between the runs.

pub(super) mod assignment;
pub(super) mod channel;
pub(super) mod desired_state;
pub(super) mod reconciler;
mod restore;
mod revert;
mod watcher;
mod watchers;
