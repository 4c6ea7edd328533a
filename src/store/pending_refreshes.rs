//! Pending refreshes: a resource changed, and a subscriber of it has not been refreshed yet.
//!
//! A pending refresh is on disk before the change. Only the success of the subscriber removes it, so that it survives failures,
//! killed runs and reboots.
//!
//! The file has one JSON value a line. A torn last line belongs to a change that was not made, and is removed.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::host::{FsError, fs};
use crate::model::{RefreshEdge, ResourceRef};

use super::StoreError;
use super::append_log::AppendLog;

/// The name of the file in its directory.
const FILE: &str = "pending-refreshes.jsonl";
/// The largest file that is read, in bytes.
const MAX_FILE: u64 = 64 << 20;
/// Most pending refreshes of a host. Each one is a service or a command that failed since a change: thousands have one cause.
const MAX_PENDING: usize = 8 << 10;
/// Most pending refreshes of one origin. A stolen key cannot keep the runs of other keys from their changes.
const MAX_OF_ORIGIN: usize = 1 << 10;

/// A line of the file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// The edge has a pending refresh.
    Pending {
        /// The edge.
        edge: RefreshEdge,
        /// The key whose run changed the resource; empty for a local run.
        origin: String,
    },
    /// The subscriber was refreshed.
    Refreshed(ResourceRef),
}

/// The pending refreshes of a directory.
#[derive(Debug)]
pub struct PendingRefreshes {
    path: PathBuf,
    /// The open file; none until the first write.
    log: Option<AppendLog>,
    /// The edges, each with its origin.
    edges: BTreeMap<RefreshEdge, String>,
    /// Length of the complete lines, in bytes.
    whole: u64,
}

impl PendingRefreshes {
    /// Reads the pending refreshes of a directory. A missing directory or file has none; nothing is created.
    ///
    /// # Errors
    /// When the file can't be read, or a line other than the last is damaged.
    pub fn read(directory: &Path) -> Result<Self, StoreError> {
        let path = directory.join(FILE);
        let bytes = match fs::read(&path, MAX_FILE) {
            Err(error) if error.is_not_found() => Vec::new(),
            read => read?,
        };
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let mut edges = BTreeMap::new();
        for (number, line) in bytes.get(..whole).unwrap_or_default().split(|byte| *byte == b'\n').enumerate() {
            if line.is_empty() {
                continue;
            }
            let damaged = |source| StoreError::Damaged { path: path.clone(), line: number + 1, source };
            match serde_json::from_slice(line).map_err(damaged)? {
                Line::Pending { edge, origin } => {
                    edges.insert(edge, origin);
                }
                Line::Refreshed(subscriber) => edges.retain(|edge: &RefreshEdge, _| edge.subscriber != subscriber),
            }
        }
        Ok(Self { path, log: None, edges, whole: whole as u64 })
    }

    /// True when the subscriber has not been refreshed since the other resource changed.
    pub fn is_pending(&self, edge: &RefreshEdge) -> bool {
        self.edges.contains_key(edge)
    }

    /// Returns all pending refreshes.
    pub fn all(&self) -> impl Iterator<Item = &RefreshEdge> {
        self.edges.keys()
    }

    /// Adds pending refreshes, and waits until they are on disk. `origin` is the key whose run changes the resource.
    ///
    /// # Errors
    /// When they can't be written, or there are too many; nothing was added then.
    pub fn add(&mut self, edges: &[RefreshEdge], origin: &str) -> Result<(), StoreError> {
        let new: Vec<&RefreshEdge> = edges.iter().filter(|edge| !self.edges.contains_key(*edge)).collect();
        if new.is_empty() {
            return Ok(());
        }
        let of_origin = self.edges.values().filter(|known| *known == origin).count();
        if self.edges.len() + new.len() > MAX_PENDING || of_origin + new.len() > MAX_OF_ORIGIN {
            return Err(FsError::io("write", &self.path, io::ErrorKind::QuotaExceeded.into()).into());
        }
        let mut lines = Vec::new();
        for edge in &new {
            serde_json::to_writer(&mut lines, &Line::Pending { edge: (*edge).clone(), origin: origin.to_owned() })?;
            lines.push(b'\n');
        }
        self.open()?.append_durably(&lines)?;
        let new: Vec<RefreshEdge> = new.into_iter().cloned().collect();
        self.edges.extend(new.into_iter().map(|edge| (edge, origin.to_owned())));
        Ok(())
    }

    /// Removes the pending refreshes of a subscriber that was refreshed. A crash before the line is on disk causes one more
    /// refresh.
    ///
    /// # Errors
    /// When the removal can't be written: the next run refreshes the subscriber again.
    pub fn refreshed(&mut self, subscriber: &ResourceRef) -> Result<(), StoreError> {
        if !self.edges.keys().any(|edge| edge.subscriber == *subscriber) {
            return Ok(());
        }
        self.edges.retain(|edge, _| edge.subscriber != *subscriber);
        let is_empty = self.edges.is_empty();
        let log = self.open()?;
        if is_empty {
            return log.truncate(0);
        }
        let mut line = serde_json::to_vec(&Line::Refreshed(subscriber.clone()))?;
        line.push(b'\n');
        log.append(&line).map(drop)
    }

    fn open(&mut self) -> Result<&mut AppendLog, StoreError> {
        if self.log.is_none() {
            if let Some(directory) = self.path.parent() {
                super::state_dir::create(directory)?;
            }
            let mut log = AppendLog::open(&self.path)?;
            if log.len() > self.whole {
                log.truncate(self.whole)?;
            }
            self.log = Some(log);
        }
        self.log.as_mut().ok_or_else(|| StoreError::Displaced(self.path.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(changed: &str, subscriber: &str) -> RefreshEdge {
        RefreshEdge { changed: changed.parse().unwrap(), subscriber: subscriber.parse().unwrap() }
    }

    #[test]
    fn pending_refreshes_survive_the_process_until_the_subscriber_succeeds() {
        let dir = tempfile::tempdir().unwrap();
        let (state, file) = (dir.path().join("state"), dir.path().join("state").join(FILE));
        let edges = [edge("file#/a", "service#x"), edge("file#/b", "service#x"), edge("file#/a", "exec#y z#1")];
        let mut pending = PendingRefreshes::read(&state).unwrap();
        pending.refreshed(&edges[0].subscriber).unwrap();
        assert!(!state.exists(), "nothing is created without a pending refresh");
        pending.add(&edges, "").unwrap();
        let length = std::fs::metadata(&file).unwrap().len();
        pending.add(&edges[1..], "").unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().len(), length, "a known one is not written again");
        let mut again = PendingRefreshes::read(&state).unwrap();
        assert!(edges.iter().all(|edge| again.is_pending(edge)) && !again.is_pending(&edge("file#/b", "exec#y z#1")));
        again.refreshed(&edges[0].subscriber).unwrap();
        let mut again = PendingRefreshes::read(&state).unwrap();
        assert_eq!(again.all().collect::<Vec<_>>(), [&edges[2]]);
        again.refreshed(&edges[2].subscriber).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().len(), 0);
        assert_eq!(PendingRefreshes::read(&state).unwrap().all().count(), 0);
    }

    #[test]
    fn a_torn_line_is_removed_and_a_damaged_one_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        PendingRefreshes::read(dir.path()).unwrap().add(&[edge("file#/a", "service#x")], "").unwrap();
        let whole = std::fs::read(&file).unwrap();
        std::fs::write(&file, [whole.as_slice(), br#"{"pending":{"chan"#].concat()).unwrap();
        let mut pending = PendingRefreshes::read(dir.path()).unwrap();
        assert_eq!(pending.all().count(), 1);
        pending.add(&[edge("file#/b", "service#x")], "").unwrap();
        assert_eq!(PendingRefreshes::read(dir.path()).unwrap().all().count(), 2);
        std::fs::write(&file, [b"{}\n", whole.as_slice()].concat()).unwrap();
        assert!(matches!(PendingRefreshes::read(dir.path()), Err(StoreError::Damaged { line: 1, .. })));
    }

    #[test]
    fn the_number_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let mut pending = PendingRefreshes::read(dir.path()).unwrap();
        let many: Vec<_> = (0..=MAX_PENDING).map(|n| edge("file#/a", &format!("exec#{n}"))).collect();
        assert!(pending.add(&many[..=MAX_OF_ORIGIN], "mallory").is_err());
        assert_eq!(pending.all().count(), 0);
        // One key has its share, and leaves the shares of the others.
        for (origin, share) in many.chunks(MAX_OF_ORIGIN).enumerate() {
            assert_eq!(pending.add(share, &origin.to_string()).is_ok(), origin < MAX_PENDING / MAX_OF_ORIGIN, "{origin}");
        }
        assert_eq!(PendingRefreshes::read(dir.path()).unwrap().all().count(), MAX_PENDING);
    }
}
