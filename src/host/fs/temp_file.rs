//! Temporary files: made beside their place under another name, and renamed into it. No process sees a partial file, and the old
//! file stays until the new file is complete.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchownat, linkat, symlinkat, unlinkat};

use super::attributes::{WriteSpec, set_open};
use super::ownership::{TrustedOwner, is_open_to_others};
use super::stat::file_type;
use super::{FsError, hex, names_in};
use crate::host::account::effective_uid;
use crate::host::checkpoint::{Checkpoint, checkpoint};
use crate::model::lock;

/// The suffix of the names of temporary files.
const SUFFIX: &str = ".ensign-tmp";
/// Most entries of a directory that are searched for leftovers. The search must not slow down the writing of one file.
const SEARCHED_ENTRIES: usize = 100_000;
/// The age at which a sweeper examines a file. The maker of a younger file may not have locked it yet.
const FILE_AGE: Duration = Duration::from_millis(10);
/// The age at which a link is abandoned. A link can't be locked, and its maker renames it at once.
const LINK_AGE: Duration = Duration::from_secs(1);
/// Attempts to find a free temporary name.
const TRIES: usize = 16;
/// Most bytes of a name that its temporary name repeats: a name has at most 255 bytes.
const NAME_PART_MAX: usize = 40;

/// A place for a file: a name in an open directory.
#[derive(Debug, Clone, Copy)]
pub(in crate::host) struct FileTarget<'a> {
    pub(in crate::host) above: BorrowedFd<'a>,
    pub(in crate::host) name: &'a OsStr,
    /// The path as errors show it.
    pub(in crate::host) path: &'a Path,
    pub(in crate::host) trust: TrustedOwner,
}

/// Opens the directory of a path, all links followed. Only for files of the program, and for files that a user names.
fn open_parent(path: &Path) -> Result<OwnedFd, FsError> {
    let parent = match path.parent() {
        None => Path::new("/"),
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
    };
    match open(parent, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()) {
        Ok(above) => Ok(above),
        Err(Errno::EACCES) => Err(FsError::io("examine", parent, Errno::EACCES.into())),
        Err(_) => Err(FsError::NoParent(parent.to_owned())),
    }
}

/// A temporary name in an open directory, and its final name.
#[derive(Debug)]
struct PendingName {
    above: OwnedFd,
    temporary: OsString,
    name: OsString,
    /// The path as errors show it.
    path: PathBuf,
    placed: bool,
}

impl PendingName {
    /// Creates an object with `make`, under a temporary name beside a place.
    fn new<T>(place: &FileTarget<'_>, make: impl Fn(BorrowedFd<'_>, &OsStr) -> Result<T, Errno>) -> Result<(Self, T), FsError> {
        let failed = |error| FsError::io("create a temporary file beside", place.path, error);
        remove_leftovers(place.above);
        let above = place.above.try_clone_to_owned().map_err(failed)?;
        let mut tries = 0;
        let (temporary, made) = loop {
            tries += 1;
            let temporary = temporary(place.name).map_err(failed)?;
            match make(above.as_fd(), &temporary) {
                Err(Errno::EEXIST) if tries < TRIES => {}
                made => break (temporary, made.map_err(|errno| failed(errno.into()))?),
            }
        };
        let (name, path) = (place.name.to_owned(), place.path.to_owned());
        Ok((Self { above, temporary, name, path, placed: false }, made))
    }

    /// Renames the object to its final name, and replaces a file or link.
    fn rename(mut self) -> Result<(), FsError> {
        renameat(&self.above, self.temporary.as_os_str(), &self.above, self.name.as_os_str())
            .map_err(|errno| self.failed("put in place", errno))?;
        self.placed = true;
        Ok(())
    }

    /// Gives the object its final name, if the name is free.
    fn rename_new(self) -> Result<(), FsError> {
        let (from, to) = (self.temporary.as_os_str(), self.name.as_os_str());
        match linkat(&self.above, from, &self.above, to, AtFlags::empty()) {
            // The file system has no hard links.
            Err(Errno::EPERM | Errno::EOPNOTSUPP)
                if fstatat(&self.above, to, AtFlags::AT_SYMLINK_NOFOLLOW) == Err(Errno::ENOENT) =>
            {
                self.rename()
            }
            linked => linked.map_err(|errno| self.failed("put in place", errno)),
        }
    }

    fn failed(&self, doing: &'static str, errno: Errno) -> FsError {
        FsError::io(doing, &self.path, errno.into())
    }
}

impl Drop for PendingName {
    fn drop(&mut self) {
        if !self.placed {
            // The first error matters more.
            let _left = unlinkat(&self.above, self.temporary.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

/// A complete file with its owner and mode, not yet in its place. Dropping it removes the file.
#[derive(Debug)]
pub struct TempFile {
    pending: PendingName,
    /// The lock that shows other processes that the maker is alive. Open for reading only: a file that is open for writing can't
    /// be run.
    file: File,
    /// True when others can change the directory.
    open_to_others: bool,
}

impl TempFile {
    /// Writes a temporary file for `path`, in the same directory, all links followed. Only for files of the program itself.
    ///
    /// # Errors
    /// When a step fails; then nothing is left behind.
    pub fn new(path: &Path, content: &mut dyn Read, spec: WriteSpec) -> Result<Self, FsError> {
        let above = open_parent(path)?;
        let name = path.file_name().unwrap_or(OsStr::new("."));
        Self::new_at(&FileTarget { above: above.as_fd(), name, path, trust: TrustedOwner::own() }, content, spec)
    }

    /// Writes a temporary file for a place.
    pub(in crate::host) fn new_at(place: &FileTarget<'_>, content: &mut dyn Read, spec: WriteSpec) -> Result<Self, FsError> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let make =
            |above: BorrowedFd<'_>, name: &OsStr| openat(above, name, flags, Mode::S_IRUSR | Mode::S_IWUSR).map(File::from);
        let (pending, mut written) = PendingName::new(place, make)?;
        let path = place.path;
        let file = lock_written(&pending, &written)?;
        io::copy(content, &mut written).map_err(|error| FsError::io("write", path, error))?;
        written.flush().map_err(|error| FsError::io("write", path, error))?;
        checkpoint(Checkpoint::FileWritten);
        set_open(&written, path, spec)?;
        checkpoint(Checkpoint::FileOwned);
        Ok(Self { pending, file, open_to_others: is_open_to_others(place.above, place.trust) })
    }

    /// A path for commands, valid while this value lives. Where others could change the directory, the path leads through the
    /// descriptor.
    pub fn path(&self) -> PathBuf {
        if self.open_to_others {
            return descriptor_path(&self.file).into();
        }
        self.pending.path.with_file_name(&self.pending.temporary)
    }

    /// Opens the content for reading from its beginning.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn reader(&self) -> Result<File, FsError> {
        self.file.try_clone().map_err(|error| FsError::io("open", &self.pending.path, error))
    }

    /// Moves the file to its place, and replaces a file or link.
    ///
    /// # Errors
    /// When the system refuses; then the old file is unchanged.
    pub fn persist(self) -> Result<(), FsError> {
        self.check()?;
        self.pending.rename()?;
        checkpoint(Checkpoint::FilePlaced);
        Ok(())
    }

    /// Moves the file to its place, if the place is free.
    ///
    /// # Errors
    /// When an object is there, or the system refuses.
    pub fn persist_new(self) -> Result<(), FsError> {
        self.check()?;
        self.pending.rename_new()
    }

    /// Checks that the temporary name still belongs to this file.
    fn check(&self) -> Result<(), FsError> {
        let own = fstat(&self.file).map_err(|errno| self.pending.failed("examine", errno))?;
        let named = fstatat(&self.pending.above, self.pending.temporary.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
        let is_same = named.is_ok_and(|named| (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino));
        if is_same { Ok(()) } else { Err(FsError::Changed(self.pending.path.clone())) }
    }
}

/// A path for commands to an open file or directory, independent of its name.
pub fn descriptor_path(file: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

/// The properties of a symbolic link itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkInfo {
    /// The target, as written in the link.
    pub target: PathBuf,
    /// The number of the owner.
    pub uid: u32,
    /// The number of the group.
    pub gid: u32,
}

/// Puts a symbolic link in place in one step, with its owner. Replaces a file or link.
pub(in crate::host) fn write_link_at(
    place: &FileTarget<'_>,
    target: &Path,
    uid: Option<u32>,
    gid: Option<u32>,
) -> Result<(), FsError> {
    let (pending, ()) = PendingName::new(place, |above, name| symlinkat(target, above, name))?;
    checkpoint(Checkpoint::LinkMade);
    if uid.is_some() || gid.is_some() {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        fchownat(&pending.above, pending.temporary.as_os_str(), uid, gid, AtFlags::AT_SYMLINK_NOFOLLOW)
            .map_err(|errno| pending.failed("set the owner of", errno))?;
    }
    pending.rename()
}

/// Opens the same file for reading only, with a lock that ends with its maker.
fn lock_written(pending: &PendingName, written: &File) -> Result<File, FsError> {
    let failed = |error| FsError::io("examine", &pending.path, error);
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let opened = openat(&pending.above, pending.temporary.as_os_str(), flags, Mode::empty());
    let file = File::from(opened.map_err(|errno| failed(errno.into()))?);
    let (own, named) = (written.metadata().map_err(failed)?, file.metadata().map_err(failed)?);
    if (own.dev(), own.ino()) != (named.dev(), named.ino()) {
        return Err(FsError::Changed(pending.path.clone()));
    }
    // Some file systems do not support locks.
    let _locked = file.try_lock_shared();
    Ok(file)
}

/// Removes the leftovers of killed makers from a directory. Once a process and directory is enough: leftovers are older than this
/// process.
fn remove_leftovers(above: BorrowedFd<'_>) {
    static SWEPT: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());
    let Ok(stat) = fstat(above) else { return };
    let is_new = lock(&SWEPT).insert((stat.st_dev, stat.st_ino));
    if !is_new {
        return;
    }
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let Ok(Ok(names)) = openat(above, ".", flags, Mode::empty()).map(names_in) else { return };
    for name in names.into_iter().take(SEARCHED_ENTRIES) {
        let bytes = name.as_bytes();
        if bytes.starts_with(b".") && bytes.ends_with(SUFFIX.as_bytes()) && is_abandoned(above, &name) {
            // Its removal is not essential.
            let _removed = unlinkat(above, name.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

/// True for a temporary file or link of this user whose maker has ended.
fn is_abandoned(above: BorrowedFd<'_>, name: &OsStr) -> bool {
    let Ok(stat) = fstatat(above, name, AtFlags::AT_SYMLINK_NOFOLLOW) else { return false };
    // In a shared directory, leftovers of others are theirs to remove.
    if stat.st_uid != effective_uid() {
        return false;
    }
    match file_type(&stat) {
        // Links can't be locked, and their makers rename them at once.
        SFlag::S_IFLNK => is_older(&stat, LINK_AGE),
        // Makers lock their files at once.
        SFlag::S_IFREG => is_older(&stat, FILE_AGE) && is_free(above, name),
        _ => false,
    }
}

fn is_older(stat: &FileStat, age: Duration) -> bool {
    let nanos = i32::try_from(stat.st_mtime_nsec).unwrap_or(0);
    let Ok(changed) = jiff::Timestamp::new(stat.st_mtime, nanos) else { return false };
    jiff::Timestamp::now().duration_since(changed) > jiff::SignedDuration::try_from(age).unwrap_or_default()
}

fn is_free(above: BorrowedFd<'_>, name: &OsStr) -> bool {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    openat(above, name, flags, Mode::empty()).is_ok_and(|opened| File::from(opened).try_lock().is_ok())
}

/// Returns a temporary name for a file of this name, which no other user can guess.
fn temporary(name: &OsStr) -> io::Result<OsString> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let name: String = name
        .to_string_lossy()
        .chars()
        .scan(0, |size, c| {
            *size += c.len_utf8();
            (*size <= NAME_PART_MAX).then_some(c)
        })
        .collect();
    Ok(format!(".{name}.{}{SUFFIX}", hex(&random)).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_of_killed_makers_are_removed_and_live_files_stay() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let old = std::time::SystemTime::now() - Duration::from_secs(60);
        for name in [".a.x1.ensign-tmp", ".b.x2.ensign-tmp", "c.ensign-tmp", ".d.ensign-tmp.txt"] {
            std::fs::write(at(name), "half").unwrap();
            File::open(at(name)).unwrap().set_modified(old).unwrap();
        }
        let alive = File::open(at(".b.x2.ensign-tmp")).unwrap();
        alive.try_lock_shared().unwrap();
        std::os::unix::fs::symlink("nowhere", at(".e.x3.ensign-tmp")).unwrap();
        std::fs::create_dir(at(".f.x4.ensign-tmp")).unwrap();
        let spec = WriteSpec { uid: None, gid: None, mode: 0o600 };
        TempFile::new(&at("new"), &mut "x".as_bytes(), spec).unwrap().persist().unwrap();
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
