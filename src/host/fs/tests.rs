//! Files as they are on a real file system.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

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
    let seen = stat(&path, true).unwrap().unwrap();
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
    assert_eq!(stat(&link, true).unwrap().unwrap().kind, FileKind::File);
    assert!(set_attributes(&link, spec(0o600)).is_err());
    write_atomic(&link, &mut "y".as_bytes(), spec(0o644)).unwrap();
    assert!(!is_symlink(&link));
    assert_eq!(read_text(&real, 10).unwrap(), "x");
}

#[test]
fn special_files_do_not_block_stat() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
    assert_eq!(stat(&pipe, true).unwrap().unwrap().kind, FileKind::Other);
    let socket = dir.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert_eq!(stat(&socket, true).unwrap().unwrap().kind, FileKind::Other);
    assert_eq!(stat(&dir.path().join("none"), true).unwrap(), None);
    assert_eq!(stat(&pipe.join("below"), true).unwrap(), None);
}

#[test]
fn found_files_are_read_only_if_regular() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("file"), "text").unwrap();
    std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
    nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    assert_eq!(read_regular_text(&at("file"), 4).unwrap(), "text");
    assert!(matches!(read_regular_text(&at("file"), 3), Err(FsError::TooLarge { .. })));
    // The pipe has no writer: a blocking read would never end.
    for path in [at("pipe"), dir.path().to_owned(), "/dev/null".into()] {
        assert!(matches!(read_regular_text(&path, 10), Err(FsError::NotAFile(_))), "{}", path.display());
    }
    assert!(read_regular_text(&at("link"), 10).is_err());
    assert!(read_regular_text(&at("none"), 10).unwrap_err().is_not_found());
}

#[test]
fn named_files_may_be_pipes_and_kernel_files() {
    let (reader, mut writer) = io::pipe().unwrap();
    writer.write_all(b"resources: []\n").unwrap();
    drop(writer);
    let named = PathBuf::from(format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader)));
    assert!(matches!(read_text(&named, 100), Err(FsError::NotAFile(_))));
    assert_eq!(read_named_text(&named, 100).unwrap(), "resources: []\n");
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
