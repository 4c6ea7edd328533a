//! The operators' `halt` and `resume` of jobs, as far as this node knows them, also from before its start.
//!
//! The newer override counts, in whatever order they arrive.

use std::collections::BTreeMap;
use std::sync::Mutex;

use tokio::sync::watch;
use uuid::Uuid;

use crate::agent::exec::result::truncate_error;
use crate::config::AgentSettings;
use crate::host::{Checkpoint, checkpoint};
use crate::model::lock;
use crate::store::{Override, OverrideStore, StoreError};
use crate::trust::Verified;
use crate::wire::command::{Action, Command};

/// Most jobs with a remembered override. A forgotten one is read from the stream again.
const MAX_JOBS: usize = 256;

impl Override {
    fn from_command(verified: &Verified<Command>) -> Option<(Uuid, Self)> {
        let command = verified.get();
        let (job, halted) = match &command.action {
            Action::Halt(wanted) => (wanted.job, true),
            Action::Resume(wanted) => (wanted.job, false),
            _ => return None,
        };
        let by = verified.signers().to_vec();
        // Bounded, as the whole file has a limit: the agent does not start with a larger one.
        let reason = command.reason.clone().map(truncate_error);
        Some((job, Self { issued: command.issued, id: command.id, halted, by, reason }))
    }

    /// Returns true when this override counts over `other`: by time, then by id, which has a time too.
    fn is_after(&self, other: &Self) -> bool {
        (self.issued, self.id) > (other.issued, other.id)
    }

    fn sentence(&self) -> String {
        let what = if self.halted { "halted" } else { "resumed" };
        let reason = self.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
        format!("{what} by {} at {}{reason}", self.by.join(", "), self.issued)
    }
}

/// The latest override of each job.
pub(in crate::agent) struct Overrides {
    store: OverrideStore,
    latest: Mutex<BTreeMap<Uuid, Override>>,
    /// The digest of the last rejected override, which is reported once.
    rejected: Mutex<String>,
    changed: watch::Sender<()>,
}

impl Overrides {
    /// Opens the overrides on disk.
    pub(in crate::agent) fn open(settings: &AgentSettings) -> Result<Self, StoreError> {
        let (store, latest) = OverrideStore::open(&settings.state_dir)?;
        Ok(Self { store, latest: Mutex::new(latest), rejected: Mutex::default(), changed: watch::Sender::new(()) })
    }

    /// Writes the overrides to disk.
    ///
    /// # Errors
    /// When the disk cannot be written. The overrides count all the same.
    pub(super) fn persist(&self) -> Result<(), StoreError> {
        self.store.write(&lock(&self.latest))?;
        checkpoint(Checkpoint::OverrideStored);
        Ok(())
    }

    /// Records a verified override. Returns false when a newer one is known.
    pub(super) fn record(&self, verified: &Verified<Command>) -> bool {
        let Some((job, new)) = Override::from_command(verified) else { return false };
        let mut latest = lock(&self.latest);
        if latest.get(&job).is_some_and(|known| !new.is_after(known)) {
            return false;
        }
        tracing::info!(%job, "{}", new.sentence());
        latest.insert(job, new);
        if latest.len() > MAX_JOBS
            && let Some(oldest) = override_to_forget(&latest)
        {
            latest.remove(&oldest);
        }
        drop(latest);
        self.changed.send_replace(());
        true
    }

    /// Returns true for the first rejection of this override.
    pub(super) fn is_new_rejection(&self, digest: &str) -> bool {
        let mut last = lock(&self.rejected);
        let is_new = *last != digest;
        if is_new {
            digest.clone_into(&mut last);
        }
        is_new
    }

    /// Returns the signers and the reason of a halt, while the job is halted.
    pub(in crate::agent) fn halted(&self, job: Uuid) -> Option<String> {
        lock(&self.latest).get(&job).filter(|latest| latest.halted).map(Override::sentence)
    }

    /// Wakes the waiting commands, because another condition of their turn has changed.
    pub(in crate::agent) fn wake(&self) {
        self.changed.send_replace(());
    }

    /// Returns a receiver that changes with every override.
    pub(in crate::agent) fn watch(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }
}

/// Returns the job whose override is forgotten first: the oldest of the signers with most overrides.
///
/// A key cannot push out the overrides of others.
fn override_to_forget(latest: &BTreeMap<Uuid, Override>) -> Option<Uuid> {
    let mut counts: BTreeMap<&[String], usize> = BTreeMap::new();
    for known in latest.values() {
        *counts.entry(&known.by).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(by, _)| by)?;
    let of_most = latest.iter().filter(|(_, known)| known.by == most);
    of_most.min_by_key(|(_, known)| (known.issued, known.id)).map(|(job, _)| *job)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn made(issued: i64, id: u128, halted: bool) -> Override {
        let issued = Timestamp::from_second(issued).unwrap();
        Override { issued, id: Uuid::from_u128(id), halted, by: vec!["ops".into()], reason: Some("smoke".into()) }
    }

    #[test]
    fn the_latest_override_counts() {
        for (before, after) in [(made(1, 9, true), made(2, 1, false)), (made(2, 1, false), made(2, 2, true))] {
            assert!(after.is_after(&before) && !before.is_after(&after) && !before.is_after(&before));
        }
        assert_eq!(made(0, 1, true).sentence(), "halted by ops at 1970-01-01T00:00:00Z: smoke");
    }

    #[test]
    fn one_key_does_not_push_out_the_overrides_of_others() {
        let mut overrides: BTreeMap<Uuid, Override> = (10..20).map(|n| (Uuid::from_u128(n), made(100, n, true))).collect();
        let other = Override { by: vec!["other".into()], ..made(1, 1, true) };
        overrides.insert(Uuid::from_u128(1), other);
        assert_eq!(override_to_forget(&overrides), Some(Uuid::from_u128(10)));
        assert_eq!(override_to_forget(&BTreeMap::new()), None);
    }
}
