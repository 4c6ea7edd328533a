//! Execution of commands and reconcile runs: the queue, fetching, the confined run, approval, recovery after a crash.

pub(super) mod approval;
pub(super) mod assignment_outputs;
pub(super) mod backend;
pub(super) mod bus_values;
mod change_causes;
mod command_state;
pub mod confinement;
pub(super) mod context;
mod event_sink;
pub(super) mod executor;
pub(super) mod fetch;
pub(super) mod healthcheck;
pub(super) mod host_data;
pub(super) mod job;
pub(super) mod orphaned_runs;
pub(super) mod queries;
mod queue_order;
pub(super) mod recovery;
pub(super) mod refreshes;
pub(super) mod result;
pub(super) mod reversals;
pub(super) mod run;
pub(super) mod simulation;
mod summary;
pub(super) mod upgrade;
