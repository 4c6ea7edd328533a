//! The operator's half: choose nodes, sign and send, gather what they say, show how the fleet stands.
//!
//! `operator.rs` is who asks and how to reach the bus, `init.rs` makes the streams, `permissions.rs`
//! who may say what on the bus. A command goes through `select.rs` (which nodes), `dispatch.rs` (sign
//! and send) and `gather.rs` (wait for every node); `cluster.rs` groups what they said by cause.
//! `trust.rs` brings trust bundles to the nodes. `view.rs` is the fleet as its states tell it. What is here prints nothing: `cli` does.

pub mod cluster;
pub mod dispatch;
pub mod gather;
pub mod init;
pub mod operator;
pub mod permissions;
pub mod select;
pub mod trust;
pub mod view;

pub use dispatch::{Dispatched, Order};
pub use gather::{Gather, NodeResult, Outcome};
pub use operator::Operator;
pub use select::{Expected, Presence};
