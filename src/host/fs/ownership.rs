//! Ownership of files and directories: the users who can change a directory, or put a foreign file into it.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::stat::{FileStat, fstat};

use super::FsError;
use crate::host::account::effective_uid;

/// The owner whose directories count as those of root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::host) struct TrustedOwner {
    own: u32,
    /// Another owner who decides about the run.
    pub(in crate::host) also: Option<u32>,
}

impl TrustedOwner {
    /// Root and the user of this process.
    pub(in crate::host) fn own() -> Self {
        Self { own: effective_uid(), also: None }
    }

    pub(in crate::host) fn owns(self, uid: u32) -> bool {
        uid == 0 || uid == self.own || Some(uid) == self.also
    }
}

/// True when users other than root can change the entries of a directory.
fn is_open(directory: &FileStat, trust: TrustedOwner) -> bool {
    !trust.owns(directory.st_uid) || directory.st_mode & 0o022 != 0
}

/// True when users other than root can change this directory.
pub(in crate::host) fn is_open_to_others(directory: impl AsFd, trust: TrustedOwner) -> bool {
    fstat(directory).is_ok_and(|stat| is_open(&stat, trust))
}

/// True when a user without write access to a file may have put it into a directory. The file belongs to `uid` and has this
/// number of names. Then others can change the directory, and the file does not belong to the single user who can.
pub(in crate::host) fn is_shared(above: BorrowedFd<'_>, uid: u32, names: u64, trust: TrustedOwner) -> Result<bool, Errno> {
    if names <= 1 {
        return Ok(false);
    }
    let directory = fstat(above)?;
    let is_its_owners = uid == directory.st_uid && directory.st_mode & 0o022 == 0;
    Ok(is_open(&directory, trust) && !is_its_owners)
}

/// Refuses a file below an open directory that may be a name for a file of another user.
pub(in crate::host) fn check_shared(above: BorrowedFd<'_>, file: &File, shown: &Path) -> Result<(), FsError> {
    let failed = |error| FsError::io("examine", shown, error);
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_dir() && is_shared(above, meta.uid(), meta.nlink(), TrustedOwner::own()).map_err(|errno| failed(errno.into()))? {
        return Err(FsError::Shared { path: shown.to_owned(), uid: meta.uid(), names: meta.nlink() });
    }
    Ok(())
}
