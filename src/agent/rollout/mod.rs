//! Rollouts on a node: the gate, the queue of commands that wait for their wave, health gates, overrides, results.
//!
//! `gate.rs` decides whether this node may begin. `overrides.rs` keeps `halt` and `resume`. `queue.rs` holds commands
//! until their wave, and `scheduler.rs` lets them begin. `health_gate.rs` delays a success until its hold is over.
//! `results.rs` publishes success and failure. `wave_verdict.rs` decides whether an assignment stays.

pub(super) mod gate;
pub(super) mod health_gate;
pub(super) mod overrides;
pub(super) mod queue;
pub(super) mod results;
pub(super) mod scheduler;
mod state;
pub(super) mod wave_verdict;

pub(super) use state::RolloutState;
