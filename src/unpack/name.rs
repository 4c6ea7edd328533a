//! Checks for all formats: the number of entries, their names, targets of links, and complete content.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::entry::{ArchiveEntry, Sink};
use super::error::{UnpackError, broken};
use super::format::Format;

/// The longest path in bytes, as in the kernel (`PATH_MAX`).
const MAX_PATH_BYTES: usize = 4096;

/// Checks the entries of an archive and gives them to a sink.
pub(super) struct Entries<'a> {
    pub(super) format: Format,
    /// The largest unpacked size, in bytes.
    pub(super) limit: u64,
    max_entries: u64,
    count: u64,
    /// Paths of regular files of this archive: the possible targets of hard links.
    files: HashSet<PathBuf>,
    sink: &'a mut dyn Sink,
}

impl<'a> Entries<'a> {
    pub(super) fn new(format: Format, max_entries: u64, limit: u64, sink: &'a mut dyn Sink) -> Self {
        Self { format, limit, max_entries, count: 0, files: HashSet::new(), sink }
    }

    /// Counts an entry.
    pub(super) fn count(&mut self) -> Result<(), UnpackError> {
        self.count += 1;
        if self.count > self.max_entries { Err(self.too_many()) } else { Ok(()) }
    }

    pub(super) fn too_many(&self) -> UnpackError {
        UnpackError::TooLarge { what: "the number of its entries", limit: self.max_entries }
    }

    pub(super) fn broken(&self, error: &io::Error) -> UnpackError {
        broken(self.format, error, self.limit)
    }

    pub(super) fn directory(&mut self, item: &ArchiveEntry) -> Result<(), UnpackError> {
        self.sink.directory(item).map_err(|cause| UnpackError::Sink { name: path_text(&item.path), cause })
    }

    /// Passes a file on, whose content must have `size` bytes.
    pub(super) fn file(&mut self, item: &ArchiveEntry, size: u64, content: &mut dyn Read) -> Result<(), UnpackError> {
        let mut content = Content { inner: content, seen: 0, failed: None };
        let result = self.sink.file(item, &mut content);
        let Content { seen, failed, .. } = content;
        if let Some(error) = failed {
            return Err(self.broken(&error));
        }
        result.map_err(|cause| UnpackError::Sink { name: path_text(&item.path), cause })?;
        if seen != size {
            return Err(self.broken(&io::ErrorKind::UnexpectedEof.into()));
        }
        self.files.insert(item.path.clone());
        Ok(())
    }

    pub(super) fn symlink(&mut self, item: &ArchiveEntry, target: &[u8]) -> Result<(), UnpackError> {
        check_link_target(&item.path, target).map_err(|why| refused_entry(item.path.as_os_str().as_bytes(), why))?;
        self.files.remove(&item.path);
        let target = Path::new(OsStr::from_bytes(target));
        self.sink.symlink(item, target).map_err(|cause| UnpackError::Sink { name: path_text(&item.path), cause })
    }

    pub(super) fn hard_link(&mut self, item: &ArchiveEntry, target: &[u8]) -> Result<(), UnpackError> {
        let name = item.path.as_os_str().as_bytes();
        let target = relative_path(target).map_err(|why| refused_entry(name, format!("of what it links to, {why}")))?;
        if !self.files.contains(&target) {
            return Err(refused_entry(
                name,
                format!("it links to \"{}\", which is not an earlier file of the archive", path_text(&target)),
            ));
        }
        self.sink.hard_link(item, &target).map_err(|cause| UnpackError::Sink { name: path_text(&item.path), cause })?;
        self.files.insert(item.path.clone());
        Ok(())
    }
}

/// Creates the error for a refused entry.
pub(super) fn refused_entry(name: &[u8], why: impl Into<String>) -> UnpackError {
    UnpackError::Entry { name: String::from_utf8_lossy(name).into_owned(), why: why.into() }
}

fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Returns the path of a name: relative, of plain parts; empty for the directory itself.
pub(super) fn relative_path(name: &[u8]) -> Result<PathBuf, &'static str> {
    if name.is_empty() {
        return Err("its name is empty");
    }
    if name.len() > MAX_PATH_BYTES {
        return Err("its name is too long");
    }
    if name.contains(&0) {
        return Err("its name has a NUL character");
    }
    if name.starts_with(b"/") {
        return Err("its name is absolute");
    }
    let mut path = PathBuf::new();
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err("its name leads out of the directory with `..`"),
            part => path.push(OsStr::from_bytes(part)),
        }
    }
    Ok(path)
}

/// Checks that a link at `path` stays within the directory, whatever other links exist.
///
/// `..` is only allowed at the beginning, where the count starts from a real directory. A name before `..` may be another
/// link, whose target is unknown.
fn check_link_target(path: &Path, target: &[u8]) -> Result<(), &'static str> {
    if target.is_empty() || target.len() > MAX_PATH_BYTES || target.contains(&0) {
        return Err("it links to nothing that has a name");
    }
    if target.starts_with(b"/") {
        return Err("it links to an absolute path");
    }
    let mut depth = path.components().count().saturating_sub(1);
    let mut named = false;
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." if named => return Err("it links to a path with `..` after a name"),
            b".." => depth = depth.checked_sub(1).ok_or("it links to a path outside of the directory")?,
            _ => named = true,
        }
    }
    Ok(())
}

/// A reader that keeps its own error: the sink reads and writes in a single call.
struct Content<'a> {
    inner: &'a mut dyn Read,
    seen: u64,
    failed: Option<io::Error>,
}

impl Read for Content<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.inner.read(buffer) {
            Ok(count) => {
                self.seen += count as u64;
                Ok(count)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => {
                let said = io::Error::new(error.kind(), error.to_string());
                self.failed = Some(error);
                Err(said)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_and_within() {
        for (name, wanted) in [
            ("a", Some("a")),
            ("./a//b/./c/", Some("a/b/c")),
            (".", Some("")),
            ("./", Some("")),
            ("a\\..\\b", Some("a\\..\\b")),
            ("...", Some("...")),
            ("", None),
            ("/a", None),
            ("//a", None),
            ("..", None),
            ("../a", None),
            ("a/../b", None),
            ("a/..", None),
            ("a\0b", None),
        ] {
            assert_eq!(relative_path(name.as_bytes()).ok(), wanted.map(PathBuf::from), "{name:?}");
        }
        assert!(relative_path(&vec![b'x'; 4097]).is_err());
        assert_eq!(relative_path(b"\xff").unwrap().as_os_str().as_bytes(), b"\xff");
    }

    #[test]
    fn links_stay_within() {
        for (path, target, wanted) in [
            ("l", "a/b", true),
            ("l", ".", true),
            ("d/l", "..", true),
            ("d/l", "../a", true),
            ("d/e/l", "../../a/b", true),
            ("d/e/l", "./.././../a", true),
            ("l", "a/..b", true),
            ("l", "..", false),
            ("l", "../a", false),
            ("d/l", "../../a", false),
            ("l", "/a", false),
            ("l", "", false),
            // Harmless by itself, but `a` may be a link to somewhere else.
            ("l", "a/..", false),
            ("l", "a/../b", false),
            ("l", "a\0b", false),
        ] {
            assert_eq!(check_link_target(Path::new(path), target.as_bytes()).is_ok(), wanted, "{path} -> {target:?}");
        }
    }
}
