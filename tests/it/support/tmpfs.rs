//! A file system of its own, small enough to be filled.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::skip::{no_namespaces, skip};

/// Unmounted with this value.
pub struct Tmpfs(TempDir);

impl Tmpfs {
    /// Mounts one of so many KiB; skips the test where this user can't mount.
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

    /// Takes all the room that is left.
    pub fn fill(&self) {
        let mut file = std::fs::File::options().create(true).append(true).open(self.path("fill")).unwrap();
        while file.write_all(&[b'x'; 4096]).is_ok() {}
    }

    /// Gives it back.
    pub fn make_room(&self) {
        std::fs::remove_file(self.path("fill")).unwrap();
    }

    /// From now on nobody can write, or everybody can again.
    pub fn read_only(&self, is: bool) {
        remount(self.0.path(), if is { "remount,ro" } else { "remount,rw" });
    }
}

fn remount(path: &Path, options: &str) {
    let status = Command::new("mount").args(["-o", options]).arg(path).status().unwrap();
    assert!(status.success(), "{options}");
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // Lazily: whoever still has a file open there is about to end.
        let _unmounted = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}
