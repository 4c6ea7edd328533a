//! The journal of running commands: what this process runs at this moment, in a file that outlives it.
//!
//! A command is noted before it starts, so that a killed process leaves none that is unknown. `orphans.rs` reads the file.
//! Nothing is synced: a power cut ends the commands as well.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::unistd::{SysconfVar, getsid, sysconf};
use serde::{Deserialize, Serialize};

/// Ticks of `/proc/PID/stat` in a second, where the system does not tell: the value of every architecture but one.
const TICKS: u64 = 100;
/// Attempts to open a file that another process may sweep away between its creation and its lock.
const TRIES: u32 = 5;

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JournalFile {
    /// The namespaces in which the numbers below are valid.
    pub(super) realm: BootNamespace,
    /// The session of the process that runs the commands, which they share.
    pub(super) session: i32,
    /// The commands that run.
    pub(super) commands: Vec<JournalEntry>,
}

/// A start of the machine, and the namespace of processes that numbers belong to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BootNamespace {
    boot: String,
    namespace: String,
}

impl BootNamespace {
    /// The realm of this process.
    pub(super) fn here() -> io::Result<Self> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        let namespace = std::fs::read_link("/proc/self/ns/pid")?.display().to_string();
        Ok(Self { boot, namespace })
    }
}

/// A command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JournalEntry {
    /// The inode numbers of its standard output and error. No other pipe has them while a process holds these.
    pub(super) pipes: Vec<u64>,
    /// No process of it started before this, in ticks since the boot.
    pub(super) since: u64,
    /// The number of the process and of its group, once it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pid: Option<i32>,
    /// The process started no later than this, in ticks since the boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) until: Option<u64>,
}

/// The journal, shared by everything in this process that runs commands.
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
    /// A file that goes away with the journal.
    own: Option<PathBuf>,
}

impl Journal {
    /// The journal in this file, opened at once: a confined thread can't open it, and writes it nevertheless.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        let mut inner = Inner { open: Some(Open::new(file, None)?), ..Inner::default() };
        inner.write()?;
        Ok(Self { directory: None, inner: Mutex::new(inner) })
    }

    /// A journal in a file of its own below this directory, made when the first command runs and locked while it lives.
    /// Where that can't be, commands run without it.
    pub fn below(directory: impl Into<PathBuf>) -> Self {
        Self { directory: Some(directory.into()), inner: Mutex::default() }
    }

    fn lock_inner(&self) -> MutexGuard<'_, Inner> {
        // Each change is one step: a panic elsewhere broke none.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a command that is about to start, whose output goes to these pipes. A command that can't be recorded must not
    /// start when the owner of the journal relies on it.
    pub(super) fn begin(self: &Arc<Self>, pipes: &[&io::PipeReader]) -> io::Result<Running> {
        let pipes = pipes.iter().map(|pipe| inode(pipe)).collect::<io::Result<_>>()?;
        let mut inner = self.lock_inner();
        if let (None, Some(directory)) = (&inner.open, &self.directory) {
            inner.open = Open::below(directory).ok();
        }
        let key = inner.next;
        inner.next += 1;
        inner.notes.insert(key, JournalEntry { pipes, since: ticks_now(), pid: None, until: None });
        drop(inner);
        // Forgotten again when it can't be written.
        let running = Running { journal: Arc::clone(self), key };
        let written = self.lock_inner().write();
        if self.directory.is_none() { written.map(|()| running) } else { Ok(running) }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = inner.open.as_ref().and_then(|open| open.own.as_ref()) {
            // The next sweep of the directory takes what is left.
            let _removed = std::fs::remove_file(own);
        }
    }
}

impl Inner {
    /// Rewrites the file in one call: a reader finds the content before or after it. Bytes beyond the new content are behind
    /// the end of its line, and readers ignore them.
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
        Ok(Self { file, realm: BootNamespace::here()?, session: getsid(None)?.as_raw(), own })
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
        Err(io::Error::other("the journal of running commands is swept away again and again"))
    }
}

/// A command in the journal; forgotten when dropped.
#[derive(Debug)]
pub(super) struct Running {
    journal: Arc<Journal>,
    key: u64,
}

impl Running {
    /// Notes the process that the command has become.
    pub(super) fn started(&self, pid: u32) {
        let mut inner = self.journal.lock_inner();
        if let Some(note) = inner.notes.get_mut(&self.key) {
            // One tick more: the clock is read in whole ticks.
            (note.pid, note.until) = (i32::try_from(pid).ok(), Some(ticks_now() + 1));
        }
        // Without it the command is still known by its pipes.
        let _written = inner.write();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut inner = self.journal.lock_inner();
        inner.notes.remove(&self.key);
        // What is noted for too long names processes that are gone, and no others: see `since` and `until`.
        let _written = inner.write();
    }
}

fn inode(pipe: &io::PipeReader) -> io::Result<u64> {
    Ok(nix::sys::stat::fstat(pipe)?.st_ino)
}

/// The time since the boot in the unit of `/proc/PID/stat`.
fn ticks_now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let known = sysconf(SysconfVar::CLK_TCK).ok().flatten();
    let ticks = known.and_then(|ticks| u64::try_from(ticks).ok()).filter(|ticks| *ticks > 0).unwrap_or(TICKS);
    let (seconds, nanos) = (u64::try_from(now.tv_sec).unwrap_or_default(), u64::try_from(now.tv_nsec).unwrap_or_default());
    seconds * ticks + nanos * ticks / 1_000_000_000
}
