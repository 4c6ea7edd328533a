//! Health gates: a success in a rollout counts only after its hold, and only when the health is not critical.
//!
//! A gate is pending from the end of a run until its health check. This agent or the next one on this host makes the check.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use uuid::Uuid;

use crate::agent::durable::state::DurableState;
use crate::agent::status::board::StatusBoard;
use crate::config::AgentSettings;
use crate::host::{Checkpoint, checkpoint};
use crate::model::lock;
use crate::store::{HealthGateStore, StoreError};
use crate::wire::command::Command;
use crate::wire::{CommandOutcome, CommandResult};

/// The gates that are pending on disk, as opened at the start.
pub(in crate::agent) struct StoredGates {
    store: HealthGateStore,
    pending: BTreeMap<Uuid, Vec<u8>>,
}

impl StoredGates {
    /// Opens the gates on disk.
    ///
    /// # Errors
    /// When they cannot be read.
    pub(in crate::agent) fn open(settings: &AgentSettings) -> Result<Self, StoreError> {
        let (store, pending) = HealthGateStore::open(&settings.state_dir)?;
        Ok(Self { store, pending })
    }
}

/// The pending health gates, with the envelopes of their commands.
pub(in crate::agent) struct HealthGates {
    store: HealthGateStore,
    pending: Mutex<BTreeMap<Uuid, Vec<u8>>>,
    status: Arc<StatusBoard>,
    durable: Arc<DurableState>,
    has_health: bool,
}

/// Returns true when the command ended well.
pub(in crate::agent) fn is_success(result: &CommandResult) -> bool {
    matches!(result.outcome, CommandOutcome::Stable | CommandOutcome::Changed | CommandOutcome::WouldChange)
}

impl HealthGates {
    /// Returns the gates of a running agent. `has_health` is false on a simulated node, which has no health checks.
    pub(super) fn new(stored: StoredGates, status: &Arc<StatusBoard>, durable: &Arc<DurableState>, has_health: bool) -> Self {
        let StoredGates { store, pending } = stored;
        let (status, durable) = (Arc::clone(status), Arc::clone(durable));
        Self { store, pending: Mutex::new(pending), status, durable, has_health }
    }

    /// Returns true while the gate of this command is pending.
    pub(in crate::agent) fn is_pending(&self, id: Uuid) -> bool {
        lock(&self.pending).contains_key(&id)
    }

    /// Returns the pending gates with the envelopes of their commands.
    pub(in crate::agent) fn pending(&self) -> Vec<(Uuid, Vec<u8>)> {
        lock(&self.pending).iter().map(|(id, envelope)| (*id, envelope.clone())).collect()
    }

    /// Returns true when the health of this node is checked before its success counts.
    pub(in crate::agent) fn is_gated(&self, command: &Command) -> bool {
        self.has_health && command.options.waves.as_ref().is_some_and(|plan| plan.health) && !command.options.noop
    }

    /// Returns true when this end of a command leads to a gate. Then the next wave waits for this node, or health is checked.
    pub(in crate::agent) fn is_wanted(&self, command: &Command, result: &CommandResult, is_witness: bool) -> bool {
        is_success(result) && (self.is_gated(command) || is_witness)
    }

    /// Records a pending gate. A gate that the disk does not take is completed by this agent all the same.
    pub(super) fn schedule(&self, id: Uuid, envelope: &[u8]) {
        lock(&self.pending).insert(id, envelope.to_vec());
        self.status.report_storage_error(self.store.add(id, envelope));
        checkpoint(Checkpoint::HealthGateScheduled);
    }

    /// Completes a gate whose result is in the outbox, or that is obsolete.
    pub(in crate::agent) fn complete(&self, id: Uuid) {
        if lock(&self.pending).remove(&id).is_some() {
            // The result reaches the disk first, also before a power cut. The next agent repeats a gate that stays here.
            let removed = self.durable.sync().and_then(|()| {
                checkpoint(Checkpoint::HealthGateCompleted);
                self.store.remove(id)
            });
            self.status.report_storage_error(removed);
        }
    }
}
