//! Message formats and subjects: pure functions over bytes.
//!
//! - `command` (with `action`, `target`, `rollout_plan`): the content that an operator signs; `envelope`: its carrier.
//! - `report`: answers and events of nodes; `receipt`: their signatures; `plan`: comparison of dry runs.
//! - `agent_status`: the status of an agent on its own host; `nats_micro`: answers to the tools of NATS.
//! - `bundle`: the trust bundle; `subject`: every subject of a fleet; `registration`: subjects of service registrations.
//! - `join`: the enrolment of a node.
//! - `json`: the strict reader.
//!
//! Signatures belong to `trust`, sending belongs to `transport`.

pub mod action;
pub mod agent_status;
pub mod bundle;
pub mod command;
pub mod confinement;
pub mod data;
pub mod envelope;
pub mod join;
pub mod json;
pub mod nats_micro;
pub mod plan;
pub mod receipt;
pub mod registration;
pub mod report;
pub mod rollout_plan;
pub mod subject;
pub mod target;
pub mod value_decode;

pub use agent_status::AgentStatus;
pub use bundle::TrustBundle;
pub use command::{Action, Command, CommandOptions, Exclusion, MalformedCommand, Selector, Target};
pub use confinement::ConfinementState;
pub use envelope::{Envelope, EnvelopeError, MAX_ENVELOPE, Signature, digest, pae};
pub use report::{Ack, AckStatus, CommandOutcome, CommandResult, NodeState, RejectionEvent};
pub use subject::{Subject, Subjects};

/// Payload type of a signed command.
pub const COMMAND_TYPE: &str = "application/vnd.ensign.command.v1+json";
/// Payload type of a signed trust bundle.
pub const TRUST_TYPE: &str = "application/vnd.ensign.trust.v1+json";
