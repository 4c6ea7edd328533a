//! The side of the operator: choose nodes, sign and send commands, follow jobs, read the status of the fleet.
//!
//! - `connection.rs`: an operator that is connected to a fleet.
//! - `setup`: the configuration of an operator, the streams, and the permissions of roles on the server.
//! - `account`: the NATS account of a fleet, the keys that sign its users, and its admitted nodes.
//! - `targeting`: the nodes that must answer a command, their liveness, and the keys that verify them.
//! - `job`: prepare, sign, send and follow a command.
//! - `plan.rs`: plans of dry runs, and their approval.
//! - `rollout`: waves, halt, resume and go-ahead.
//! - `desired_state`: the assignments of channels.
//! - `bundles.rs`: the bundles in the object store, and the unused ones.
//! - `trust.rs`: the publication of trust bundles.
//! - `status.rs`: the status of the fleet by the states of its nodes.
//! - `audit`: the record of commands and results, and its verification.
//!
//! No code here prints: `cli` renders.

pub mod account;
pub mod audit;
pub mod bundles;
pub mod connection;
pub mod desired_state;
pub mod job;
pub mod plan;
pub mod rollout;
pub mod setup;
pub mod status;
pub mod targeting;
pub mod trust;

pub use crate::fleet::connection::FleetConnection;
pub use crate::fleet::desired_state::assign::DispatchError;
pub use crate::fleet::job::checked::{CheckedCommand, Checker};
pub use crate::fleet::job::draft::CommandDraft;
pub use crate::fleet::job::event::JobEvent;
pub use crate::fleet::job::follow::{JobFollower, JobOutcome};
pub use crate::fleet::job::prepare::PreparedJob;
pub use crate::fleet::job::seal::SealedCommand;
pub use crate::fleet::job::tracker::{JobTracker, NodeOutcome, NodeResult};
pub use crate::fleet::setup::operator_config::Operator;
pub use crate::fleet::targeting::node_identity::NodeKeys;
pub use crate::fleet::targeting::states::{ExpectedNode, Liveness, NodeStates};
