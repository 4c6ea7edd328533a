//! The desired state of this node: for each channel the latest accepted and the last good assignment.
//!
//! Each channel has a small file, replaced in one step. A node without a broker continues from the file after a reboot. The
//! content was verified on arrival; `trust` verifies again after reading.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use crate::host::fs;

use super::{StoreError, state_dir};

/// The largest file, in bytes: three envelopes in base64, with room to spare.
const MAX_FILE: u64 = 1 << 20;
const ENDING: &str = "json";

/// A channel on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelRecord {
    /// The envelope of the latest accepted command of the channel.
    #[serde(serialize_with = "to_base64", deserialize_with = "from_base64")]
    pub latest: Vec<u8>,
    /// The envelope of the last good assignment, when that is not the latest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub good: Option<EnvelopeBytes>,
    /// The way back from the latest assignment, if its rollout has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revert: Option<RevertRecord>,
}

/// The way back from the latest assignment of a channel to the one before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RevertRecord {
    /// The wave of this node is undecided. The envelope of the assignment before is kept, if there was one.
    Undecided(Option<EnvelopeBytes>),
    /// The node went back to the last good assignment, and never applies the latest one again.
    Reverted(Reverted),
}

/// The return to the assignment before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reverted {
    /// The id of the event that reports the return.
    pub event: Uuid,
    /// The time of the return.
    pub at: Timestamp,
    /// The reason, for people.
    pub why: String,
    /// True when the event is in the outbox.
    pub reported: bool,
}

/// The bytes of an envelope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EnvelopeBytes(#[serde(serialize_with = "to_base64", deserialize_with = "from_base64")] pub Vec<u8>);

fn to_base64<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&STANDARD.encode(bytes))
}

fn from_base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    STANDARD.decode(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

/// The files of the channels.
#[derive(Debug)]
pub struct DesiredStateStore {
    dir: PathBuf,
}

impl DesiredStateStore {
    /// Opens the store below a state directory that no other process uses, and reads its content.
    ///
    /// # Errors
    /// When the system refuses, or a file is damaged.
    pub fn open(state_dir: &Path) -> Result<(Self, BTreeMap<String, ChannelRecord>), StoreError> {
        let store = Self { dir: state_dir.join("channels") };
        state_dir::create(&store.dir)?;
        let mut found = BTreeMap::new();
        for path in fs::list(&store.dir)? {
            if path.extension().is_none_or(|ending| ending != ENDING) {
                // Removes temporary files of a killed process.
                fs::remove(&path)?;
                continue;
            }
            let Some(name) = path.file_stem().and_then(|name| name.to_str()) else { continue };
            let kept = serde_json::from_slice(&fs::read(&path, MAX_FILE)?).map_err(|source| StoreError::Damaged {
                path: path.clone(),
                line: source.line(),
                source,
            })?;
            found.insert(name.to_owned(), kept);
        }
        Ok((store, found))
    }

    /// Persists the record of a channel. On return the record is on disk.
    ///
    /// # Errors
    /// When the system refuses; then the previous record still counts.
    pub fn write(&self, channel: &str, kept: &ChannelRecord) -> Result<(), StoreError> {
        state_dir::write_atomic(&self.dir.join(channel).with_extension(ENDING), &serde_json::to_vec(kept)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_survive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let (store, found) = DesiredStateStore::open(dir.path()).unwrap();
        assert!(found.is_empty());
        let base = ChannelRecord { latest: b"{}".to_vec(), good: Some(EnvelopeBytes(b"x".to_vec())), revert: None };
        let reverted = Reverted { event: Uuid::nil(), at: Timestamp::UNIX_EPOCH, why: "it failed".into(), reported: false };
        let web = ChannelRecord { latest: b"\xff".to_vec(), good: None, revert: Some(RevertRecord::Reverted(reverted)) };
        let undecided = Some(RevertRecord::Undecided(Some(EnvelopeBytes(b"y".to_vec()))));
        let base = ChannelRecord { revert: undecided, ..base };
        store.write("base", &base).unwrap();
        store.write("web", &web).unwrap();
        std::fs::write(dir.path().join("channels/.new-123"), "half").unwrap();
        let (store, found) = DesiredStateStore::open(dir.path()).unwrap();
        assert_eq!(found, BTreeMap::from([("base".to_owned(), base), ("web".to_owned(), web.clone())]));
        store.write("base", &web).unwrap();
        assert_eq!(DesiredStateStore::open(dir.path()).unwrap().1["base"], web);
        assert!(!dir.path().join("channels/.new-123").exists());
    }

    #[test]
    fn damage_is_reported_with_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = DesiredStateStore::open(dir.path()).unwrap();
        store.write("base", &ChannelRecord { latest: vec![], good: None, revert: None }).unwrap();
        let path = dir.path().join("channels/base.json");
        std::fs::write(&path, "{\"latest\":").unwrap();
        let message = DesiredStateStore::open(dir.path()).unwrap_err().to_string();
        assert_eq!(message, format!("{}, line 1, is damaged", path.display()));
    }
}
