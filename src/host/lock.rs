//! Locks of other programs on files: finds their owners, and waits for their release.
//!
//! This module takes no locks: the programs that run afterwards take their own.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use super::Host;
use super::fs::{self, FsError};

/// Interval between two checks of a held lock.
const POLL: Duration = Duration::from_millis(200);

/// The most bytes that are read of a file with the number of a process.
const PID_FILE: u64 = 64;

/// A process that owns a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockOwner {
    /// The number of the process; `None` for a process in another PID namespace, as on the host of a container.
    pub pid: Option<i32>,
    /// The name of the program, where it can be read.
    pub name: Option<String>,
}

impl LockOwner {
    fn from_pid(pid: i32) -> Self {
        let pid = Some(pid).filter(|pid| *pid > 0);
        let comm = pid.and_then(|pid| fs::read_text(Path::new(&format!("/proc/{pid}/comm")), PID_FILE).ok());
        Self { pid, name: comm.map(|name| name.trim().to_owned()) }
    }
}

impl fmt::Display for LockOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, self.pid) {
            (Some(name), Some(pid)) => write!(f, "{name} (process {pid})"),
            (None, Some(pid)) => write!(f, "process {pid}"),
            (_, None) => f.write_str("a process outside of this container"),
        }
    }
}

/// A lock that was not released in time.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The lock file can't be examined.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// Another process held the lock for too long.
    #[error("{holder} still holds {}; giving up after waiting", path.display())]
    Busy {
        /// The lock.
        path: PathBuf,
        /// The owner.
        holder: LockOwner,
    },
    /// The run ended during the wait.
    #[error("the run ended before {holder} released {}", path.display())]
    RunEnded {
        /// The lock.
        path: PathBuf,
        /// The owner.
        holder: LockOwner,
    },
}

/// Returns the process that holds a lock of fcntl(2) on a whole file; none without a lock.
///
/// # Errors
/// When the file can't be opened or examined.
pub fn lock_owner(path: &Path) -> Result<Option<LockOwner>, FsError> {
    let file = match fs::open(path) {
        Ok(file) => file,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error),
    };
    #[expect(clippy::cast_possible_truncation, reason = "constants of one digit")]
    let (kind, whence) = (libc::F_WRLCK as libc::c_short, libc::SEEK_SET as libc::c_short);
    let mut question = libc::flock { l_type: kind, l_whence: whence, l_start: 0, l_len: 0, l_pid: 0 };
    fcntl(&file, FcntlArg::F_GETLK(&mut question))
        .map_err(|errno| FsError::io("find the owner of the lock on", path, io::Error::from(errno)))?;
    Ok((i32::from(question.l_type) != libc::F_UNLCK).then(|| LockOwner::from_pid(question.l_pid)))
}

/// Returns the process whose number is in a file, while this process is alive.
///
/// # Errors
/// When the file exists and can't be read.
pub fn pid_file_owner(path: &Path) -> Result<Option<LockOwner>, FsError> {
    match fs::read_text(path, PID_FILE) {
        Ok(text) => {
            let alive = |pid: &i32| *pid > 0 && Path::new(&format!("/proc/{pid}")).exists();
            Ok(text.trim().parse().ok().filter(alive).map(LockOwner::from_pid))
        }
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Finds the owner of a lock.
pub type FindOwner = fn(&Path) -> Result<Option<LockOwner>, FsError>;

/// Waits until `who` finds no owner at `path`. Calls `waiting` once for every owner.
///
/// # Errors
/// When the lock still has an owner after `deadline`, the run is over, or the file can't be examined.
pub fn wait_until_free(
    path: &Path,
    deadline: Instant,
    host: &Host,
    who: FindOwner,
    waiting: &dyn Fn(&LockOwner),
) -> Result<(), LockError> {
    let mut told = None;
    while let Some(holder) = who(path)? {
        if host.is_over() {
            return Err(LockError::RunEnded { path: path.to_owned(), holder });
        }
        if Instant::now() >= deadline {
            return Err(LockError::Busy { path: path.to_owned(), holder });
        }
        if told.as_ref() != Some(&holder) {
            waiting(&holder);
            told = Some(holder);
        }
        host.sleep(POLL.min(deadline.saturating_duration_since(Instant::now())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::sync::Mutex;

    use super::*;

    /// Starts a process that holds the lock until its input ends.
    fn locker(path: &Path) -> std::process::Child {
        let script = "import fcntl,sys\nf=open(sys.argv[1],'w')\nfcntl.lockf(f,fcntl.LOCK_EX)\nprint('locked',flush=True)\nsys.stdin.read()";
        let mut child =
            Command::new("python3").args(["-c", script]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.as_mut().unwrap()), &mut line).unwrap();
        child
    }

    #[test]
    fn the_holder_is_named_and_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let host = Host::system(None);
        assert_eq!(lock_owner(&path).unwrap(), None);
        std::fs::write(&path, "").unwrap();
        assert_eq!(lock_owner(&path).unwrap(), None);

        let mut child = locker(&path);
        let found = lock_owner(&path).unwrap().unwrap();
        assert_eq!(found.pid, i32::try_from(child.id()).ok());
        assert!(found.to_string().starts_with("python3"), "{found}");
        let error = wait_until_free(&path, Instant::now(), &host, lock_owner, &|_| {}).unwrap_err();
        assert!(error.to_string().contains("python3"), "{error}");

        let input = Mutex::new(child.stdin.take());
        let told = Mutex::new(0);
        wait_until_free(&path, Instant::now() + Duration::from_secs(60), &host, lock_owner, &|_| {
            *told.lock().unwrap() += 1;
            drop(input.lock().unwrap().take());
        })
        .unwrap();
        assert_eq!(*told.lock().unwrap(), 1);
        child.wait().unwrap();
    }

    #[test]
    fn a_number_counts_while_its_process_lives() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pid");
        assert_eq!(pid_file_owner(&path).unwrap(), None);
        std::fs::write(&path, format!("{}\n", std::process::id())).unwrap();
        assert_eq!(pid_file_owner(&path).unwrap().unwrap().pid, i32::try_from(std::process::id()).ok());
        let mut child = Command::new("true").spawn().unwrap();
        let number = child.id();
        child.wait().unwrap();
        for text in [number.to_string(), "0".to_owned(), "x".to_owned(), String::new()] {
            std::fs::write(&path, &text).unwrap();
            assert_eq!(pid_file_owner(&path).unwrap(), None, "{text}");
        }
    }
}
