//! Properties of paths.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use nix::fcntl::OFlag;
use nix::sys::stat::{FileStat, SFlag};

use super::FsError;
use super::digest::digest_open_file;

/// The kind of object at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A device, socket or pipe.
    Other,
}

/// The properties of a path, links followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileInfo {
    /// The kind.
    pub kind: FileKind,
    /// The number of the owner.
    pub uid: u32,
    /// The number of the group.
    pub gid: u32,
    /// Permission bits, setuid, setgid and sticky included.
    pub mode: u32,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last change of the content.
    pub mtime: Timestamp,
    /// SHA-256 of the content, in lower-case hex. None without a request, and for other objects than files.
    pub sha256: Option<String>,
}

impl FileInfo {
    pub(in crate::host) fn from_metadata(meta: &fs::Metadata) -> Self {
        let kind = if meta.is_file() {
            FileKind::File
        } else if meta.is_dir() {
            FileKind::Directory
        } else {
            FileKind::Other
        };
        let nanos = i32::try_from(meta.mtime_nsec()).unwrap_or(0);
        Self {
            kind,
            uid: meta.uid(),
            gid: meta.gid(),
            mode: meta.mode() & 0o7777,
            size: meta.len(),
            mtime: Timestamp::new(meta.mtime(), nanos).unwrap_or_default(),
            sha256: None,
        }
    }

    /// True when all users of the host may read the content.
    pub fn is_public(&self) -> bool {
        is_public(self.mode)
    }

    pub(in crate::host) fn from_stat(stat: &FileStat) -> Self {
        let kind = match file_type(stat) {
            SFlag::S_IFREG => FileKind::File,
            SFlag::S_IFDIR => FileKind::Directory,
            _ => FileKind::Other,
        };
        let nanos = i32::try_from(stat.st_mtime_nsec).unwrap_or(0);
        Self {
            kind,
            uid: stat.st_uid,
            gid: stat.st_gid,
            mode: stat.st_mode & 0o7777,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            mtime: Timestamp::new(stat.st_mtime, nanos).unwrap_or_default(),
            sha256: None,
        }
    }
}

/// Returns the type bits of an object.
pub(in crate::host) fn file_type(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}

/// True when all users of the host may read a file of this mode.
pub fn is_public(mode: u32) -> bool {
    mode & 0o004 != 0
}

/// True when all users of the host may enter each directory above a path, links followed. Otherwise the mode of a file does not
/// show its readers. Missing directories get modes of their own when they are made, and do not count.
pub fn is_reachable(path: &Path) -> bool {
    let may_enter = |directory: &Path| match fs::metadata(directory) {
        Ok(meta) => meta.mode() & 0o001 != 0,
        Err(error) => is_missing(&error),
    };
    resolve_links(path).ancestors().skip(1).all(may_enter)
}

/// Returns the properties of a path, links followed; `None` when nothing is there, as for a dangling link.
///
/// With `hash`, the content of a regular file is read and hashed from the same descriptor.
///
/// # Errors
/// When the path can't be examined, or the file can't be read.
pub fn stat(path: &Path, hash: bool) -> Result<Option<FileInfo>, FsError> {
    if !hash {
        return match fs::metadata(path) {
            Ok(meta) => Ok(Some(FileInfo::from_metadata(&meta))),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(FsError::io("examine", path, error)),
        };
    }
    // Non-blocking, so that a pipe or a device in the place of a file can't hold the run.
    let opened = OpenOptions::new().read(true).custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits()).open(path);
    let mut file = match opened {
        Ok(file) => file,
        Err(error) if is_missing(&error) => return Ok(None),
        // A socket can't be opened, a file may be unreadable: the kind can still be determined.
        Err(error) => {
            return stat(path, false)?
                .filter(|look| look.kind != FileKind::File)
                .map(Some)
                .ok_or(FsError::io("read", path, error));
        }
    };
    let meta = file.metadata().map_err(|error| FsError::io("examine", path, error))?;
    let mut look = FileInfo::from_metadata(&meta);
    if look.kind == FileKind::File {
        look.sha256 = Some(digest_open_file(&mut file, meta.len()).map_err(|error| FsError::io("read", path, error))?);
    }
    Ok(Some(look))
}

/// Time and size of a file, or of the entries of a directory. A change of the stamp shows a change of the content. None where
/// nothing exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stamp(Option<(Timestamp, u64)>);

impl Stamp {
    /// Returns the same stamp, where an empty file counts as none.
    #[must_use]
    pub fn or_empty(self) -> Self {
        Self(self.0.filter(|(_, size)| *size > 0))
    }
}

/// The stamp of the object at a path, links followed.
///
/// # Errors
/// When the path can't be examined.
pub fn stamp(path: &Path) -> Result<Stamp, FsError> {
    Ok(Stamp(stat(path, false)?.map(|look| (look.mtime, look.size))))
}

/// Returns a path with every link on the way resolved. Missing parts stay as written.
pub fn resolve_links(path: &Path) -> PathBuf {
    let (mut at, mut missing) = (path, Vec::new());
    loop {
        if let Ok(real) = fs::canonicalize(at) {
            return missing.iter().rev().fold(real, |real, name| real.join(name));
        }
        match (at.parent(), at.file_name()) {
            (Some(parent), Some(name)) => {
                missing.push(name);
                at = parent;
            }
            _ => return path.to_owned(),
        }
    }
}

/// True when nothing exists at the path, or a part of the path is no directory.
pub(super) fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// True where an object exists at a path, links followed.
pub fn exists(path: &Path) -> bool {
    path.exists()
}

/// True for a regular file, links followed.
pub fn is_file(path: &Path) -> bool {
    path.is_file()
}

/// True for a directory, links followed.
pub fn is_directory(path: &Path) -> bool {
    path.is_dir()
}

/// True when the path itself is a symbolic link, also to nothing.
pub fn is_symlink(path: &Path) -> bool {
    path.is_symlink()
}

/// True when two paths lead to the same file, directory or device, links followed. `None` when a path leads to nothing.
///
/// # Errors
/// When a path can't be examined.
pub fn is_same(one: &Path, other: &Path) -> Result<Option<bool>, FsError> {
    let (Some(one), Some(other)) = (identity(one)?, identity(other)?) else { return Ok(None) };
    Ok(Some(one == other))
}

/// The device and inode number of the object at a path; for a block device, its device number.
fn identity(path: &Path) -> Result<Option<(u64, Option<u64>)>, FsError> {
    match fs::metadata(path) {
        Ok(meta) if meta.file_type().is_block_device() => Ok(Some((meta.rdev(), None))),
        Ok(meta) => Ok(Some((meta.dev(), Some(meta.ino())))),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(FsError::io("examine", path, error)),
    }
}
