//! Jobs: commands that are prepared, signed, sent and followed, and the records of them.
//!
//! `draft.rs` is a command before it has an id, and `retry.rs` drafts a failed one again. `offline_limit.rs` counts the offline
//! nodes, `prepare.rs` adds the nodes that must answer, and `seal.rs` signs. `follow.rs` sends the command with `dispatch.rs` and
//! emits the events of `event.rs` until every node has reached its terminal state. `tracker` keeps the state of each node,
//! `liveness_monitor.rs` finds the offline ones.

pub mod checked;
pub mod dispatch;
pub mod draft;
pub mod error_normalizer;
pub mod event;
pub mod explain;
pub mod follow;
pub mod liveness_monitor;
pub mod offline_limit;
pub mod outcome_groups;
pub mod prepare;
pub mod records;
pub mod response_groups;
pub mod retry;
pub mod seal;
pub mod tracker;
