//! "Enforce": keeps a manifest in force. Watches report changes of the host, and only the resources concerned are checked.
//!
//! - `enforcer` connects the watches with the pure half, and gives the selection of each run.
//!
//! - `fights` finds the processes that undo repairs.
//!
//! - `watched_resource` is what it knows of a resource.
//!
//! The rest is the pure half: it decides which resource is checked, and when. This half has no threads, no clock and no host.
//!
//! - `catalog` has all resources of a running manifest, and the agenda of their checks.
//!
//! - `resource_state` is the state machine of one resource: each state names the event that it waits for.
//!
//! - `history` has the checks of a resource so far, as far as the next pause depends on them.
//!
//! - `flapping` finds resources that another process changes again and again.
//!
//! - `policy` has the pauses and limits of a resource.
//!
//! - `convergence` tells when the whole catalog is converged.
//!
//! - `event` has the words of all of them: causes, outcomes and notices.
//!
//! The driver arms the watches, then calls [`Catalog::armed`]. An event of a watch goes to [`Catalog::changed`].
//! [`Catalog::start`] gives the checks that are due, and [`Catalog::ended`] takes the outcome of each.
//! [`Catalog::next_at`] is the time until which the driver may sleep.

mod catalog;
mod convergence;
mod enforcer;
mod event;
mod fights;
mod flapping;
mod history;
mod policy;
mod resource_state;
mod watched_resource;

pub use catalog::{Catalog, Check, NewRow, StateCounts};
pub use convergence::{CatalogActivity, ConvergenceMonitor, ConvergenceState};
pub use enforcer::{Enforcer, NamedNotice, RecordedEvent, Repair, Replaced};
pub use event::{DirtyCause, Notice, Outcome};
pub use policy::{CheckLimit, RepairPolicy};
pub use resource_state::{CheckReason, ResourceState};
pub use watched_resource::{WatchedResource, watched_resources};
