//! The run lock: only one run changes a host at a time. The run holds a lock on a file until its end, and the kernel releases the
//! lock. Another run waits, and can name the holder.
//!
//! Local runs hold the lock exclusively. An agent shares the lock with other agents. Several agents on one host exist only for
//! trials: each has a state directory and resources of its own.

use std::ffi::OsString;
use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::fs::{self, FsError};
use super::{Host, account};

/// Interval between two checks of a held lock.
const POLL: Duration = Duration::from_millis(100);
/// The longest note of the holder, in bytes.
const NOTE: u64 = 4096;
/// The kernel's list of locks.
const LOCKS: &str = "/proc/locks";
/// The most bytes of the list.
const MAX_LOCKS: u64 = 16 << 20;
/// Most ancestors of this process that are examined.
const ANCESTORS: usize = 100;

/// Returns the directory for files that a reboot removes: of this host for root, of this user for others. `variable` returns
/// variables of the environment. None when the directory is missing, or disabled.
pub fn runtime_directory(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(directory) = variable("ENSIGN_RUNTIME").filter(|value| !value.is_empty()) {
        return Some(PathBuf::from(directory)).filter(|directory| directory.as_os_str() != "off");
    }
    if account::effective_uid() == 0 {
        return Some(PathBuf::from("/run/ensign"));
    }
    let runtime = variable("XDG_RUNTIME_DIR").map(PathBuf::from);
    runtime.filter(|path| path.is_absolute() && path.is_dir()).map(|path| path.join("ensign"))
}

/// Returns the path of the run lock of this host, or of this user; none without a directory for it.
pub fn path(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    runtime_directory(variable).map(|directory| directory.join("run.lock"))
}

/// The holder of the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunLockHolder {
    pid: Option<i32>,
    note: Option<HolderNote>,
}

/// The note of a run about itself, in the lock file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct HolderNote {
    pid: i32,
    what: String,
    since: Timestamp,
}

impl fmt::Display for RunLockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.note, self.pid) {
            (Some(note), _) => write!(f, "{} (process {}, since {:.0})", note.what, note.pid, note.since),
            (None, Some(pid)) => write!(f, "process {pid}"),
            (None, None) => f.write_str("a process outside of this container"),
        }
    }
}

/// The run lock was not acquired.
#[derive(Debug, thiserror::Error)]
pub enum RunLockError {
    /// The lock file can't be used.
    #[error(transparent)]
    File(#[from] FsError),
    /// Another run holds the lock for too long.
    #[error("another run is under way: {0}")]
    Busy(RunLockHolder),
    /// This run was ended while it waited.
    #[error("the run was ended while it waited for another run: {0}")]
    RunEnded(RunLockHolder),
}

/// The held lock. Dropping it releases the lock.
#[derive(Debug)]
pub struct RunLock {
    /// None for a run within the run that holds the lock.
    _held: Option<File>,
}

/// The mode of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockMode {
    /// Exclusive.
    Exclusive,
    /// Shared with other shared holders.
    Shared,
}

impl RunLock {
    /// Waits for the lock until then. Calls `waiting` once for every holder. A run that is started by a command of another run is
    /// part of that run.
    ///
    /// # Errors
    /// When the file can't be used, another run holds the lock for too long, or the run is over.
    pub fn acquire(
        path: &Path,
        what: &str,
        share: LockMode,
        until: Instant,
        host: &Host,
        waiting: &dyn Fn(&RunLockHolder),
    ) -> Result<Self, RunLockError> {
        let failed = |doing| move |error| FsError::io(doing, path, error);
        let mut told = None;
        loop {
            let mut file = open(path).map_err(failed("open"))?;
            let tried = if share == LockMode::Exclusive { file.try_lock() } else { file.try_lock_shared() };
            match tried {
                // Another process may have removed the file meanwhile: later runs use a new file.
                Ok(()) if file.metadata().map_err(failed("examine"))?.nlink() == 0 => continue,
                Ok(()) => {
                    let pid = i32::try_from(std::process::id()).unwrap_or_default();
                    write(&mut file, &HolderNote { pid, what: what.to_owned(), since: host.now() }).map_err(failed("write"))?;
                    return Ok(Self { _held: Some(file) });
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(failed("lock")(error).into()),
            }
            let (holders, holder) = holders(&mut file);
            if holders.iter().any(|pid| is_ancestor(*pid)) {
                return Ok(Self { _held: None });
            }
            if host.is_over() {
                return Err(RunLockError::RunEnded(holder));
            }
            if Instant::now() >= until {
                return Err(RunLockError::Busy(holder));
            }
            if told.as_ref() != Some(&holder) {
                waiting(&holder);
                told = Some(holder);
            }
            host.sleep(POLL.min(until.saturating_duration_since(Instant::now())));
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

fn write(file: &mut File, note: &HolderNote) -> io::Result<()> {
    let text = serde_json::to_string(note)?;
    file.set_len(0)?;
    file.write_all(text.as_bytes())
}

/// Returns the processes that hold a lock on a file, and the note of the last holder about itself.
fn holders(file: &mut File) -> (Vec<i32>, RunLockHolder) {
    let mut text = String::new();
    let note = file.take(NOTE).read_to_string(&mut text).ok().and_then(|_| serde_json::from_str::<HolderNote>(&text).ok());
    let locks = fs::read_text(Path::new(LOCKS), MAX_LOCKS).unwrap_or_default();
    let inode = file.metadata().map(|meta| meta.ino()).unwrap_or_default();
    let mut pids: Vec<i32> = locks.lines().filter_map(|line| holder(line, inode)).collect();
    if pids.is_empty() {
        pids.extend(note.as_ref().map(|note| note.pid).filter(|pid| Path::new(&format!("/proc/{pid}")).exists()));
    }
    let note = note.filter(|note| pids.contains(&note.pid));
    let pid = pids.first().copied().filter(|pid| *pid > 0);
    (pids, RunLockHolder { pid, note })
}

/// The process in a line of `/proc/locks` about this file: `1: FLOCK  ADVISORY  WRITE 812 00:19:4711 0 EOF`. Waiting processes
/// have an arrow, and are skipped.
fn holder(line: &str, inode: u64) -> Option<i32> {
    let mut words = line.split_whitespace().skip(1);
    words.next().filter(|kind| *kind == "FLOCK")?;
    let (pid, file) = (words.nth(2)?, words.next()?);
    (file.rsplit(':').next()?.parse() == Ok(inode)).then_some(())?;
    pid.parse().ok()
}

/// True when a process is an ancestor of this process.
fn is_ancestor(pid: i32) -> bool {
    let mut at = i32::try_from(std::process::id()).unwrap_or_default();
    for _ in 0..ANCESTORS {
        let stat = fs::read_text(Path::new(&format!("/proc/{at}/stat")), NOTE).unwrap_or_default();
        // The name of the program, in brackets, may contain blanks and brackets.
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)).and_then(|pid| pid.parse().ok());
        match parent {
            Some(parent) if parent == pid && pid > 0 => return true,
            Some(parent) if parent > 1 => at = parent,
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::sync::Mutex;

    use super::*;

    /// Starts a process that holds the lock until its input ends.
    fn locker(path: &Path) -> Child {
        let script = "exec 9<>\"$0\"; flock -x 9; echo locked; read -r x";
        let mut command = Command::new("/bin/sh");
        let mut child = command.args(["-c", script]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        io::BufRead::read_line(&mut io::BufReader::new(child.stdout.as_mut().unwrap()), &mut line).unwrap();
        child
    }

    fn take(path: &Path, share: LockMode, wait: Duration, waiting: &dyn Fn(&RunLockHolder)) -> Result<RunLock, RunLockError> {
        RunLock::acquire(path, "apply site.yaml", share, Instant::now() + wait, &Host::system(None), waiting)
    }

    #[test]
    fn local_runs_exclude_each_other_and_agents_share() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/run.lock");
        let now = Duration::ZERO;
        let turn = take(&path, LockMode::Exclusive, now, &|_| {}).unwrap();
        let busy = take(&path, LockMode::Exclusive, now, &|_| {}).unwrap_err().to_string();
        let me = std::process::id();
        assert!(busy.contains(&format!("apply site.yaml (process {me}, since 2")), "{busy}");
        assert!(take(&path, LockMode::Shared, now, &|_| {}).is_err());
        drop(turn);
        let (one, other) =
            (take(&path, LockMode::Shared, now, &|_| {}).unwrap(), take(&path, LockMode::Shared, now, &|_| {}).unwrap());
        assert!(take(&path, LockMode::Exclusive, now, &|_| {}).is_err());
        drop((one, other));
        take(&path, LockMode::Exclusive, now, &|_| {}).unwrap();
    }

    #[test]
    fn a_waiting_run_names_the_holder_and_continues_when_it_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.lock");
        // flock(1) holds the lock for the shell.
        if !crate::skip::has_program("flock", "util-linux") {
            return;
        }
        let child = Mutex::new(locker(&path));
        let pid = i32::try_from(child.lock().unwrap().id()).unwrap();
        let told = Mutex::new(Vec::new());
        take(&path, LockMode::Exclusive, Duration::from_secs(60), &|holder| {
            told.lock().unwrap().push(holder.clone());
            child.lock().unwrap().kill().unwrap();
        })
        .unwrap();
        child.lock().unwrap().wait().unwrap();
        let told = told.into_inner().unwrap();
        assert_eq!((told.len(), told[0].note.clone()), (1, None));
        assert!(told[0].pid.is_some_and(|found| found >= pid), "{told:?}");
    }

    #[test]
    fn a_run_started_by_a_run_shares_its_lock() {
        assert!(is_ancestor(nix::unistd::getppid().as_raw()));
        assert!(!is_ancestor(i32::try_from(std::process::id()).unwrap()) && !is_ancestor(0));
        let line = "12: FLOCK  ADVISORY  WRITE 812 00:19:4711 0 EOF";
        assert_eq!(
            (holder(line, 4711), holder(line, 47), holder("13: -> FLOCK ADVISORY WRITE 9 00:19:4711 0 EOF", 4711)),
            (Some(812), None, None)
        );
        assert_eq!(holder("1: POSIX  ADVISORY  WRITE 812 00:19:4711 0 EOF", 4711), None);
    }
}
