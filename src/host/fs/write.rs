//! Writes and removes files and directories.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use super::attributes::WriteSpec;
use super::stat::is_missing;
use super::{FsError, TempFile};

/// Puts a file in place in one step: exclusive temporary file beside it, content, owner, mode, rename.
///
/// A reader sees the old file or the new one, with the right owner and mode. A symbolic link at `path` is replaced, not followed.
///
/// # Errors
/// When a step fails; then nothing is left behind and the old file is unchanged.
pub fn write_atomic(path: &Path, content: &mut dyn Read, spec: WriteSpec) -> Result<(), FsError> {
    TempFile::new(path, content, spec)?.persist()
}

/// Makes a directory and its missing parents, all with `mode`.
///
/// # Errors
/// When another object is in the way, or the system refuses.
pub fn create_directory(path: &Path, mode: u32) -> Result<(), FsError> {
    if path.is_dir() {
        return Ok(());
    }
    // A relative path ends with an empty parent: the working directory.
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        create_directory(parent, mode)?;
    }
    match fs::DirBuilder::new().mode(mode).create(path) {
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .map_err(|error| FsError::io("set the mode of", path, error)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(FsError::io("create the directory", path, error)),
    }
}

/// Creates a new file for writing, with exactly `mode`. An existing file or link is refused.
///
/// # Errors
/// When an object is there, or the system refuses.
pub fn create_new(path: &Path, mode: u32) -> Result<File, FsError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .map_err(|error| FsError::io("create", path, error))?;
    // Again, because the umask of the process cleared bits.
    file.set_permissions(fs::Permissions::from_mode(mode)).map_err(|error| FsError::io("set the mode of", path, error))?;
    Ok(file)
}

/// Creates a directory that only this user may enter. Dropping it removes it with its content.
///
/// # Errors
/// When it can't be made.
pub fn private_directory() -> Result<tempfile::TempDir, FsError> {
    tempfile::tempdir().map_err(|error| FsError::io("create a private directory in", Path::new("$TMPDIR"), error))
}

/// Removes a link itself, a file, or an empty directory. A missing object is no error.
///
/// # Errors
/// When the system refuses, as for a directory that is not empty.
pub fn remove(path: &Path) -> Result<(), FsError> {
    let result = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match result {
        Err(error) if !is_missing(&error) => Err(FsError::io("remove", path, error)),
        _ => Ok(()),
    }
}

/// Removes an object with everything below; links are removed, not followed.
///
/// # Errors
/// When the system refuses.
pub fn remove_all(path: &Path) -> Result<(), FsError> {
    let result = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match result {
        Err(error) if !is_missing(&error) => Err(FsError::io("remove", path, error)),
        _ => Ok(()),
    }
}
/// Appends lines to a file, created with `mode` when missing. The lines begin on a line of their own.
/// A single call writes them: other processes may append at the same time.
///
/// # Errors
/// When the system refuses.
pub fn append_lines(path: &Path, lines: &str, mode: u32) -> Result<(), FsError> {
    append(path, lines, mode).map(drop)
}

/// Appends lines as [`append_lines`], and waits until the disk has them.
///
/// # Errors
/// When the system refuses.
pub fn append_durably(path: &Path, lines: &str, mode: u32) -> Result<(), FsError> {
    let file = append(path, lines, mode)?;
    file.sync_all().map_err(|error| FsError::io("sync", path, error))
}

fn append(path: &Path, lines: &str, mode: u32) -> Result<File, FsError> {
    let failed = |doing| move |error| FsError::io(doing, path, error);
    let opened = OpenOptions::new().read(true).append(true).create(true).mode(mode).open(path);
    let mut file = opened.map_err(failed("open"))?;
    let len = file.metadata().map_err(failed("examine"))?.len();
    let mut last = [b'\n'];
    if len > 0 {
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut last, len - 1).map_err(failed("read"))?;
    }
    let separator = if last == [b'\n'] { "" } else { "\n" };
    file.write_all(format!("{separator}{lines}").as_bytes()).map_err(failed("write"))?;
    Ok(file)
}
