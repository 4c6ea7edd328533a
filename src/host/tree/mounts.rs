//! Mount points: the root of another file system, or of a directory that is bound from elsewhere.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{SFlag, fstatat};
use rustix::fs::{AtFlags as StatxFlag, StatxAttributes, StatxFlags, statx};

use super::super::fs::{FsError, file_type, names_in};
use super::directory::{DEPTH, io_error, open_directory};

/// True where a file system is mounted on this entry itself. A kernel before 5.8 does not report bind mounts.
pub(super) fn is_mount_point(above: BorrowedFd<'_>, name: &OsStr) -> Result<bool, Errno> {
    let flags = StatxFlag::SYMLINK_NOFOLLOW | StatxFlag::NO_AUTOMOUNT;
    match statx(above, name, flags, StatxFlags::empty()) {
        Ok(found) => Ok(found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)),
        // Another process removed the entry, or the kernel lacks the call.
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOSYS) => Ok(false),
        Err(errno) => Err(Errno::from_raw(errno.raw_os_error())),
    }
}

/// The first mount point at an entry or below. No link is followed, and no mount point entered.
///
/// # Errors
/// When an entry can't be examined.
pub(in crate::host) fn first_mount(above: &OwnedFd, name: &OsStr, shown: &Path) -> Result<Option<PathBuf>, FsError> {
    find_mount(above, name, shown, None, 0)
}

fn find_mount(
    above: &OwnedFd,
    name: &OsStr,
    shown: &Path,
    device: Option<u64>,
    depth: usize,
) -> Result<Option<PathBuf>, FsError> {
    let failed = |errno| io_error("examine", shown, errno);
    let stat = match fstatat(above, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::ENOENT) => return Ok(None),
        Err(errno) => return Err(failed(errno)),
    };
    // Files can be mounted on files.
    if device.is_some_and(|device| device != stat.st_dev) || is_mount_point(above.as_fd(), name).map_err(failed)? {
        return Ok(Some(shown.to_owned()));
    }
    if file_type(&stat) != SFlag::S_IFDIR {
        return Ok(None);
    }
    if depth > DEPTH {
        return Err(FsError::TooMany { path: shown.to_owned(), what: "nested directories", limit: DEPTH });
    }
    let inner = open_directory(above.as_fd(), name).map_err(failed)?;
    let listed = inner.try_clone().map_err(|error| FsError::io("examine", shown, error))?;
    for entry in names_in(listed).map_err(failed)? {
        if let Some(found) = find_mount(&inner, &entry, &shown.join(&entry), Some(stat.st_dev), depth + 1)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}
