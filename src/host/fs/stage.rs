//! What is made beside its place under another name, and renamed into it: nobody sees half of it, and what was there stays
//! until the new thing is whole.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tempfile::TempPath;

use super::look::is_nothing;
use super::{FsError, WriteSpec, set_open};
use crate::host::account::effective_uid;
use crate::host::checkpoint::{Checkpoint, checkpoint};

/// What the name of every temporary file ends with.
const SUFFIX: &str = ".ensign-tmp";
/// How many entries of a directory are looked at for what others left: they must not make writing one file slow.
const SWEPT_ENTRIES: usize = 100_000;
/// Before a file is this old its maker may not have come to lock it.
const FILE_AGE: Duration = Duration::from_millis(10);
/// A link can't be locked. Its maker renames it at once.
const LINK_AGE: Duration = Duration::from_secs(1);

/// A file that is whole, with its owner and mode, but not in its place yet. Dropped, it is gone.
#[derive(Debug)]
pub struct Staged {
    temporary: TempPath,
    path: PathBuf,
    /// Says to whoever sweeps that its maker lives.
    _alive: Option<File>,
}

impl Staged {
    /// Writes a file that is to become `path`, in the same directory.
    ///
    /// # Errors
    /// When a step fails; then nothing is left behind.
    pub fn new(path: &Path, content: &mut dyn Read, spec: WriteSpec) -> Result<Self, FsError> {
        let parent = parent(path)?;
        sweep(parent);
        let made = tempfile::Builder::new().prefix(&prefix(path)).suffix(SUFFIX).tempfile_in(parent);
        let mut temporary = made.map_err(|error| FsError::io("create a temporary file in", parent, error))?;
        let alive = held(temporary.path());
        io::copy(content, &mut temporary).map_err(|error| FsError::io("write", path, error))?;
        temporary.flush().map_err(|error| FsError::io("write", path, error))?;
        checkpoint(Checkpoint::FileWritten);
        set_open(temporary.as_file(), path, spec)?;
        checkpoint(Checkpoint::FileOwned);
        // Closed here: a file that somebody holds open for writing can't be executed.
        Ok(Self { temporary: temporary.into_temp_path(), path: path.to_owned(), _alive: alive })
    }

    /// Where it is now.
    pub fn path(&self) -> &Path {
        &self.temporary
    }

    /// Puts it in its place, whatever file or link is there.
    ///
    /// # Errors
    /// When the system refuses; then the old file is untouched.
    pub fn put(self) -> Result<(), FsError> {
        let Self { temporary, path, _alive } = self;
        temporary.persist(&path).map_err(|error| FsError::io("put in place", &path, error.error))?;
        checkpoint(Checkpoint::FilePlaced);
        Ok(())
    }

    /// Puts it in its place, where nothing is yet.
    ///
    /// # Errors
    /// When something is there, or the system refuses.
    pub fn put_new(self) -> Result<(), FsError> {
        let Self { temporary, path, _alive } = self;
        temporary.persist_noclobber(&path).map_err(|error| FsError::io("put in place", &path, error.error))
    }
}

/// A symbolic link itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Where it leads, as it is written in it.
    pub target: PathBuf,
    /// The number of its owner.
    pub uid: u32,
    /// The number of its group.
    pub gid: u32,
}

/// The symbolic link at `path`; `None` where there is nothing or something else.
///
/// # Errors
/// When the path can't be looked at.
pub fn read_link(path: &Path) -> Result<Option<Link>, FsError> {
    let failed = |error| FsError::io("look at", path, error);
    let meta = match path.symlink_metadata() {
        Ok(meta) if meta.is_symlink() => meta,
        Ok(_) => return Ok(None),
        Err(error) if is_nothing(&error) => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let target = path.read_link().map_err(failed)?;
    Ok(Some(Link { target, uid: meta.uid(), gid: meta.gid() }))
}

/// Puts a symbolic link in place in one step, with its owner. A file or link at `path` is replaced.
///
/// # Errors
/// When a directory is there, or the system refuses; then what was there is untouched.
pub fn write_link(path: &Path, target: &Path, uid: Option<u32>, gid: Option<u32>) -> Result<(), FsError> {
    let parent = parent(path)?;
    sweep(parent);
    let prefix = prefix(path);
    let mut builder = tempfile::Builder::new();
    let made = builder.prefix(&prefix).suffix(SUFFIX).make_in(parent, |at| std::os::unix::fs::symlink(target, at));
    let temporary = made.map_err(|error| FsError::io("create a link in", parent, error))?.into_temp_path();
    checkpoint(Checkpoint::LinkMade);
    set_link_owner(&temporary, uid, gid)?;
    temporary.persist(path).map_err(|error| FsError::io("put in place", path, error.error))
}

/// Sets owner and group of a link itself; `None` leaves them.
///
/// # Errors
/// When the system refuses.
pub fn set_link_owner(path: &Path, uid: Option<u32>, gid: Option<u32>) -> Result<(), FsError> {
    if uid.is_none() && gid.is_none() {
        return Ok(());
    }
    std::os::unix::fs::lchown(path, uid, gid).map_err(|error| FsError::io("set the owner of", path, error))
}

/// A lock on a temporary file that goes away with its maker. Open for reading only: what is open for writing can't be run,
/// as by a command that judges it.
fn held(temporary: &Path) -> Option<File> {
    File::open(temporary).ok().filter(|file| file.try_lock_shared().is_ok())
}

/// Removes what makers left in a directory that were killed. Once a process and directory is enough: what this one has to
/// clear up was there before it began.
fn sweep(directory: &Path) {
    static SWEPT: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let is_new = SWEPT.lock().unwrap_or_else(PoisonError::into_inner).insert(directory.to_owned());
    let Some(entries) = is_new.then(|| std::fs::read_dir(directory).ok()).flatten() else { return };
    for entry in entries.take(SWEPT_ENTRIES).flatten() {
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        if name.starts_with(b".") && name.ends_with(SUFFIX.as_bytes()) && is_abandoned(&entry.path()) {
            // In nobody's way when it stays.
            let _removed = std::fs::remove_file(entry.path());
        }
    }
}

/// True when nobody is going to put a temporary file or link of this user in its place.
fn is_abandoned(path: &Path) -> bool {
    let Ok(meta) = path.symlink_metadata() else { return false };
    // In a directory of many users, what others leave is theirs.
    if meta.uid() != effective_uid() {
        return false;
    }
    let is_older = |age| meta.modified().ok().and_then(|time| time.elapsed().ok()).is_some_and(|since| since > age);
    if meta.is_symlink() {
        // It can't be locked; but its maker renames it at once.
        return is_older(LINK_AGE);
    }
    // Its maker locks it at once.
    let is_free = || super::open_regular(path).ok().flatten().is_some_and(|(file, _)| file.try_lock().is_ok());
    meta.is_file() && is_older(FILE_AGE) && is_free()
}

fn parent(path: &Path) -> Result<&Path, FsError> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    match parent.metadata() {
        Ok(meta) if meta.is_dir() => Ok(parent),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(FsError::io("look at", parent, error)),
        _ => Err(FsError::NoParent(parent.to_owned())),
    }
}

/// What the name of a temporary file for `path` begins with.
fn prefix(path: &Path) -> String {
    let name = path.file_name().map_or_else(String::new, |name| format!(".{}.", name.to_string_lossy()));
    name.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_maker_left_is_swept_and_what_lives_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let old = std::time::SystemTime::now() - Duration::from_secs(60);
        for name in [".a.x1.ensign-tmp", ".b.x2.ensign-tmp", "c.ensign-tmp", ".d.ensign-tmp.txt"] {
            std::fs::write(at(name), "half").unwrap();
            File::open(at(name)).unwrap().set_modified(old).unwrap();
        }
        let alive = held(&at(".b.x2.ensign-tmp")).unwrap();
        std::os::unix::fs::symlink("nowhere", at(".e.x3.ensign-tmp")).unwrap();
        std::fs::create_dir(at(".f.x4.ensign-tmp")).unwrap();
        let spec = WriteSpec { uid: None, gid: None, mode: 0o600 };
        Staged::new(&at("new"), &mut "x".as_bytes(), spec).unwrap().put().unwrap();
        let mut names: Vec<_> =
            std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(
            names,
            [".b.x2.ensign-tmp", ".d.ensign-tmp.txt", ".e.x3.ensign-tmp", ".f.x4.ensign-tmp", "c.ensign-tmp", "new"]
        );
        assert!(alive.metadata().is_ok());
    }
}
