//! Rollouts on a node: the gate, the queue of commands that wait for their wave, health gates, overrides.

pub(super) mod gate;
pub(super) mod health_gate;
pub(super) mod queue;
