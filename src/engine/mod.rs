//! The engine: turns a manifest or a single resource into a plan, and runs it.
//!
//! `plan.rs` reads everything before anything runs; `run.rs` goes through the resources in order;
//! `treat.rs` is the whole treatment of one resource: noop, verification, refresh are written
//! there, once, for every type; `batch.rs` treats several together; `nested.rs` runs manifests within manifests;
//! `health.rs` runs health checks; `unified.rs` shows what changes in a text; `vault.rs` reads secrets, `veil.rs` keeps them
//! from what leaves a run.

mod batch;
pub mod health;
pub mod inputs;
mod nested;
pub mod plan;
pub mod run;
mod treat;
mod unified;
mod vault;
mod veil;

pub use inputs::Inputs;
pub use plan::{Plan, holds_template, plan_manifest, plan_one};
pub use run::{Conceal, Permit, Report, Settings, run};
