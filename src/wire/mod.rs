//! Message formats and subjects: pure functions over bytes.
//!
//! `command.rs` (with `action.rs`, `waves.rs`) is what an operator signs, `envelope.rs` what carries it, `report.rs` what nodes
//! answer and publish, `receipt.rs` what they sign about it, `plan.rs` compares what dry runs would change, `status.rs` is what an agent tells on its host, `bundle.rs` the
//! trust bundle, `subject.rs` every subject of a fleet, `registration.rs` those of service registrations, `micro.rs` what
//! the tools of NATS ask services, `json.rs` the strict reader. Signatures are `trust`'s business; sending is `transport`'s.

pub mod action;
pub mod agent_status;
pub mod bundle;
pub mod command;
pub mod confinement;
pub mod data;
pub mod envelope;
pub mod json;
pub mod nats_micro;
pub mod plan;
pub mod receipt;
pub mod registration;
pub mod report;
pub mod rollout_plan;
pub mod shape;
pub mod subject;

pub use agent_status::AgentStatus;
pub use bundle::TrustBundle;
pub use command::{Action, Command, MalformedCommand, Options, Selector, Target};
pub use confinement::ConfinementState;
pub use envelope::{Envelope, EnvelopeError, MAX_ENVELOPE, Signature, digest, pae};
pub use report::{Ack, AckStatus, CommandOutcome, CommandResult, NodeState, RejectionEvent};
pub use subject::{Subject, Subjects};

/// Payload type of a signed command.
pub const COMMAND_TYPE: &str = "application/vnd.ensign.command.v1+json";
/// Payload type of a signed trust bundle.
pub const TRUST_TYPE: &str = "application/vnd.ensign.trust.v1+json";
