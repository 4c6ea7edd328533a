//! The converged and the failing resources of the runs of a channel. A later change of a converged resource is drift.
//!
//! Each channel has a small file, replaced in one step and not synced. After a power cut, lost resources count as intended
//! changes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::host::fs;

use super::{StoreError, state_dir};

const DIRECTORY: &str = "converged";
/// The largest file, in bytes: room for a hundred thousand resources with long names.
const MAX_FILE: u64 = 64 << 20;

/// The resources of a channel after a run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Convergence {
    /// A digest of the properties that each resource (`type#name`) had when it last converged.
    #[serde(default)]
    pub wanted: BTreeMap<String, String>,
    /// The time since which each resource fails.
    #[serde(default)]
    pub failing: BTreeMap<String, Timestamp>,
}

impl Convergence {
    /// Reads the file of a channel. A missing or damaged file counts as empty.
    pub fn read(state_dir: &Path, channel: &str) -> Self {
        let bytes = fs::read(&path(state_dir, channel), MAX_FILE);
        bytes.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    }

    /// Writes the file of a channel.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn write(&self, state_dir: &Path, channel: &str) -> Result<(), StoreError> {
        state_dir::create(&state_dir.join(DIRECTORY))?;
        state_dir::replace_unsynced(&path(state_dir, channel), &serde_json::to_vec(self)?)
    }

    /// Removes the file of a channel.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn remove(state_dir: &Path, channel: &str) -> Result<(), StoreError> {
        match fs::remove(&path(state_dir, channel)) {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }
}

fn path(state_dir: &Path, channel: &str) -> PathBuf {
    state_dir.join(DIRECTORY).join(format!("{channel}.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_has_a_file_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let wanted = BTreeMap::from([("file#/a".to_owned(), "d".to_owned())]);
        let convergence = Convergence { wanted, failing: BTreeMap::from([("exec#b".to_owned(), Timestamp::UNIX_EPOCH)]) };
        assert_eq!(Convergence::read(dir.path(), "base"), Convergence::default());
        convergence.write(dir.path(), "base").unwrap();
        assert_eq!(Convergence::read(dir.path(), "base"), convergence);
        assert_eq!(Convergence::read(dir.path(), "web"), Convergence::default());
        std::fs::write(path(dir.path(), "web"), b"{").unwrap();
        assert_eq!(Convergence::read(dir.path(), "web"), Convergence::default());
        Convergence::remove(dir.path(), "base").unwrap();
        Convergence::remove(dir.path(), "base").unwrap();
        assert_eq!(Convergence::read(dir.path(), "base"), Convergence::default());
    }
}
