//! The engine: turns a manifest or a single resource into a plan, and runs it.
//!
//! `plan.rs` reads everything before anything runs; `run.rs` goes through the resources in order;
//! `treat.rs` is the whole treatment of one resource, once, for every type; `act.rs` is the part of it that touches the
//! host, which can be done on another thread; `batch.rs` treats several together; `nested.rs` runs manifests within
//! manifests; `effects.rs` tells what rules and limits decide over, `provenance.rs` what properties were made of;
//! `health.rs` runs health checks; `unified.rs` shows what changes in a text; `files.rs` reads files for templates,
//! `vault.rs` secrets, `veil.rs` keeps them from what leaves a run.

mod apply_changes;
mod batch;
mod converge;
pub mod effects;
mod files;
pub mod health;
pub mod inputs;
mod nested;
pub mod plan;
mod provenance;
mod redact;
pub mod run;
mod secret_source;
mod text_diff;

pub use apply_changes::UnconfinedThread;
pub use inputs::{BusData, RunInputs};
pub use plan::{Plan, plan_manifest, plan_next, plan_one, precheck, precheck_one};
pub use run::{Authorizer, Diff, Pseudonymize, Report, Settings, run};
