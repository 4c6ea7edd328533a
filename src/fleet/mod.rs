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

pub mod assign;
pub mod audit;
pub mod checked;
pub mod desired_state_view;
pub mod dispatch;
pub mod error_normalizer;
pub mod explain;
pub mod fleet_status;
pub mod init;
pub mod job_tracker;
pub mod jobs;
pub mod key_discovery;
pub mod liveness_monitor;
pub mod node_identity;
pub mod operator_config;
pub mod outcome_groups;
pub mod permissions;
pub mod pinned_keys;
pub mod plan;
pub mod response_groups;
pub mod rollout;
pub mod targeting;
pub mod trust;

pub use assign::DispatchError;
pub use checked::{CheckedCommand, Checker};
pub use dispatch::{CommandDraft, Dispatched};
pub use job_tracker::{JobTracker, NodeResult, Outcome};
pub use node_identity::NodeKeys;
pub use operator_config::Operator;
pub use targeting::{ExpectedNode, Liveness, NodeStates};
