//! The connection of an operator to a fleet: bus, subjects, keys of nodes, and the clock.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::host::Host;
use crate::transport::{Bus, TransportError};
use crate::wire::{Subjects, Target};

use super::setup::operator_config::Operator;
use super::targeting::node_identity::NodeKeys;
use super::targeting::states::{self, NodeStates};

/// An operator, connected to a fleet.
#[derive(Clone)]
pub struct FleetConnection {
    /// The operator.
    pub operator: Operator,
    /// The connection to the server.
    pub bus: Bus,
    /// The subjects of the fleet.
    pub subjects: Subjects,
    /// The keys by which messages of nodes are verified.
    pub node_keys: Arc<NodeKeys>,
    /// Clock and ids.
    pub host: Host,
    /// Time by which the clock of this machine is ahead of the server's.
    pub clock_offset: SignedDuration,
}

impl FleetConnection {
    /// Wraps a connected bus. Without the time of the server, the clocks count as equal.
    pub async fn new(operator: Operator, bus: Bus, node_keys: NodeKeys, host: Host) -> Self {
        let subjects = Subjects::new(&operator.fleet);
        let server_time = bus.server_time(&subjects.stream("STATE")).await;
        let clock_offset = server_time.map_or(SignedDuration::ZERO, |time| host.now().duration_since(time));
        Self { operator, bus, subjects, node_keys: Arc::new(node_keys), host, clock_offset }
    }

    /// Returns the time of this machine.
    pub fn now(&self) -> Timestamp {
        self.host.now()
    }

    /// Returns the time by the clock of the server, for the ages of states. No signature uses this time.
    pub fn server_now(&self) -> Timestamp {
        self.now().saturating_sub(self.clock_offset).unwrap_or_else(|_| self.now())
    }

    /// Marks the nodes that the operator named: their keys are pinned, for any number of other new nodes.
    pub fn expect(&self, to: &Target) {
        if let Some(nodes) = &to.nodes {
            self.node_keys.expect(nodes);
        }
    }

    /// Reads the latest states of the nodes. A command reads them once and passes them along.
    ///
    /// # Errors
    /// When the stream of states can't be read.
    pub async fn read_states(&self) -> Result<NodeStates, TransportError> {
        states::read_states(&self.bus, &self.subjects, &self.node_keys, self.server_now()).await
    }
}
