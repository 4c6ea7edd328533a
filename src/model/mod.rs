//! Plain data, shared by every layer: identities, events, summaries, secrets.
//!
//! No I/O, no clock, no async. Neighbours: every module above uses these types. This module uses only the standard library,
//! serde, base64 and the types of the crates for time and ids.

pub mod access;
pub mod budget;
pub mod duration;
pub mod effects;
mod encoded_forms;
pub mod ensure;
pub mod event;
pub mod id;
pub mod identity;
mod lock;
pub mod merge;
pub mod mount_request;
pub mod node_glob;
pub mod pattern;
pub mod registration;
pub mod resource_limits;
pub mod reversal;
pub mod secret;
pub mod summary;
pub mod sysctl;
pub mod watch;

pub use access::{ReadAccess, TemplateRead, UnrestrictedAccess};
pub use budget::{BudgetError, EvaluationBudget};
pub use duration::HumanDuration;
pub use effects::{Effect, Effects};
pub use ensure::{EnsureRequest, EnsureResponse};
pub use event::{HealthResult, HealthStatus, ManifestId, ResourceOutcome, TransactionEvent};
pub use id::{InvalidId, NodeId, RefreshEdge, ResourceRef, check_name};
pub use identity::{Identity, Need};
pub use lock::lock;
pub use merge::{deep_merge, shallow_merge};
pub use mount_request::{MountLimit, MountRequest};
pub use node_glob::NodeGlob;
pub use registration::{BusValue, DiscoveryClient, Registration};
pub use resource_limits::ResourceLimits;
pub use reversal::{OnRemoval, ReversalRecord};
pub use secret::{RedactedProperty, Secret, Secrets};
pub use summary::{ApplyState, RunOutcome, Summary};
pub use sysctl::SysctlKey;
pub use watch::WatchTarget;
