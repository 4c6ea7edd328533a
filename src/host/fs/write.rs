//! Writing, attributes, directories, and removal.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use nix::fcntl::OFlag;

use super::stat::is_nothing;
use super::{FsError, TempFile};

/// Owner, group and mode of a file to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteSpec {
    /// The owner; `None` leaves it to the system.
    pub uid: Option<u32>,
    /// The group; `None` leaves it to the system.
    pub gid: Option<u32>,
    /// Permission bits.
    pub mode: u32,
}

/// Puts a file in place in one step: exclusive temporary file beside it, content, owner, mode, rename.
///
/// A reader sees the old file or the new one, with the right owner and mode. A symbolic link at
/// `path` is replaced, not followed.
///
/// # Errors
/// When a step fails; then nothing is left behind and the old file is untouched.
pub fn write_atomic(path: &Path, content: &mut dyn Read, spec: WriteSpec) -> Result<(), FsError> {
    TempFile::new(path, content, spec)?.put()
}

/// Sets owner, group and mode of an open file, which errors call `path`.
pub(in crate::host) fn set_open(file: &File, path: &Path, spec: WriteSpec) -> Result<(), FsError> {
    if spec.uid.is_some() || spec.gid.is_some() {
        std::os::unix::fs::fchown(file, spec.uid, spec.gid).map_err(|error| FsError::io("set the owner of", path, error))?;
    }
    // After the owner: changing it clears mode bits.
    file.set_permissions(fs::Permissions::from_mode(spec.mode)).map_err(|error| FsError::io("set the mode of", path, error))
}

/// Sets owner, group and mode of what `path` names, without going through a link at its end.
///
/// # Errors
/// When it can't be opened or changed.
pub fn set_attributes(path: &Path, spec: WriteSpec) -> Result<(), FsError> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    match OpenOptions::new().read(true).custom_flags(flags.bits()).open(path) {
        Ok(file) => set_open(&file, path, spec),
        // A file that its owner may not read, or a socket, which can't be opened: by name, after a look that it is no link.
        Err(error)
            if (error.kind() == ErrorKind::PermissionDenied || error.raw_os_error() == Some(nix::libc::ENXIO))
                && !path.is_symlink() =>
        {
            std::os::unix::fs::lchown(path, spec.uid, spec.gid).map_err(|error| FsError::io("set the owner of", path, error))?;
            fs::set_permissions(path, fs::Permissions::from_mode(spec.mode))
                .map_err(|error| FsError::io("set the mode of", path, error))
        }
        Err(error) => Err(FsError::io("open", path, error)),
    }
}

/// Makes a directory and the parents it lacks, all with `mode`.
///
/// # Errors
/// When something that is no directory is in the way, or the system refuses.
pub fn create_directory(path: &Path, mode: u32) -> Result<(), FsError> {
    if path.is_dir() {
        return Ok(());
    }
    // A relative path has an empty parent in the end: the directory that we are in.
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

/// Creates a file that must not be there yet, for writing, with exactly `mode`. A link in its place is refused.
///
/// # Errors
/// When something is there, or the system refuses.
pub fn create_new(path: &Path, mode: u32) -> Result<File, FsError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .map_err(|error| FsError::io("create", path, error))?;
    // Again, because the mask of the process took bits away.
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

/// Removes a link itself, a file, or an empty directory. Nothing there is fine.
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
        Err(error) if !is_nothing(&error) => Err(FsError::io("remove", path, error)),
        _ => Ok(()),
    }
}

/// Removes whatever is there, with all it holds; links are removed, not followed.
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
        Err(error) if !is_nothing(&error) => Err(FsError::io("remove", path, error)),
        _ => Ok(()),
    }
}
/// Appends lines to a file, created with `mode` when missing. The lines begin on a line of their own.
/// A single call writes them: other processes may append at the same time.
///
/// # Errors
/// When the system refuses.
pub fn append_lines(path: &Path, lines: &str, mode: u32) -> Result<(), FsError> {
    let failed = |doing| move |error| FsError::io(doing, path, error);
    let opened = OpenOptions::new().read(true).append(true).create(true).mode(mode).open(path);
    let mut file = opened.map_err(failed("open"))?;
    let len = file.metadata().map_err(failed("look at"))?.len();
    let mut last = [b'\n'];
    if len > 0 {
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut last, len - 1).map_err(failed("read"))?;
    }
    let separator = if last == [b'\n'] { "" } else { "\n" };
    file.write_all(format!("{separator}{lines}").as_bytes()).map_err(failed("write"))
}
