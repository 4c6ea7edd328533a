//! Entries of archives, and their receivers.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::error::SinkCause;

/// The owner of an entry on the host that packed it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Owner {
    /// The name of the user; empty when unknown.
    pub user: String,
    /// The number of the user.
    pub uid: Option<u32>,
    /// The name of the group; empty when unknown.
    pub group: String,
    /// The number of the group.
    pub gid: Option<u32>,
}

/// The metadata of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveEntry {
    /// The path: relative, plain names only.
    pub path: PathBuf,
    /// Permission bits. Never setuid and setgid: an archive grants no user the rights of another. Directories keep the sticky
    /// bit.
    pub mode: u32,
    /// The owner, where the archive has one.
    pub owner: Option<Owner>,
    /// The modification time, in seconds since 1970, where the archive has one.
    pub modified: Option<i64>,
}

/// The receiver of the entries, in the order of the archive. A later entry replaces an earlier one of the same path.
pub trait Sink {
    /// A directory.
    ///
    /// # Errors
    /// When it can't be made.
    fn directory(&mut self, item: &ArchiveEntry) -> Result<(), SinkCause>;
    /// A regular file; all of its content is read.
    ///
    /// # Errors
    /// When it can't be written, or reading fails.
    fn file(&mut self, item: &ArchiveEntry, content: &mut dyn Read) -> Result<(), SinkCause>;
    /// A symbolic link that stays within the directory.
    ///
    /// # Errors
    /// When it can't be made.
    fn symlink(&mut self, item: &ArchiveEntry, target: &Path) -> Result<(), SinkCause>;
    /// Another name of an earlier regular file.
    ///
    /// # Errors
    /// When it can't be made.
    fn hard_link(&mut self, item: &ArchiveEntry, target: &Path) -> Result<(), SinkCause>;
}

/// A sink that discards everything: it checks an archive before anything is written.
#[derive(Debug, Default)]
pub struct CountingSink {
    /// The size of all files so far, in bytes.
    pub bytes: u64,
}

impl Sink for CountingSink {
    fn directory(&mut self, _: &ArchiveEntry) -> Result<(), SinkCause> {
        Ok(())
    }

    fn file(&mut self, _: &ArchiveEntry, content: &mut dyn Read) -> Result<(), SinkCause> {
        self.bytes += io::copy(content, &mut io::sink())?;
        Ok(())
    }

    fn symlink(&mut self, _: &ArchiveEntry, _: &Path) -> Result<(), SinkCause> {
        Ok(())
    }

    fn hard_link(&mut self, _: &ArchiveEntry, _: &Path) -> Result<(), SinkCause> {
        Ok(())
    }
}
