//! An append-only file: an append is stored whole, or not at all.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::host::{Checkpoint, FsError, checkpoint, fs};

use super::{StoreError, state_dir};

#[derive(Debug)]
pub(super) struct AppendLog {
    file: File,
    path: PathBuf,
    /// Device and inode of the open file.
    id: (u64, u64),
    len: u64,
    /// True when a write failed and its incomplete bytes could not be truncated.
    has_torn_end: bool,
}

impl AppendLog {
    /// Opens the file, or creates it (mode 0600).
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        let opened = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path);
        let file = opened.map_err(|error| FsError::io("open", path, error))?;
        let meta = file.metadata().map_err(|error| FsError::io("look at", path, error))?;
        let (id, len) = ((meta.dev(), meta.ino()), meta.len());
        if let (0, Some(parent)) = (len, path.parent()) {
            // The file may be new: its name must be on disk before its content counts.
            state_dir::sync(parent)?;
        }
        Ok(Self { file, path: path.to_owned(), id, len, has_torn_end: false })
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Appends, and returns the offset. A write that fails halfway (a full disk) is undone.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<u64, StoreError> {
        let start = self.len;
        if self.has_torn_end {
            self.truncate(start)?;
        }
        if let Err(error) = self.file.write_all(bytes) {
            self.undo_partial_write(start);
            return Err(FsError::io("write", &self.path, error).into());
        }
        self.len += bytes.len() as u64;
        Ok(start)
    }

    fn undo_partial_write(&mut self, len: u64) {
        self.len = len;
        // If this fails too, the next append or the next start truncates.
        self.has_torn_end = self.file.set_len(len).is_err();
    }

    /// Verifies that the path still leads to the open file. Otherwise later writes would be lost.
    pub(super) fn verify_path(&self) -> Result<(), StoreError> {
        match std::fs::metadata(&self.path) {
            // While the file is open, no other file gets its inode.
            Ok(there) if (there.dev(), there.ino()) == self.id => Ok(()),
            Err(error) if ![io::ErrorKind::NotFound, io::ErrorKind::NotADirectory].contains(&error.kind()) => {
                Err(FsError::io("look at", &self.path, error).into())
            }
            _ => Err(StoreError::Displaced(self.path.clone())),
        }
    }

    /// Waits until all appended bytes are on disk.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        Ok(self.file.sync_data().map_err(|error| FsError::io("write", &self.path, error))?)
    }

    /// Truncates the file.
    pub(super) fn truncate(&mut self, len: u64) -> Result<(), StoreError> {
        self.file.set_len(len).map_err(|error| FsError::io("write", &self.path, error))?;
        self.len = len;
        self.has_torn_end = false;
        self.sync()
    }

    /// Appends, and waits until the bytes are on disk; a failure leaves nothing behind.
    pub(super) fn append_durably(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let start = self.append(bytes)?;
        self.sync().inspect_err(|_| self.undo_partial_write(start))
    }

    /// Replaces the file by a new one with this content, and continues with the new one.
    pub(super) fn replace_with(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let path = self.path.clone();
        let beside = path.with_extension("new");
        fs::remove(&beside)?;
        let mut new = Self::open(&beside)?;
        new.append_durably(bytes)?;
        checkpoint(Checkpoint::LedgerRewritten);
        std::fs::rename(&beside, &path).map_err(|error| FsError::io("put in place", &path, error))?;
        // The old file has no name any more, so no record may go there.
        new.path.clone_from(&path);
        *self = new;
        path.parent().map_or(Ok(()), state_dir::sync)
    }

    /// Reads `len` bytes at an offset.
    pub(super) fn read_at(&self, offset: u64, len: usize) -> Result<Vec<u8>, StoreError> {
        let mut bytes = vec![0; len];
        let read: io::Result<()> = self.file.read_exact_at(&mut bytes, offset);
        read.map_err(|error| FsError::io("read", &self.path, error))?;
        Ok(bytes)
    }
}
