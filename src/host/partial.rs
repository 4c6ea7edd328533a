//! A file in the making that survives its maker: bytes beside the place where they shall be, with a note of what they
//! are a part of. Whoever makes the same file later goes on where the first one ended.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use sha2::{Digest, Sha256};

use super::account::effective_uid;
use super::checkpoint::{Checkpoint, checkpoint};
use super::fs::{FsError, WriteSpec, read_regular_text, remove, set_open, write_atomic};

/// The longest note, in bytes.
const NOTE: u64 = 4096;
/// How often the file may be swapped under our hands.
const TRIES: usize = 10;

/// A hidden file that belongs to `target` and lies beside it.
pub fn beside(target: &Path, what: &str) -> PathBuf {
    let name = target.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    target.with_file_name(format!(".{name}.ensign-{what}"))
}

/// The bytes that there are so far. Nobody else writes while this value lives.
#[derive(Debug)]
pub struct Partial {
    file: File,
    path: PathBuf,
    note: PathBuf,
    target: PathBuf,
}

impl Partial {
    /// What there is of `target` so far: nothing, where nobody has begun.
    ///
    /// # Errors
    /// When its directory is not there, or somebody else is making it.
    pub fn open(target: &Path) -> Result<Self, FsError> {
        let parent = target.parent().unwrap_or(Path::new("/"));
        if !parent.is_dir() {
            return Err(FsError::NoParent(parent.to_owned()));
        }
        let path = beside(target, "part");
        for _ in 0..TRIES {
            let Some(file) = open_own(&path)? else { continue };
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(FsError::Busy(target.to_owned())),
                Err(TryLockError::Error(error)) => return Err(FsError::io("lock", &path, error)),
            }
            // Until it was locked, another maker may have put it in place: then this is no part any more.
            let opened = file.metadata().map_err(|error| FsError::io("look at", &path, error))?;
            if fs::symlink_metadata(&path).is_ok_and(|named| (named.dev(), named.ino()) == (opened.dev(), opened.ino())) {
                return Ok(Self { file, note: beside(target, "from"), path, target: target.to_owned() });
            }
        }
        Err(FsError::Busy(target.to_owned()))
    }

    /// True when there is a part of `target`, or a note of one.
    pub fn is_there(target: &Path) -> bool {
        ["part", "from"].iter().any(|what| fs::symlink_metadata(beside(target, what)).is_ok())
    }

    /// Removes what there is of `target`.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn remove(target: &Path) -> Result<(), FsError> {
        ["part", "from"].iter().try_for_each(|what| remove(&beside(target, what)))
    }

    /// How many bytes there are.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn length(&self) -> Result<u64, FsError> {
        self.file.metadata().map(|meta| meta.len()).map_err(|error| FsError::io("look at", &self.path, error))
    }

    /// The note of what the bytes are a part of.
    pub fn note(&self) -> Option<String> {
        read_regular_text(&self.note, NOTE).ok()
    }

    /// Begins anew, with a note; without one, nobody will go on where this ends.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn begin(&mut self, note: Option<&str>) -> Result<(), FsError> {
        // In this order: bytes never lie beside the note of others.
        self.file.set_len(0).and_then(|()| self.file.rewind()).map_err(|error| FsError::io("write", &self.path, error))?;
        match note {
            Some(note) => write_atomic(&self.note, &mut note.as_bytes(), WriteSpec { uid: None, gid: None, mode: 0o600 }),
            None => remove(&self.note),
        }
    }

    /// The digest of the bytes so far, to go on with; what is written next comes after them.
    ///
    /// # Errors
    /// When they can't be read.
    pub fn digest(&mut self) -> Result<Sha256, FsError> {
        let failed = |error| FsError::io("read", &self.path, error);
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

    /// More bytes.
    ///
    /// # Errors
    /// When they can't be written.
    pub fn add(&mut self, bytes: &[u8]) -> Result<(), FsError> {
        self.file.write_all(bytes).map_err(|error| FsError::io("write", &self.path, error))?;
        checkpoint(Checkpoint::PartWritten);
        Ok(())
    }

    /// Puts the bytes in their place in one step, with owner and mode.
    ///
    /// # Errors
    /// When the system refuses; what was in the place is untouched.
    pub fn put_in_place(self, spec: WriteSpec) -> Result<(), FsError> {
        set_open(&self.file, &self.target, spec)?;
        // The note first: after a crash in between, nobody would come to remove it.
        remove(&self.note)?;
        fs::rename(&self.path, &self.target).map_err(|error| FsError::io("put in place", &self.target, error))?;
        checkpoint(Checkpoint::PartPlaced);
        Ok(())
    }

    /// Throws the bytes away.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn discard(self) -> Result<(), FsError> {
        remove(&self.path).and_then(|()| remove(&self.note))
    }
}

/// Opens a part that nobody but this user could have written; anything else in its place is removed, for another try.
fn open_own(path: &Path) -> Result<Option<File>, FsError> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let mut how = OpenOptions::new();
    how.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags.bits());
    let file = match how.open(path) {
        Ok(file) => file,
        // A link, a directory, a socket.
        Err(_) if fs::symlink_metadata(path).is_ok() => return remove(path).map(|()| None),
        Err(error) => return Err(FsError::io("create", path, error)),
    };
    let meta = file.metadata().map_err(|error| FsError::io("look at", path, error))?;
    let own = meta.is_file() && meta.uid() == effective_uid() && meta.nlink() == 1 && meta.permissions().mode() & 0o077 == 0;
    if own { Ok(Some(file)) } else { remove(path).map(|()| None) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: WriteSpec = WriteSpec { uid: None, gid: None, mode: 0o640 };

    #[test]
    fn a_part_survives_and_is_gone_on_with() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("a.tar");
        let mut first = Partial::open(&target).unwrap();
        first.begin(Some("origin")).unwrap();
        first.add(b"hello ").unwrap();
        assert!(matches!(Partial::open(&target), Err(FsError::Busy(_))), "two makers at once");
        drop(first);
        assert!(Partial::is_there(&target) && !target.exists());
        let mut second = Partial::open(&target).unwrap();
        assert_eq!((second.note().as_deref(), second.length().unwrap()), (Some("origin"), 6));
        let mut hasher = second.digest().unwrap();
        second.add(b"world").unwrap();
        hasher.update(b"world");
        assert_eq!(super::super::fs::hex(&hasher.finalize()), super::super::fs::sha256(b"hello world"));
        second.put_in_place(PLAIN).unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"hello world");
        assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o7777, 0o640);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn what_others_put_in_its_place_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("a.tar");
        let (part, victim) = (beside(&target, "part"), dir.path().join("victim"));
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
            let mut partial = Partial::open(&target).unwrap();
            assert_eq!(partial.length().unwrap(), 0);
            partial.begin(None).unwrap();
            partial.add(b"x").unwrap();
            partial.discard().unwrap();
            assert_eq!(fs::read(&victim).unwrap(), b"precious");
            assert!(!Partial::is_there(&target));
        }
        assert!(matches!(Partial::open(&dir.path().join("no/dir")), Err(FsError::NoParent(_))));
    }
}
