//! The jobs that operators cancelled, as far as this node could still run them.
//!
//! A cancel is on disk before it is answered, and is final: no `resume` undoes it.

use std::sync::Mutex;

use tokio::sync::watch;
use uuid::Uuid;

use crate::agent::exec::result::truncate_error;
use crate::agent::intake::fair_queue::QueueLimits;
use crate::config::AgentSettings;
use crate::model::lock;
use crate::store::{CancelledJob, CancelledJobStore, StoreError};
use crate::trust::Verified;
use crate::wire::command::Command;

/// Most cancelled jobs that this node has not received. Received jobs take a place in the queues instead.
const UNKNOWN_JOBS: QueueLimits = QueueLimits { total: 512, per_key: 256 };

/// The reason why a cancel was not recorded.
#[derive(Debug, thiserror::Error)]
pub(in crate::agent) enum RecordCancelError {
    /// Too many jobs of this key are cancelled before they arrived.
    #[error("{0}")]
    Full(String),
    /// The record cannot be written. The cancel counts until the agent ends.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The cancelled jobs of this node.
#[derive(Debug)]
pub(in crate::agent) struct CancelledJobs {
    store: Mutex<CancelledJobStore>,
    changed: watch::Sender<()>,
}

impl CancelledJobs {
    /// Opens the cancelled jobs on disk.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(super) fn open(settings: &AgentSettings) -> Result<Self, StoreError> {
        Ok(Self { store: Mutex::new(CancelledJobStore::open(&settings.state_dir)?), changed: watch::Sender::new(()) })
    }

    /// Records a verified cancel, on disk. Returns false when the job was cancelled before. Forgets jobs that are over.
    ///
    /// # Errors
    /// When there is no place, or the file cannot be written.
    pub(super) fn record(
        &self,
        job: Uuid,
        verified: &Verified<Command>,
        is_received: bool,
        is_over: impl Fn(Uuid, &CancelledJob) -> bool,
    ) -> Result<bool, RecordCancelError> {
        let mut store = lock(&self.store);
        store.retain(|job, cancelled| !is_over(job, cancelled));
        if !is_received && store.find(job).is_none() {
            let place = UNKNOWN_JOBS.find_place(store.signers(), verified.signers());
            place.map_err(|full| RecordCancelError::Full(full.sentence("cancelled jobs")))?;
        }
        let reason = verified.reason.clone().map(truncate_error);
        let cancelled = CancelledJob { issued: verified.issued, by: verified.signers().to_vec(), reason };
        let added = store.add(job, cancelled);
        drop(store);
        self.changed.send_replace(());
        Ok(added?)
    }

    /// Returns the signers and the reason of a cancel, as a sentence; none for another job.
    pub(in crate::agent) fn find(&self, job: Uuid) -> Option<String> {
        lock(&self.store).find(job).map(sentence)
    }

    /// Waits until a job is cancelled. Returns as [`Self::find`].
    pub(in crate::agent) async fn wait(&self, job: Uuid) -> String {
        let mut changed = self.changed.subscribe();
        loop {
            if let Some(why) = self.find(job) {
                return why;
            }
            // The sender lives as long as the agent: no error.
            let _changed = changed.changed().await;
        }
    }
}

fn sentence(cancelled: &CancelledJob) -> String {
    let reason = cancelled.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
    format!("cancelled by {} at {:.0}{reason}", cancelled.by.join(", "), cancelled.issued)
}
