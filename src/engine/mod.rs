//! The engine: turns a manifest or a single resource into a plan, and runs it.
//!
//! - `plan` reads the manifest, its templates and references before any resource runs.
//!
//! - `graph` is the order of the resources, and the schedule of a run.
//!
//! - `run` goes through the resources in order; `batch` runs several together, `nested` a manifest within a manifest.
//!
//! - `converge` is the run of one resource, the same for every type.
//!
//! - `apply_changes` is the part of that run that touches the host, possibly on another thread; `attempts` repeats that part.
//!
//! - `refresh` keeps refreshes pending until the subscriber succeeded.
//!
//! - `outputs` gives values of a resource to the templates of later ones; `run_outputs` keeps them.
//! - `state_capture` records the state before the first run of a resource; `reversal` brings it back.
//!
//! - `settings` has the settings of a run.
//!
//! - `effects` gives rules and limits their input; `provenance` tracks the origin of properties.
//!
//! - `health` runs health checks; `text_diff` shows changes of a text.
//!
//! - `reactive` decides which resource is checked after an event, and when.
//!
//! - `template_files` reads files for templates, `secret_source` secrets; `redact` removes secrets from all output.

mod allowed_targets;
mod apply_changes;
mod attempts;
mod batch;
mod converge;
pub mod effects;
pub mod graph;
mod graph_run;
pub mod health;
pub mod inputs;
mod nested;
mod outputs;
pub mod plan;
mod provenance;
pub mod reactive;
mod redact;
mod refresh;
mod remaining;
mod reversal;
pub mod run;
mod run_outputs;
mod secret_source;
mod session_view;
mod settings;
mod state_capture;
mod subscribers;
mod template_files;
mod text_diff;

pub use inputs::{BusData, RunInputs};
pub use plan::{Plan, plan_manifest, plan_next, plan_one, precheck, precheck_one};
pub use run::{RunReport, run};
pub use run_outputs::OutputStore;
pub use settings::{
    Authorizer, Diff, Pseudonymize, RefreshStore, ReversalStore, RunSelection, RunSettings, UnconfinedThread, default_parallelism,
};
