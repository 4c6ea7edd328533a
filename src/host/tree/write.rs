//! Files, directories and links that are made below a directory, each in one step.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{Mode, SFlag, fstatat, mkdirat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchownat, linkat, symlinkat, unlinkat};

use super::super::checkpoint::{Checkpoint, checkpoint};
use super::super::fs::{FsError, WriteSpec, file_type, set_open};
use super::directory::{io_error, open_directory};

/// Most bytes of a name that its temporary name repeats: a name has at most 255 bytes.
const NAME: usize = 200;

/// A directory to write into.
#[derive(Debug)]
pub struct Tree {
    pub(super) root: OwnedFd,
    pub(super) path: PathBuf,
    /// The directory of the last entry: the next entry is mostly in the same directory.
    near: Option<(PathBuf, OwnedFd)>,
}

impl Tree {
    /// Opens an existing directory, all links followed: only for directories of the program itself. Managed directories come from
    /// a [`crate::host::paths::DirEntryHandle`].
    ///
    /// # Errors
    /// When it is no directory, or can't be opened.
    pub fn open(path: &Path) -> Result<Self, FsError> {
        let opened = OpenOptions::new().read(true).custom_flags(OFlag::O_DIRECTORY.bits()).open(path);
        let root = opened.map_err(|error| FsError::io("open the directory", path, error))?;
        Ok(Self { root: root.into(), path: path.to_owned(), near: None })
    }

    /// Creates a tree over an open directory. Errors show `path`.
    pub(in crate::host) fn at(root: OwnedFd, path: PathBuf) -> Self {
        Self { root, path, near: None }
    }

    /// Makes a directory and its missing parents, mode 0755. Replaces a file or link at the path.
    ///
    /// # Errors
    /// When the path leads out of the tree, contains a link or file, or the system refuses.
    pub fn directory(&mut self, path: &Path) -> Result<(), FsError> {
        let shown = self.path.join(path);
        let (above, name) = self.parent(path)?;
        if let Ok(there) = fstatat(above, name, AtFlags::AT_SYMLINK_NOFOLLOW)
            && file_type(&there) != SFlag::S_IFDIR
        {
            unlinkat(above, name, UnlinkatFlags::NoRemoveDir).map_err(|errno| io_error("remove", &shown, errno))?;
        }
        open_or_make_directory(above, name, &shown).map(drop)
    }

    /// Sets owner, mode and time of an existing directory.
    ///
    /// # Errors
    /// When it is missing, or the system refuses.
    pub fn set_directory(&mut self, path: &Path, spec: WriteSpec, modified: Option<i64>) -> Result<(), FsError> {
        let shown = self.path.join(path);
        let (above, name) = self.parent(path)?;
        let directory = File::from(open_directory(above, name).map_err(|errno| io_error("open the directory", &shown, errno))?);
        set_open(&directory, &shown, spec)?;
        set_modified(&directory, &shown, modified)
    }

    /// Begins a file; no process sees the file before [`NewFile::finish`].
    ///
    /// # Errors
    /// When the path leads out of the tree, or contains a link or file. When another process makes the same file, or the system
    /// refuses.
    pub fn create(&mut self, path: &Path) -> Result<NewFile, FsError> {
        let shown = self.path.join(path);
        let (above, name) = self.parent(path)?;
        let temporary = temporary(name);
        let file = create_locked(above, &temporary, &shown)?;
        let above = above.try_clone_to_owned().map_err(|error| FsError::io("create", &shown, error))?;
        Ok(NewFile { file, pending: PendingEntry { above, temporary, name: name.to_owned(), shown, placed: false } })
    }

    /// Makes a directory and its missing parents, mode 0755. Never replaces another object.
    ///
    /// # Errors
    /// When the path leads out of the tree. When a link or file is at the path or a part of it. When the system refuses.
    pub fn ensure_directory(&mut self, path: &Path) -> Result<(), FsError> {
        self.split(path)?;
        self.descend(path).map(drop)
    }

    /// Makes a symbolic link. The caller checks the target.
    ///
    /// # Errors
    /// As for [`Self::create`].
    pub fn symlink(&mut self, path: &Path, target: &OsStr, uid: Option<u32>, gid: Option<u32>) -> Result<(), FsError> {
        let shown = self.path.join(path);
        let failed = |errno| io_error("create the link", &shown, errno);
        let (above, name) = self.parent(path)?;
        let temporary = temporary(name);
        remove_temporary(above, &temporary, &shown)?;
        symlinkat(target, above, temporary.as_os_str()).map_err(failed)?;
        let above = above.try_clone_to_owned().map_err(|error| FsError::io("create the link", &shown, error))?;
        let pending = PendingEntry { above, temporary, name: name.to_owned(), shown: shown.clone(), placed: false };
        if uid.is_some() || gid.is_some() {
            let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
            fchownat(pending.above.as_fd(), pending.temporary.as_os_str(), uid, gid, AtFlags::AT_SYMLINK_NOFOLLOW)
                .map_err(|errno| io_error("set the owner of", &shown, errno))?;
        }
        pending.place()
    }

    /// Makes another name for a regular file of the tree.
    ///
    /// # Errors
    /// As for [`Self::create`], and when the other is no regular file.
    pub fn hard_link(&mut self, path: &Path, other: &Path) -> Result<(), FsError> {
        let (shown, shown_other) = (self.path.join(path), self.path.join(other));
        let (from, base) = self.parent(other)?;
        let there =
            fstatat(from, base, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(|errno| io_error("link to", &shown_other, errno))?;
        if file_type(&there) != SFlag::S_IFREG {
            return Err(FsError::NotAFile(shown_other));
        }
        let (from, base) =
            (from.try_clone_to_owned().map_err(|error| FsError::io("link to", &shown_other, error))?, base.to_owned());
        let (above, name) = self.parent(path)?;
        let temporary = temporary(name);
        remove_temporary(above, &temporary, &shown)?;
        linkat(from.as_fd(), base.as_os_str(), above, temporary.as_os_str(), AtFlags::empty())
            .map_err(|errno| io_error("create the link", &shown, errno))?;
        let above = above.try_clone_to_owned().map_err(|error| FsError::io("create the link", &shown, error))?;
        PendingEntry { above, temporary, name: name.to_owned(), shown, placed: false }.place()
    }

    /// The open directory of an entry, made if missing, and the entry's name in it.
    fn parent<'a>(&'a mut self, path: &'a Path) -> Result<(BorrowedFd<'a>, &'a OsStr), FsError> {
        let (above, name) = self.split(path)?;
        Ok((self.descend(above)?, name))
    }

    /// Splits a path within the tree into the directory of the entry and its name.
    pub(super) fn split<'a>(&self, path: &'a Path) -> Result<(&'a Path, &'a OsStr), FsError> {
        let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
        match (path.parent(), path.file_name()) {
            (Some(above), Some(name)) if plain => Ok((above, name)),
            _ => Err(FsError::Outside(self.path.join(path))),
        }
    }

    fn descend(&mut self, above: &Path) -> Result<BorrowedFd<'_>, FsError> {
        if above.as_os_str().is_empty() {
            return Ok(self.root.as_fd());
        }
        if self.near.as_ref().is_none_or(|(near, _)| near != above) {
            let mut shown = self.path.clone();
            let mut at: Option<OwnedFd> = None;
            for part in above.components() {
                shown.push(part);
                at = Some(open_or_make_directory(at.as_ref().map_or(self.root.as_fd(), AsFd::as_fd), part.as_os_str(), &shown)?);
            }
            self.near = at.map(|at| (above.to_owned(), at));
        }
        Ok(self.near.as_ref().map_or(self.root.as_fd(), |(_, at)| at.as_fd()))
    }
}

/// An unfinished file that no process sees. Dropping it removes the file.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    pending: PendingEntry,
}

impl NewFile {
    /// Moves the file to its place, with owner, mode and time of change (seconds since 1970).
    ///
    /// # Errors
    /// When a directory is in its place, or the system refuses.
    pub fn finish(self, spec: WriteSpec, modified: Option<i64>) -> Result<(), FsError> {
        set_open(&self.file, &self.pending.shown, spec)?;
        set_modified(&self.file, &self.pending.shown, modified)?;
        checkpoint(Checkpoint::EntryWritten);
        self.pending.place()
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// An object under a temporary name.
#[derive(Debug)]
struct PendingEntry {
    above: OwnedFd,
    temporary: OsString,
    name: OsString,
    shown: PathBuf,
    placed: bool,
}

impl PendingEntry {
    fn place(mut self) -> Result<(), FsError> {
        renameat(self.above.as_fd(), self.temporary.as_os_str(), self.above.as_fd(), self.name.as_os_str())
            .map_err(|errno| io_error("put in place", &self.shown, errno))?;
        // Renaming does nothing where both are names of the same file: then the temporary name still exists.
        self.placed = true;
        remove_temporary(self.above.as_fd(), &self.temporary, &self.shown)
    }
}

impl Drop for PendingEntry {
    fn drop(&mut self) {
        if !self.placed {
            // The first error matters more.
            let _left = unlinkat(self.above.as_fd(), self.temporary.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

/// The temporary name, the same for every attempt: an attempt removes the leftover of a killed process.
fn temporary(name: &OsStr) -> OsString {
    let mut bytes = b".".to_vec();
    bytes.extend(name.as_bytes().iter().take(NAME));
    bytes.extend(b".ensign-new");
    OsString::from_vec(bytes)
}

fn remove_temporary(above: BorrowedFd<'_>, temporary: &OsStr, shown: &Path) -> Result<(), FsError> {
    match unlinkat(above, temporary, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(io_error("prepare", shown, errno)),
    }
}

/// Makes the temporary file of an entry, and locks it while it is open. A file of a killed process is replaced. A file of a
/// living process is not replaced. Otherwise one process could put the half-written file of the other in place.
fn create_locked(above: BorrowedFd<'_>, temporary: &OsStr, shown: &Path) -> Result<File, FsError> {
    let failed = |errno| io_error("create", shown, errno);
    let open = |flags: OFlag| {
        let flags = flags | OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        openat(above, temporary, flags, Mode::S_IRUSR | Mode::S_IWUSR).map(File::from)
    };
    // Only the process that holds the lock of the named file may rename and remove the file.
    let is_ours = |file: &File| {
        let is_free = !matches!(file.try_lock(), Err(TryLockError::WouldBlock));
        let named = fstatat(above, temporary, AtFlags::AT_SYMLINK_NOFOLLOW);
        is_free
            && file.metadata().is_ok_and(|own| named.is_ok_and(|named| (named.st_dev, named.st_ino) == (own.dev(), own.ino())))
    };
    match open(OFlag::empty()) {
        Ok(left) if !is_ours(&left) => return Err(FsError::Busy(shown.to_owned())),
        // A leftover file; or a link, pipe or socket, which has no lock.
        Ok(_) | Err(Errno::ELOOP | Errno::ENXIO) => remove_temporary(above, temporary, shown)?,
        Err(Errno::ENOENT) => {}
        Err(errno) => return Err(failed(errno)),
    }
    let file = match open(OFlag::O_CREAT | OFlag::O_EXCL) {
        Err(Errno::EEXIST) => return Err(FsError::Busy(shown.to_owned())),
        made => made.map_err(failed)?,
    };
    if is_ours(&file) { Ok(file) } else { Err(FsError::Busy(shown.to_owned())) }
}

/// Opens a directory within another; makes it when missing.
fn open_or_make_directory(above: BorrowedFd<'_>, name: &OsStr, shown: &Path) -> Result<OwnedFd, FsError> {
    match open_directory(above, name) {
        Err(Errno::ENOENT) => {}
        Err(Errno::ENOTDIR | Errno::ELOOP) => return Err(FsError::InTheWay(shown.to_owned())),
        other => return other.map_err(|errno| io_error("open the directory", shown, errno)),
    }
    let failed = |errno| io_error("create the directory", shown, errno);
    match mkdirat(above, name, Mode::from_bits_truncate(0o755)) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(errno) => return Err(failed(errno)),
    }
    let made = open_directory(above, name).map_err(failed)?;
    let made = File::from(made);
    // Again, because the umask of the process cleared bits.
    made.set_permissions(Permissions::from_mode(0o755)).map_err(|error| FsError::io("set the mode of", shown, error))?;
    Ok(made.into())
}

fn set_modified(file: &File, shown: &Path, modified: Option<i64>) -> Result<(), FsError> {
    let Some(seconds) = modified else { return Ok(()) };
    let span = Duration::from_secs(seconds.unsigned_abs());
    let time = if seconds < 0 { SystemTime::UNIX_EPOCH.checked_sub(span) } else { SystemTime::UNIX_EPOCH.checked_add(span) };
    // A time out of the range of the clock is left out.
    let Some(time) = time else { return Ok(()) };
    file.set_modified(time).map_err(|error| FsError::io("set the time of", shown, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: WriteSpec = WriteSpec { uid: None, gid: None, mode: 0o640 };

    fn put(tree: &mut Tree, path: &str, content: &str) -> Result<(), FsError> {
        let mut file = tree.create(Path::new(path))?;
        file.write_all(content.as_bytes()).unwrap();
        file.finish(SPEC, Some(86_400))
    }

    fn names(path: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn files_directories_and_links_are_made() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let mut tree = Tree::open(dir.path()).unwrap();
        put(&mut tree, "a/b/c", "one").unwrap();
        put(&mut tree, "a/b/c", "two").unwrap();
        tree.symlink(Path::new("a/l"), OsStr::new("b/c"), None, None).unwrap();
        tree.hard_link(Path::new("h"), Path::new("a/b/c")).unwrap();
        tree.hard_link(Path::new("h"), Path::new("a/b/c")).unwrap();
        // A directory replaces a file or a link; nothing replaces a directory.
        put(&mut tree, "d", "file").unwrap();
        tree.directory(Path::new("d")).unwrap();
        tree.directory(Path::new("a/l")).unwrap();
        assert!(put(&mut tree, "a/b", "x").is_err());
        tree.set_directory(Path::new("d"), WriteSpec { mode: 0o711, ..SPEC }, Some(5)).unwrap();
        let mode = |name: &str| std::fs::metadata(at(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("a/b/c"), mode("d"), mode("a/b")), (0o640, 0o711, 0o755));
        assert_eq!(std::fs::read_to_string(at("h")).unwrap(), "two");
        let time = |name: &str| std::fs::metadata(at(name)).unwrap().modified().unwrap();
        assert_eq!(time("a/b/c"), SystemTime::UNIX_EPOCH + Duration::from_secs(86_400));
        assert_eq!(
            (names(dir.path()), names(&at("a"))),
            (vec!["a".into(), "d".into(), "h".into()], vec!["b".into(), "l".into()])
        );
    }

    #[test]
    fn nothing_is_written_through_a_link_or_outside() {
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
        [&root, &outside].into_iter().for_each(|path| std::fs::create_dir(path).unwrap());
        std::fs::write(outside.join("f"), "precious").unwrap();
        std::os::unix::fs::symlink(&outside, root.join("l")).unwrap();
        std::os::unix::fs::symlink(outside.join("f"), root.join("lf")).unwrap();
        let mut tree = Tree::open(&root).unwrap();
        // Nor through a link at the temporary name.
        std::os::unix::fs::symlink(outside.join("f"), root.join(temporary(OsStr::new("new")))).unwrap();
        put(&mut tree, "new", "fine").unwrap();
        assert_eq!(std::fs::read_to_string(root.join("new")).unwrap(), "fine");
        for path in ["l/f", "l/d/f", "../f", "/f", "a/../../f", "", "..", "."] {
            assert!(put(&mut tree, path, "evil").is_err(), "{path}");
            assert!(tree.symlink(Path::new(path), OsStr::new("x"), None, None).is_err(), "{path}");
            assert!(tree.hard_link(Path::new("h"), Path::new(path)).is_err(), "{path}");
            assert!(tree.hard_link(Path::new(path), Path::new("lf")).is_err(), "{path}");
        }
        assert!(matches!(tree.hard_link(Path::new("h"), Path::new("lf")), Err(FsError::NotAFile(_))));
        assert!(tree.set_directory(Path::new("l"), SPEC, None).is_err());
        // A link at the end is replaced, not followed.
        put(&mut tree, "lf", "new").unwrap();
        assert!(!root.join("lf").is_symlink());
        assert_eq!(
            (names(&outside), std::fs::read_to_string(outside.join("f")).unwrap()),
            (vec!["f".to_owned()], "precious".into())
        );
        // An unfinished file leaves nothing behind, and the leftover of a killed process is replaced.
        drop(tree.create(Path::new("half")).unwrap());
        std::fs::write(root.join(".whole.ensign-new"), "left").unwrap();
        put(&mut tree, "whole", "x").unwrap();
        std::os::unix::fs::symlink("lf", root.join(".whole.ensign-new")).unwrap();
        put(&mut tree, "whole", "y").unwrap();
        // A file that another process is making is refused.
        let theirs = tree.create(Path::new("whole")).unwrap();
        assert!(matches!(tree.create(Path::new("whole")), Err(FsError::Busy(_))));
        theirs.finish(SPEC, None).unwrap();
        put(&mut tree, "whole", "z").unwrap();
        tree.ensure_directory(Path::new("d/e")).unwrap();
        for path in ["whole", "whole/d", "l", "l/d", "../d", "/d", ""] {
            assert!(tree.ensure_directory(Path::new(path)).is_err(), "{path}");
        }
        assert_eq!(
            (names(&root), names(&outside)),
            (["d", "l", "lf", "new", "whole"].map(str::to_owned).to_vec(), vec!["f".to_owned()])
        );
    }
}
