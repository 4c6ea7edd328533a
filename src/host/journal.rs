//! The journal of running commands: a file that outlives this process.
//!
//! A command is recorded before it starts, so that a killed process leaves no unknown command. `orphans` reads the file. Nothing
//! is synced: a power cut ends the commands as well.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use nix::unistd::{SysconfVar, getsid, sysconf};
use serde::{Deserialize, Serialize};

use crate::model::lock;

/// Ticks of `/proc/PID/stat` in a second, if the system does not report them: the value of every architecture but one.
const TICKS: u64 = 100;
/// Attempts to create a file that another process may remove between its creation and its lock.
const TRIES: u32 = 5;

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JournalFile {
    /// The namespaces in which the numbers below are valid.
    pub(super) realm: BootNamespace,
    /// The session of the runner, which all commands share.
    pub(super) session: i32,
    /// The running commands.
    pub(super) commands: Vec<JournalEntry>,
}

/// A boot of the machine and a PID namespace: the numbers of processes are valid within both.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BootNamespace {
    boot: String,
    namespace: String,
}

impl BootNamespace {
    /// The boot and namespace of this process.
    pub(super) fn current() -> io::Result<Self> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        let namespace = std::fs::read_link("/proc/self/ns/pid")?.display().to_string();
        Ok(Self { boot, namespace })
    }
}

/// A running command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JournalEntry {
    /// The inode numbers of its standard output and error. The kernel does not reuse them while a process holds the pipes.
    pub(super) pipes: Vec<u64>,
    /// The earliest start of its processes, in ticks since the boot.
    pub(super) since: u64,
    /// The number of the process and of its group, once the process has started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pid: Option<i32>,
    /// The latest start of the process, in ticks since the boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) until: Option<u64>,
}

/// The journal, shared by all runners of this process.
#[derive(Debug, Default)]
pub struct Journal {
    /// The directory in which the first command creates the file; none when the file is open already.
    directory: Option<PathBuf>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    open: Option<Open>,
    next: u64,
    notes: BTreeMap<u64, JournalEntry>,
}

#[derive(Debug)]
struct Open {
    file: File,
    realm: BootNamespace,
    session: i32,
    /// The path of a file that is removed with the journal.
    own: Option<PathBuf>,
}

impl Journal {
    /// Opens the journal in this file at once: a confined thread can't open the file, but can write to it.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        let mut inner = Inner { open: Some(Open::new(file, None)?), ..Inner::default() };
        inner.write()?;
        Ok(Self { directory: None, inner: Mutex::new(inner) })
    }

    /// Creates a journal with a file of its own below this directory. The first command creates the file, which is locked while
    /// the journal lives. Where that fails, commands run without a journal.
    pub fn in_directory(directory: impl Into<PathBuf>) -> Self {
        Self { directory: Some(directory.into()), inner: Mutex::default() }
    }

    /// Records a command that is about to start, with the pipes of its output. When the owner of the journal relies on it, a
    /// command must not start after an error.
    pub(super) fn begin(self: &Arc<Self>, pipes: &[&io::PipeReader]) -> io::Result<Running> {
        let pipes = pipes.iter().map(|pipe| inode(pipe)).collect::<io::Result<_>>()?;
        let mut inner = lock(&self.inner);
        if let (None, Some(directory)) = (&inner.open, &self.directory) {
            inner.open = Open::below(directory).ok();
        }
        let key = inner.next;
        inner.next += 1;
        inner.notes.insert(key, JournalEntry { pipes, since: ticks_now(), pid: None, until: None });
        drop(inner);
        // Dropping `running` removes the entry when the write fails.
        let running = Running { journal: Arc::clone(self), key };
        let written = lock(&self.inner).write();
        if self.directory.is_none() { written.map(|()| running) } else { Ok(running) }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        let inner = lock(&self.inner);
        if let Some(own) = inner.open.as_ref().and_then(|open| open.own.as_ref()) {
            // The next sweep of the directory removes the file otherwise.
            let _removed = std::fs::remove_file(own);
        }
    }
}

impl Inner {
    /// Rewrites the file in one call: a reader finds the content before or after it. Bytes beyond the new content are behind the
    /// end of its line, and readers ignore them.
    fn write(&mut self) -> io::Result<()> {
        let Some(open) = &self.open else { return Ok(()) };
        let commands = self.notes.values().cloned().collect();
        let record = JournalFile { realm: open.realm.clone(), session: open.session, commands };
        let mut line = serde_json::to_vec(&record)?;
        line.push(b'\n');
        open.file.write_all_at(&line, 0)
    }
}

impl Open {
    fn new(file: File, own: Option<PathBuf>) -> io::Result<Self> {
        Ok(Self { file, realm: BootNamespace::current()?, session: getsid(None)?.as_raw(), own })
    }

    fn below(directory: &Path) -> io::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        for _ in 0..TRIES {
            let path = directory.join(format!("{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed)));
            let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
            file.lock()?;
            if file.metadata()?.nlink() > 0 {
                return Self::new(file, Some(path));
            }
        }
        Err(io::Error::other("other processes keep removing the journal of running commands"))
    }
}

/// A command in the journal. Dropping it removes the command.
#[derive(Debug)]
pub(super) struct Running {
    journal: Arc<Journal>,
    key: u64,
}

impl Running {
    /// Records the number of the process that runs the command.
    pub(super) fn started(&self, pid: u32) {
        let mut inner = lock(&self.journal.inner);
        if let Some(note) = inner.notes.get_mut(&self.key) {
            // One more tick: the clock is read in whole ticks.
            (note.pid, note.until) = (i32::try_from(pid).ok(), Some(ticks_now() + 1));
        }
        // Without the number, the command is still known by its pipes.
        let _written = inner.write();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut inner = lock(&self.journal.inner);
        inner.notes.remove(&self.key);
        // A stale entry names only processes that have ended: see `since` and `until`.
        let _written = inner.write();
    }
}

fn inode(pipe: &io::PipeReader) -> io::Result<u64> {
    Ok(nix::sys::stat::fstat(pipe)?.st_ino)
}

/// The time since the boot, in the unit of `/proc/PID/stat`.
fn ticks_now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let known = sysconf(SysconfVar::CLK_TCK).ok().flatten();
    let ticks = known.and_then(|ticks| u64::try_from(ticks).ok()).filter(|ticks| *ticks > 0).unwrap_or(TICKS);
    let (seconds, nanos) = (u64::try_from(now.tv_sec).unwrap_or_default(), u64::try_from(now.tv_nsec).unwrap_or_default());
    seconds * ticks + nanos * ticks / 1_000_000_000
}
