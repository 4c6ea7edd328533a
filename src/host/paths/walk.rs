//! Walks a path part by part from the root: holds every directory open and checks every link.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat, readlinkat};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};

use super::super::fs::{FsError, TrustedOwner, file_type};
use super::place::{DirEntryHandle, make_directory};

/// Most links in one path, as in the kernel.
const LINKS: usize = 40;
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;
const DIRECTORY: OFlag = OFlag::O_PATH.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// A directory of the path.
#[derive(Debug)]
struct Step {
    fd: OwnedFd,
    name: OsString,
    uid: u32,
    mode: u32,
    /// True when root alone can replace this directory.
    stable: bool,
}

impl Step {
    /// True when root alone can change the entries.
    fn is_closed(&self, trust: TrustedOwner) -> bool {
        self.stable && trust.owns(self.uid) && self.mode & OTHERS_WRITE == 0
    }

    /// True when root alone can replace an entry of this owner.
    fn keeps_entry(&self, uid: u32, trust: TrustedOwner) -> bool {
        self.is_closed(trust) || (self.stable && trust.owns(self.uid) && self.mode & STICKY != 0 && trust.owns(uid))
    }
}

/// The end of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The directory exists.
    Reached,
    /// A directory of the path is missing.
    Missing,
}

/// A walk along a path.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    shown: &'a Path,
    trust: TrustedOwner,
    follow: bool,
    hint: &'static str,
    /// The open directories from the root on; never empty.
    steps: Vec<Step>,
    root: Step,
    /// The remaining parts of the path, the next one last.
    rest: Vec<OsString>,
    links: usize,
}

impl<'a> Walk<'a> {
    pub(super) fn new(path: &'a Path, trust: TrustedOwner, follow: bool, hint: &'static str) -> Result<Self, FsError> {
        let absolute = std::path::absolute(path).map_err(|error| FsError::io("examine", path, error))?;
        let failed = |errno: Errno| FsError::io("examine", Path::new("/"), errno.into());
        let fd = open("/", OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()).map_err(failed)?;
        let stat = fstat(&fd).map_err(failed)?;
        let root = Step { fd, name: OsString::new(), uid: stat.st_uid, mode: stat.st_mode & 0o7777, stable: true };
        let mut walk = Self { shown: path, trust, follow, hint, steps: Vec::new(), root, rest: Vec::new(), links: 0 };
        walk.push(&absolute);
        Ok(walk)
    }

    /// Walks as far as possible. A link at the end of the path is followed only with `follow_last`. Missing directories are made
    /// with the mode `make`; without a mode they end the walk.
    pub(super) fn advance(&mut self, follow_last: bool, make: Option<u32>) -> Result<Arrival, FsError> {
        while let Some(part) = self.rest.pop() {
            if part == ".." {
                self.steps.pop();
                continue;
            }
            let is_last = self.rest.is_empty();
            let shown = self.real_path_of(&part);
            let failed = |errno: Errno| FsError::io("examine", &shown, errno.into());
            if is_last && !follow_last {
                self.rest.push(part);
                return Ok(Arrival::Reached);
            }
            let opened = match openat(&self.top().fd, part.as_os_str(), DIRECTORY, Mode::empty()) {
                Err(Errno::ENOENT) if is_last => {
                    self.rest.push(part);
                    return Ok(Arrival::Reached);
                }
                Err(Errno::ENOENT) => match make {
                    Some(mode) => make_and_open(&self.top().fd, &part, mode, &shown)?,
                    None => {
                        self.rest.push(part);
                        return Ok(Arrival::Missing);
                    }
                },
                opened => opened.map_err(failed)?,
            };
            let stat = fstat(&opened).map_err(failed)?;
            match file_type(&stat) {
                SFlag::S_IFLNK => {
                    self.check_link(&shown)?;
                    let target = readlinkat(&opened, "").map_err(failed)?;
                    self.push(Path::new(&target));
                }
                _ if is_last => {
                    self.rest.push(part);
                    return Ok(Arrival::Reached);
                }
                SFlag::S_IFDIR => {
                    let stable = self.top().keeps_entry(stat.st_uid, self.trust);
                    self.steps.push(Step { fd: opened, name: part, uid: stat.st_uid, mode: stat.st_mode & 0o7777, stable });
                }
                _ => return Err(failed(Errno::ENOTDIR)),
            }
        }
        Ok(Arrival::Reached)
    }

    /// True when root alone can change the current directory of the walk.
    pub(super) fn is_closed(&self) -> bool {
        self.top().is_closed(self.trust)
    }

    /// The current path of the walk without links, and the remaining parts.
    pub(super) fn real_path(&self) -> PathBuf {
        let steps = self.steps.iter().map(|step| step.name.as_os_str());
        let mut real: PathBuf = [OsStr::new("/")].into_iter().chain(steps).collect();
        for part in self.rest.iter().rev() {
            if part == ".." {
                real.pop();
            } else {
                real.push(part);
            }
        }
        real
    }

    /// The place at the end of the walk.
    pub(super) fn into_place(mut self, shown: &Path) -> Result<DirEntryHandle, FsError> {
        let name = self.rest.pop().unwrap_or_else(|| OsString::from("."));
        let above = self.steps.pop().unwrap_or(self.root).fd;
        Ok(DirEntryHandle::new(above, name, shown.to_owned(), self.trust))
    }

    fn top(&self) -> &Step {
        self.steps.last().unwrap_or(&self.root)
    }

    fn real_path_of(&self, part: &OsStr) -> PathBuf {
        let steps = self.steps.iter().map(|step| step.name.as_os_str());
        [OsStr::new("/")].into_iter().chain(steps).chain([part]).collect()
    }

    /// Puts a path before the remaining parts.
    fn push(&mut self, path: &Path) {
        for part in path.components().rev() {
            match part {
                Component::RootDir => self.steps.clear(),
                Component::Normal(name) => self.rest.push(name.to_owned()),
                Component::ParentDir => self.rest.push("..".into()),
                Component::CurDir | Component::Prefix(_) => {}
            }
        }
    }

    /// Checks that a link in the current directory of the walk may be followed.
    fn check_link(&mut self, shown: &Path) -> Result<(), FsError> {
        self.links += 1;
        if self.links > LINKS {
            return Err(FsError::io("examine", self.shown, Errno::ELOOP.into()));
        }
        let above = self.top();
        // Links of the kernel lead to other targets than they show.
        let of_kernel = fstatfs(&above.fd).is_ok_and(|stat| stat.filesystem_type() == PROC_SUPER_MAGIC);
        if of_kernel || !(self.follow || above.is_closed(self.trust)) {
            let hint = if of_kernel { "" } else { self.hint };
            return Err(FsError::ForeignLink { link: shown.to_owned(), owner: above.uid, mode: above.mode, hint });
        }
        Ok(())
    }
}

/// Makes a directory and opens it.
fn make_and_open(above: &OwnedFd, name: &OsStr, mode: u32, shown: &Path) -> Result<OwnedFd, FsError> {
    make_directory(above.as_fd(), name, mode, shown)?;
    openat(above, name, DIRECTORY, Mode::empty()).map_err(|errno| FsError::io("examine", shown, errno.into()))
}
