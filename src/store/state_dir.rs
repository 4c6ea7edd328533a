//! State directories: creation, locks, and replacement of files. After a power cut, a file has its old or its new content.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::host::{Checkpoint, FsError, checkpoint, fs};

use super::StoreError;

/// The prefix of the names of temporary files.
const TEMPORARY: &str = ".new-";
/// The number of bytes that `probe` writes: more than most commands and results have.
const PROBE_BYTES: usize = 64 * 1024;

/// Creates a directory that only its owner can read, and its missing parents.
///
/// # Errors
/// When the system refuses.
pub fn create(path: &Path) -> Result<(), StoreError> {
    Ok(fs::create_directory(path, 0o700)?)
}

/// Reads a JSON file of at most `max` bytes; none when the file is missing.
///
/// # Errors
/// When the system refuses, or the file is damaged.
pub fn read_json<T: DeserializeOwned>(path: &Path, max: u64) -> Result<Option<T>, StoreError> {
    let bytes = match fs::read(path, max) {
        Ok(bytes) => bytes,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let damaged = |source: serde_json::Error| StoreError::Damaged { path: path.to_owned(), line: source.line(), source };
    serde_json::from_slice(&bytes).map(Some).map_err(damaged)
}

/// Replaces a file (mode 0600) in one step. On return the file is on disk.
///
/// # Errors
/// When a step fails; then the old file is untouched.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    replace(path, bytes, true)?;
    sync(parent(path))
}

/// Replaces a file (mode 0600) in one step. Survives a killed process, but not a power cut.
pub(super) fn replace_unsynced(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    replace(path, bytes, false)
}

fn replace(path: &Path, bytes: &[u8], durable: bool) -> Result<(), StoreError> {
    let parent = parent(path);
    let mut temporary = tempfile::Builder::new()
        .prefix(TEMPORARY)
        .tempfile_in(parent)
        .map_err(|error| FsError::io("create a temporary file in", parent, error))?;
    let mut written = temporary.write_all(bytes);
    if durable {
        // Before the rename: a name must never lead to content that is not there yet.
        written = written.and_then(|()| temporary.as_file().sync_data());
    }
    written.map_err(|error| FsError::io("write", path, error))?;
    checkpoint(Checkpoint::StateWritten);
    temporary.persist(path).map_err(|error| FsError::io("put in place", path, error.error))?;
    Ok(())
}

/// Removes temporary files of a killed process. The directory must belong to this process alone.
///
/// # Errors
/// When the directory can't be listed.
pub(super) fn remove_temporary_files(path: &Path) -> Result<(), StoreError> {
    let is_temporary =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(TEMPORARY.as_bytes()));
    for left in fs::list(path)?.iter().filter(|path| is_temporary(path)) {
        if let Err(error) = fs::remove(left) {
            // It is in nobody's way.
            tracing::debug!(error = %crate::diag::error_chain(&error), "a temporary file is left");
        }
    }
    Ok(())
}

/// Checks that a directory has room for a few records.
///
/// # Errors
/// The error that such a write would get.
pub fn check_writable(path: &Path) -> Result<(), StoreError> {
    let fail = |error| FsError::io("write to", path, error);
    let mut file = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(path).map_err(fail)?;
    Ok(file.write_all(&[0; PROBE_BYTES]).and_then(|()| file.as_file().sync_data()).map_err(fail)?)
}

/// Waits until the names in a directory are on disk.
pub(super) fn sync(path: &Path) -> Result<(), StoreError> {
    let synced = File::open(path).and_then(|dir| dir.sync_all());
    Ok(synced.map_err(|error| FsError::io("write", path, error))?)
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// An exclusive lock of a directory.
#[derive(Debug)]
pub struct DirectoryLock {
    _file: File,
}

/// Locks a directory for this process alone. The system releases the lock when the process ends.
///
/// # Errors
/// When another process has the lock.
pub fn lock(dir: &Path) -> Result<DirectoryLock, StoreError> {
    let path: PathBuf = dir.join("lock");
    let fail = |doing| {
        let path = path.clone();
        move |error| FsError::io(doing, &path, error)
    };
    let mut file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(fail("open"))?;
    match try_lock_with_retries(&file) {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            // Only for the message: without the text, the message is shorter.
            let read = file.take(20).read_to_string(&mut pid);
            let pid = read.ok().map(|_| pid.trim().to_owned()).filter(|pid| !pid.is_empty());
            return Err(StoreError::InUse { path: dir.to_owned(), pid });
        }
        Err(TryLockError::Error(error)) => return Err(fail("lock")(error).into()),
    }
    // Only for messages of other processes: on a full disk they are shorter.
    let _told = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok(DirectoryLock { _file: file })
}

/// Tries to lock, several times. A child process holds our descriptors until its program starts, so a released lock may look
/// taken for a moment.
fn try_lock_with_retries(file: &File) -> Result<(), TryLockError> {
    const TRIES: u32 = 20;
    const PAUSE: Duration = Duration::from_millis(25);
    for _ in 1..TRIES {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            other => return other,
        }
    }
    file.try_lock()
}

/// Returns the boot id of the machine; the kernel makes a new id at every boot.
///
/// # Errors
/// When the kernel provides none.
pub fn boot_id() -> Result<Uuid, StoreError> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = fs::read_text(path, 64)?;
    Ok(text.trim().parse().map_err(|error| FsError::io("read", path, std::io::Error::other(error)))?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn state_is_private_and_replaced_whole() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path().join("a/b");
        create(&dir).unwrap();
        let path = dir.join("trust.json");
        write_atomic(&path, b"one").unwrap();
        write_atomic(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&dir), mode(&path)), (0o700, 0o600));
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
        assert!(write_atomic(&dir.join("none/x"), b"").is_err());
    }

    #[test]
    fn a_directory_is_one_owners() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock(dir.path()).unwrap();
        let message = lock(dir.path()).unwrap_err().to_string();
        assert_eq!(message, format!("{} is in use by another process ({})", dir.path().display(), std::process::id()));
        drop(held);
        lock(dir.path()).unwrap();
    }

    #[test]
    fn the_boot_id_is_read() {
        assert_eq!(boot_id().unwrap(), boot_id().unwrap());
    }
}
