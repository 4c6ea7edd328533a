//! The content of an open directory: listed, read, given other owners, removed. Every path is walked from the directory itself,
//! and no link is followed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{Mode, SFlag, fstatat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchownat, unlinkat};

use super::super::fs::{FsError, WriteSpec, check_shared, file_type, names_in, set_open};
use super::directory::{DEPTH, io_error, open_directory};
use super::mounts;
use super::write::Tree;

/// The kind of an object below a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeEntryKind {
    /// A regular file of this size in bytes.
    File(u64),
    /// A directory.
    Directory {
        /// True when a file system is mounted there.
        mounted: bool,
    },
    /// A symbolic link with its target.
    Link(OsString),
    /// A device, socket or pipe.
    Other,
}

/// An object below a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeEntry {
    /// The path, relative to the directory.
    pub path: PathBuf,
    /// The kind.
    pub kind: TreeEntryKind,
    /// The number of the owner.
    pub uid: u32,
    /// The number of the group.
    pub gid: u32,
    /// Permission bits, setuid, setgid and sticky included.
    pub mode: u32,
}

impl Tree {
    /// Returns all entries below the directory, sorted, a directory before its content. Mount points are not entered.
    ///
    /// # Errors
    /// When it can't be examined, or there are more than `limit` entries.
    pub fn entries(&self, limit: usize) -> Result<Vec<TreeEntry>, FsError> {
        let root = self.root.try_clone().map_err(|error| FsError::io("list", &self.path, error))?;
        let mut walk = Walk { tree: self, limit, device: None, found: Vec::new() };
        walk.visit(root, Path::new(""), 0)?;
        walk.found.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(walk.found)
    }

    /// Opens a regular file below the directory for reading.
    ///
    /// # Errors
    /// When it is another object, or can't be opened.
    pub fn file(&self, path: &Path) -> Result<File, FsError> {
        let shown = self.path.join(path);
        let (above, name) = self.parent_of(path)?;
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let file = File::from(openat(&above, name, flags, Mode::empty()).map_err(|errno| io_error("read", &shown, errno))?);
        let meta = file.metadata().map_err(|error| FsError::io("examine", &shown, error))?;
        if !meta.is_file() {
            return Err(FsError::NotAFile(shown));
        }
        check_shared(above.as_fd(), &file, &shown)?;
        Ok(file)
    }

    /// Sets owner, group and mode of a file or directory.
    ///
    /// # Errors
    /// When it is another object, or the system refuses.
    pub fn set(&self, path: &Path, spec: WriteSpec) -> Result<(), FsError> {
        let shown = self.path.join(path);
        let (above, name) = self.parent_of(path)?;
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let opened = openat(&above, name, flags, Mode::empty()).map_err(|errno| io_error("open", &shown, errno))?;
        let file = File::from(opened);
        check_shared(above.as_fd(), &file, &shown)?;
        set_open(&file, &shown, spec)
    }

    /// Sets owner and group of a link itself.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn set_link(&self, path: &Path, uid: Option<u32>, gid: Option<u32>) -> Result<(), FsError> {
        let (above, name) = self.parent_of(path)?;
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        fchownat(above, name, uid, gid, AtFlags::AT_SYMLINK_NOFOLLOW)
            .map_err(|errno| io_error("set the owner of", &self.path.join(path), errno))
    }

    /// Removes an object with everything below.
    ///
    /// # Errors
    /// When a file system is mounted there, or the system refuses. Objects removed until then are gone.
    pub fn remove(&self, path: &Path) -> Result<(), FsError> {
        let (above, name) = self.parent_of(path)?;
        remove_all(&above, name, &self.path.join(path))
    }

    /// Removes a file, or another object that is no directory.
    ///
    /// # Errors
    /// When it is a directory, or the system refuses. A missing object is no error.
    pub fn unlink(&self, path: &Path) -> Result<(), FsError> {
        self.unlink_at(path, UnlinkatFlags::NoRemoveDir, &[Errno::ENOENT, Errno::ENOTDIR])
    }

    /// Removes a directory if it is empty.
    ///
    /// # Errors
    /// When the system refuses. A directory with content, another object or a missing object is no error.
    pub fn remove_empty(&self, path: &Path) -> Result<(), FsError> {
        let fine = [Errno::ENOENT, Errno::ENOTDIR, Errno::ENOTEMPTY, Errno::EEXIST];
        self.unlink_at(path, UnlinkatFlags::RemoveDir, &fine)
    }

    fn unlink_at(&self, path: &Path, flags: UnlinkatFlags, fine: &[Errno]) -> Result<(), FsError> {
        let (above, name) = match self.parent_of(path) {
            Err(FsError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            found => found?,
        };
        match unlinkat(&above, name, flags) {
            Err(errno) if !fine.contains(&errno) => Err(io_error("remove", &self.path.join(path), errno)),
            _ => Ok(()),
        }
    }

    /// The open directory of an existing entry, and the entry's name in it.
    fn parent_of<'a>(&self, path: &'a Path) -> Result<(OwnedFd, &'a OsStr), FsError> {
        let mut shown = self.path.clone();
        let (above, name) = self.split(path)?;
        let mut at = self.root.try_clone().map_err(|error| FsError::io("open", &shown, error))?;
        for part in above.components() {
            shown.push(part);
            at = open_directory(at.as_fd(), part.as_os_str()).map_err(|errno| io_error("open the directory", &shown, errno))?;
        }
        Ok((at, name))
    }
}

struct Walk<'a> {
    tree: &'a Tree,
    limit: usize,
    /// The file system of the directory.
    device: Option<u64>,
    found: Vec<TreeEntry>,
}

impl Walk<'_> {
    fn visit(&mut self, directory: OwnedFd, path: &Path, depth: usize) -> Result<(), FsError> {
        let shown = self.tree.path.join(path);
        let failed = |errno| io_error("list", &shown, errno);
        if depth > DEPTH {
            return Err(FsError::TooMany { path: shown, what: "nested directories", limit: DEPTH });
        }
        let open = directory.try_clone().map_err(|error| FsError::io("list", &shown, error))?;
        for name in names_in(directory).map_err(failed)? {
            let below = path.join(&name);
            let shown = self.tree.path.join(&below);
            let stat = match fstatat(open.as_fd(), name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                // Another process removed the entry meanwhile.
                Err(Errno::ENOENT) => continue,
                Err(errno) => return Err(io_error("examine", &shown, errno)),
            };
            if self.found.len() >= self.limit {
                return Err(FsError::TooMany { path: self.tree.path.clone(), what: "entries", limit: self.limit });
            }
            let own = *self.device.get_or_insert(self.root_device()?);
            let node = match file_type(&stat) {
                SFlag::S_IFREG => TreeEntryKind::File(u64::try_from(stat.st_size).unwrap_or(0)),
                SFlag::S_IFDIR => {
                    let is_root =
                        || mounts::is_mount_point(open.as_fd(), &name).map_err(|errno| io_error("examine", &shown, errno));
                    TreeEntryKind::Directory { mounted: stat.st_dev != own || is_root()? }
                }
                SFlag::S_IFLNK => TreeEntryKind::Link(
                    readlinkat(open.as_fd(), name.as_os_str()).map_err(|errno| io_error("read", &shown, errno))?,
                ),
                _ => TreeEntryKind::Other,
            };
            let enter = node == TreeEntryKind::Directory { mounted: false };
            self.found.push(TreeEntry {
                path: below.clone(),
                kind: node,
                uid: stat.st_uid,
                gid: stat.st_gid,
                mode: stat.st_mode & 0o7777,
            });
            if enter {
                let inner = open_directory(open.as_fd(), &name).map_err(|errno| io_error("open the directory", &shown, errno))?;
                self.visit(inner, &below, depth + 1)?;
            }
        }
        Ok(())
    }

    fn root_device(&self) -> Result<u64, FsError> {
        let stat = nix::sys::stat::fstat(&self.tree.root).map_err(|errno| io_error("examine", &self.tree.path, errno))?;
        Ok(stat.st_dev)
    }
}

/// Removes an object with everything below; removes nothing where a file system is mounted.
///
/// # Errors
/// When a file system is mounted there, or the system refuses. Objects removed until then are gone.
pub(in crate::host) fn remove_all(above: &OwnedFd, name: &OsStr, shown: &Path) -> Result<(), FsError> {
    match mounts::first_mount(above, name, shown)? {
        Some(mounted) => Err(FsError::Mounted { path: shown.to_owned(), mounted }),
        None => remove(above, name, shown, 0),
    }
}

fn remove(above: &OwnedFd, name: &OsStr, shown: &Path, depth: usize) -> Result<(), FsError> {
    let failed = |errno| io_error("remove", shown, errno);
    let stat = match fstatat(above, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::ENOENT) => return Ok(()),
        Err(errno) => return Err(failed(errno)),
    };
    if file_type(&stat) != SFlag::S_IFDIR {
        return unlinkat(above, name, UnlinkatFlags::NoRemoveDir).map_err(failed);
    }
    if depth > DEPTH {
        return Err(FsError::TooMany { path: shown.to_owned(), what: "nested directories", limit: DEPTH });
    }
    let inner = open_directory(above.as_fd(), name).map_err(failed)?;
    let listed = inner.try_clone().map_err(|error| FsError::io("remove", shown, error))?;
    for below in names_in(listed).map_err(failed)? {
        remove(&inner, &below, &shown.join(&below), depth + 1)?;
    }
    unlinkat(above, name, UnlinkatFlags::RemoveDir).map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    fn made() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("a/b/c"), "123").unwrap();
        std::fs::create_dir(dir.path().join("outside")).unwrap();
        std::fs::write(dir.path().join("outside/kept"), "kept").unwrap();
        symlink("../outside", root.join("link")).unwrap();
        symlink("../../../outside/kept", root.join("a/b/link")).unwrap();
        nix::unistd::mkfifo(&root.join("pipe"), Mode::S_IRUSR).unwrap();
        dir
    }

    #[test]
    fn everything_is_listed_and_no_link_is_followed() {
        let dir = made();
        let tree = Tree::open(&dir.path().join("root")).unwrap();
        let listed: Vec<(String, TreeEntryKind)> =
            tree.entries(10).unwrap().into_iter().map(|entry| (entry.path.display().to_string(), entry.kind)).collect();
        let directory = TreeEntryKind::Directory { mounted: false };
        let wanted = [
            ("a", directory.clone()),
            ("a/b", directory),
            ("a/b/c", TreeEntryKind::File(3)),
            ("a/b/link", TreeEntryKind::Link("../../../outside/kept".into())),
            ("link", TreeEntryKind::Link("../outside".into())),
            ("pipe", TreeEntryKind::Other),
        ];
        assert_eq!(listed, wanted.map(|(path, node)| (path.to_owned(), node)));
        assert!(matches!(tree.entries(5), Err(FsError::TooMany { limit: 5, .. })));
    }

    #[test]
    fn only_objects_in_the_tree_are_read_and_changed() {
        let dir = made();
        let root = dir.path().join("root");
        let tree = Tree::open(&root).unwrap();
        let mut text = String::new();
        tree.file(Path::new("a/b/c")).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "123");
        let spec = WriteSpec { uid: None, gid: None, mode: 0o601 };
        for path in ["a/b/link", "link", "link/kept", "pipe", "../outside/kept", "/etc/passwd", "", "none"] {
            assert!(tree.file(Path::new(path)).is_err(), "{path}");
            assert!(path == "pipe" || tree.set(Path::new(path), spec).is_err(), "{path}");
        }
        for path in ["link/kept", "../outside", "/etc/passwd", ""] {
            assert!(tree.remove(Path::new(path)).is_err(), "{path}");
        }
        tree.set(Path::new("a/b/c"), spec).unwrap();
        assert_eq!(root.join("a/b/c").metadata().unwrap().mode() & 0o7777, 0o601);
        for path in ["link/kept", "../outside/kept", "a"] {
            assert!(tree.unlink(Path::new(path)).is_err(), "{path}");
        }
        for path in ["none", "none/none", "a", "a/b/c", "link"] {
            tree.remove_empty(Path::new(path)).unwrap();
        }
        assert!(root.join("a/b/c").exists() && root.join("link").is_symlink());
        tree.unlink(Path::new("none")).unwrap();
        tree.unlink(Path::new("a/b/link")).unwrap();
        tree.unlink(Path::new("a/b/c")).unwrap();
        tree.remove_empty(Path::new("a/b")).unwrap();
        assert!(!root.join("a/b").exists());
        ["link", "a", "pipe", "none"].iter().for_each(|path| tree.remove(Path::new(path)).unwrap());
        assert_eq!(std::fs::read_dir(&root).unwrap().count(), 0);
        assert_eq!(std::fs::read_to_string(dir.path().join("outside/kept")).unwrap(), "kept");
    }

    #[test]
    fn depth_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("d/".repeat(DEPTH + 2))).unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        assert!(matches!(tree.entries(1000), Err(FsError::TooMany { limit: DEPTH, .. })));
    }
}
