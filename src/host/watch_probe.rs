//! Facts about a path that decide which watches it needs.

use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, StatxAttributes, StatxFlags, statx};
use rustix::io::Errno;

/// The kind of an object, as far as watches differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathKind {
    /// Nothing is at the path, or the path can't be examined.
    Missing,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// An object of another kind.
    File,
}

/// Facts about the object at a path, a link not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathFacts {
    /// The kind.
    pub kind: PathKind,
    /// A watch of the directory misses changes of this object. The object is a mount point, or has several hard links.
    pub is_hidden_from_directory: bool,
}

/// Examines a path. Mounts no automatic mount point.
pub fn examine_path(path: &Path) -> PathFacts {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let stat = loop {
        match statx(CWD, path, flags, StatxFlags::TYPE | StatxFlags::NLINK) {
            Err(Errno::INTR) => {}
            Err(_) => return PathFacts { kind: PathKind::Missing, is_hidden_from_directory: false },
            Ok(stat) => break stat,
        }
    };
    let kind = match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::Directory => PathKind::Directory,
        FileType::Symlink => PathKind::Link,
        _ => PathKind::File,
    };
    let is_mount_point = stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    PathFacts { kind, is_hidden_from_directory: is_mount_point || (kind == PathKind::File && stat.stx_nlink > 1) }
}

/// Returns the names of the directories in a directory. Links to directories are not among them.
///
/// # Errors
/// When the directory can't be read.
pub fn subdirectories(path: &Path) -> io::Result<Vec<OsString>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        // An entry that vanishes meanwhile has an event of its own.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.push(entry.file_name());
        }
    }
    Ok(found)
}

/// Returns the absolute path that a symbolic link names. Links in the directory of the link are resolved, links in the named
/// path are not.
///
/// # Errors
/// When the link can't be read.
pub fn link_destination(link: &Path) -> io::Result<PathBuf> {
    let text = std::fs::read_link(link)?;
    let directory = std::fs::canonicalize(link.parent().unwrap_or(Path::new("/")))?;
    let mut path = directory;
    for part in text.components() {
        match part {
            // The parent of a link's destination, not of the link.
            Component::ParentDir => {
                path = std::fs::canonicalize(&path).unwrap_or(path);
                path.pop();
            }
            other => path.push(other),
        }
    }
    Ok(normalize_absolute(&path))
}

/// Removes `.` and `..` from an absolute path, by its text alone.
pub fn normalize_absolute(path: &Path) -> PathBuf {
    let mut normal = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => normal.push(name),
            Component::ParentDir => _ = normal.pop(),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_have_kinds() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("f"), "").unwrap();
        std::fs::write(at("twice"), "").unwrap();
        std::fs::hard_link(at("twice"), at("thrice")).unwrap();
        std::fs::create_dir(at("d")).unwrap();
        std::os::unix::fs::symlink("d", at("l")).unwrap();
        for (path, kind, hidden) in [
            (at("f"), PathKind::File, false),
            (at("twice"), PathKind::File, true),
            (at("d"), PathKind::Directory, false),
            (at("l"), PathKind::Link, false),
            (at("none"), PathKind::Missing, false),
            (at("f/below"), PathKind::Missing, false),
            (PathBuf::from("/proc"), PathKind::Directory, true),
        ] {
            assert_eq!(examine_path(&path), PathFacts { kind, is_hidden_from_directory: hidden }, "{}", path.display());
        }
        assert_eq!(subdirectories(dir.path()).unwrap(), ["d"]);
    }

    #[test]
    fn a_link_names_a_path() {
        let dir = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(dir.path()).unwrap();
        std::fs::create_dir(root.join("d")).unwrap();
        std::os::unix::fs::symlink("d", root.join("to-d")).unwrap();
        for (text, expected) in [("x/y", "d/x/y"), ("../f", "f"), (".", "d"), ("../to-d/../f", "f"), ("none/../f", "d/f")] {
            let link = root.join("d/l");
            std::os::unix::fs::symlink(text, &link).unwrap();
            assert_eq!(link_destination(&root.join("to-d/l")).unwrap(), root.join(expected));
            std::fs::remove_file(link).unwrap();
        }
        assert_eq!(normalize_absolute(Path::new("/a/./b/../../../c")), Path::new("/c"));
    }
}
