//! The order of the resources of a manifest: a graph, and the schedule of a run.
//!
//! Both are pure. Resources have indexes: their places in the manifest, from 0.
//!
//! - [`Graph::build`] takes a [`Node`] for each resource. References make explicit edges. In graph order, automatic edges follow
//!   from the objects that resources provide, remove and need. An automatic edge that would close a cycle is left out: see
//!   [`Graph::dropped`]. A cycle of references is an error.
//!
//! - [`Graph::order`] is the order of events: the order of a run with parallelism 1. Other runs have the same order of events.
//!
//! - [`Schedule::new`] begins a run. [`Schedule::next`] gives a [`Start`]: a resource, or a batch that is applied together. Call
//!   `next` until it returns none. Then wait for the end of a start, and report its resources with [`Schedule::ended`].
//!
//! - [`Schedule::recordable`] gives the ended resources whose events can be recorded in the order of events. Call it after
//!   `ended`. A later resource may already have ended, so that references need the latest outcomes, not the recorded events.
//!
//! - [`Schedule::stop`] ends the run early. [`Schedule::is_done`] is true when no resource runs or waits.
//!
//! In list order, resources run one at a time, in their written order. Adjacent resources of one batch key form a batch.
//! In graph order, every ready resource of a batch key joins the batch. A batch holds each of its semaphores once.

mod automatic;
mod build;
mod cycle;
mod edge;
mod node;
mod order;
mod schedule;
mod semaphore;

pub use build::{CycleEdge, Graph, explicit_cycle};
pub use edge::{Edge, EdgeCause, Reason};
pub use node::{BatchKey, Node, Reference, ReferenceKind};
pub use schedule::{Schedule, ScheduleSettings, Start};

#[cfg(test)]
mod tests;
