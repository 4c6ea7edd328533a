//! What is made beside its place under another name, and renamed into it: nobody sees half of it, and what was there stays
//! until the new thing is whole.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tempfile::TempPath;

use super::look::is_nothing;
use super::{FsError, WriteSpec, set_open};

/// What the name of every temporary file ends with.
const SUFFIX: &str = ".ensign-tmp";

/// A file that is whole, with its owner and mode, but not in its place yet. Dropped, it is gone.
#[derive(Debug)]
pub struct Staged {
    temporary: TempPath,
    path: PathBuf,
}

impl Staged {
    /// Writes a file that is to become `path`, in the same directory.
    ///
    /// # Errors
    /// When a step fails; then nothing is left behind.
    pub fn new(path: &Path, content: &mut dyn Read, spec: WriteSpec) -> Result<Self, FsError> {
        let parent = parent(path)?;
        let made = tempfile::Builder::new().prefix(&prefix(path)).suffix(SUFFIX).tempfile_in(parent);
        let mut temporary = made.map_err(|error| FsError::io("create a temporary file in", parent, error))?;
        io::copy(content, &mut temporary).map_err(|error| FsError::io("write", path, error))?;
        temporary.flush().map_err(|error| FsError::io("write", path, error))?;
        set_open(temporary.as_file(), path, spec)?;
        // Closed here: a file that somebody holds open for writing can't be executed.
        Ok(Self { temporary: temporary.into_temp_path(), path: path.to_owned() })
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
        let Self { temporary, path } = self;
        temporary.persist(&path).map_err(|error| FsError::io("put in place", &path, error.error))
    }

    /// Puts it in its place, where nothing is yet.
    ///
    /// # Errors
    /// When something is there, or the system refuses.
    pub fn put_new(self) -> Result<(), FsError> {
        let Self { temporary, path } = self;
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
    let prefix = prefix(path);
    let mut builder = tempfile::Builder::new();
    let made = builder.prefix(&prefix).suffix(SUFFIX).make_in(parent, |at| std::os::unix::fs::symlink(target, at));
    let temporary = made.map_err(|error| FsError::io("create a link in", parent, error))?.into_temp_path();
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
