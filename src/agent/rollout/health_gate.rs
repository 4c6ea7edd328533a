//! Looks at the end of a hold: that a run in waves went well counts only then, and only when the health is not critical.
//! They are owed from the end of a run on until they were taken, by this agent or by the next one on this host.
//!
//! In: what ended well in waves that want it (`supervisor.rs` for what runs once, `enforcer.rs` for what stands). Out: at the
//! start, jobs that `waiting.rs` looks at when it is time. `store` keeps them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uuid::Uuid;

use crate::config::Settings;
use crate::host::{Checkpoint, checkpoint};
use crate::store::{HealthGateStore, StoreError};
use crate::trust::Verified;
use crate::wire::command::Command;
use crate::wire::{CommandOutcome, CommandResult};

use crate::agent::Node;
use crate::agent::exec::recovery::Recovered;
use crate::agent::exec::run::{Job, Work};
use crate::agent::rollout::gate;

/// The looks that are owed, with the envelopes of their commands.
#[derive(Debug)]
pub(in crate::agent) struct HealthGates {
    store: HealthGateStore,
    owed: Mutex<BTreeMap<Uuid, Vec<u8>>>,
}

impl HealthGates {
    /// Opens what is on disk.
    pub(in crate::agent) fn open(settings: &Settings) -> Result<Self, StoreError> {
        let (store, owed) = HealthGateStore::open(&settings.state_dir)?;
        Ok(Self { store, owed: Mutex::new(owed) })
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<Uuid, Vec<u8>>> {
        // Whole values are put in and taken out: a panic elsewhere leaves none half written.
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the health of what this command did is still to be looked at.
    pub(in crate::agent) fn is_pending(&self, id: Uuid) -> bool {
        self.held().contains_key(&id)
    }

    fn owe(&self, id: Uuid, envelope: &[u8]) -> Result<(), StoreError> {
        self.held().insert(id, envelope.to_vec());
        self.store.add(id, envelope)?;
        checkpoint(Checkpoint::LookOwed);
        Ok(())
    }

    fn remove(&self, id: Uuid) -> Result<(), StoreError> {
        checkpoint(Checkpoint::LookTaken);
        self.store.remove(id)
    }
}

/// Writes down that a look is owed, when the command wants one and ended well. Before the result: after a crash in
/// between no result says that it ended well.
pub(in crate::agent) fn schedule(node: &Node, command: &Verified<Command>, done: &CommandResult) {
    if is_wanted(node, command, done) {
        // What can't be written down is looked at by this agent all the same.
        node.report_storage_error(node.looks.owe(command.id, command.envelope()));
    }
}

/// True when a look is to be taken after this end of a command: the next wave waits for this node, or the waves are gated.
pub(in crate::agent) fn is_wanted(node: &Node, command: &Command, done: &CommandResult) -> bool {
    is_well(done) && (is_gated(node, command) || gate::is_witness(node, command))
}

/// True when the health of a node is to be looked at before its success counts.
pub(in crate::agent) fn is_gated(node: &Node, command: &Command) -> bool {
    // A host that is only played has no health.
    matches!(node.work, Work::Engine) && command.options.waves.as_ref().is_some_and(|waves| waves.health) && !command.options.noop
}

fn is_well(done: &CommandResult) -> bool {
    matches!(done.outcome, CommandOutcome::Stable | CommandOutcome::Changed | CommandOutcome::WouldChange)
}

/// It was taken, and what it came to is in the outbox; or it is not wanted any more.
pub(in crate::agent) fn complete(node: &Node, id: Uuid) {
    if node.looks.held().remove(&id).is_some() {
        // First that it failed, then that it was looked at: also after a power cut. What can't be removed now is looked at
        // once more by the next agent.
        node.report_storage_error(node.disk.sync().and_then(|()| node.looks.remove(id)));
    }
}

/// The looks that an earlier agent owed and did not take, as jobs; those that make no sense any more are given up. What
/// stands is looked at by the enforcer, which knows that it is owed.
pub(in crate::agent) fn restore(node: &Node, left: &Recovered) -> Vec<(Job, CommandResult)> {
    let owed: Vec<(Uuid, Vec<u8>)> = node.looks.held().iter().map(|(id, envelope)| (*id, envelope.clone())).collect();
    let mut jobs = Vec::new();
    for (id, envelope) in owed {
        match of(node, left, id, &envelope) {
            Some(PendingGate::Once(owed)) => jobs.push(*owed),
            Some(PendingGate::Stands) => {}
            None => complete(node, id),
        }
    }
    jobs
}

enum PendingGate {
    Once(Box<(Job, CommandResult)>),
    Stands,
}

fn of(node: &Node, left: &Recovered, id: Uuid, envelope: &[u8]) -> Option<PendingGate> {
    // It may have been written down just before the agent died, and the command be called interrupted now.
    let ended = left.ended.iter().map(|ended| &ended.done).find(|done| done.id == Some(id)).cloned();
    let done = ended.or_else(|| node.disk.result(id));
    if done.as_ref().is_some_and(|done| !is_well(done)) {
        return None;
    }
    if node.standing.has(id) {
        return Some(PendingGate::Stands);
    }
    let verified = node.verify(|verifier| verifier.reverify_queued(envelope)).ok()?;
    let command = verified.get();
    let is_on = node.now() < command.latest_start() && !command.action.is_desired_state();
    done.filter(|_| is_on).map(|done| {
        tracing::info!(%id, "that it went well is still to be said");
        PendingGate::Once(Box::new((Job { health_check_only: true, ..Job::once(Arc::new(verified), None) }, done)))
    })
}
