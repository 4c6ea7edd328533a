//! Cache of the blobs of assignments, by SHA-256: a node without a network continues from it.

use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use crate::host::{Checkpoint, FsError, checkpoint, fs};

use super::{StoreError, state_dir};

/// The blobs of one directory.
#[derive(Debug)]
pub struct BlobCache {
    dir: PathBuf,
}

impl BlobCache {
    /// Opens the blobs below a state directory.
    ///
    /// # Errors
    /// When the directory can't be created.
    pub fn open(state_dir: &Path) -> Result<Self, StoreError> {
        let dir = state_dir.join("objects");
        state_dir::create(&dir)?;
        Ok(Self { dir })
    }

    /// Adopts a written file whose bytes have this digest. On return the file is on disk.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn adopt(&self, written: &Path, sha256: &str) -> Result<(), StoreError> {
        let synced = File::open(written).and_then(|file| file.sync_all());
        synced.map_err(|error| FsError::io("write", written, error))?;
        let path = self.dir.join(sha256);
        std::fs::rename(written, &path).map_err(|error| FsError::io("put in place", &path, error))?;
        state_dir::sync(&self.dir)?;
        checkpoint(Checkpoint::BlobStored);
        Ok(())
    }

    /// Opens the blob of this digest, after a check of its content. None when it is missing; a damaged blob is removed.
    ///
    /// # Errors
    /// When the blob can't be read.
    pub fn get(&self, sha256: &str) -> Result<Option<File>, StoreError> {
        let path = self.dir.join(sha256);
        let mut file = match fs::open(&path) {
            Ok(file) => file,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let failed = |error| FsError::io("read", &path, error);
        if fs::sha256_of(&mut file).map_err(failed)? != sha256 {
            fs::remove(&path)?;
            return Ok(None);
        }
        std::io::Seek::rewind(&mut file).map_err(failed)?;
        Ok(Some(file))
    }

    /// Removes every blob except these.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn keep_only(&self, wanted: &HashSet<String>) -> Result<(), StoreError> {
        for path in fs::list(&self.dir)? {
            let name = path.file_name().and_then(|name| name.to_str());
            if name.is_none_or(|name| !wanted.contains(name)) {
                fs::remove(&path)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn damaged_blobs_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let objects = BlobCache::open(dir.path()).unwrap();
        let (one, other) = (fs::sha256(b"one"), fs::sha256(b"other"));
        for (content, digest) in [("one", &one), ("other", &other)] {
            let written = dir.path().join("written");
            std::fs::write(&written, content).unwrap();
            objects.adopt(&written, digest).unwrap();
        }
        let mut text = String::new();
        objects.get(&one).unwrap().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "one");
        assert!(objects.get(&"0".repeat(64)).unwrap().is_none());
        std::fs::write(dir.path().join("objects").join(&one), "ond").unwrap();
        assert!(objects.get(&one).unwrap().is_none());
        assert!(!dir.path().join("objects").join(&one).exists());
        objects.keep_only(&HashSet::from([other.clone()])).unwrap();
        assert!(objects.get(&other).unwrap().is_some());
        objects.keep_only(&HashSet::new()).unwrap();
        assert!(objects.get(&other).unwrap().is_none());
    }
}
