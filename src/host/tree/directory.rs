//! Directories of a tree, opened one by one.

use std::ffi::OsStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use super::super::fs::FsError;

/// The deepest nesting of directories. The walk holds every directory of the path open.
pub(super) const DEPTH: usize = 128;

/// Opens a directory within another; a link is not followed.
pub(super) fn open_directory(above: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    openat(above, name, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())
}

/// Creates the error of a failed action on a path of the tree.
pub(super) fn io_error(doing: &'static str, shown: &Path, errno: Errno) -> FsError {
    FsError::io(doing, shown, errno.into())
}
