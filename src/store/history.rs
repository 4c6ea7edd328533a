//! The history of runs on this host: one file per run, written line by line.
//!
//! The first line identifies the run, the last line has its end. Between them is an event for every resource that was not as
//! wanted. A killed run has no last line. The file is locked during the run. Nothing is synced: after a power cut the history
//! may lack its last moments.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::host::{FsError, fs};
use crate::model::{ResourceOutcome, RunOutcome, Summary, TransactionEvent};

use super::{StoreError, state_dir};

/// The number of kept runs; the oldest go first.
const MAX_RUNS: usize = 100;
/// The largest file that is read.
const MAX_FILE: u64 = 64 << 20;
/// The suffix of file names.
const SUFFIX: &str = "run";

/// The identity of a run: the first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunStart {
    /// The run, as its events name it.
    pub run_id: Uuid,
    /// The start of the run.
    pub started: Timestamp,
    /// The manifest or the resource, as given by the user.
    pub what: String,
    /// SHA-256 of the manifest, in hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// The end of a run: the last line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunEnd {
    /// The time of the end.
    pub ended: Timestamp,
    /// The outcome.
    pub outcome: RunOutcome,
    /// The counts of all its resources.
    pub summary: Summary,
}

/// A line of a file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line<'a> {
    Start(Cow<'a, RunStart>),
    Event(Box<Cow<'a, TransactionEvent>>),
    End(Cow<'a, RunEnd>),
}

/// A recorded run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RecordedRun {
    /// The identity of the run.
    #[serde(flatten)]
    pub start: RunStart,
    /// The end; none for a run that has not ended.
    #[serde(flatten)]
    pub end: Option<RunEnd>,
    /// True while the run is active. A run that neither ended nor is active was killed.
    pub running: bool,
    /// The resources that were not as wanted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<TransactionEvent>,
}

/// The directory of the history.
#[derive(Debug, Clone)]
pub struct History {
    directory: PathBuf,
}

impl History {
    /// Uses the history in a directory; the first recorded run creates the directory.
    pub fn in_directory(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// Returns the directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Begins to record a run, and removes the oldest runs.
    ///
    /// # Errors
    /// When the directory can't be written.
    pub fn begin(&self, start: &RunStart) -> Result<Recorder, StoreError> {
        let path = self.path(start.run_id);
        let open = || OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path);
        let file = match open() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                state_dir::create(&self.directory)?;
                open()
            }
            other => other,
        };
        let file = file.map_err(|error| FsError::io("create", &path, error))?;
        // No other process has the file yet: the lock is free.
        file.lock().map_err(|error| FsError::io("lock", &path, error))?;
        let mut recorder = Recorder { file, path };
        recorder.write(&Line::Start(Cow::Borrowed(start)))?;
        self.remove_oldest();
        Ok(recorder)
    }

    /// Removes runs beyond the limit. A file that can't be removed is tried again after the next run.
    fn remove_oldest(&self) {
        let Ok(files) = self.files() else { return };
        for path in files.iter().rev().skip(MAX_RUNS) {
            let _kept = fs::remove(path);
        }
    }

    fn path(&self, id: Uuid) -> PathBuf {
        self.directory.join(format!("{id}.{SUFFIX}"))
    }

    /// Returns the files of runs, oldest first: UUIDv7 sort by time.
    fn files(&self) -> Result<Vec<PathBuf>, FsError> {
        let mut files = match fs::list(&self.directory) {
            Err(error) if error.is_not_found() => return Ok(Vec::new()),
            listed => listed?,
        };
        files.retain(|path| path.extension().is_some_and(|extension| extension == SUFFIX));
        files.sort();
        Ok(files)
    }

    /// Returns the runs, newest first, without their events; and the files that could not be read, with reasons.
    ///
    /// # Errors
    /// When the directory can't be listed.
    pub fn list(&self) -> Result<(Vec<RecordedRun>, Vec<String>), StoreError> {
        let (mut runs, mut unread) = (Vec::new(), Vec::new());
        for path in self.files()?.iter().rev() {
            match read(path) {
                Ok(run) => runs.push(RecordedRun { events: Vec::new(), ..run }),
                Err(error) => unread.push(crate::diag::error_chain(&error)),
            }
        }
        Ok((runs, unread))
    }

    /// Returns the run whose id begins with this text; the newest when none is given.
    ///
    /// # Errors
    /// When no run or several runs match, or the file can't be read.
    pub fn find(&self, id: Option<&str>) -> Result<RecordedRun, StoreError> {
        let files = self.files()?;
        let named =
            |path: &&PathBuf, id: &str| path.file_stem().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(id));
        let mut found = files.iter().rev().filter(|path| id.is_none_or(|id| named(path, id)));
        let missing = || StoreError::UnknownRun(id.unwrap_or("any").to_owned());
        let path = found.next().ok_or_else(missing)?;
        if let Some(id) = id
            && found.next().is_some()
        {
            return Err(StoreError::AmbiguousRun(id.to_owned()));
        }
        read(path)
    }
}

fn read(path: &Path) -> Result<RecordedRun, StoreError> {
    let text = fs::read_text(path, MAX_FILE)?;
    let damaged = |line: usize| move |source| StoreError::Damaged { path: path.to_owned(), line, source };
    let mut start = None;
    let (mut end, mut events) = (None, Vec::new());
    let count = text.lines().count();
    for (at, line) in text.lines().enumerate() {
        match serde_json::from_str(line) {
            Ok(Line::Start(line)) => start = Some(line.into_owned()),
            Ok(Line::Event(event)) => events.push(event.into_owned()),
            Ok(Line::End(line)) => end = Some(line.into_owned()),
            // An unfinished line of a killed process.
            Err(_) if at + 1 == count && !text.ends_with('\n') && start.is_some() => {}
            Err(source) => return Err(damaged(at + 1)(source)),
        }
    }
    let start = start.ok_or_else(|| damaged(1)(serde::de::Error::custom("the start of the run is missing")))?;
    // The lock of a dead process is free.
    let running = end.is_none() && File::open(path).is_ok_and(|file| file.try_lock_shared().is_err());
    Ok(RecordedRun { start, end, running, events })
}

/// Records a run as far as possible: a failure to write the history fails no run.
#[derive(Debug, Default)]
pub struct Recording {
    recorder: Option<Recorder>,
    problem: Option<StoreError>,
}

impl Recording {
    /// Begins; without a history nothing is recorded.
    pub fn begin(history: Option<&History>, start: &RunStart) -> Self {
        match history.map(|history| history.begin(start)).transpose() {
            Ok(recorder) => Self { recorder, problem: None },
            Err(problem) => Self { recorder: None, problem: Some(problem) },
        }
    }

    /// Records an event, unless its resource was as wanted.
    pub fn event(&mut self, event: &TransactionEvent) {
        if let Some(Err(problem)) = self.recorder.as_mut().map(|recorder| recorder.event(event)) {
            *self = Self { recorder: None, problem: Some(problem) };
        }
    }

    /// Records the end.
    ///
    /// # Errors
    /// When something of the run could not be recorded.
    pub fn end(self, end: &RunEnd) -> Result<(), StoreError> {
        self.problem.map_or(Ok(()), Err)?;
        self.recorder.map_or(Ok(()), |recorder| recorder.end(end))
    }
}

/// Records one run.
#[derive(Debug)]
pub struct Recorder {
    file: File,
    path: PathBuf,
}

impl Recorder {
    /// Records an event, unless its resource was as wanted.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn event(&mut self, event: &TransactionEvent) -> Result<(), StoreError> {
        if event.outcome() == ResourceOutcome::Stable && event.errors.is_empty() {
            return Ok(());
        }
        self.write(&Line::Event(Box::new(Cow::Borrowed(event))))
    }

    /// Records the end.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn end(mut self, end: &RunEnd) -> Result<(), StoreError> {
        self.write(&Line::End(Cow::Borrowed(end)))
    }

    fn write(&mut self, line: &Line<'_>) -> Result<(), StoreError> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        Ok(self.file.write_all(&bytes).map_err(|error| FsError::io("write", &self.path, error))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(at: i64) -> RunStart {
        let started = Timestamp::from_second(at).unwrap();
        let time = uuid::Timestamp::from_unix(uuid::NoContext, u64::try_from(at).unwrap(), 0);
        RunStart { run_id: Uuid::new_v7(time), started, what: "m.yaml".into(), digest: None }
    }

    fn end(outcome: RunOutcome) -> RunEnd {
        RunEnd { ended: Timestamp::from_second(100).unwrap(), outcome, summary: Summary::default() }
    }

    fn event(failed: bool) -> TransactionEvent {
        let value = serde_json::json!({
            "protocol": crate::model::event::TRANSACTION, "event_id": Uuid::now_v7(), "timestamp": "2026-01-01T00:00:00Z",
            "type": "file", "provider": "posix", "name": "/x", "requested_ensure": "present", "final_ensure": "present",
            "duration": 1, "properties": {}, "status": null, "error": [], "changed": false, "refreshed": false,
            "failed": failed, "skipped": false, "noop": false, "unmet_requirements": [],
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn runs_are_remembered_newest_first_with_what_was_not_as_wanted() {
        let directory = tempfile::tempdir().unwrap();
        let history = History::in_directory(directory.path().join("runs"));
        assert_eq!(history.list().unwrap().0, []);
        assert!(matches!(history.find(None), Err(StoreError::UnknownRun(_))));
        let (first, second) = (start(1), start(2));
        let mut recorder = history.begin(&first).unwrap();
        recorder.event(&event(false)).unwrap();
        recorder.event(&event(true)).unwrap();
        recorder.end(&end(RunOutcome::Failed)).unwrap();
        let recorder = history.begin(&second).unwrap();
        let (runs, unread) = history.list().unwrap();
        assert_eq!((runs.len(), unread.len()), (2, 0));
        assert_eq!((&runs[0].start, runs[0].running, &runs[0].end), (&second, true, &None));
        drop(recorder);
        assert!(!history.find(None).unwrap().running, "it was killed");
        let run = history.find(Some(&first.run_id.to_string())).unwrap();
        assert_eq!((run.events.len(), run.end.unwrap().outcome), (1, RunOutcome::Failed));
        assert!(matches!(history.find(Some("0")), Err(StoreError::AmbiguousRun(_))));
        assert!(matches!(history.find(Some("x")), Err(StoreError::UnknownRun(_))));
    }

    #[test]
    fn a_torn_last_line_is_no_damage_and_any_other_is() {
        let directory = tempfile::tempdir().unwrap();
        let history = History::in_directory(directory.path());
        let first = start(1);
        let mut recorder = history.begin(&first).unwrap();
        recorder.event(&event(true)).unwrap();
        let path = recorder.path.clone();
        let whole = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 5]).unwrap();
        assert_eq!(history.find(None).unwrap().events, []);
        std::fs::write(&path, format!("{whole}nonsense\n")).unwrap();
        assert!(matches!(history.find(None), Err(StoreError::Damaged { line: 3, .. })));
        assert_eq!(history.list().unwrap().1.len(), 1);
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let history = History::in_directory(directory.path());
        let all: Vec<RunStart> = (1..=i64::try_from(MAX_RUNS).unwrap() + 5).map(start).collect();
        for start in &all {
            history.begin(start).unwrap();
        }
        let (runs, _) = history.list().unwrap();
        assert_eq!((runs.len(), &runs[0].start, &runs[MAX_RUNS - 1].start), (MAX_RUNS, &all[MAX_RUNS + 4], &all[5]));
    }
}
