//! Owner, group and mode of files and directories.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use nix::fcntl::OFlag;

use super::FsError;

/// Owner, group and mode of a file to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteSpec {
    /// The owner; `None` keeps the one that the system sets.
    pub uid: Option<u32>,
    /// The group; `None` keeps the one that the system sets.
    pub gid: Option<u32>,
    /// Permission bits.
    pub mode: u32,
}

/// Sets owner, group and mode of an open file. Errors show `path`.
pub(in crate::host) fn set_open(file: &File, path: &Path, spec: WriteSpec) -> Result<(), FsError> {
    if spec.uid.is_some() || spec.gid.is_some() {
        std::os::unix::fs::fchown(file, spec.uid, spec.gid).map_err(|error| FsError::io("set the owner of", path, error))?;
    }
    // After the owner: changing it clears mode bits.
    file.set_permissions(fs::Permissions::from_mode(spec.mode)).map_err(|error| FsError::io("set the mode of", path, error))
}

/// Sets owner, group and mode of the object at `path`, without following a link at its end.
///
/// # Errors
/// When it can't be opened or changed.
pub fn set_attributes(path: &Path, spec: WriteSpec) -> Result<(), FsError> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    match OpenOptions::new().read(true).custom_flags(flags.bits()).open(path) {
        Ok(file) => set_open(&file, path, spec),
        // Its owner may not read the file, or a socket can't be opened. So set them by name, after a check that it is no link.
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
