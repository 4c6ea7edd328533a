//! Reads whole files with a limit: files that a user named, and files that the program found.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::FsError;

/// Reads a regular file of at most `limit` bytes.
///
/// Never blocks: pipes, devices, sockets and directories are refused. The files of the kernel are read without blocking. Links
/// are followed.
///
/// # Errors
/// When it is no regular file, can't be read, or is larger.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, FsError> {
    read_limited(open(path)?, path, limit)
}

/// Reads a file of at most `limit` bytes that a user named on a command line. `/dev/stdin` and `<(command)` are files too. Waits
/// at a pipe for the end of its writer.
///
/// # Errors
/// When it can't be read or is larger.
pub fn read_named(path: &Path, limit: u64) -> Result<Vec<u8>, FsError> {
    read_limited(open_named(path)?, path, limit)
}

/// Reads a text file like [`read_named`].
///
/// # Errors
/// As [`read_named`], and when it is not UTF-8.
pub fn read_named_text(path: &Path, limit: u64) -> Result<String, FsError> {
    as_text(read_named(path, limit)?, path)
}

fn read_limited(file: File, path: &Path, limit: u64) -> Result<Vec<u8>, FsError> {
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|error| FsError::io("read", path, error))?;
    if bytes.len() as u64 > limit {
        return Err(FsError::TooLarge { path: path.to_owned(), limit });
    }
    Ok(bytes)
}

/// Reads a regular text file of at most `limit` bytes.
///
/// # Errors
/// As [`read`], and when it is not UTF-8.
pub fn read_text(path: &Path, limit: u64) -> Result<String, FsError> {
    as_text(read(path, limit)?, path)
}

fn as_text(bytes: Vec<u8>, path: &Path) -> Result<String, FsError> {
    String::from_utf8(bytes).map_err(|_| FsError::NotText(path.to_owned()))
}

/// Reads a regular text file of at most `limit` bytes that the program found and no user named.
///
/// # Errors
/// As [`read_regular`], and when it is not UTF-8.
pub fn read_regular_text(path: &Path, limit: u64) -> Result<String, FsError> {
    as_text(read_regular(path, limit)?, path)
}

/// Reads a regular file of at most `limit` bytes that the program found and no user named.
///
/// Never blocks, and does not follow a link at the end of `path`. The path may have changed since it was examined, so the open
/// file itself is checked.
///
/// # Errors
/// When it is no regular file, can't be read, or is larger.
pub fn read_regular(path: &Path, limit: u64) -> Result<Vec<u8>, FsError> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path);
    let file = opened.map_err(|error| FsError::io("read", path, error))?;
    let meta = file.metadata().map_err(|error| FsError::io("examine", path, error))?;
    if !meta.is_file() {
        return Err(FsError::NotAFile(path.to_owned()));
    }
    read_limited(file, path, limit)
}

/// Reads the rest of an open file, at most `limit` bytes. Errors show `path`.
///
/// # Errors
/// When it can't be read or is larger.
pub fn read_open(file: File, path: &Path, limit: u64) -> Result<Vec<u8>, FsError> {
    read_limited(file, path, limit)
}

/// Opens a regular file for reading. Never blocks; links are followed.
///
/// # Errors
/// When it can't be opened, or is no regular file.
pub fn open(path: &Path) -> Result<File, FsError> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        // A socket can't be opened at all.
        Some(errno) if errno == nix::errno::Errno::ENXIO as i32 => FsError::NotAFile(path.to_owned()),
        _ => FsError::io("read", path, error),
    })?;
    let meta = file.metadata().map_err(|error| FsError::io("examine", path, error))?;
    if meta.is_file() { Ok(file) } else { Err(FsError::NotAFile(path.to_owned())) }
}

/// Opens a file that a user named on a command line, for reading its content once. See [`read_named`].
///
/// # Errors
/// When it can't be opened.
pub fn open_named(path: &Path) -> Result<File, FsError> {
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

/// The entries of an open directory, as paths below `shown`, sorted by name.
pub(in crate::host) fn list_open(directory: OwnedFd, shown: &Path) -> Result<Vec<PathBuf>, FsError> {
    let names = names_in(directory).map_err(|errno| FsError::io("list", shown, errno.into()))?;
    let mut paths: Vec<PathBuf> = names.into_iter().map(|name| shown.join(name)).collect();
    paths.sort();
    Ok(paths)
}

/// The names in an open directory.
pub(in crate::host) fn names_in(directory: OwnedFd) -> Result<Vec<OsString>, Errno> {
    let mut open = Dir::from_fd(directory)?;
    let names = open.iter().map(|entry| entry.map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned()));
    let mut names: Vec<OsString> = names.collect::<Result<_, _>>()?;
    names.retain(|name| name != "." && name != "..");
    Ok(names)
}
