//! Sessions: the record of a run, which answers `require` and `subscribe`.
//!
//! [`MemorySession`] ends with the process. [`DirectorySession`] is a directory with one file per event, in the Go system's
//! layout. Several processes use the directory one after the other.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde_json::Value;
use uuid::Uuid;

use crate::host::fs;
use crate::model::event::{SESSION_START, SessionStart, TRANSACTION};
use crate::model::summary::SummaryBuilder;
use crate::model::{ResourceRef, Summary, TransactionEvent};

use super::{StoreError, state_dir};

/// The largest event file that is read.
const MAX_EVENT: u64 = 16 << 20;

/// The last event of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastResourceEvent {
    /// True when the resource was changed, or would be.
    pub changed: bool,
    /// True when the resource was only observed, so that `changed` tells what would have changed.
    pub noop: bool,
    /// True when the resource failed.
    pub failed: bool,
    /// True when a requirement of the resource was not met.
    pub unmet: bool,
}

/// The record of a run.
pub trait Session {
    /// Records an event.
    ///
    /// # Errors
    /// When the event has no type or name, or can't be written.
    fn record(&mut self, event: &TransactionEvent) -> Result<(), StoreError>;

    /// Returns the last event of the resource with this name or alias.
    fn last(&self, of: &ResourceRef) -> Option<LastResourceEvent>;

    /// Begins a run.
    ///
    /// # Errors
    /// When the start can't be written.
    fn start(&mut self, at: Timestamp, id: Uuid) -> Result<(), StoreError>;
}

/// A session that ends with the process.
#[derive(Debug, Default)]
pub struct MemorySession {
    /// By type and then by name, so that queries and records copy no type.
    last: HashMap<String, HashMap<String, LastResourceEvent>>,
}

impl MemorySession {
    fn add(&mut self, event: &TransactionEvent) {
        let TransactionEvent { changed, noop, failed, .. } = *event;
        let entry = LastResourceEvent { changed, noop, failed, unmet: !event.unmet_requirements.is_empty() };
        let names = match self.last.get_mut(&event.kind) {
            Some(names) => names,
            None => self.last.entry(event.kind.clone()).or_default(),
        };
        if !event.alias.is_empty() {
            names.insert(event.alias.clone(), entry);
        }
        names.insert(event.name.clone(), entry);
    }
}

impl Session for MemorySession {
    fn record(&mut self, event: &TransactionEvent) -> Result<(), StoreError> {
        check(event)?;
        self.add(event);
        Ok(())
    }

    fn last(&self, of: &ResourceRef) -> Option<LastResourceEvent> {
        self.last.get(&of.kind)?.get(&of.name).copied()
    }

    /// Forgets all earlier records.
    fn start(&mut self, _at: Timestamp, _id: Uuid) -> Result<(), StoreError> {
        *self = Self::default();
        Ok(())
    }
}

fn check(event: &TransactionEvent) -> Result<(), StoreError> {
    if event.kind.is_empty() || event.name.is_empty() { Err(StoreError::NamelessEvent) } else { Ok(()) }
}

/// A session in a directory.
#[derive(Debug)]
pub struct DirectorySession {
    path: PathBuf,
    memory: MemorySession,
    summary_builder: SummaryBuilder,
    warnings: Vec<String>,
}

impl DirectorySession {
    /// Opens the session in this directory and reads the events of other processes. A missing directory is empty.
    ///
    /// # Errors
    /// When the directory can't be listed. An event that can't be read is a warning.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let mut session = Self {
            path: path.into(),
            memory: MemorySession::default(),
            summary_builder: SummaryBuilder::default(),
            warnings: vec![],
        };
        session.load()?;
        Ok(session)
    }

    /// Returns the counts over all records.
    pub fn summary(&self) -> Summary {
        self.summary_builder.summary()
    }

    /// Returns the entries that opening the session skipped, with reasons.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn load(&mut self) -> Result<(), StoreError> {
        let paths = match fs::list(&self.path) {
            Ok(paths) => paths,
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let mut events = Vec::new();
        for path in paths.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "event")) {
            match id_of(&path) {
                Some(id) => events.push((id, path)),
                None => self.warnings.push(format!("{}: its name is not a UUID", path.display())),
            }
        }
        // UUIDv7 sort by time, also within a millisecond.
        events.sort();
        for (_, path) in events {
            if let Err(why) = self.load_event(&path) {
                self.warnings.push(format!("{}: {why}", path.display()));
            }
        }
        Ok(())
    }

    fn load_event(&mut self, path: &Path) -> Result<(), String> {
        let text = |error: &dyn std::error::Error| crate::diag::error_chain(error);
        let bytes = fs::read(path, MAX_EVENT).map_err(|error| text(&error))?;
        let value: Value = serde_json::from_slice(&bytes).map_err(|error| text(&error))?;
        match value.get("protocol").and_then(Value::as_str) {
            Some(TRANSACTION) => {
                let event: TransactionEvent = serde_json::from_value(value).map_err(|error| text(&error))?;
                self.memory.record(&event).map_err(|error| text(&error))?;
                self.summary_builder.add(&event);
                Ok(())
            }
            Some(SESSION_START) => {
                let start: SessionStart = serde_json::from_value(value).map_err(|error| text(&error))?;
                self.summary_builder.start(start.timestamp);
                Ok(())
            }
            Some(other) => Err(format!("unknown protocol {other}")),
            None => Err("it has no protocol".to_owned()),
        }
    }

    fn write(&self, id: Uuid, event: &impl serde::Serialize) -> Result<(), StoreError> {
        let bytes = serde_json::to_vec_pretty(event)?;
        state_dir::replace_unsynced(&self.path.join(format!("{id}.event")), &bytes)
    }
}

fn id_of(path: &Path) -> Option<Uuid> {
    path.file_stem()?.to_str()?.parse().ok()
}

impl Session for DirectorySession {
    fn record(&mut self, event: &TransactionEvent) -> Result<(), StoreError> {
        check(event)?;
        if !self.path.is_dir() {
            return Err(StoreError::MissingSession(self.path.clone()));
        }
        self.write(event.event_id, event)?;
        self.memory.add(event);
        self.summary_builder.add(event);
        Ok(())
    }

    fn last(&self, of: &ResourceRef) -> Option<LastResourceEvent> {
        self.memory.last(of)
    }

    /// Adds a record of the start, and creates the directory if needed. Earlier records stay.
    fn start(&mut self, at: Timestamp, id: Uuid) -> Result<(), StoreError> {
        state_dir::create(&self.path)?;
        self.write(id, &SessionStart { protocol: SESSION_START.to_owned(), event_id: id, timestamp: at })?;
        self.summary_builder.start(at);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use serde_json::json;

    use super::*;

    fn event(n: u8, kind: &str, name: &str, alias: &str) -> TransactionEvent {
        serde_json::from_value(json!({
            "protocol": TRANSACTION, "event_id": Uuid::from_bytes([n; 16]), "timestamp": "2026-11-20T10:00:00Z",
            "type": kind, "provider": "p", "name": name, "alias": alias, "requested_ensure": "", "final_ensure": "",
            "duration": 1_000_000_000, "properties": {}, "status": null, "error": [], "changed": false, "refreshed": false,
            "failed": false, "skipped": false, "noop": false, "unmet_requirements": [],
        }))
        .unwrap()
    }

    fn changed(mut event: TransactionEvent) -> TransactionEvent {
        event.changed = true;
        event
    }

    const QUIET: LastResourceEvent = LastResourceEvent { changed: false, noop: false, failed: false, unmet: false };

    fn behaves(session: &mut dyn Session) {
        session.start("2026-11-20T09:59:59Z".parse().unwrap(), Uuid::from_bytes([1; 16])).unwrap();
        session.record(&changed(event(2, "file", "/a", "conf"))).unwrap();
        let by = |kind: &str, name: &str| ResourceRef::new(kind, name);
        assert!(session.last(&by("file", "/a")).unwrap().changed);
        assert!(session.last(&by("file", "conf")).unwrap().changed);
        assert_eq!(session.last(&by("service", "/a")), None);
        session.record(&event(3, "file", "/a", "conf")).unwrap();
        assert_eq!(session.last(&by("file", "conf")), Some(QUIET));
        let mut unmet = event(4, "file", "/b", "");
        unmet.skipped = true;
        unmet.unmet_requirements = vec!["file#/a".into()];
        session.record(&unmet).unwrap();
        assert_eq!(session.last(&by("file", "/b")), Some(LastResourceEvent { unmet: true, ..QUIET }));
        assert_eq!(session.last(&by("file", "")), None);
        assert!(matches!(session.record(&event(5, "", "x", "")), Err(StoreError::NamelessEvent)));
        assert!(matches!(session.record(&event(5, "file", "", "")), Err(StoreError::NamelessEvent)));
    }

    #[test]
    fn memory_and_directory_behave_alike() {
        behaves(&mut MemorySession::default());
        let dir = tempfile::tempdir().unwrap();
        let mut session = DirectorySession::open(dir.path().join("new")).unwrap();
        behaves(&mut session);
        let summary = session.summary();
        assert_eq!((summary.total_resources, summary.unique_resources, summary.changed_resources), (3, 2, 1));
        assert_eq!(summary.total_duration, 2_000_000_000);
    }

    #[test]
    fn a_start_clears_memory_and_no_directory() {
        let mut memory = MemorySession::default();
        memory.record(&event(1, "file", "/a", "")).unwrap();
        memory.start(Timestamp::UNIX_EPOCH, Uuid::nil()).unwrap();
        assert_eq!(memory.last(&ResourceRef::new("file", "/a")), None);
        let dir = tempfile::tempdir().unwrap();
        let mut session = DirectorySession::open(dir.path()).unwrap();
        session.record(&event(1, "file", "/a", "")).unwrap();
        session.start(Timestamp::UNIX_EPOCH, Uuid::from_bytes([2; 16])).unwrap();
        assert_eq!(session.last(&ResourceRef::new("file", "/a")), Some(QUIET));
    }

    #[test]
    fn another_process_reads_the_session_and_warns_about_skipped_files() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path().join("s");
        assert!(matches!(
            DirectorySession::open(&dir).unwrap().record(&event(1, "file", "/a", "")),
            Err(StoreError::MissingSession(_))
        ));
        let mut session = DirectorySession::open(&dir).unwrap();
        session.start(Timestamp::UNIX_EPOCH, Uuid::from_bytes([1; 16])).unwrap();
        // Written in another order than that of their ids: the later id counts.
        session.record(&changed(event(3, "file", "/a", ""))).unwrap();
        session.record(&event(2, "file", "/a", "")).unwrap();
        let file = dir.join("02020202-0202-0202-0202-020202020202.event");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&dir), mode(&file)), (0o700, 0o600));
        let uuid = |n: u8| dir.join(format!("{}.event", Uuid::from_bytes([n; 16])));
        std::fs::write(uuid(7), "{").unwrap();
        std::fs::write(uuid(8), r#"{"protocol":"io.example.other"}"#).unwrap();
        std::fs::write(dir.join("2fXZ.event"), "{}").unwrap();
        std::fs::write(dir.join("notes.txt"), "x").unwrap();
        let session = DirectorySession::open(&dir).unwrap();
        assert!(session.last(&ResourceRef::new("file", "/a")).unwrap().changed);
        assert_eq!(session.summary().total_resources, 2);
        let warnings = session.warnings().join("\n");
        assert_eq!(session.warnings().len(), 3, "{warnings}");
        assert!(warnings.contains("unknown protocol io.example.other") && warnings.contains("not a UUID"), "{warnings}");
    }
}
