//! Files: looked at with as few calls as the kernel needs, written so that nobody sees half of one.
//!
//! `fs/stage.rs` has what is made under another name first: files and symbolic links.

mod stage;

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use nix::fcntl::OFlag;
use sha2::{Digest, Sha256};

pub use stage::{Link, Staged, read_link, set_link_owner, write_link};

/// An operation on a path that failed.
#[derive(Debug, thiserror::Error)]
pub enum FsError {
    /// The operating system said no.
    #[error("could not {doing} {}", path.display())]
    Io {
        /// What was being done, as a verb.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The directory of a file is not there, or is no directory.
    #[error("\"{}\" is not a directory", .0.display())]
    NoParent(PathBuf),
    /// A file is larger than its reader takes.
    #[error("{} is larger than {limit} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit: u64,
    },
    /// A file that should be text is not.
    #[error("{} is not UTF-8 text", .0.display())]
    NotText(PathBuf),
    /// A directory, device, socket or pipe where a regular file should be.
    #[error("{} is not a regular file", .0.display())]
    NotAFile(PathBuf),
    /// A path that leads out of the directory that it is written into.
    #[error("{} is not within the directory that it belongs to", .0.display())]
    Outside(PathBuf),
    /// A link or file where a directory should be on the way to something.
    #[error("{} is in the way: it is not a directory, and links are not followed here", .0.display())]
    InTheWay(PathBuf),
    /// More than anybody should manage at once.
    #[error("{} has more than {limit} {what}", path.display())]
    TooMany {
        /// The directory.
        path: PathBuf,
        /// Of what.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// Another process makes the same file.
    #[error("{} is being made by another process", .0.display())]
    Busy(PathBuf),
}

impl FsError {
    /// An error of the operating system, with what was being done to which path.
    pub fn io(doing: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { doing, path: path.to_owned(), source }
    }

    /// True when the path does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == ErrorKind::NotFound)
    }
}

/// What kind of thing a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A device, socket or pipe.
    Other,
}

/// What a path is, links followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// The kind.
    pub kind: Kind,
    /// The number of the owner.
    pub uid: u32,
    /// The number of the group.
    pub gid: u32,
    /// Permission bits, setuid, setgid and sticky included.
    pub mode: u32,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last change of the content.
    pub mtime: Timestamp,
    /// SHA-256 of the content, in lower-case hex, where it was asked for and the path is a file.
    pub sha256: Option<String>,
}

impl Look {
    fn of(meta: &fs::Metadata) -> Self {
        let kind = if meta.is_file() {
            Kind::File
        } else if meta.is_dir() {
            Kind::Directory
        } else {
            Kind::Other
        };
        let nanos = i32::try_from(meta.mtime_nsec()).unwrap_or(0);
        Self {
            kind,
            uid: meta.uid(),
            gid: meta.gid(),
            mode: meta.mode() & 0o7777,
            size: meta.len(),
            mtime: Timestamp::new(meta.mtime(), nanos).unwrap_or_default(),
            sha256: None,
        }
    }
}

/// What a path names, links followed; `None` when nothing, as for a link that leads nowhere.
///
/// With `hash`, the content of a regular file is read and hashed from the same descriptor.
///
/// # Errors
/// When the path can't be looked at, or the file can't be read.
pub fn look(path: &Path, hash: bool) -> Result<Option<Look>, FsError> {
    if !hash {
        return match fs::metadata(path) {
            Ok(meta) => Ok(Some(Look::of(&meta))),
            Err(error) if is_nothing(&error) => Ok(None),
            Err(error) => Err(FsError::io("look at", path, error)),
        };
    }
    // Non-blocking, so that a pipe or a device in the place of a file can't hold the run.
    let opened = OpenOptions::new().read(true).custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits()).open(path);
    let mut file = match opened {
        Ok(file) => file,
        Err(error) if is_nothing(&error) => return Ok(None),
        // A socket can't be opened, a file may be unreadable: what it is can still be said.
        Err(error) => {
            return look(path, false)?.filter(|look| look.kind != Kind::File).map(Some).ok_or(FsError::io("read", path, error));
        }
    };
    let meta = file.metadata().map_err(|error| FsError::io("look at", path, error))?;
    let mut look = Look::of(&meta);
    if look.kind == Kind::File {
        look.sha256 = Some(hash_open(&mut file, meta.len()).map_err(|error| FsError::io("read", path, error))?);
    }
    Ok(Some(look))
}

/// Time and size of a file, by which a change of its content is seen; of a directory, of its entries. Nothing where there
/// is nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stamp(Option<(Timestamp, u64)>);

impl Stamp {
    /// The same, where an empty file counts as none.
    #[must_use]
    pub fn or_empty(self) -> Self {
        Self(self.0.filter(|(_, size)| *size > 0))
    }
}

/// The stamp of what a path names, links followed.
///
/// # Errors
/// When it can't be looked at.
pub fn stamp(path: &Path) -> Result<Stamp, FsError> {
    Ok(Stamp(look(path, false)?.map(|look| (look.mtime, look.size))))
}

/// Where a path leads with every link on the way followed. What is not there stays as it is written.
pub fn real(path: &Path) -> PathBuf {
    let (mut at, mut missing) = (path, Vec::new());
    loop {
        if let Ok(real) = fs::canonicalize(at) {
            return missing.iter().rev().fold(real, |real, name| real.join(name));
        }
        match (at.parent(), at.file_name()) {
            (Some(parent), Some(name)) => {
                missing.push(name);
                at = parent;
            }
            _ => return path.to_owned(),
        }
    }
}

/// Not there, or below something that is no directory.
fn is_nothing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn hash_open(file: &mut File, size: u64) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; usize::try_from(size).unwrap_or(usize::MAX).clamp(512, 1 << 16)];
    let mut seen = 0;
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                hasher.update(buffer.get(..count).unwrap_or_default());
                seen += count as u64;
                // The kernel said how much there is: asking for the end would be a call a file. A size of 0 says nothing
                // (as in /proc).
                if seen == size {
                    break;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(hex(&hasher.finalize()))
}

/// Bytes as lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| *DIGITS.get(usize::from(nibble)).unwrap_or(&b'0');
    let mut text = vec![0; 2 * bytes.len()];
    for (pair, byte) in text.chunks_exact_mut(2).zip(bytes) {
        pair.copy_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
    }
    String::from_utf8(text).unwrap_or_default()
}

/// SHA-256 of what an open file holds from here on, in lower-case hex.
///
/// # Errors
/// When it can't be read.
pub fn sha256_of(file: &mut File) -> io::Result<String> {
    let size = file.metadata()?.len();
    hash_open(file, size)
}

/// SHA-256 of some bytes, in lower-case hex.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// True when the path itself is a symbolic link, wherever it leads.
pub fn is_symlink(path: &Path) -> bool {
    path.is_symlink()
}

/// Whether two paths lead to the same file, directory or device, links followed; `None` when one leads to nothing.
///
/// # Errors
/// When one can't be looked at.
pub fn is_same(one: &Path, other: &Path) -> Result<Option<bool>, FsError> {
    let (Some(one), Some(other)) = (identity(one)?, identity(other)?) else { return Ok(None) };
    Ok(Some(one == other))
}

/// The device and number of what a path names; of a block device its own number, by whatever name.
fn identity(path: &Path) -> Result<Option<(u64, Option<u64>)>, FsError> {
    match fs::metadata(path) {
        Ok(meta) if meta.file_type().is_block_device() => Ok(Some((meta.rdev(), None))),
        Ok(meta) => Ok(Some((meta.dev(), Some(meta.ino())))),
        Err(error) if is_nothing(&error) => Ok(None),
        Err(error) => Err(FsError::io("look at", path, error)),
    }
}

/// The whole of a file of at most `limit` bytes.
///
/// Waits at a pipe until its writer is done, so that what a person names may be `/dev/stdin`. For
/// files that nobody named there is [`read_regular_text`].
///
/// # Errors
/// When it can't be read or is larger.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, FsError> {
    whole(open(path)?, path, limit)
}

fn whole(file: File, path: &Path, limit: u64) -> Result<Vec<u8>, FsError> {
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|error| FsError::io("read", path, error))?;
    if bytes.len() as u64 > limit {
        return Err(FsError::TooLarge { path: path.to_owned(), limit });
    }
    Ok(bytes)
}

/// The whole of a text file of at most `limit` bytes.
///
/// # Errors
/// When it can't be read, is larger, or is not UTF-8.
pub fn read_text(path: &Path, limit: u64) -> Result<String, FsError> {
    as_text(read(path, limit)?, path)
}

fn as_text(bytes: Vec<u8>, path: &Path) -> Result<String, FsError> {
    String::from_utf8(bytes).map_err(|_| FsError::NotText(path.to_owned()))
}

/// The whole of a regular text file of at most `limit` bytes, for files that were found, not named.
///
/// # Errors
/// As [`read_regular`], and when it is not UTF-8.
pub fn read_regular_text(path: &Path, limit: u64) -> Result<String, FsError> {
    as_text(read_regular(path, limit)?, path)
}

/// The whole of a regular file of at most `limit` bytes, for files that were found, not named.
///
/// Never waits, and does not follow a link at the end of `path`: what was looked at before may be
/// something else by now, so the open file itself is judged.
///
/// # Errors
/// When it is no regular file, can't be read, or is larger.
pub fn read_regular(path: &Path, limit: u64) -> Result<Vec<u8>, FsError> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path);
    let file = opened.map_err(|error| FsError::io("read", path, error))?;
    let meta = file.metadata().map_err(|error| FsError::io("look at", path, error))?;
    if !meta.is_file() {
        return Err(FsError::NotAFile(path.to_owned()));
    }
    whole(file, path, limit)
}

/// A new directory that only this user may enter. It goes away, with all it holds, when it is dropped.
///
/// # Errors
/// When it can't be made.
pub fn private_directory() -> Result<tempfile::TempDir, FsError> {
    tempfile::tempdir().map_err(|error| FsError::io("create a private directory in", Path::new("$TMPDIR"), error))
}

/// A regular file, opened for reading, with what it is; `None` where there is nothing or something else, as a symbolic link.
///
/// # Errors
/// When it can't be opened or looked at.
pub fn open_regular(path: &Path) -> Result<Option<(File, Look)>, FsError> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = match OpenOptions::new().read(true).custom_flags(flags.bits()).open(path) {
        Ok(file) => file,
        Err(error) if is_nothing(&error) || is_odd(&error) => return Ok(None),
        Err(error) => return Err(FsError::io("read", path, error)),
    };
    let meta = file.metadata().map_err(|error| FsError::io("look at", path, error))?;
    Ok(meta.is_file().then(|| (file, Look::of(&meta))))
}

/// A symbolic link, where none is followed; a socket.
fn is_odd(error: &io::Error) -> bool {
    [nix::errno::Errno::ELOOP, nix::errno::Errno::ENXIO].iter().any(|errno| error.raw_os_error() == Some(*errno as i32))
}

/// The whole of an open file of at most `limit` bytes, which errors call `path`.
///
/// # Errors
/// When it can't be read or is larger.
pub fn read_open(file: File, path: &Path, limit: u64) -> Result<Vec<u8>, FsError> {
    whole(file, path, limit)
}

/// What a written file shall be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteSpec {
    /// The owner; `None` leaves it to the system.
    pub uid: Option<u32>,
    /// The group; `None` leaves it to the system.
    pub gid: Option<u32>,
    /// Permission bits.
    pub mode: u32,
}

/// Puts a file in place in one step: exclusive temporary file beside it, content, owner, mode, rename.
///
/// A reader sees the old file or the new one, with the right owner and mode. A symbolic link at
/// `path` is replaced, not followed.
///
/// # Errors
/// When a step fails; then nothing is left behind and the old file is untouched.
pub fn write_atomic(path: &Path, content: &mut dyn Read, spec: WriteSpec) -> Result<(), FsError> {
    Staged::new(path, content, spec)?.put()
}

/// Sets owner, group and mode of an open file, which errors call `path`.
pub(super) fn set_open(file: &File, path: &Path, spec: WriteSpec) -> Result<(), FsError> {
    if spec.uid.is_some() || spec.gid.is_some() {
        std::os::unix::fs::fchown(file, spec.uid, spec.gid).map_err(|error| FsError::io("set the owner of", path, error))?;
    }
    // After the owner: changing it clears mode bits.
    file.set_permissions(fs::Permissions::from_mode(spec.mode)).map_err(|error| FsError::io("set the mode of", path, error))
}

/// Writes into a file that is there, in one call: for the kernel's own, as in `/proc/sys`, which can't be replaced.
///
/// # Errors
/// When it is not there, or the system refuses.
pub fn write_into(path: &Path, content: &str) -> Result<(), FsError> {
    let opened = OpenOptions::new().write(true).truncate(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(path);
    let mut file = opened.map_err(|error| FsError::io("open for writing", path, error))?;
    file.write_all(content.as_bytes()).map_err(|error| FsError::io("write", path, error))
}

/// Sets owner, group and mode of what `path` names, without going through a link at its end.
///
/// # Errors
/// When it can't be opened or changed.
pub fn set_attributes(path: &Path, spec: WriteSpec) -> Result<(), FsError> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    match OpenOptions::new().read(true).custom_flags(flags.bits()).open(path) {
        Ok(file) => set_open(&file, path, spec),
        // A file that its owner may not read, or a socket, which can't be opened: by name, after a look that it is no link.
        Err(error)
            if (error.kind() == ErrorKind::PermissionDenied || error.raw_os_error() == Some(nix::libc::ENXIO))
                && !path.is_symlink() =>
        {
            std::os::unix::fs::lchown(path, spec.uid, spec.gid).map_err(|error| FsError::io("set the owner of", path, error))?;
            fs::set_permissions(path, fs::Permissions::from_mode(spec.mode))
                .map_err(|error| FsError::io("set the mode of", path, error))
        }
        Err(error) => Err(FsError::io("open", path, error)),
    }
}

/// Makes a directory and the parents it lacks, all with `mode`.
///
/// # Errors
/// When something that is no directory is in the way, or the system refuses.
pub fn create_directory(path: &Path, mode: u32) -> Result<(), FsError> {
    if path.is_dir() {
        return Ok(());
    }
    // A relative path has an empty parent in the end: the directory that we are in.
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        create_directory(parent, mode)?;
    }
    match fs::DirBuilder::new().mode(mode).create(path) {
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .map_err(|error| FsError::io("set the mode of", path, error)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(FsError::io("create the directory", path, error)),
    }
}

/// Removes a link itself, a file, or an empty directory. Nothing there is fine.
///
/// # Errors
/// When the system refuses, as for a directory that is not empty.
pub fn remove(path: &Path) -> Result<(), FsError> {
    let result = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match result {
        Err(error) if !is_nothing(&error) => Err(FsError::io("remove", path, error)),
        _ => Ok(()),
    }
}

/// Removes whatever is there, with all it holds; links are removed, not followed.
///
/// # Errors
/// When the system refuses.
pub fn remove_all(path: &Path) -> Result<(), FsError> {
    let result = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match result {
        Err(error) if !is_nothing(&error) => Err(FsError::io("remove", path, error)),
        _ => Ok(()),
    }
}

/// Opens a file for reading its content once.
///
/// # Errors
/// When it can't be opened.
pub fn open(path: &Path) -> Result<File, FsError> {
    File::open(path).map_err(|error| FsError::io("read", path, error))
}

/// Creates a file that must not be there yet, for writing, with exactly `mode`. A link in its place is refused.
///
/// # Errors
/// When something is there, or the system refuses.
pub fn create_new(path: &Path, mode: u32) -> Result<File, FsError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .map_err(|error| FsError::io("create", path, error))?;
    // Again, because the mask of the process took bits away.
    file.set_permissions(fs::Permissions::from_mode(mode)).map_err(|error| FsError::io("set the mode of", path, error))?;
    Ok(file)
}

/// The entries of a directory, sorted by name.
///
/// # Errors
/// When it can't be read.
pub fn list(path: &Path) -> Result<Vec<PathBuf>, FsError> {
    let entries = fs::read_dir(path).map_err(|error| FsError::io("list", path, error))?;
    let mut paths = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<Vec<_>>>()
        .map_err(|error| FsError::io("list", path, error))?;
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn spec(mode: u32) -> WriteSpec {
        WriteSpec { uid: None, gid: None, mode }
    }

    #[test]
    fn writes_replace_in_one_step_and_leave_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        write_atomic(&path, &mut "one".as_bytes(), spec(0o600)).unwrap();
        write_atomic(&path, &mut "two".as_bytes(), spec(0o644)).unwrap();
        let seen = look(&path, true).unwrap().unwrap();
        assert_eq!((seen.mode, seen.sha256.as_deref()), (0o644, Some(sha256(b"two").as_str())));
        assert_eq!(list(dir.path()).unwrap(), [path]);
    }

    #[test]
    fn a_failed_write_keeps_the_old_file() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("cut"))
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        write_atomic(&path, &mut "old".as_bytes(), spec(0o600)).unwrap();
        assert!(write_atomic(&path, &mut Broken, spec(0o600)).is_err());
        assert_eq!(read_text(&path, 10).unwrap(), "old");
        assert_eq!(list(dir.path()).unwrap().len(), 1);
    }

    #[test]
    fn links_are_seen_through_and_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        write_atomic(&real, &mut "x".as_bytes(), spec(0o644)).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert_eq!(look(&link, true).unwrap().unwrap().kind, Kind::File);
        assert!(set_attributes(&link, spec(0o600)).is_err());
        write_atomic(&link, &mut "y".as_bytes(), spec(0o644)).unwrap();
        assert!(!is_symlink(&link));
        assert_eq!(read_text(&real, 10).unwrap(), "x");
    }

    #[test]
    fn odd_things_do_not_hold_a_look() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert_eq!(look(&pipe, true).unwrap().unwrap().kind, Kind::Other);
        let socket = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(look(&socket, true).unwrap().unwrap().kind, Kind::Other);
        assert_eq!(look(&dir.path().join("none"), true).unwrap(), None);
        assert_eq!(look(&pipe.join("below"), true).unwrap(), None);
    }

    #[test]
    fn only_regular_files_are_read_where_nobody_named_them() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "text").unwrap();
        std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
        nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert_eq!(read_regular_text(&at("file"), 4).unwrap(), "text");
        assert!(matches!(read_regular_text(&at("file"), 3), Err(FsError::TooLarge { .. })));
        // Nobody writes into the pipe: a read that waits would not end.
        for path in [at("pipe"), dir.path().to_owned(), "/dev/null".into()] {
            assert!(matches!(read_regular_text(&path, 10), Err(FsError::NotAFile(_))), "{}", path.display());
        }
        assert!(read_regular_text(&at("link"), 10).is_err());
        assert!(read_regular_text(&at("none"), 10).unwrap_err().is_not_found());
    }

    #[test]
    fn pipes_and_the_kernel_are_read_where_somebody_named_them() {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"resources: []\n").unwrap();
        drop(writer);
        let named = PathBuf::from(format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader)));
        assert_eq!(read_text(&named, 100).unwrap(), "resources: []\n");
        assert!(!read_regular_text(Path::new("/proc/self/status"), 1 << 20).unwrap().is_empty());
    }

    #[test]
    fn removal_is_as_deep_as_asked() {
        let dir = tempfile::tempdir().unwrap();
        let full = dir.path().join("full");
        create_directory(&full.join("a/b"), 0o700).unwrap();
        assert!(remove(&full).is_err());
        remove_all(&full).unwrap();
        assert!(!full.exists());
        remove(&full).unwrap();
    }
}
