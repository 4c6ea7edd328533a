//! Plain data, shared by every layer: identities, events, summaries, secrets.
//!
//! No I/O, no clock, no async. Neighbours: everything above uses these types; this module uses only
//! the standard library, serde and the types of the crates that describe time and ids.

pub mod bounds;
pub mod duration;
pub mod ensure;
pub mod event;
pub mod id;
pub mod merge;
pub mod registration;
pub mod secret;
pub mod summary;
pub mod sysctl;

pub use bounds::Bounds;
pub use duration::Span;
pub use ensure::{EnsureRequest, EnsureResponse};
pub use event::{HealthResult, HealthStatus, ManifestId, Outcome, TransactionEvent};
pub use id::{InvalidId, NodeId, ResourceRef};
pub use merge::{deep_merge, shallow_merge};
pub use registration::{Exchange, Registration};
pub use secret::{Secret, Secrets};
pub use summary::{ApplyState, RunOutcome, Summary};
pub use sysctl::SysctlKey;
