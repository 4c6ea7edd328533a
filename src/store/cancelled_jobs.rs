//! The jobs that operators cancelled, for as long as this node could still run them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{StoreError, state_dir};

const FILE: &str = "cancelled.json";
/// The size of all cancelled jobs that the agent keeps, in bytes, with room to spare.
const MAX_FILE: u64 = 16 << 20;

/// The cancel of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelledJob {
    /// The time of the signature.
    pub issued: Timestamp,
    /// The ids of the signers.
    pub by: Vec<String>,
    /// The reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The cancelled jobs, by id: a small file, replaced in one step.
#[derive(Debug)]
pub struct CancelledJobStore {
    path: PathBuf,
    jobs: BTreeMap<Uuid, CancelledJob>,
    /// True while the file lacks a job that counts.
    is_unsaved: bool,
}

impl CancelledJobStore {
    /// Opens the store below a state directory that no other process uses.
    ///
    /// # Errors
    /// When the system refuses, or the file is damaged.
    pub fn open(state_dir: &Path) -> Result<Self, StoreError> {
        let path = state_dir.join(FILE);
        let jobs = state_dir::read_json(&path, MAX_FILE)?.unwrap_or_default();
        Ok(Self { path, jobs, is_unsaved: false })
    }

    /// Returns the cancel of a job.
    pub fn find(&self, job: Uuid) -> Option<&CancelledJob> {
        self.jobs.get(&job)
    }

    /// Returns the signers of each cancel.
    pub fn signers(&self) -> impl Iterator<Item = &[String]> {
        self.jobs.values().map(|cancelled| cancelled.by.as_slice())
    }

    /// Forgets jobs. The next write of the file leaves them out.
    pub fn retain(&mut self, keep: impl Fn(Uuid, &CancelledJob) -> bool) {
        self.jobs.retain(|job, cancelled| keep(*job, cancelled));
    }

    /// Adds a job, unless its cancel is known. Returns true for a new one. On return the cancel is on disk.
    ///
    /// # Errors
    /// When the system refuses. The cancel counts all the same, until the process ends.
    pub fn add(&mut self, job: Uuid, cancelled: CancelledJob) -> Result<bool, StoreError> {
        let is_new = !self.jobs.contains_key(&job);
        if is_new {
            self.jobs.insert(job, cancelled);
            self.is_unsaved = true;
        }
        if self.is_unsaved {
            state_dir::write_atomic(&self.path, &serde_json::to_vec(&self.jobs)?)?;
            self.is_unsaved = false;
        }
        Ok(is_new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(issued: i64) -> CancelledJob {
        CancelledJob { issued: Timestamp::from_second(issued).unwrap(), by: vec!["ops".into()], reason: None }
    }

    #[test]
    fn a_cancel_survives_a_restart_and_the_first_one_counts() {
        let temporary = tempfile::tempdir().unwrap();
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let mut store = CancelledJobStore::open(temporary.path()).unwrap();
        assert!(store.add(one, made(1)).unwrap() && !store.add(one, made(2)).unwrap() && store.add(other, made(3)).unwrap());
        store.retain(|job, _| job == one);
        assert!(store.add(Uuid::from_u128(3), made(4)).unwrap());
        let store = CancelledJobStore::open(temporary.path()).unwrap();
        assert_eq!((store.find(one), store.find(other), store.signers().count()), (Some(&made(1)), None, 2));
    }

    #[test]
    fn a_cancel_that_was_not_written_counts_and_is_written_later() {
        let temporary = tempfile::tempdir().unwrap();
        let gone = temporary.path().join("state");
        std::fs::create_dir(&gone).unwrap();
        let mut store = CancelledJobStore::open(&gone).unwrap();
        std::fs::remove_dir(&gone).unwrap();
        assert!(store.add(Uuid::nil(), made(1)).is_err() && store.find(Uuid::nil()).is_some());
        std::fs::create_dir(&gone).unwrap();
        assert!(!store.add(Uuid::nil(), made(2)).unwrap());
        assert_eq!(CancelledJobStore::open(&gone).unwrap().find(Uuid::nil()), Some(&made(1)));
    }
}
