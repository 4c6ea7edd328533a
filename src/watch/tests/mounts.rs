//! Mounts over watched paths.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Bench;
use crate::model::WatchTarget;
use crate::skip::{no_namespaces, skip};
use crate::watch::ResourceKey;

/// A mount that ends with this value.
struct TestMount(PathBuf);

impl TestMount {
    /// Mounts; skips the test where this user can't mount.
    fn new(options: &[&OsStr], point: PathBuf) -> Option<Self> {
        if Command::new("mount").args(options).arg(&point).output().is_ok_and(|output| output.status.success()) {
            return Some(Self(point));
        }
        skip(no_namespaces(), "cannot mount");
        None
    }

    fn tmpfs(point: PathBuf) -> Option<Self> {
        Self::new(&["-t", "tmpfs", "ensign-test"].map(OsStr::new), point)
    }

    fn bind(source: &Path, point: PathBuf) -> Option<Self> {
        Self::new(&[OsStr::new("--bind"), source.as_os_str()], point)
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        assert!(Command::new("umount").arg(&self.0).status().unwrap().success());
    }
}

#[test]
fn a_mount_over_a_path_is_noticed() {
    let mut bench = Bench::new();
    bench.mkdir("m/d");
    bench.mkdir("other");
    bench.watch(1, "m/d/f");
    bench.watch(2, "other/f");
    bench.watch_tree(3, "m");
    let Some(mount) = TestMount::tmpfs(bench.at("m")) else { return };
    bench.expect(&[1, 3], "mounted");
    bench.mkdir("m/d");
    bench.write("m/d/f");
    bench.expect(&[1, 3], "a file in the mounted file system");
    drop(mount);
    bench.expect(&[1, 3], "unmounted");
    bench.write("m/d/f");
    bench.expect(&[1, 3], "a file in the directory below");
    let Some(mount) = TestMount::bind(&bench.at("other"), bench.at("m/d")) else { return };
    bench.expect(&[1, 3], "bound");
    bench.write("other/f");
    bench.expect(&[1, 2, 3], "one file under two paths");
    drop(mount);
    bench.expect(&[1, 3], "unbound");
    bench.write("other/f");
    bench.expect(&[2], "the other directory alone");
}

#[test]
fn a_mounted_file_is_watched_itself() {
    let mut bench = Bench::new();
    bench.write("f");
    bench.write("source");
    bench.watch(1, "f");
    let Some(mount) = TestMount::bind(&bench.at("source"), bench.at("f")) else { return };
    bench.expect(&[1], "bound");
    bench.write("f");
    bench.expect(&[1], "written at the mount point");
    bench.write("source");
    bench.expect(&[1], "written at the source");
    drop(mount);
    bench.expect(&[1], "unbound");
    bench.write("source");
    bench.expect(&[], "the source");
}

#[test]
fn the_mount_table_is_a_target() {
    let mut bench = Bench::new();
    bench.mkdir("m");
    bench.hub.set(ResourceKey(1), &[WatchTarget::Mounts]);
    bench.dirty();
    let Some(mount) = TestMount::tmpfs(bench.at("m")) else { return };
    assert_eq!(bench.dirty(), [1]);
    drop(mount);
    assert_eq!(bench.dirty(), [1]);
}
