//! The file of the running program. An upgrade replaces the file, and the process goes on with the old program.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The file of the running program, as it was when the value was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramFile {
    path: PathBuf,
    started: FileVersion,
}

/// A version of the file of a program. Another file at the path has another version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileVersion {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl FileVersion {
    fn read(path: &Path) -> io::Result<Self> {
        let meta = std::fs::metadata(path)?;
        let modified = (meta.mtime(), meta.mtime_nsec());
        Ok(Self { device: meta.dev(), inode: meta.ino(), size: meta.size(), modified })
    }
}

impl ProgramFile {
    /// Returns the file of the program at this path, which runs.
    ///
    /// # Errors
    /// When the file is gone.
    pub fn at(path: PathBuf) -> io::Result<Self> {
        let started = FileVersion::read(&path)?;
        Ok(Self { path, started })
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the version of another program at the path. None while the file is the same, or missing.
    pub fn replacement(&self) -> Option<FileVersion> {
        FileVersion::read(&self.path).ok().filter(|now| *now != self.started)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_program_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        std::fs::write(&path, "one").unwrap();
        let program = ProgramFile::at(path.clone()).unwrap();
        assert!(program.replacement().is_none());
        std::fs::remove_file(&path).unwrap();
        assert!(program.replacement().is_none(), "still on its way");
        let new = dir.path().join("new");
        std::fs::write(&new, "two").unwrap();
        std::fs::rename(&new, &path).unwrap();
        assert!(program.replacement().is_some());
    }
}
