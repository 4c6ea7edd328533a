//! A directory with all its files, made in one step.

use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use tempfile::TempDir;

use super::write::{create_directory, create_new};
use super::{FsError, exists};

/// A private directory under another name, beside its place. Dropping it removes it with its content.
#[derive(Debug)]
pub struct NewDirectory {
    temporary: TempDir,
    place: PathBuf,
}

impl NewDirectory {
    /// Creates the directory, and missing parents of its place. Only this user may enter the directory.
    ///
    /// # Errors
    /// When an object is at `place`, or the system refuses.
    pub fn new(place: &Path) -> Result<Self, FsError> {
        if exists(place) {
            return Err(FsError::io("create", place, std::io::ErrorKind::AlreadyExists.into()));
        }
        let parent = place.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        create_directory(parent, 0o700)?;
        let temporary = tempfile::Builder::new()
            .prefix(".ensign-new-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(parent)
            .map_err(|error| FsError::io("create a directory in", parent, error))?;
        Ok(Self { temporary, place: place.to_owned() })
    }

    /// Writes and syncs a file, with its directory where missing. `name` is relative.
    ///
    /// # Errors
    /// When the file exists, or the system refuses.
    pub fn file(&self, name: &Path, content: &[u8], mode: u32) -> Result<(), FsError> {
        let path = self.temporary.path().join(name);
        if let Some(parent) = path.parent() {
            create_directory(parent, 0o700)?;
        }
        let mut file = create_new(&path, mode)?;
        file.write_all(content).and_then(|()| file.sync_all()).map_err(|error| FsError::io("write", &path, error))
    }

    /// Moves the directory to its place, if the place is free.
    ///
    /// # Errors
    /// When an object is there, or the system refuses.
    pub fn persist(self) -> Result<(), FsError> {
        let from = self.temporary.path();
        renameat_with(CWD, from, CWD, &self.place, RenameFlags::NOREPLACE)
            .map_err(|errno| FsError::io("create", &self.place, errno.into()))?;
        // The temporary name is free now: nothing is left to remove.
        let _moved = self.temporary.keep();
        let parent = self.place.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(parent).and_then(|parent| parent.sync_all()).map_err(|error| FsError::io("sync", parent, error))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn all_files_appear_in_one_step_and_nothing_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("a/b/fleet");
        let new = NewDirectory::new(&place).unwrap();
        new.file(Path::new("nats/seed"), b"s", 0o600).unwrap();
        assert!(new.file(Path::new("nats/seed"), b"t", 0o600).is_err());
        assert!(!place.exists());
        let late = NewDirectory::new(&place).unwrap();
        new.persist().unwrap();
        assert_eq!(fs::read(place.join("nats/seed")).unwrap(), b"s");
        for (name, mode) in [("", 0o700), ("nats", 0o700), ("nats/seed", 0o600)] {
            assert_eq!(fs::metadata(place.join(name)).unwrap().permissions().mode() & 0o777, mode, "{name}");
        }
        assert!(late.persist().is_err() && NewDirectory::new(&place).is_err());
        assert_eq!(fs::read_dir(place.parent().unwrap()).unwrap().count(), 1);
    }
}
