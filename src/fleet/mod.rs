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

pub mod audit;
pub mod desired_state;
pub mod job;
pub mod plan;
pub mod rollout;
pub mod setup;
pub mod status;
pub mod targeting;
pub mod trust;

pub use crate::fleet::desired_state::assign::DispatchError;
pub use crate::fleet::job::checked::{CheckedCommand, Checker};
pub use crate::fleet::job::dispatch::{CommandDraft, Dispatched};
pub use crate::fleet::job::tracker::{JobTracker, NodeResult, Outcome};
pub use crate::fleet::setup::operator_config::Operator;
pub use crate::fleet::targeting::node_identity::NodeKeys;
pub use crate::fleet::targeting::states::{ExpectedNode, Liveness, NodeStates};
