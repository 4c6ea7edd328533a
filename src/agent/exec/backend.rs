//! The way in which an agent runs commands: the engine, or a simulation that decides their ends.

use std::sync::Arc;
use std::time::Duration;

use crate::model::{NodeId, TransactionEvent};
use crate::wire::command::Command;

/// The way in which an agent runs commands.
#[derive(Clone, Default)]
pub enum RunBackend {
    /// The engine, on this host.
    #[default]
    Engine,
    /// A simulation. For simulators, which run ten thousand nodes on one host.
    Simulation(Arc<dyn Simulate>),
}

/// Decides the ends of commands.
pub trait Simulate: Send + Sync {
    /// Returns the run of `command` on `node`.
    fn simulate(&self, node: &NodeId, command: &Command) -> SimulatedRun;
}

/// A simulated run.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulatedRun {
    /// The duration. A run ends at the time limit of its command, as a real run does.
    pub duration: Duration,
    /// The events of its resources, in order. The outcome follows from them.
    pub events: Vec<TransactionEvent>,
}
