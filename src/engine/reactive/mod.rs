//! The pure half of "enforce": decides which resource is checked, and when. Without threads, clock and host.
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
mod event;
mod flapping;
mod history;
mod policy;
mod resource_state;

pub use catalog::{Catalog, Check, NewRow, StateCounts};
pub use convergence::{CatalogActivity, ConvergenceMonitor, ConvergenceState};
pub use event::{DirtyCause, Notice, Outcome};
pub use policy::{CheckLimit, RepairPolicy};
pub use resource_state::{CheckReason, ResourceState};
