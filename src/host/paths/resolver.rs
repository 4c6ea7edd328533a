//! The resolver of managed paths: chooses between a single call and a walk, and checks the limits of the run.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};

use super::super::fs::{FileInfo, FileKind, FsError, TrustedOwner, digest_open_file, list_open, read_open};
use super::place::{DirEntryHandle, PathInfo};
use super::walk::{Arrival, Walk};

/// The advice in a refusal, for resources that can allow links.
const HINT: &str = "; use its target as the path, or set follow: true";

/// Opens the paths of a run by the rules of this module.
#[derive(Debug, Clone)]
pub struct PathResolver<'a> {
    trust: TrustedOwner,
    follow: bool,
    hint: &'static str,
    /// The directories to which paths may lead; `None` allows all.
    within: Option<Vec<&'a Path>>,
}

impl<'a> PathResolver<'a> {
    /// Creates a resolver for paths anywhere.
    pub fn new(follow: bool) -> Self {
        Self { trust: TrustedOwner::own(), follow, hint: HINT, within: None }
    }

    /// Creates a resolver for the system's own files, as in `/etc`. The files may be anywhere, and no property allows links.
    pub fn system() -> Self {
        Self { hint: "", ..Self::new(false) }
    }

    /// Returns the same resolver, where the directories of this account count as those of root.
    #[must_use]
    pub fn trusting(mut self, uid: Option<u32>) -> Self {
        self.trust.also = uid;
        self
    }

    /// Returns the same resolver, for paths in these directories only.
    #[must_use]
    pub fn within(mut self, prefixes: Option<Vec<&'a Path>>) -> Self {
        self.within = prefixes;
        self
    }

    /// The place of a path, whose last part is not followed; none where its directory is missing.
    ///
    /// # Errors
    /// When the rules forbid the path, or the system refuses.
    pub fn place(&self, path: &Path) -> Result<Option<DirEntryHandle>, FsError> {
        if self.is_plain(path)
            && let Some((parent, name)) = path.parent().zip(path.file_name())
        {
            match open_plain(parent, OFlag::O_PATH | OFlag::O_DIRECTORY) {
                Ok(above) => return Ok(Some(DirEntryHandle::new(above, name.to_owned(), path.to_owned(), self.trust))),
                Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
                Err(_) => {}
            }
        }
        self.walk(path, false, None)
    }

    /// The place of the target of a path: a link at its end may be followed. None where the directory is missing.
    ///
    /// # Errors
    /// As [`Self::place`].
    pub fn target(&self, path: &Path) -> Result<Option<DirEntryHandle>, FsError> {
        match self.place(path)? {
            Some(place) if place.is_link()? => self.walk(path, true, None),
            place => Ok(place),
        }
    }

    /// The place of a path whose directory must exist.
    ///
    /// # Errors
    /// As [`Self::place`], and when the directory is missing.
    pub fn existing_place(&self, path: &Path) -> Result<DirEntryHandle, FsError> {
        let missing = || FsError::NoParent(path.parent().unwrap_or(Path::new("/")).to_owned());
        self.place(path)?.ok_or_else(missing)
    }

    /// The place of a path. Missing directories above it are made with `mode`.
    ///
    /// # Errors
    /// As [`Self::place`].
    pub fn create_place(&self, path: &Path, mode: u32) -> Result<DirEntryHandle, FsError> {
        match self.place(path)? {
            Some(place) => Ok(place),
            None => self.walk(path, false, Some(mode))?.ok_or_else(|| FsError::NoParent(path.to_owned())),
        }
    }

    /// Makes a directory and its missing parents, all with `mode`; a link at its end may be followed.
    ///
    /// # Errors
    /// When another object is in the way, or as [`Self::place`].
    pub fn create_directory(&self, path: &Path, mode: u32) -> Result<DirEntryHandle, FsError> {
        let place = match self.target(path)? {
            Some(place) => place,
            None => self.create_place(path, mode)?,
        };
        place.make_directory(mode)?;
        Ok(place)
    }

    /// The place of the target of a path. The directory of the target must exist.
    ///
    /// # Errors
    /// As [`Self::target`], and when the directory is missing.
    pub fn existing_target(&self, path: &Path) -> Result<DirEntryHandle, FsError> {
        self.target(path)?.ok_or_else(|| FsError::io("open", path, ErrorKind::NotFound.into()))
    }

    /// Returns the properties of a path. With `hash`, the content of a regular file is read and hashed from the same descriptor.
    ///
    /// # Errors
    /// When the path leads through a link that is not followed, or the system refuses.
    pub fn inspect(&self, path: &Path, hash: bool) -> Result<PathInfo, FsError> {
        if self.is_plain(path)
            && let Some(look) = inspect_plain(path, hash)?
        {
            return Ok(look);
        }
        let Some(place) = self.place(path)? else { return Ok(PathInfo::Nothing) };
        if !place.is_link()? {
            return place.inspect(hash);
        }
        match self.walk(path, true, None) {
            Ok(Some(place)) => Ok(match place.inspect(hash)? {
                PathInfo::Object { info: look, .. } => PathInfo::Object { info: look, link: true },
                PathInfo::Nothing => PathInfo::Dangling,
                other => other,
            }),
            Ok(None) => Ok(PathInfo::Dangling),
            Err(FsError::ForeignLink { .. } | FsError::NotAllowed(_)) => Ok(PathInfo::Link),
            Err(error) => Err(error),
        }
    }

    /// True when an object exists at the path; a dangling link does not count.
    ///
    /// # Errors
    /// As [`Self::inspect`].
    pub fn exists(&self, path: &Path) -> Result<bool, FsError> {
        Ok(matches!(self.inspect(path, false)?, PathInfo::SharedFile | PathInfo::Object { .. }))
    }

    /// True when a directory exists at the path.
    ///
    /// # Errors
    /// As [`Self::inspect`].
    pub fn is_directory(&self, path: &Path) -> Result<bool, FsError> {
        Ok(matches!(self.inspect(path, false)?, PathInfo::Object { info, .. } if info.kind == FileKind::Directory))
    }

    /// Opens a regular file for reading, and returns its properties.
    ///
    /// # Errors
    /// When it is another object or missing, the rules forbid the path, or the system refuses.
    pub fn open(&self, path: &Path) -> Result<(File, FileInfo), FsError> {
        let missing = || FsError::io("read", path, ErrorKind::NotFound.into());
        let place = self.target(path)?.ok_or_else(missing)?;
        place.open_regular()
    }

    /// Reads a regular file of at most `limit` bytes.
    ///
    /// # Errors
    /// As [`Self::open`], and when it is larger.
    pub fn read(&self, path: &Path, limit: u64) -> Result<Vec<u8>, FsError> {
        read_open(self.open(path)?.0, path, limit)
    }

    /// Reads a regular text file of at most `limit` bytes.
    ///
    /// # Errors
    /// As [`Self::read`], and when it is not UTF-8.
    pub fn read_text(&self, path: &Path, limit: u64) -> Result<String, FsError> {
        String::from_utf8(self.read(path, limit)?).map_err(|_| FsError::NotText(path.to_owned()))
    }

    /// The entries of a directory, sorted by name.
    ///
    /// # Errors
    /// When it is no directory, the rules forbid the path, or the system refuses.
    pub fn list(&self, path: &Path) -> Result<Vec<PathBuf>, FsError> {
        let missing = || FsError::io("list", path, ErrorKind::NotFound.into());
        list_open(self.target(path)?.ok_or_else(missing)?.open_directory()?, path)
    }

    /// True when root alone decides about the target of a path.
    ///
    /// # Errors
    /// As [`Self::place`].
    pub fn is_stable(&self, path: &Path) -> Result<bool, FsError> {
        let mut walk = Walk::new(path, self.trust, self.follow, self.hint)?;
        walk.advance(true, None).map(|_| walk.is_closed())
    }

    /// Returns the path with links resolved, for comparing paths; `None` when it can't be resolved.
    pub fn real(&self, path: &Path) -> Option<PathBuf> {
        let mut walk = Walk::new(path, self.trust, self.follow, self.hint).ok()?;
        walk.advance(true, None).ok().map(|_| walk.real_path())
    }

    /// True when a path has no `..` and can be opened in a single call.
    fn is_plain(&self, path: &Path) -> bool {
        let mut parts = path.components();
        let plain = parts.next() == Some(Component::RootDir) && parts.all(|part| matches!(part, Component::Normal(_)));
        plain && self.within.as_ref().is_none_or(|prefixes| prefixes.iter().any(|prefix| path.starts_with(prefix)))
    }

    fn walk(&self, path: &Path, follow_last: bool, make: Option<u32>) -> Result<Option<DirEntryHandle>, FsError> {
        let mut walk = Walk::new(path, self.trust, self.follow, self.hint)?;
        let mut arrival = match walk.advance(follow_last, None) {
            Err(FsError::Io { source, .. }) if source.kind() == ErrorKind::NotADirectory => {
                return if make.is_none() { Ok(None) } else { Err(FsError::io("create the directory", path, source)) };
            }
            arrived => arrived?,
        };
        self.check(&walk, path)?;
        if make.is_some() && arrival == Arrival::Missing {
            arrival = walk.advance(follow_last, make)?;
            self.check(&walk, path)?;
        }
        if arrival == Arrival::Missing {
            return Ok(None);
        }
        walk.into_place(path).map(Some)
    }

    /// Checks that a walk ended in an allowed directory.
    fn check(&self, walk: &Walk<'_>, path: &Path) -> Result<(), FsError> {
        let Some(prefixes) = &self.within else { return Ok(()) };
        let real = walk.real_path();
        let allows = |prefix: &&Path| {
            Self::new(false).trusting(self.trust.also).real(prefix).is_some_and(|prefix| real.starts_with(prefix))
        };
        if prefixes.iter().any(allows) { Ok(()) } else { Err(FsError::NotAllowed(path.to_owned())) }
    }
}

/// The owner of a directory.
pub(in crate::host) fn owner_of(path: &Path) -> Option<u32> {
    path.metadata().ok().map(|meta| std::os::unix::fs::MetadataExt::uid(&meta))
}

/// Opens a path that has no link in it.
fn open_plain(path: &Path, flags: OFlag) -> Result<std::os::fd::OwnedFd, Errno> {
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    openat2(AT_FDCWD, path, how)
}

/// Returns the properties of a path without links; none when the path needs a walk.
fn inspect_plain(path: &Path, hash: bool) -> Result<Option<PathInfo>, FsError> {
    // Non-blocking, so that a pipe or a device in the place of a file can't hold the run.
    let flags = if hash { OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY } else { OFlag::O_PATH };
    let mut file = match open_plain(path, flags) {
        Ok(opened) => File::from(opened),
        Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(Some(PathInfo::Nothing)),
        // A link, a kernel without the call, a socket, or a file that may not be read: the walk finds out which.
        Err(_) => return Ok(None),
    };
    let meta = file.metadata().map_err(|error| FsError::io("examine", path, error))?;
    if meta.is_file() && std::os::unix::fs::MetadataExt::nlink(&meta) > 1 {
        return Ok(None);
    }
    let mut look = FileInfo::from_metadata(&meta);
    if hash && look.kind == FileKind::File {
        look.sha256 = Some(digest_open_file(&mut file, meta.len()).map_err(|error| FsError::io("read", path, error))?);
    }
    Ok(Some(PathInfo::Object { info: look, link: false }))
}
