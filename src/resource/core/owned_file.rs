//! Files with a single owning resource, in directories such as `/etc/cron.d`: small, owned by root, mode 0644.

use std::path::Path;

use crate::host::fs::{self, FileKind, FsError};
use crate::host::{PathInfo, PathResolver, WriteSpec};

use crate::resource::ResourceError;

/// The largest file whose text is read, in bytes.
const LIMIT: u64 = 1 << 20;

const MODE: u32 = 0o644;

/// The state of an owned file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::resource) struct OwnedFile {
    /// The text; empty for a link, a device, or a file that is no text.
    pub(in crate::resource) text: String,
    /// True for a regular file of root with the right mode.
    pub(in crate::resource) has_right_attributes: bool,
    /// True when all users of the host may read the file. The text of any other file stays out of events and plans.
    pub(in crate::resource) is_public: bool,
}

/// Observes an owned file; none where no file exists.
///
/// # Errors
/// When it can't be read, or is a directory.
pub(in crate::resource) fn observe(path: &Path) -> Result<Option<OwnedFile>, ResourceError> {
    let unsound = || Ok(Some(OwnedFile { text: String::new(), has_right_attributes: false, is_public: false }));
    let Some(place) = PathResolver::system().place(path)? else { return Ok(None) };
    match place.inspect(false)? {
        PathInfo::Nothing => return Ok(None),
        PathInfo::Object { info: look, .. } if look.kind == FileKind::Directory => {
            return Err(ResourceError::State(format!("{} is a directory; remove it first", path.display())));
        }
        _ => {}
    }
    let read = place.open_regular().and_then(|(file, look)| Ok((fs::read_open(file, path, LIMIT)?, look)));
    match read {
        Ok((bytes, look)) => match String::from_utf8(bytes) {
            Ok(text) => {
                let has_right_attributes = (look.uid, look.gid, look.mode) == (0, 0, MODE);
                Ok(Some(OwnedFile { text, has_right_attributes, is_public: fs::is_public(look.mode) }))
            }
            Err(_) => unsound(),
        },
        Err(FsError::NotAFile(_) | FsError::Shared { .. } | FsError::TooLarge { .. }) => unsound(),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Removes an owned file; a missing file is no error.
///
/// # Errors
/// When the system refuses.
pub(in crate::resource) fn remove(path: &Path) -> Result<(), ResourceError> {
    Ok(PathResolver::system().place(path)?.map_or(Ok(()), |place| place.remove())?)
}

/// Puts an owned file in place in one step; its directory must exist.
///
/// # Errors
/// When the system refuses.
pub(in crate::resource) fn write(path: &Path, text: &str) -> Result<(), ResourceError> {
    let place = PathResolver::system().existing_place(path)?;
    Ok(place.temp_file(&mut text.as_bytes(), WriteSpec { uid: Some(0), gid: Some(0), mode: MODE })?.persist()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_special_file_never_has_the_right_attributes() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        assert_eq!(observe(&at("none")).unwrap(), None);
        std::os::unix::fs::symlink("/nowhere", at("link")).unwrap();
        nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        std::fs::write(at("binary"), b"\xff").unwrap();
        for name in ["link", "pipe", "binary"] {
            assert_eq!(
                observe(&at(name)).unwrap(),
                Some(OwnedFile { text: String::new(), has_right_attributes: false, is_public: false }),
                "{name}"
            );
        }
        assert!(observe(directory.path()).is_err());
    }
}
