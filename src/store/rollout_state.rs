//! State of rollouts beside the ledger: the last override of each, and the pending health gates.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::host::fs;
use crate::wire::MAX_ENVELOPE;

use super::{StoreError, state_dir};

const OVERRIDES_FILE: &str = "words.json";
/// The size of all overrides that the agent keeps, in bytes, with room to spare.
const MAX_OVERRIDES_BYTES: u64 = 1 << 20;
const HEALTH_GATE_SUFFIX: &str = "look";

/// The last override of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Override {
    /// The time of the signature.
    pub issued: Timestamp,
    /// The command with the override.
    pub id: Uuid,
    /// True for a halt, false for a resume.
    pub halted: bool,
    /// The ids of the signers.
    pub by: Vec<String>,
    /// The reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The overrides of operators, by job: one small file, replaced in one step.
#[derive(Debug)]
pub struct OverrideStore {
    path: PathBuf,
}

impl OverrideStore {
    /// Opens the store below a state directory that no other process uses, and reads its content.
    ///
    /// # Errors
    /// When the system refuses, or the file is damaged.
    pub fn open(state_dir: &Path) -> Result<(Self, BTreeMap<Uuid, Override>), StoreError> {
        let store = Self { path: directory(state_dir)?.join(OVERRIDES_FILE) };
        let words = state_dir::read_json(&store.path, MAX_OVERRIDES_BYTES)?.unwrap_or_default();
        Ok((store, words))
    }

    /// Persists all overrides. On return they are on disk.
    ///
    /// # Errors
    /// When the system refuses; then the previous content still counts.
    pub fn write(&self, words: &BTreeMap<Uuid, Override>) -> Result<(), StoreError> {
        state_dir::write_atomic(&self.path, &serde_json::to_vec(words)?)
    }
}

/// The commands with a pending health gate: a file each, which is the envelope.
#[derive(Debug)]
pub struct HealthGateStore {
    dir: PathBuf,
}

impl HealthGateStore {
    /// Opens the store below a state directory that no other process uses, and reads its content.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn open(state_dir: &Path) -> Result<(Self, BTreeMap<Uuid, Vec<u8>>), StoreError> {
        let store = Self { dir: directory(state_dir)? };
        let mut found = BTreeMap::new();
        for path in fs::list(&store.dir)? {
            let id = path.file_stem().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
            if let Some(id) = id.filter(|_| path.extension().is_some_and(|ending| ending == HEALTH_GATE_SUFFIX)) {
                found.insert(id, fs::read(&path, MAX_ENVELOPE as u64)?);
            }
        }
        Ok((store, found))
    }

    /// Persists a pending health gate. On return it is on disk.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn add(&self, id: Uuid, envelope: &[u8]) -> Result<(), StoreError> {
        state_dir::write_atomic(&self.path(id), envelope)
    }

    /// Removes a health gate that is complete or no longer needed.
    ///
    /// # Errors
    /// When the system refuses; then the gate runs again after the next start.
    pub fn remove(&self, id: Uuid) -> Result<(), StoreError> {
        Ok(fs::remove(&self.path(id))?)
    }

    fn path(&self, id: Uuid) -> PathBuf {
        self.dir.join(id.to_string()).with_extension(HEALTH_GATE_SUFFIX)
    }
}

/// Returns the directory of both stores, without temporary files of a killed process.
fn directory(state_dir: &Path) -> Result<PathBuf, StoreError> {
    let dir = state_dir.join("rollouts");
    state_dir::create(&dir)?;
    state_dir::remove_temporary_files(&dir)?;
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_and_health_gates_survive_a_restart() {
        let temporary = tempfile::tempdir().unwrap();
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let word = Override { issued: Timestamp::UNIX_EPOCH, id: other, halted: true, by: vec!["ops".into()], reason: None };
        let (words, none) = OverrideStore::open(temporary.path()).unwrap();
        assert!(none.is_empty());
        words.write(&BTreeMap::from([(one, word.clone())])).unwrap();
        let (looks, none) = HealthGateStore::open(temporary.path()).unwrap();
        assert!(none.is_empty());
        looks.add(one, b"one").unwrap();
        looks.add(other, b"other").unwrap();
        looks.remove(one).unwrap();
        looks.remove(one).unwrap();
        std::fs::write(temporary.path().join("rollouts/.new-1"), "half").unwrap();
        assert_eq!(OverrideStore::open(temporary.path()).unwrap().1, BTreeMap::from([(one, word)]));
        assert_eq!(HealthGateStore::open(temporary.path()).unwrap().1, BTreeMap::from([(other, b"other".to_vec())]));
        let path = temporary.path().join("rollouts").join(OVERRIDES_FILE);
        std::fs::write(&path, "{").unwrap();
        let message = OverrideStore::open(temporary.path()).unwrap_err().to_string();
        assert_eq!(message, format!("{}, line 1, is damaged", path.display()));
    }
}
