//! The rollout queue: commands in waves, from their acceptance until their turn.
//!
//! A command in here takes no place in the queue of the executor, so that other commands run meanwhile. The queue is only
//! memory: the ledger has everything that must survive.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Instant;

use tokio::task::JoinSet;
use uuid::Uuid;

use crate::agent::intake::fair_queue::{QueueFull, QueueLimits};
use crate::model::lock;
use crate::wire::CommandResult;

/// Most waiting commands: more rollouts at a time than an operator can follow. The commands take little memory (64 envelopes of
/// at most 64 KiB). As many more that are halted take no place.
const LIMITS: QueueLimits = QueueLimits { total: 64, per_key: 32 };

/// The commands of a node that wait for their wave.
#[derive(Default)]
pub(in crate::agent) struct RolloutQueue {
    waiting: Mutex<BTreeMap<Uuid, WaitingJob>>,
    tasks: Mutex<JoinSet<()>>,
}

/// The time of an answer of the gate, and the end of the command that it led to, if any.
pub(super) type GateAnswer = (Instant, Option<CommandResult>);

/// A command that waits, or that is on its way from here through the queue of the executor.
struct WaitingJob {
    wave: u64,
    signers: Vec<String>,
    /// The last answer of the gate.
    answered: Option<GateAnswer>,
}

impl RolloutQueue {
    /// Finds a place for one more command of these signers. A halted command gives its place to others.
    ///
    /// # Errors
    /// When the queue is full.
    pub(in crate::agent) fn find_place(&self, signers: &[String], is_halted: impl Fn(Uuid) -> bool) -> Result<(), QueueFull> {
        let waiting = lock(&self.waiting);
        let (halted, active): (Vec<_>, Vec<_>) = waiting.iter().partition(|(job, _)| is_halted(**job));
        let counted = active.into_iter().chain(halted.into_iter().skip(LIMITS.total));
        LIMITS.find_place(counted.map(|(_, waiting)| waiting.signers.as_slice()), signers)
    }

    /// Returns the wave of a waiting command.
    pub(in crate::agent) fn wave(&self, job: Uuid) -> Option<u64> {
        lock(&self.waiting).get(&job).map(|waiting| waiting.wave)
    }

    /// Returns true while a command waits.
    pub(in crate::agent) fn is_waiting(&self, job: Uuid) -> bool {
        self.wave(job).is_some()
    }

    /// Ends all waiting. The ledger keeps the commands.
    pub(in crate::agent) fn close(&self) {
        lock(&self.tasks).abort_all();
    }

    /// Adds a command that waits for its wave.
    pub(super) fn insert(&self, job: Uuid, wave: u64, signers: Vec<String>) {
        lock(&self.waiting).insert(job, WaitingJob { wave, signers, answered: None });
    }

    /// Removes a command. Returns the last answer of the gate.
    pub(super) fn remove(&self, job: Uuid) -> Option<GateAnswer> {
        lock(&self.waiting).remove(&job)?.answered
    }

    /// Starts a task that ends with the queue.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Records an answer of the gate.
    pub(super) fn record_answer(&self, job: Uuid, ended: Option<CommandResult>) {
        if let Some(waiting) = lock(&self.waiting).get_mut(&job) {
            waiting.answered = Some((Instant::now(), ended));
        }
    }
}
