//! The state of rollouts on a node: its stores, and the handles that its users share.

use std::sync::Arc;

use crate::config::AgentSettings;
use crate::store::StoreError;
use crate::trust::Verified;
use crate::wire::CommandResult;
use crate::wire::command::Command;

use super::gate::Gate;
use super::health_gate::{HealthGates, StoredGates};
use super::overrides::Overrides;
use super::queue::RolloutQueue;
use super::results::RolloutResults;
use crate::agent::durable::publisher::Publisher;
use crate::agent::durable::state::DurableState;
use crate::agent::identity::AgentInstance;
use crate::agent::status::board::StatusBoard;
use crate::agent::trust::command_verifier::CommandVerifier;

/// The stores of rollouts, as opened at the start.
pub(in crate::agent) struct RolloutStores {
    overrides: Overrides,
    gates: StoredGates,
}

/// The state of rollouts on this node. Clones share it.
#[derive(Clone)]
pub(in crate::agent) struct RolloutState {
    /// The operators' `halt` and `resume`.
    pub(in crate::agent) overrides: Arc<Overrides>,
    /// Decides whether this node may begin.
    pub(in crate::agent) gate: Gate,
    /// The health gates that are pending.
    pub(in crate::agent) health_gates: Arc<HealthGates>,
    /// The commands that wait for their wave.
    pub(in crate::agent) queue: Arc<RolloutQueue>,
    /// Publishes success and failure.
    pub(in crate::agent) results: RolloutResults,
}

impl RolloutState {
    /// Opens the stores below the state directory.
    ///
    /// # Errors
    /// When a store cannot be read.
    pub(in crate::agent) fn open_stores(settings: &AgentSettings) -> Result<RolloutStores, StoreError> {
        Ok(RolloutStores { overrides: Overrides::open(settings)?, gates: StoredGates::open(settings)? })
    }

    /// Returns the state of rollouts. `has_health` is false on a simulated node, which has no health checks.
    pub(in crate::agent) fn new(
        stores: RolloutStores,
        identity: &Arc<AgentInstance>,
        verifier: &CommandVerifier,
        durable: &Arc<DurableState>,
        (publisher, status): (&Publisher, &Arc<StatusBoard>),
        has_health: bool,
    ) -> Self {
        let overrides = Arc::new(stores.overrides);
        let gate = Gate {
            identity: Arc::clone(identity),
            verifier: verifier.clone(),
            publisher: publisher.clone(),
            status: Arc::clone(status),
            overrides: Arc::clone(&overrides),
        };
        let results = RolloutResults::new(identity, publisher);
        let health_gates = Arc::new(HealthGates::new(stores.gates, status, durable, has_health));
        Self { overrides, gate, health_gates, queue: Arc::default(), results }
    }

    /// Schedules the health gate of a successful command, if the rollout wants one.
    ///
    /// Called before the result is persisted: after a crash in between, no result reports a success.
    pub(in crate::agent) fn schedule_health_gate(&self, command: &Verified<Command>, result: &CommandResult) {
        if self.health_gates.is_wanted(command, result, self.results.is_witness(command)) {
            self.health_gates.schedule(command.id, command.envelope());
        }
    }
}
