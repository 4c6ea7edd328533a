//! The operator's half: choose nodes, sign and send, gather what they say, show how the fleet stands.
//!
//! `operator.rs` is who asks and how to reach the bus, `init.rs` makes the streams, `permissions.rs`
//! who may say what on the bus. A command goes through `select.rs` (which nodes), `dispatch.rs` (sign
//! and send) and `gather.rs` (wait for every node); `roster.rs` says whose word it is, by the keys of `known.rs`
//! and, for who joins meanwhile, `newcomers.rs`; `vigil.rs` looks whether those that are waited for are still there;
//! `cluster.rs` groups what they said by cause (`cause.rs`), `answers.rs` by answer. `jobs.rs` reads back what was sent,
//! `plan.rs` is dry runs and their approval. `channels.rs` is what stands, `assign.rs` stores it, `trust.rs` brings trust bundles to the nodes.
//! `view.rs` is the fleet as its states tell it, `why.rs` one node and one job; `audit/` is what is on record, and its
//! proof. What is here prints nothing: `cli` does.

pub mod answers;
pub mod assign;
pub mod audit;
pub mod cause;
pub mod channels;
pub mod checked;
pub mod cluster;
pub mod dispatch;
pub mod gather;
pub mod init;
pub mod jobs;
pub mod known;
pub mod newcomers;
pub mod operator;
pub mod permissions;
pub mod plan;
pub mod rollout;
pub mod roster;
pub mod select;
pub mod trust;
pub mod view;
pub mod vigil;
pub mod why;

pub use assign::DispatchError;
pub use checked::{CheckedCommand, Checker};
pub use dispatch::{Dispatched, Order};
pub use gather::{Gather, NodeResult, Outcome};
pub use operator::Operator;
pub use roster::Roster;
pub use select::{Expected, Presence, States};
