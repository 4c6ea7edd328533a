//! Reading whole files with a limit, those that somebody named and those that were only found.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use super::look::is_nothing;
use super::{FsError, Look};

/// The whole of a file of at most `limit` bytes.
///
/// Waits at a pipe until its writer is done, so that what a person names may be `/dev/stdin`. For
/// files that nobody named there is [`read_regular_text`].
///
/// # Errors
/// When it can't be read or is larger.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, FsError> {
    whole(open(path)?, path, limit)
}

fn whole(file: File, path: &Path, limit: u64) -> Result<Vec<u8>, FsError> {
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|error| FsError::io("read", path, error))?;
    if bytes.len() as u64 > limit {
        return Err(FsError::TooLarge { path: path.to_owned(), limit });
    }
    Ok(bytes)
}

/// The whole of a text file of at most `limit` bytes.
///
/// # Errors
/// When it can't be read, is larger, or is not UTF-8.
pub fn read_text(path: &Path, limit: u64) -> Result<String, FsError> {
    as_text(read(path, limit)?, path)
}

fn as_text(bytes: Vec<u8>, path: &Path) -> Result<String, FsError> {
    String::from_utf8(bytes).map_err(|_| FsError::NotText(path.to_owned()))
}

/// The whole of a regular text file of at most `limit` bytes, for files that were found, not named.
///
/// # Errors
/// As [`read_regular`], and when it is not UTF-8.
pub fn read_regular_text(path: &Path, limit: u64) -> Result<String, FsError> {
    as_text(read_regular(path, limit)?, path)
}

/// The whole of a regular file of at most `limit` bytes, for files that were found, not named.
///
/// Never waits, and does not follow a link at the end of `path`: what was looked at before may be
/// something else by now, so the open file itself is judged.
///
/// # Errors
/// When it is no regular file, can't be read, or is larger.
pub fn read_regular(path: &Path, limit: u64) -> Result<Vec<u8>, FsError> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path);
    let file = opened.map_err(|error| FsError::io("read", path, error))?;
    let meta = file.metadata().map_err(|error| FsError::io("look at", path, error))?;
    if !meta.is_file() {
        return Err(FsError::NotAFile(path.to_owned()));
    }
    whole(file, path, limit)
}

/// A regular file, opened for reading, with what it is; `None` where there is nothing or something else, as a symbolic link.
///
/// # Errors
/// When it can't be opened or looked at.
pub fn open_regular(path: &Path) -> Result<Option<(File, Look)>, FsError> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = match OpenOptions::new().read(true).custom_flags(flags.bits()).open(path) {
        Ok(file) => file,
        Err(error) if is_nothing(&error) || is_odd(&error) => return Ok(None),
        Err(error) => return Err(FsError::io("read", path, error)),
    };
    let meta = file.metadata().map_err(|error| FsError::io("look at", path, error))?;
    Ok(meta.is_file().then(|| (file, Look::of(&meta))))
}

/// A symbolic link, where none is followed; a socket.
fn is_odd(error: &io::Error) -> bool {
    [nix::errno::Errno::ELOOP, nix::errno::Errno::ENXIO].iter().any(|errno| error.raw_os_error() == Some(*errno as i32))
}

/// The whole of an open file of at most `limit` bytes, which errors call `path`.
///
/// # Errors
/// When it can't be read or is larger.
pub fn read_open(file: File, path: &Path, limit: u64) -> Result<Vec<u8>, FsError> {
    whole(file, path, limit)
}

/// Opens a file for reading its content once.
///
/// # Errors
/// When it can't be opened.
pub fn open(path: &Path) -> Result<File, FsError> {
    File::open(path).map_err(|error| FsError::io("read", path, error))
}

/// The entries of a directory, sorted by name.
///
/// # Errors
/// When it can't be read.
pub fn list(path: &Path) -> Result<Vec<PathBuf>, FsError> {
    let entries = fs::read_dir(path).map_err(|error| FsError::io("list", path, error))?;
    let mut paths = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<Vec<_>>>()
        .map_err(|error| FsError::io("list", path, error))?;
    paths.sort();
    Ok(paths)
}
