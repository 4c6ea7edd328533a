//! Pending refreshes: a resource changed, and a subscriber of it has not been refreshed yet.
//!
//! A pending refresh is on disk before the change. Only the success of the subscriber removes it, so that it survives failures,
//! killed runs and reboots. The file has one JSON value a line, and is replaced in one step.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::host::{FsError, fs};
use crate::model::{RefreshEdge, ResourceRef};

use super::{StoreError, state_dir};

/// The name of the file in its directory.
const FILE: &str = "pending-refreshes.jsonl";
/// Most bytes of the file. Each line is a service or a command that failed since a change: thousands have one cause.
const MAX_BYTES: usize = 4 << 20;
/// Most bytes of one origin. A stolen key cannot keep the runs of other keys from their changes.
const MAX_OF_ORIGIN: usize = 512 << 10;

/// A line of the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct PendingRefresh {
    #[serde(flatten)]
    edge: RefreshEdge,
    /// The key whose run changed the resource; empty for a local run.
    origin: String,
}

/// The pending refreshes of a directory.
#[derive(Debug)]
pub struct PendingRefreshes {
    path: PathBuf,
    /// Origin and line of each edge.
    edges: BTreeMap<RefreshEdge, (String, Vec<u8>)>,
}

impl PendingRefreshes {
    /// Reads the pending refreshes of a directory. A missing directory or file has none; nothing is created.
    ///
    /// # Errors
    /// When the file can't be read, or a line is damaged.
    pub fn read(directory: &Path) -> Result<Self, StoreError> {
        let path = directory.join(FILE);
        let bytes = match fs::read(&path, MAX_BYTES as u64) {
            Err(error) if error.is_not_found() => Vec::new(),
            read => read?,
        };
        let mut edges = BTreeMap::new();
        for (number, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
            let damaged = |source| StoreError::Damaged { path: path.clone(), line: number + 1, source };
            let PendingRefresh { edge, origin } = serde_json::from_slice(line).map_err(damaged)?;
            edges.insert(edge, (origin, line.to_vec()));
        }
        Ok(Self { path, edges })
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
        let mut all = self.edges.clone();
        for edge in edges.iter().filter(|edge| !self.is_pending(edge)) {
            let mut line = serde_json::to_vec(&PendingRefresh { edge: edge.clone(), origin: origin.to_owned() })?;
            line.push(b'\n');
            all.insert(edge.clone(), (origin.to_owned(), line));
        }
        if all.len() == self.edges.len() {
            return Ok(());
        }
        let bytes =
            |of: &str| all.values().filter(|(known, _)| of.is_empty() || known == of).map(|(_, line)| line.len()).sum::<usize>();
        if bytes("") > MAX_BYTES || (!origin.is_empty() && bytes(origin) > MAX_OF_ORIGIN) {
            return Err(FsError::io("write", &self.path, io::ErrorKind::QuotaExceeded.into()).into());
        }
        self.replace(all)
    }

    /// Removes the pending refreshes of a subscriber that was refreshed.
    ///
    /// # Errors
    /// When the removal can't be written: the next run refreshes the subscriber again.
    pub fn refreshed(&mut self, subscriber: &ResourceRef) -> Result<(), StoreError> {
        let mut left = self.edges.clone();
        left.retain(|edge, _| edge.subscriber != *subscriber);
        if left.len() == self.edges.len() { Ok(()) } else { self.replace(left) }
    }

    fn replace(&mut self, edges: BTreeMap<RefreshEdge, (String, Vec<u8>)>) -> Result<(), StoreError> {
        if let Some(directory) = self.path.parent() {
            state_dir::create(directory)?;
        }
        let text: Vec<u8> = edges.values().flat_map(|(_, line)| line).copied().collect();
        state_dir::write_atomic(&self.path, &text)?;
        self.edges = edges;
        Ok(())
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
    fn a_damaged_line_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        PendingRefreshes::read(dir.path()).unwrap().add(&[edge("file#/a", "service#x")], "").unwrap();
        let whole = std::fs::read(&file).unwrap();
        std::fs::write(&file, [b"{}\n", whole.as_slice()].concat()).unwrap();
        assert!(matches!(PendingRefreshes::read(dir.path()), Err(StoreError::Damaged { line: 1, .. })));
        std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
        assert!(matches!(PendingRefreshes::read(dir.path()), Err(StoreError::Damaged { line: 1, .. })));
    }

    /// Names may be long, and a subscriber that always fails stays. Whatever the runs of a key leave, an agent can read it again.
    #[test]
    fn the_size_is_bounded_and_shared() {
        let dir = tempfile::tempdir().unwrap();
        let mut pending = PendingRefreshes::read(dir.path()).unwrap();
        let long = |n: usize| edge("file#/a", &format!("exec#{n}{}", "\u{1}".repeat(60_000)));
        assert!(pending.add(&[long(0), long(1)], "mallory").is_err());
        assert_eq!(pending.all().count(), 0);
        pending.add(&[long(0)], "mallory").unwrap();
        assert!(pending.add(&[long(1)], "mallory").is_err());
        pending.add(&[edge("file#/b", "service#x")], "ops").unwrap();
        // A subscriber that always fails does not let the file grow.
        let file = dir.path().join(FILE);
        let length = || std::fs::metadata(&file).unwrap().len();
        let before = length();
        for _ in 0..10 {
            pending.add(&[edge("file#/c", "service#y")], "ops").unwrap();
            pending.refreshed(&"service#y".parse().unwrap()).unwrap();
        }
        assert_eq!(length(), before);
        for key in 0..20 {
            let _full = pending.add(&[long(key)], &format!("stolen{key}"));
        }
        assert!(length() <= MAX_BYTES as u64);
        let again = PendingRefreshes::read(dir.path()).unwrap();
        assert_eq!(again.all().collect::<Vec<_>>(), pending.all().collect::<Vec<_>>());
    }
}
