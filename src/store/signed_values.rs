//! The newest accepted signed value of each key of a bucket. The node never goes back to an earlier value.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{StoreError, state_dir};

const FILE: &str = "values.json";
/// The size of all remembered values, in bytes, with room to spare.
const MAX_FILE: u64 = 4 << 20;
/// The number of remembered keys: more than the manifests of a host read. The oldest goes first.
const MAX_KEYS: usize = 4096;

/// The newest signed value of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewestValue {
    /// The time of the signature.
    pub issued: Timestamp,
    /// SHA-256 of the signed bytes, lower-case hex.
    pub digest: String,
}

/// Remembered values, by `bucket/key`: a small file, replaced in one step.
#[derive(Debug)]
pub struct ValueStore {
    path: PathBuf,
    newest: BTreeMap<String, NewestValue>,
}

impl ValueStore {
    /// Opens the store below a state directory, which the caller has to itself.
    ///
    /// # Errors
    /// When the system refuses, or the file is not what was written.
    pub fn open(state_dir: &Path) -> Result<Self, StoreError> {
        let path = state_dir.join(FILE);
        let newest = state_dir::read_json(&path, MAX_FILE)?.unwrap_or_default();
        Ok(Self { path, newest })
    }

    /// Returns the newest accepted value of a key.
    pub fn newest(&self, name: &str) -> Option<&NewestValue> {
        self.newest.get(name)
    }

    /// Records an accepted value. On return the record is on disk.
    ///
    /// # Errors
    /// When the system refuses. The value then counts until the end of the process.
    pub fn record(&mut self, name: String, value: NewestValue) -> Result<(), StoreError> {
        if self.newest.get(&name).is_some_and(|known| known.issued >= value.issued) {
            return Ok(());
        }
        self.newest.insert(name, value);
        if self.newest.len() > MAX_KEYS {
            let oldest = self.newest.iter().min_by_key(|(_, value)| value.issued).map(|(name, _)| name.clone());
            oldest.map(|name| self.newest.remove(&name));
        }
        state_dir::write_atomic(&self.path, &serde_json::to_vec(&self.newest)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(second: i64) -> NewestValue {
        NewestValue { issued: Timestamp::from_second(second).unwrap(), digest: "a".repeat(64) }
    }

    #[test]
    fn the_newest_values_are_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = ValueStore::open(dir.path()).unwrap();
        assert_eq!(store.newest("conf/a"), None);
        store.record("conf/a".into(), value(1)).unwrap();
        store.record("conf/a".into(), value(2)).unwrap();
        assert_eq!(ValueStore::open(dir.path()).unwrap().newest("conf/a"), Some(&value(2)));
        store.newest = (0..MAX_KEYS).map(|n| (format!("k{n}"), value(100))).collect();
        store.newest.insert("k7".into(), value(1));
        store.record("new".into(), value(50)).unwrap();
        assert_eq!((store.newest.len(), store.newest("k7")), (MAX_KEYS, None));
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        assert!(ValueStore::open(dir.path()).unwrap_err().to_string().ends_with("values.json, line 1, is damaged"));
    }
}
