//! An open directory and a name in it. All operations on managed paths use both.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchownat, unlinkat};

use super::super::fs::{
    FileInfo, FileKind, FileTarget, FsError, LinkInfo, TempFile, TrustedOwner, WriteSpec, digest_open_file, file_type, is_shared,
    names_in, set_open, write_link_at,
};
use super::super::tree::{Tree, first_mount, remove_below};

const READ: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_NOFOLLOW).union(OFlag::O_NONBLOCK).union(OFlag::O_NOCTTY).union(OFlag::O_CLOEXEC);

/// The object at a path.
#[derive(Debug)]
pub enum PathInfo {
    /// No object.
    Nothing,
    /// A link to nothing.
    Dangling,
    /// A link that is not followed. Users other than root could have made it, or it leads out of the allowed directories.
    Link,
    /// A regular file that may belong to another user under another name, so it was not read.
    SharedFile,
    /// Another object.
    Object {
        /// The properties, links followed.
        info: FileInfo,
        /// True when the path itself is a link.
        link: bool,
    },
}

/// A name in an open directory.
#[derive(Debug)]
pub struct DirEntryHandle {
    above: OwnedFd,
    name: OsString,
    /// The path as errors show it.
    path: PathBuf,
    trust: TrustedOwner,
}

impl DirEntryHandle {
    pub(super) fn new(above: OwnedFd, name: OsString, path: PathBuf, trust: TrustedOwner) -> Self {
        Self { above, name, path, trust }
    }

    /// The handle of another name in the same directory.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn sibling(&self, name: impl Into<OsString>) -> Result<Self, FsError> {
        let above = self.above.try_clone().map_err(|error| FsError::io("open", &self.path, error))?;
        let name = name.into();
        Ok(Self { above, path: self.path.with_file_name(&name), name, trust: self.trust })
    }

    /// The handle of a name in the directory at this place.
    ///
    /// # Errors
    /// When this place is no directory, or the system refuses.
    pub fn child(&self, name: impl Into<OsString>) -> Result<Self, FsError> {
        let name = name.into();
        Ok(Self { above: self.open_directory()?, path: self.path.join(&name), name, trust: self.trust })
    }

    /// The names in the same directory, including this one.
    ///
    /// # Errors
    /// When the directory can't be read.
    pub fn names(&self) -> Result<Vec<OsString>, FsError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        openat(&self.above, ".", flags, Mode::empty())
            .and_then(names_in)
            .map_err(|errno| self.failed("list the directory of", errno))
    }

    /// The path as errors show it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(in crate::host) fn name(&self) -> &OsStr {
        &self.name
    }

    pub(in crate::host) fn above(&self) -> BorrowedFd<'_> {
        self.above.as_fd()
    }

    /// Returns the properties of the entry, a link not followed; none when the entry is missing.
    pub(in crate::host) fn stat(&self) -> Result<Option<FileStat>, FsError> {
        match fstatat(&self.above, self.name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
            Err(errno) => Err(self.failed("examine", errno)),
        }
    }

    /// True for a symbolic link.
    ///
    /// # Errors
    /// When the entry can't be examined.
    pub fn is_link(&self) -> Result<bool, FsError> {
        Ok(self.stat()?.is_some_and(|stat| file_type(&stat) == SFlag::S_IFLNK))
    }

    /// True for a regular file; links are not followed.
    ///
    /// # Errors
    /// When the entry can't be examined.
    pub fn is_file(&self) -> Result<bool, FsError> {
        Ok(self.stat()?.is_some_and(|stat| file_type(&stat) == SFlag::S_IFREG))
    }

    /// True when the entry does not exist.
    ///
    /// # Errors
    /// When the entry can't be examined.
    pub fn is_free(&self) -> Result<bool, FsError> {
        Ok(self.stat()?.is_none())
    }

    /// Returns the properties of the entry. With `hash`, the content of a regular file is read and hashed from the same
    /// descriptor.
    ///
    /// # Errors
    /// When it can't be examined or read.
    pub fn inspect(&self, hash: bool) -> Result<PathInfo, FsError> {
        let Some(stat) = self.stat()? else { return Ok(PathInfo::Nothing) };
        let mut look = FileInfo::from_stat(&stat);
        match file_type(&stat) {
            SFlag::S_IFLNK => return Ok(PathInfo::Link),
            SFlag::S_IFREG if hash || stat.st_nlink > 1 => {}
            _ => return Ok(PathInfo::Object { info: look, link: false }),
        }
        let mut file = match self.open("read", READ) {
            Ok(file) => file,
            // Another process removed it meanwhile.
            Err(FsError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => return Ok(PathInfo::Nothing),
            Err(FsError::Io { source, .. }) if !hash && source.kind() == ErrorKind::PermissionDenied => {
                return Ok(if self.is_shared(stat.st_uid, names_of(&stat))? {
                    PathInfo::SharedFile
                } else {
                    PathInfo::Object { info: look, link: false }
                });
            }
            Err(error) => return Err(error),
        };
        let meta = file.metadata().map_err(|error| FsError::io("examine", &self.path, error))?;
        look = FileInfo::from_metadata(&meta);
        if look.kind == FileKind::File {
            if self.is_shared(meta.uid(), meta.nlink())? {
                return Ok(PathInfo::SharedFile);
            }
            if hash {
                look.sha256 =
                    Some(digest_open_file(&mut file, meta.len()).map_err(|error| FsError::io("read", &self.path, error))?);
            }
        }
        Ok(PathInfo::Object { info: look, link: false })
    }

    /// Opens the regular file of the entry for reading, and returns its properties.
    ///
    /// # Errors
    /// When it is no regular file, may be a name for a file of another user, or can't be opened.
    pub fn open_regular(&self) -> Result<(File, FileInfo), FsError> {
        let file = match self.open("read", READ) {
            Err(FsError::Io { source, .. })
                if [Errno::ELOOP, Errno::ENXIO].iter().any(|errno| source.raw_os_error() == Some(*errno as i32)) =>
            {
                return Err(FsError::NotAFile(self.path.clone()));
            }
            opened => opened?,
        };
        let meta = file.metadata().map_err(|error| FsError::io("examine", &self.path, error))?;
        if !meta.is_file() {
            return Err(FsError::NotAFile(self.path.clone()));
        }
        self.check_own(meta.uid(), meta.nlink())?;
        Ok((file, FileInfo::from_metadata(&meta)))
    }

    /// Opens the directory of the entry for reading.
    ///
    /// # Errors
    /// When the entry is another object, or can't be opened.
    pub fn open_directory(&self) -> Result<OwnedFd, FsError> {
        self.open("open the directory", READ.union(OFlag::O_DIRECTORY)).map(OwnedFd::from)
    }

    /// Opens the directory of the entry as a tree to work in.
    ///
    /// # Errors
    /// As [`Self::open_directory`].
    pub fn tree(&self) -> Result<Tree, FsError> {
        Ok(Tree::at(self.open_directory()?, self.path.clone()))
    }

    /// True for an empty directory.
    ///
    /// # Errors
    /// As [`Self::open_directory`].
    pub fn is_empty(&self) -> Result<bool, FsError> {
        let names = names_in(self.open_directory()?).map_err(|errno| self.failed("list", errno))?;
        Ok(names.is_empty())
    }

    /// The properties of the symbolic link; none where the entry is missing or another object.
    ///
    /// # Errors
    /// When the entry can't be examined.
    pub fn read_link(&self) -> Result<Option<LinkInfo>, FsError> {
        let opened =
            match openat(&self.above, self.name.as_os_str(), OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())
            {
                Ok(opened) => opened,
                Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
                Err(errno) => return Err(self.failed("examine", errno)),
            };
        let stat = fstat(&opened).map_err(|errno| self.failed("examine", errno))?;
        if file_type(&stat) != SFlag::S_IFLNK {
            return Ok(None);
        }
        let target = readlinkat(&opened, "").map_err(|errno| self.failed("examine", errno))?;
        Ok(Some(LinkInfo { target: target.into(), uid: stat.st_uid, gid: stat.st_gid }))
    }

    /// Puts a symbolic link in place in one step, with its owner. Replaces a file or link.
    ///
    /// # Errors
    /// When the entry is a directory, or the system refuses; then the old object is unchanged.
    pub fn write_link(&self, target: &Path, uid: Option<u32>, gid: Option<u32>) -> Result<(), FsError> {
        write_link_at(&self.file_target(), target, uid, gid)
    }

    /// Sets owner and group of the symbolic link itself; `None` keeps them.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn set_link_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<(), FsError> {
        if uid.is_none() && gid.is_none() {
            return Ok(());
        }
        let opened =
            openat(&self.above, self.name.as_os_str(), OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())
                .map_err(|errno| self.failed("open", errno))?;
        let stat = fstat(&opened).map_err(|errno| self.failed("examine", errno))?;
        if file_type(&stat) != SFlag::S_IFLNK {
            return Err(FsError::Changed(self.path.clone()));
        }
        self.check_own(stat.st_uid, names_of(&stat))?;
        chown(&opened, uid, gid).map_err(|errno| self.failed("set the owner of", errno))
    }

    /// Sets owner, group and mode of the file or directory of the entry.
    ///
    /// # Errors
    /// When it is another object, may be a name for a file of another user, or the system refuses.
    pub fn set(&self, spec: WriteSpec) -> Result<(), FsError> {
        let Some(stat) = self.stat()? else { return Err(self.failed("open", Errno::ENOENT)) };
        if !matches!(file_type(&stat), SFlag::S_IFREG | SFlag::S_IFDIR) {
            return Err(FsError::NotAFile(self.path.clone()));
        }
        let file = match self.open("open", READ) {
            Ok(file) => file,
            // The owner may not read the file.
            Err(FsError::Io { source, .. }) if source.kind() == ErrorKind::PermissionDenied => return self.set_unread(spec),
            Err(error) => return Err(error),
        };
        let meta = file.metadata().map_err(|error| FsError::io("examine", &self.path, error))?;
        if meta.is_file() {
            self.check_own(meta.uid(), meta.nlink())?;
        } else if !meta.is_dir() {
            return Err(FsError::NotAFile(self.path.clone()));
        }
        set_open(&file, &self.path, spec)
    }

    /// Sets owner, group and mode without opening the entry for reading.
    fn set_unread(&self, spec: WriteSpec) -> Result<(), FsError> {
        let opened = self.open("open", OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)?;
        let meta = opened.metadata().map_err(|error| FsError::io("examine", &self.path, error))?;
        if meta.is_file() {
            self.check_own(meta.uid(), meta.nlink())?;
        } else if !meta.is_dir() {
            return Err(FsError::NotAFile(self.path.clone()));
        }
        chown(&opened, spec.uid, spec.gid).map_err(|errno| self.failed("set the owner of", errno))?;
        // fchmod(2) rejects an `O_PATH` descriptor; chmod(2) accepts its name below /proc.
        let itself = format!("/proc/self/fd/{}", opened.as_raw_fd());
        std::fs::set_permissions(itself, Permissions::from_mode(spec.mode))
            .map_err(|error| FsError::io("set the mode of", &self.path, error))
    }

    fn file_target(&self) -> FileTarget<'_> {
        FileTarget { above: self.above(), name: &self.name, path: &self.path, trust: self.trust }
    }

    /// Writes a temporary file for the entry, in the same directory.
    ///
    /// # Errors
    /// When a step fails; then nothing is left behind.
    pub fn temp_file(&self, content: &mut dyn std::io::Read, spec: WriteSpec) -> Result<TempFile, FsError> {
        TempFile::new_at(&self.file_target(), content, spec)
    }

    /// Makes the directory; an existing directory is unchanged.
    ///
    /// # Errors
    /// When the entry is another object, or the system refuses.
    pub fn make_directory(&self, mode: u32) -> Result<(), FsError> {
        make_directory(self.above(), &self.name, mode, &self.path)
    }

    /// Creates a new empty file with exactly `mode`.
    ///
    /// # Errors
    /// When the entry exists, or the system refuses.
    pub fn create_new(&self, mode: u32) -> Result<File, FsError> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = openat(&self.above, self.name.as_os_str(), flags, Mode::from_bits_truncate(mode));
        let file = File::from(opened.map_err(|errno| self.failed("create", errno))?);
        // Again, because the umask of the process cleared bits.
        file.set_permissions(Permissions::from_mode(mode)).map_err(|error| FsError::io("set the mode of", &self.path, error))?;
        Ok(file)
    }

    /// Opens the regular file for reading and writing, or creates it with `mode`.
    pub(in crate::host) fn open_or_create(&self, mode: u32) -> Result<File, FsError> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let opened = openat(&self.above, self.name.as_os_str(), flags, Mode::from_bits_truncate(mode));
        opened.map(File::from).map_err(|errno| self.failed("create", errno))
    }

    /// Renames the entry to another place, and replaces a file or link there.
    pub(in crate::host) fn rename_to(&self, other: &Self) -> Result<(), FsError> {
        renameat(&self.above, self.name.as_os_str(), &other.above, other.name.as_os_str())
            .map_err(|errno| other.failed("put in place", errno))
    }

    /// Writes into the existing file, in one call. For files of the kernel, as in `/proc/sys`, which can't be replaced.
    ///
    /// # Errors
    /// When the file is missing or no regular file, or the system refuses.
    pub fn write_into(&self, content: &str) -> Result<(), FsError> {
        let flags = OFlag::O_WRONLY | OFlag::O_TRUNC | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let opened = openat(&self.above, self.name.as_os_str(), flags, Mode::empty());
        let mut file = File::from(opened.map_err(|errno| self.failed("open for writing", errno))?);
        std::io::Write::write_all(&mut file, content.as_bytes()).map_err(|error| FsError::io("write", &self.path, error))
    }

    /// Removes a link itself, a file, or an empty directory. A missing entry is no error.
    ///
    /// # Errors
    /// When the system refuses, as for a directory that is not empty.
    pub fn remove(&self) -> Result<(), FsError> {
        let Some(stat) = self.stat()? else { return Ok(()) };
        let flags = if file_type(&stat) == SFlag::S_IFDIR { UnlinkatFlags::RemoveDir } else { UnlinkatFlags::NoRemoveDir };
        match unlinkat(&self.above, self.name.as_os_str(), flags) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(self.failed("remove", errno)),
        }
    }

    /// Returns the first mount point at the entry or below.
    ///
    /// # Errors
    /// When an entry can't be examined.
    pub fn first_mount(&self) -> Result<Option<PathBuf>, FsError> {
        first_mount(&self.above, &self.name, &self.path)
    }

    /// Removes the entry with everything below; links are removed, not followed.
    ///
    /// # Errors
    /// When a file system is mounted there, and then nothing is removed; or the system refuses.
    pub fn remove_all(&self) -> Result<(), FsError> {
        remove_below(&self.above, &self.name, &self.path)
    }

    /// Opens the entry.
    fn open(&self, doing: &'static str, flags: OFlag) -> Result<File, FsError> {
        openat(&self.above, self.name.as_os_str(), flags, Mode::empty())
            .map(File::from)
            .map_err(|errno| self.failed(doing, errno))
    }

    /// Refuses a file that may be a name for a file of another user.
    pub(in crate::host) fn check_own(&self, uid: u32, names: u64) -> Result<(), FsError> {
        if self.is_shared(uid, names)? { Err(FsError::Shared { path: self.path.clone(), uid, names }) } else { Ok(()) }
    }

    fn is_shared(&self, uid: u32, names: u64) -> Result<bool, FsError> {
        is_shared(self.above(), uid, names, self.trust).map_err(|errno| self.failed("examine", errno))
    }

    fn failed(&self, doing: &'static str, errno: Errno) -> FsError {
        FsError::io(doing, &self.path, errno.into())
    }
}

/// Makes a directory; an existing directory is unchanged.
pub(super) fn make_directory(above: BorrowedFd<'_>, name: &OsStr, mode: u32, shown: &Path) -> Result<(), FsError> {
    let failed = |errno: Errno| FsError::io("create the directory", shown, errno.into());
    let flags = READ.union(OFlag::O_DIRECTORY);
    match mkdirat(above, name, Mode::from_bits_truncate(mode)) {
        Ok(()) => {
            let made = File::from(openat(above, name, flags, Mode::empty()).map_err(failed)?);
            // Again, because the umask of the process cleared bits.
            made.set_permissions(Permissions::from_mode(mode)).map_err(|error| FsError::io("set the mode of", shown, error))
        }
        Err(Errno::EEXIST) => {
            let there = fstatat(above, name, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(failed)?;
            if file_type(&there) == SFlag::S_IFDIR { Ok(()) } else { Err(failed(Errno::EEXIST)) }
        }
        Err(errno) => Err(failed(errno)),
    }
}

/// Returns the number of names of a file.
#[allow(clippy::useless_conversion, reason = "the type is another one on other processors")]
fn names_of(stat: &FileStat) -> u64 {
    stat.st_nlink.into()
}

fn chown(opened: &impl AsFd, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
    fchownat(opened, "", uid.map(Uid::from_raw), gid.map(Gid::from_raw), AtFlags::AT_EMPTY_PATH)
}
