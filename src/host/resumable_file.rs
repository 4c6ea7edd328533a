//! An unfinished file that survives its maker: bytes beside their final place, with a note about their source. A later maker of
//! the same file continues at the end of the bytes.

use std::ffi::{OsStr, OsString};
use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use sha2::{Digest, Sha256};

use super::account::effective_uid;
use super::checkpoint::{Checkpoint, checkpoint};
use super::fs::{FsError, WriteSpec, read_open, set_open};
use super::paths::DirEntryHandle;

/// The longest note, in bytes.
const NOTE: u64 = 4096;
/// Attempts, when another process replaces the file.
const TRIES: usize = 10;

/// The name of a hidden file beside a file of this name, with the purpose `what`.
pub fn hidden_name(name: &OsStr, what: &str) -> OsString {
    format!(".{}.ensign-{what}", name.to_string_lossy()).into()
}

/// The bytes so far, locked against other processes while this value lives.
#[derive(Debug)]
pub struct ResumableFile {
    file: File,
    part: DirEntryHandle,
    note: DirEntryHandle,
    target: DirEntryHandle,
}

impl ResumableFile {
    /// Opens the bytes of `target` so far: empty without an earlier maker.
    ///
    /// # Errors
    /// When another process is making it, or the system refuses.
    pub fn open(target: DirEntryHandle) -> Result<Self, FsError> {
        let part = target.sibling(hidden_name(target.name(), "part"))?;
        for _ in 0..TRIES {
            let Some(file) = open_own(&part)? else { continue };
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(FsError::Busy(target.path().to_owned())),
                Err(TryLockError::Error(error)) => return Err(FsError::io("lock", part.path(), error)),
            }
            // Before the lock, another maker may have put the file in place: then it is no partial file any more.
            if is_named(&part, &file)? {
                let note = target.sibling(hidden_name(target.name(), "from"))?;
                return Ok(Self { file, part, note, target });
            }
        }
        Err(FsError::Busy(target.path().to_owned()))
    }

    /// True when there are bytes of `target`, or a note about them.
    ///
    /// # Errors
    /// When the entries can't be examined.
    pub fn exists(target: &DirEntryHandle) -> Result<bool, FsError> {
        for what in ["part", "from"] {
            if !target.sibling(hidden_name(target.name(), what))?.is_free()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes the bytes and the note of `target`.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn remove(target: &DirEntryHandle) -> Result<(), FsError> {
        ["part", "from"].iter().try_for_each(|what| target.sibling(hidden_name(target.name(), what))?.remove())
    }

    /// Returns the number of bytes so far.
    ///
    /// # Errors
    /// When the system call fails.
    pub fn length(&self) -> Result<u64, FsError> {
        self.file.metadata().map(|meta| meta.len()).map_err(|error| FsError::io("examine", self.part.path(), error))
    }

    /// The note about the source of the bytes.
    pub fn note(&self) -> Option<String> {
        let (file, _) = self.note.open_regular().ok()?;
        String::from_utf8(read_open(file, self.note.path(), NOTE).ok()?).ok()
    }

    /// Discards the bytes and begins again, with a note. Without a note no later maker will continue.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn begin(&mut self, note: Option<&str>) -> Result<(), FsError> {
        // In this order: bytes never lie beside the note about other bytes.
        self.file.set_len(0).and_then(|()| self.file.rewind()).map_err(|error| FsError::io("write", self.part.path(), error))?;
        match note {
            Some(note) => self.note.temp_file(&mut note.as_bytes(), WriteSpec { uid: None, gid: None, mode: 0o600 })?.persist(),
            None => self.note.remove(),
        }
    }

    /// Computes the digest of the bytes so far, and moves to their end for the next write.
    ///
    /// # Errors
    /// When they can't be read.
    pub fn digest(&mut self) -> Result<Sha256, FsError> {
        let failed = |error| FsError::io("read", self.part.path(), error);
        self.file.rewind().map_err(failed)?;
        let (mut hasher, mut buffer) = (Sha256::new(), vec![0; 1 << 16]);
        loop {
            match self.file.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => hasher.update(buffer.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
        self.file.seek(SeekFrom::End(0)).map_err(failed)?;
        Ok(hasher)
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// When they can't be written.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), FsError> {
        self.file.write_all(bytes).map_err(|error| FsError::io("write", self.part.path(), error))?;
        checkpoint(Checkpoint::PartWritten);
        Ok(())
    }

    /// Moves the file to its place in one step, with owner and mode.
    ///
    /// # Errors
    /// When the system refuses; then the old file is unchanged.
    pub fn persist(self, spec: WriteSpec) -> Result<(), FsError> {
        set_open(&self.file, self.target.path(), spec)?;
        // The note first: after a crash in between, no process would remove it.
        self.note.remove()?;
        if !is_named(&self.part, &self.file)? {
            return Err(FsError::Changed(self.part.path().to_owned()));
        }
        self.part.rename_to(&self.target)?;
        checkpoint(Checkpoint::PartPlaced);
        Ok(())
    }

    /// Discards the bytes.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn discard(self) -> Result<(), FsError> {
        self.part.remove().and_then(|()| self.note.remove())
    }
}

/// True while a place belongs to an open file.
fn is_named(place: &DirEntryHandle, file: &File) -> Result<bool, FsError> {
    let opened = file.metadata().map_err(|error| FsError::io("examine", place.path(), error))?;
    Ok(place.stat()?.is_some_and(|named| (named.st_dev, named.st_ino) == (opened.dev(), opened.ino())))
}

/// Opens a partial file that only this user could have written. Another object in its place is removed, for another attempt.
fn open_own(place: &DirEntryHandle) -> Result<Option<File>, FsError> {
    let file = match place.open_or_create(0o600) {
        Ok(file) => file,
        // A link, a directory, a socket.
        Err(_) if !place.is_free()? => return place.remove().map(|()| None),
        Err(error) => return Err(error),
    };
    let meta = file.metadata().map_err(|error| FsError::io("examine", place.path(), error))?;
    let own = meta.is_file() && meta.uid() == effective_uid() && meta.nlink() == 1 && meta.permissions().mode() & 0o077 == 0;
    if own { Ok(Some(file)) } else { place.remove().map(|()| None) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::host::paths::PathResolver;

    fn at(path: &Path) -> DirEntryHandle {
        PathResolver::new(true).existing_place(path).unwrap()
    }

    const PLAIN: WriteSpec = WriteSpec { uid: None, gid: None, mode: 0o640 };

    #[test]
    fn a_partial_file_survives_and_is_resumed() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("a.tar");
        let mut first = ResumableFile::open(at(&target)).unwrap();
        first.begin(Some("origin")).unwrap();
        first.append(b"hello ").unwrap();
        assert!(matches!(ResumableFile::open(at(&target)), Err(FsError::Busy(_))), "two makers at once");
        drop(first);
        assert!(ResumableFile::exists(&at(&target)).unwrap() && !target.exists());
        let mut second = ResumableFile::open(at(&target)).unwrap();
        assert_eq!((second.note().as_deref(), second.length().unwrap()), (Some("origin"), 6));
        let mut hasher = second.digest().unwrap();
        second.append(b"world").unwrap();
        hasher.update(b"world");
        assert_eq!(super::super::fs::hex(&hasher.finalize()), super::super::fs::sha256(b"hello world"));
        second.persist(PLAIN).unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"hello world");
        assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o7777, 0o640);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_foreign_object_in_its_place_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("a.tar");
        let (part, victim) = (dir.path().join(hidden_name(OsStr::new("a.tar"), "part")), dir.path().join("victim"));
        fs::write(&victim, "precious").unwrap();
        let makers: [&dyn Fn(); 4] = [
            &|| std::os::unix::fs::symlink(&victim, &part).unwrap(),
            &|| fs::hard_link(&victim, &part).unwrap(),
            &|| fs::create_dir(&part).unwrap(),
            &|| {
                fs::write(&part, "writable by all")
                    .and_then(|()| fs::set_permissions(&part, fs::Permissions::from_mode(0o666)))
                    .unwrap();
            },
        ];
        for make in makers {
            make();
            let mut partial = ResumableFile::open(at(&target)).unwrap();
            assert_eq!(partial.length().unwrap(), 0);
            partial.begin(None).unwrap();
            partial.append(b"x").unwrap();
            partial.discard().unwrap();
            assert_eq!(fs::read(&victim).unwrap(), b"precious");
            assert!(!ResumableFile::exists(&at(&target)).unwrap());
        }
    }
}
