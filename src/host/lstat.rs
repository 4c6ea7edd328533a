//! Properties of a path itself: a symbolic link at its end is not followed.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use super::fs::FsError;

/// The kind of object at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InodeKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A socket.
    Socket,
    /// A named pipe.
    Pipe,
    /// A block device.
    BlockDevice,
    /// A character device.
    CharacterDevice,
}

impl InodeKind {
    /// The name of the kind, in one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Symlink => "symlink",
            Self::Socket => "socket",
            Self::Pipe => "pipe",
            Self::BlockDevice => "block-device",
            Self::CharacterDevice => "character-device",
        }
    }
}

/// The properties of an object, links not followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// The kind.
    pub kind: InodeKind,
    /// The number of the owner.
    pub uid: u32,
    /// The number of the group.
    pub gid: u32,
    /// Permission bits, setuid, setgid and sticky included.
    pub mode: u32,
    /// Size in bytes.
    pub size: u64,
    /// The target of a symbolic link, as written in the link.
    pub target: Option<String>,
}

/// Returns the properties of a path, without following a link at its end; none when nothing exists.
///
/// # Errors
/// When the path can't be examined.
pub fn lstat(path: &Path) -> Result<Option<Inode>, FsError> {
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(FsError::io("examine", path, error)),
    };
    let kind = match meta.file_type() {
        kind if kind.is_dir() => InodeKind::Directory,
        kind if kind.is_symlink() => InodeKind::Symlink,
        kind if kind.is_socket() => InodeKind::Socket,
        kind if kind.is_fifo() => InodeKind::Pipe,
        kind if kind.is_block_device() => InodeKind::BlockDevice,
        kind if kind.is_char_device() => InodeKind::CharacterDevice,
        _ => InodeKind::File,
    };
    let target = match kind {
        InodeKind::Symlink => {
            let target = fs::read_link(path).map_err(|error| FsError::io("read the link", path, error))?;
            Some(target.to_string_lossy().into_owned())
        }
        _ => None,
    };
    Ok(Some(Inode { kind, uid: meta.uid(), gid: meta.gid(), mode: meta.mode() & 0o7777, size: meta.len(), target }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_themselves() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("a"), "xyz").unwrap();
        std::os::unix::fs::symlink("nowhere", at("l")).unwrap();
        let link = lstat(&at("l")).unwrap().unwrap();
        assert_eq!((link.kind, link.target.as_deref()), (InodeKind::Symlink, Some("nowhere")));
        let file = lstat(&at("a")).unwrap().unwrap();
        assert_eq!((file.kind.as_str(), file.size, file.target), ("file", 3, None));
        assert_eq!(lstat(dir.path()).unwrap().unwrap().kind.as_str(), "directory");
        assert_eq!(lstat(Path::new("/dev/null")).unwrap().unwrap().kind.as_str(), "character-device");
        assert_eq!(lstat(&at("no")).unwrap(), None);
        assert_eq!(lstat(&at("a/no")).unwrap(), None);
    }
}
