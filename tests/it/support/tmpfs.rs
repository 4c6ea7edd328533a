//! A small file system that a test can fill.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::skip::{no_namespaces, skip};

/// A mount that ends with this value.
pub struct Tmpfs(TempDir);

impl Tmpfs {
    /// Mounts a file system of this many KiB; skips the test where this user can't mount.
    pub fn new(kib: u32) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={kib}k,mode=0755"), "ensign-test"])
            .arg(dir.path())
            .output()
            .is_ok_and(|output| output.status.success());
        if mounted {
            return Some(Self(dir));
        }
        skip(no_namespaces(), "cannot mount a tmpfs");
        None
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Uses all free space.
    pub fn fill(&self) {
        let mut file = std::fs::File::options().create(true).append(true).open(self.path("fill")).unwrap();
        while file.write_all(&[b'x'; 4096]).is_ok() {}
    }

    /// Frees the space of [`Self::fill`].
    pub fn make_room(&self) {
        std::fs::remove_file(self.path("fill")).unwrap();
    }

    /// Makes the file system read-only, or writable again.
    pub fn set_read_only(&self, is: bool) {
        remount(self.0.path(), if is { "remount,ro" } else { "remount,rw" });
    }
}

fn remount(path: &Path, options: &str) {
    let status = Command::new("mount").args(["-o", options]).arg(path).status().unwrap();
    assert!(status.success(), "{options}");
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // Lazily: a process with an open file there is about to end.
        let _unmounted = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}
