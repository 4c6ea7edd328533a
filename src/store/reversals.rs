//! Reversals: the records with which resources are reversed that leave their manifest.
//!
//! Each resource has a file of its own (JSON, mode 0600). The name of the file has digests of the source of the manifest and of
//! the resource. So a damaged file stops only its own resource. A record is on disk before the first change of the resource.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::diag::error_chain;
use crate::host::{FsError, fs};
use crate::model::{ResourceRef, ReversalRecord};

use super::{StoreError, state_dir};

/// The name of the directory in the state directory.
const DIRECTORY: &str = "reversals";
/// The suffix of files.
const SUFFIX: &str = ".json";
/// Most bytes of one record: a text of 1 MiB, of which JSON may escape every byte.
const MAX_RECORD: u64 = 7 << 20;
/// Most bytes of all records: 9 of the largest files, or 100 000 small ones.
const MAX_BYTES: u64 = 64 << 20;
/// Most bytes of one origin. A stolen key cannot keep the runs of other keys from their changes.
const MAX_OF_ORIGIN: u64 = 16 << 20;
/// Characters of a digest in a file name: enough to tell all resources of a host apart.
const DIGEST_LENGTH: usize = 20;

/// The content of a file.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Stored {
    /// The path of the manifest, or the channel.
    source: String,
    /// The key whose run captured the state; empty for a local run.
    origin: String,
    #[serde(flatten)]
    record: ReversalRecord,
}

/// The records of one source: the path of a manifest, or a channel.
#[derive(Debug)]
pub struct Reversals {
    directory: PathBuf,
    source: String,
    records: BTreeMap<ResourceRef, Stored>,
    /// The reasons of damaged files, by file name.
    damaged: BTreeMap<String, String>,
    /// The bytes of all files, also those of other sources, by file name.
    sizes: BTreeMap<String, u64>,
}

impl Reversals {
    /// Reads the records of a source below a state directory. A missing directory has none; nothing is created.
    ///
    /// # Errors
    /// When the directory can't be listed. A damaged file is no error here, only for its resource.
    pub fn read(state_dir: &Path, source: &str) -> Result<Self, StoreError> {
        let (directory, source) = (state_dir.join(DIRECTORY), source.to_owned());
        let (records, damaged, sizes) = Default::default();
        let mut reversals = Self { directory, source, records, damaged, sizes };
        let paths = match fs::list(&reversals.directory) {
            Err(error) if error.is_not_found() => Vec::new(),
            listed => listed?,
        };
        for path in paths {
            let Some(name) = path.file_name().and_then(|name| name.to_str()).filter(|name| name.ends_with(SUFFIX)) else {
                continue;
            };
            let size = fs::stat(&path, false)?.map_or(0, |info| info.size);
            reversals.sizes.insert(name.to_owned(), size);
            if name.starts_with(&digest(&reversals.source)) {
                reversals.add(name, &path);
            }
        }
        Ok(reversals)
    }

    /// Adds the record of a file. A damaged file is remembered with the reason.
    fn add(&mut self, name: &str, path: &Path) {
        let read = fs::read(path, MAX_RECORD).map_err(|error| error_chain(&error));
        let stored = read.and_then(|bytes| serde_json::from_slice::<Stored>(&bytes).map_err(|error| error.to_string()));
        match stored {
            Ok(stored) if self.file_name(&stored) == name => drop(self.records.insert(stored.record.resource.clone(), stored)),
            Ok(_) => drop(self.damaged.insert(name.to_owned(), "its content belongs to another file".to_owned())),
            Err(why) => drop(self.damaged.insert(name.to_owned(), why)),
        }
    }

    /// Returns the paths of damaged files, with the reasons.
    pub fn damaged(&self) -> impl Iterator<Item = (PathBuf, &str)> {
        self.damaged.iter().map(|(name, why)| (self.directory.join(name), why.as_str()))
    }

    /// Returns the record of a resource.
    ///
    /// # Errors
    /// When the record is damaged, with the reason, for people.
    pub fn get(&self, resource: &ResourceRef) -> Result<Option<&ReversalRecord>, String> {
        let stem = self.stem(resource);
        match self.damaged.iter().find(|(name, _)| name.starts_with(&stem)) {
            Some((name, why)) => Err(format!("the record {} is damaged: {why}", self.directory.join(name).display())),
            None => Ok(self.records.get(resource).map(|stored| &stored.record)),
        }
    }

    /// Returns all records.
    pub fn all(&self) -> impl Iterator<Item = &ReversalRecord> {
        self.records.values().map(|stored| &stored.record)
    }

    /// Writes a record, and waits until the record is on disk. `origin` is the key of the run; a known record keeps its own.
    ///
    /// # Errors
    /// When the record can't be written, or there are too many; the old record is unchanged then.
    pub fn write(&mut self, record: &ReversalRecord, origin: &str) -> Result<(), StoreError> {
        let known = self.records.get(&record.resource);
        let origin = known.map_or(origin, |known| &known.origin).to_owned();
        let stored = Stored { source: self.source.clone(), origin, record: record.clone() };
        let bytes = serde_json::to_vec_pretty(&stored)?;
        let (name, size) = (self.file_name(&stored), bytes.len() as u64);
        let path = self.directory.join(&name);
        if size > MAX_RECORD || self.is_full(&name, &stored.origin, size) {
            return Err(FsError::io("write", &path, io::ErrorKind::QuotaExceeded.into()).into());
        }
        state_dir::create(&self.directory)?;
        state_dir::write_atomic(&path, &bytes)?;
        self.sizes.insert(name, size);
        self.records.insert(record.resource.clone(), stored);
        Ok(())
    }

    /// Removes the record of a resource.
    ///
    /// # Errors
    /// When the file can't be removed.
    pub fn remove(&mut self, resource: &ResourceRef) -> Result<(), StoreError> {
        let Some(stored) = self.records.get(resource) else { return Ok(()) };
        let name = self.file_name(stored);
        fs::remove(&self.directory.join(&name))?;
        self.sizes.remove(&name);
        self.records.remove(resource);
        Ok(())
    }

    /// Returns true when a record of this size is too much for the host, or for its origin.
    fn is_full(&self, name: &str, origin: &str, size: u64) -> bool {
        let own = format!("-{}{SUFFIX}", digest(origin));
        let others = || self.sizes.iter().filter(|(other, _)| other.as_str() != name);
        let all: u64 = others().map(|(_, size)| size).sum();
        let of_origin: u64 = others().filter(|(other, _)| other.ends_with(&own)).map(|(_, size)| size).sum();
        all + size > MAX_BYTES || (!origin.is_empty() && of_origin + size > MAX_OF_ORIGIN)
    }

    fn stem(&self, resource: &ResourceRef) -> String {
        format!("{}-{}-{}", digest(&self.source), resource.kind, digest(&resource.to_string()))
    }

    fn file_name(&self, stored: &Stored) -> String {
        format!("{}-{}{SUFFIX}", self.stem(&stored.record.resource), digest(&stored.origin))
    }
}

/// Returns the beginning of the SHA-256 of a text.
fn digest(text: &str) -> String {
    fs::sha256(text.as_bytes()).chars().take(DIGEST_LENGTH).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use crate::model::OnRemoval;

    use super::*;

    fn record(resource: &str, content: &str) -> ReversalRecord {
        ReversalRecord {
            resource: resource.parse().unwrap(),
            on_removal: OnRemoval::Revert,
            captured: jiff::Timestamp::UNIX_EPOCH,
            position: 0,
            provider: String::new(),
            properties: serde_json::json!({"content": content}).as_object().cloned(),
            left: None,
        }
    }

    #[test]
    fn records_survive_the_process_for_their_source_alone() {
        let dir = tempfile::tempdir().unwrap();
        let mut one = Reversals::read(dir.path(), "/srv/a.yaml").unwrap();
        one.remove(&"file#/a".parse().unwrap()).unwrap();
        assert!(!dir.path().join(DIRECTORY).exists(), "nothing is created without a record");
        one.write(&record("file#/a", "old"), "").unwrap();
        one.write(&record("file#/b", "old"), "").unwrap();
        one.write(&ReversalRecord { left: Some("x".to_owned()), ..record("file#/a", "old") }, "").unwrap();
        assert_eq!(Reversals::read(dir.path(), "/srv/b.yaml").unwrap().all().count(), 0);
        let mut again = Reversals::read(dir.path(), "/srv/a.yaml").unwrap();
        assert_eq!(again.all().cloned().collect::<Vec<_>>(), one.all().cloned().collect::<Vec<_>>());
        for file in std::fs::read_dir(dir.path().join(DIRECTORY)).unwrap() {
            assert_eq!(file.unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
        again.remove(&"file#/a".parse().unwrap()).unwrap();
        let left = Reversals::read(dir.path(), "/srv/a.yaml").unwrap();
        assert_eq!(left.all().map(|one| one.resource.to_string()).collect::<Vec<_>>(), ["file#/b"]);
    }

    #[test]
    fn a_damaged_record_stops_only_its_own_resource() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = ("file#/a".parse().unwrap(), "file#/b".parse().unwrap());
        let mut reversals = Reversals::read(dir.path(), "x").unwrap();
        reversals.write(&record("file#/a", "old"), "").unwrap();
        let files = || std::fs::read_dir(dir.path().join(DIRECTORY)).unwrap().map(|file| file.unwrap().path());
        let file = files().next().unwrap();
        reversals.write(&record("file#/b", "old"), "").unwrap();
        let whole = std::fs::read(&file).unwrap();
        let other = std::fs::read(files().find(|path| *path != file).unwrap()).unwrap();
        for damaged in [&whole[..whole.len() / 2], b"", &other] {
            std::fs::write(&file, damaged).unwrap();
            let again = Reversals::read(dir.path(), "x").unwrap();
            assert!(again.get(&a).unwrap_err().contains("is damaged") && again.get(&b).unwrap().is_some());
            assert_eq!((again.all().count(), again.damaged().count()), (1, 1));
        }
    }

    #[test]
    fn the_size_is_bounded_and_shared() {
        let dir = tempfile::tempdir().unwrap();
        let mut reversals = Reversals::read(dir.path(), "x").unwrap();
        let large = "\u{1}".repeat(1 << 20);
        assert!(reversals.write(&record("file#/a", &large.repeat(2)), "").is_err());
        assert_eq!((0..5).filter(|n| reversals.write(&record(&format!("file#/{n}"), &large), "mallory").is_ok()).count(), 2);
        reversals.write(&record("file#/0", &large), "mallory").unwrap();
        reversals.write(&record("file#/ops", "old"), "ops").unwrap();
        let mut other = Reversals::read(dir.path(), "y").unwrap();
        assert!(other.write(&record("file#/a", &large), "mallory").is_err(), "an origin has one share, whatever the source");
        assert_eq!((10..25).filter(|n| other.write(&record(&format!("file#/{n}"), &large), "").is_ok()).count(), 8);
    }
}
