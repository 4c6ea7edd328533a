//! Files that templates read. The real path of the opened file decides about the access.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use crate::diag::error_chain;
use crate::host::{Host, fs};
use crate::model::{ReadAccess, TemplateRead};
use crate::template::TemplateFile;

/// Reads files for a run.
pub(super) struct GuardedFiles {
    /// The host, with the directory of the manifest and the limits of the run.
    pub(super) host: Host,
    /// Decides about files that do not belong to the manifest.
    pub(super) access: Arc<dyn ReadAccess>,
}

impl GuardedFiles {
    /// Returns the text of a file of at most `limit` bytes. A relative path is beside the manifest.
    ///
    /// A denied file is rejected before it is opened: the error must not reveal if the file exists.
    ///
    /// # Errors
    /// When the file cannot be read or may not be read, with the reason.
    pub(super) fn read(&self, name: &str, limit: u64) -> Result<TemplateFile, String> {
        self.allowed_path(name)?;
        let file = self.host.open_readable(name.as_ref())?;
        let real = file.real().map_err(|error| error_chain(&error))?;
        self.check_access(&real)?;
        let text = file.text(limit).map_err(|error| error_chain(&error))?;
        Ok(TemplateFile { text, is_in_manifest: self.host.is_in_manifest_directory(&real) })
    }

    /// Returns the path of an allowed file, as far as the limits decide before the file is opened.
    ///
    /// # Errors
    /// When it may not be read.
    pub(super) fn allowed_path(&self, name: &str) -> Result<PathBuf, String> {
        let path = self.host.resolve(name.as_ref());
        let real = fs::resolve_links(&path);
        // A path that is denied as written reveals nothing about links on its way.
        if !self.host.is_in_manifest_directory(&real) && path.is_absolute() {
            self.check_access(&normalize(&path))?;
        }
        self.check_access(&real)?;
        Ok(path)
    }

    fn check_access(&self, real: &Path) -> Result<(), String> {
        if self.host.is_in_manifest_directory(real) { Ok(()) } else { self.access.may_read(&TemplateRead::File(real)) }
    }
}

/// Returns the path with `.` and `..` resolved by their text.
fn normalize(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::model::UnrestrictedAccess;

    /// Allows files below one directory.
    struct Below(PathBuf);

    impl ReadAccess for Below {
        fn may_read(&self, read: &TemplateRead<'_>) -> Result<(), String> {
            match read {
                TemplateRead::File(path) if path.starts_with(&self.0) => Ok(()),
                _ => Err("no reads".to_owned()),
            }
        }
    }

    #[test]
    fn a_rule_reads_its_own_files_and_what_it_names() {
        let (own, named, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (directory, text) in [(&own, "own"), (&named, "named"), (&other, "other")] {
            std::fs::write(directory.path().join("f"), text).unwrap();
        }
        let at = |directory: &tempfile::TempDir, name: &str| directory.path().join(name).display().to_string();
        symlink(other.path().join("f"), own.path().join("out")).unwrap();
        symlink(other.path().join("f"), named.path().join("out")).unwrap();
        let host = Host::system(None).with_directory(own.path());
        let files = GuardedFiles { host: host.clone(), access: Arc::new(Below(named.path().to_owned())) };
        for (name, expected) in [
            ("f".to_owned(), Some(("own", true))),
            (at(&own, "f"), Some(("own", true))),
            (at(&named, "f"), Some(("named", false))),
            (at(&other, "f"), None),
            (at(&other, "none"), None),
            ("out".to_owned(), None),
            (at(&named, "out"), None),
            (at(&named, "../nope/x"), None),
            ("../x".to_owned(), None),
            ("/proc/self/environ".to_owned(), None),
        ] {
            match (files.read(&name, 100), expected) {
                (Ok(found), Some((text, own))) => assert_eq!((found.text.as_str(), found.is_in_manifest), (text, own), "{name}"),
                (Err(why), None) => assert_eq!(why, "no reads", "{name}"),
                (found, _) => panic!("{name}: {found:?}"),
            }
        }
        let all = GuardedFiles { host, access: Arc::new(UnrestrictedAccess) };
        assert_eq!(all.read(&at(&other, "f"), 100).unwrap().text, "other");
        assert!(all.read(&at(&other, "f"), 2).unwrap_err().contains("larger than 2 bytes"));
    }

    #[test]
    fn reading_never_waits() {
        let files = GuardedFiles { host: Host::system(None), access: Arc::new(UnrestrictedAccess) };
        let directory = tempfile::tempdir().unwrap();
        let (fifo, socket) = (directory.path().join("fifo"), directory.path().join("socket"));
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let link = directory.path().join("link");
        symlink(&fifo, &link).unwrap();
        for path in [&fifo, &socket, &link, directory.path(), Path::new("/dev/zero"), Path::new("/dev/null")] {
            let why = files.read(&path.display().to_string(), 1 << 20).unwrap_err();
            assert!(
                why.contains("is not a regular file") && why.contains(&path.display().to_string()),
                "{}: {why}",
                path.display()
            );
        }
        // Of a file that has no end, or says nothing of its size, no more than the limit is read.
        let why = files.read("/proc/version", 16).unwrap_err();
        assert!(why.contains("larger than 16 bytes"), "{why}");
        // It may not be read at all, or says that there is nothing now: it is not waited for.
        assert!(files.read("/proc/kmsg", 64).is_err());
    }
}
