//! The rules as a table, on a real file system. Owners are changed where the tests run as root.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::*;
use crate::host::fs::{FileKind, FsError, WriteSpec};
use crate::skip::is_root;

/// A user id that owns nothing outside of these tests.
const THEIRS: u32 = 65534;

struct Stage(tempfile::TempDir);

impl Stage {
    /// Creates a directory of root with `own/` (only root can change it), `shared/` (sticky, for all) and `theirs/` (of another
    /// user).
    fn new() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["own/sub", "shared", "theirs/sub"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        for name in ["own/f", "own/sub/f", "shared/f", "theirs/sub/f", "secret"] {
            fs::write(at(name), name).unwrap();
        }
        fs::set_permissions(at("own"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(at("shared"), fs::Permissions::from_mode(0o1777)).unwrap();
        if !is_root("only root can give a directory to another user") {
            return None;
        }
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["theirs", "theirs/sub/f"] {
            std::os::unix::fs::chown(at(name), Some(THEIRS), Some(THEIRS)).unwrap();
        }
        Some(Self(dir))
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn link(&self, link: &str, target: impl AsRef<Path>) {
        symlink(target, self.at(link)).unwrap();
    }
}

#[test]
fn links_are_followed_only_where_root_made_them() {
    let Some(stage) = Stage::new() else { return };
    stage.link("own/up", "../secret");
    stage.link("own/absolute", stage.at("own/sub"));
    stage.link("own/nested", "absolute/f");
    stage.link("own/dotted", "sub/../../own/./f");
    stage.link("own/loop", "loop");
    stage.link("own/nowhere", "none/none");
    stage.link("own/to-theirs", stage.at("theirs"));
    stage.link("own/sub/f2", "f");
    stage.link("shared/link", "f");
    stage.link("theirs/link", stage.at("secret"));
    stage.link("theirs/dir", stage.at("own"));
    stage.link("theirs/sub/link", stage.at("secret"));
    stage.link("own/through", stage.at("theirs/dir/f"));
    let proc = Path::new("/proc/self/root").join(stage.at("secret").strip_prefix("/").unwrap());
    let ends = |seen: Result<PathInfo, FsError>| match seen {
        Ok(PathInfo::Nothing) => "nothing",
        Ok(PathInfo::Dangling) => "dangling",
        Ok(PathInfo::Link) => "link",
        Ok(PathInfo::SharedFile) => "shared",
        Ok(PathInfo::Object { link: true, .. }) => "followed",
        Ok(PathInfo::Object { .. }) => "plain",
        Err(FsError::ForeignLink { .. }) => "refused",
        Err(_) => "error",
    };
    for (path, plain, follow) in [
        ("own/f", "plain", "plain"),
        ("own/none", "nothing", "nothing"),
        ("own/none/none", "nothing", "nothing"),
        ("own/f/none", "nothing", "nothing"),
        ("own/../own/f", "plain", "plain"),
        ("own/up", "followed", "followed"),
        ("own/absolute", "followed", "followed"),
        ("own/absolute/f", "plain", "plain"),
        ("own/nested", "followed", "followed"),
        ("own/dotted", "followed", "followed"),
        ("own/loop", "error", "error"),
        ("own/nowhere", "dangling", "dangling"),
        // A link of root to the directory of another user is followed, but no link in that directory.
        ("own/to-theirs/sub/f", "plain", "plain"),
        ("own/to-theirs/link", "link", "followed"),
        ("own/to-theirs/dir/f", "refused", "plain"),
        ("own/through", "link", "followed"),
        ("shared/f", "plain", "plain"),
        ("shared/link", "link", "followed"),
        ("theirs/link", "link", "followed"),
        ("theirs/dir", "link", "followed"),
        ("theirs/dir/f", "refused", "plain"),
        ("theirs/dir/none", "refused", "nothing"),
        // Root owns the directory, but the owner of the parent can replace it.
        ("theirs/sub/link", "link", "followed"),
    ] {
        let path = stage.at(path);
        for hash in [true, false] {
            assert_eq!(ends(PathResolver::new(false).inspect(&path, hash)), plain, "{}", path.display());
            assert_eq!(ends(PathResolver::new(true).inspect(&path, hash)), follow, "{} with follow", path.display());
        }
    }
    assert_eq!(ends(PathResolver::new(true).inspect(&proc, true)), "refused", "a link of the kernel's");
    let error = PathResolver::new(false).place(&stage.at("theirs/dir/f")).unwrap_err().to_string();
    for part in ["theirs/dir is a symbolic link", "owner 65534", "set follow: true"] {
        assert!(error.contains(part), "{error}");
    }
    let error = PathResolver::system().place(&stage.at("theirs/dir/f")).unwrap_err().to_string();
    assert!(!error.contains("follow: true"), "{error}");
}

#[test]
fn a_directory_that_others_can_swap_is_not_trusted_again() {
    let Some(stage) = Stage::new() else { return };
    // Root owns it, but the path leads through a sticky directory. There, entries of root stay, entries of others may be swapped.
    fs::create_dir(stage.at("shared/roots")).unwrap();
    stage.link("shared/roots/link", stage.at("secret"));
    assert!(matches!(
        PathResolver::new(false).inspect(&stage.at("shared/roots/link"), false),
        Ok(PathInfo::Object { link: true, .. })
    ));
    fs::set_permissions(stage.at("shared"), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(PathResolver::new(false).inspect(&stage.at("shared/roots/link"), false), Ok(PathInfo::Link)));
    // The owner of the directory of the manifest decides about the run.
    stage.link("theirs/mine", stage.at("secret"));
    let trusting = PathResolver::new(false).trusting(Some(THEIRS));
    assert_eq!(trusting.read_text(&stage.at("theirs/mine"), 100).unwrap(), "secret");
}

#[test]
fn hard_links_in_shared_directories_are_refused() {
    let Some(stage) = Stage::new() else { return };
    let spec = WriteSpec { uid: Some(THEIRS), gid: None, mode: 0o666 };
    fs::write(stage.at("theirs/their-own"), "x").unwrap();
    std::os::unix::fs::chown(stage.at("theirs/their-own"), Some(THEIRS), None).unwrap();
    for (name, other, is_shared) in [
        ("own/name", "secret", false),
        ("theirs/name", "secret", true),
        ("shared/name", "secret", true),
        ("shared/theirs", "theirs/sub/f", true),
        // The other user may change these files anyway.
        ("theirs/name-of-theirs", "theirs/their-own", false),
    ] {
        let path = stage.at(name);
        fs::hard_link(stage.at(other), &path).unwrap();
        let rules = PathResolver::new(true);
        for hash in [true, false] {
            assert_eq!(matches!(rules.inspect(&path, hash).unwrap(), PathInfo::SharedFile), is_shared, "{name}");
        }
        let place = rules.place(&path).unwrap().unwrap();
        assert_eq!(matches!(place.open_regular(), Err(FsError::Shared { .. })), is_shared, "{name}");
        let before = fs::metadata(stage.at(other)).unwrap();
        assert_eq!(matches!(place.set(spec), Err(FsError::Shared { .. })), is_shared, "{name}");
        let after = fs::metadata(stage.at(other)).unwrap();
        assert_eq!((before.uid(), before.mode()) == (after.uid(), after.mode()), is_shared, "{name}");
        // Replacing and removing a name does not change the file behind it.
        place.temp_file(&mut "new".as_bytes(), WriteSpec { uid: None, gid: None, mode: 0o600 }).unwrap().persist().unwrap();
        place.remove().unwrap();
        assert_ne!(fs::read_to_string(stage.at(other)).unwrap(), "new");
        std::os::unix::fs::chown(stage.at(other), Some(before.uid()), Some(before.gid())).unwrap();
    }
}

#[test]
fn a_run_that_is_bound_stays_within() {
    let Some(stage) = Stage::new() else { return };
    stage.link("alias", "own");
    stage.link("own/out", "../shared");
    stage.link("own/in", "sub");
    stage.link("own/out-file", "../secret");
    fs::create_dir(stage.at("own/made")).unwrap();
    for prefix in ["own", "alias"] {
        let prefix = stage.at(prefix);
        let rules = PathResolver::new(true).within(Some(vec![&prefix]));
        for (path, is_allowed) in [
            ("own/f", true),
            ("alias/f", true),
            ("own/in/f", true),
            ("own/in/../f", true),
            ("own/new/deep/f", true),
            ("own/out/f", false),
            ("own/out/new/f", false),
            ("own/../secret", false),
            ("secret", false),
            ("owner", false),
            ("shared/f", false),
        ] {
            let path = stage.at(path);
            assert_eq!(!matches!(rules.place(&path), Err(FsError::NotAllowed(_))), is_allowed, "{}", path.display());
            assert_eq!(
                !matches!(rules.create_place(&path, 0o755), Err(FsError::NotAllowed(_))),
                is_allowed,
                "{}",
                path.display()
            );
        }
        assert!(matches!(rules.inspect(&stage.at("own/out-file"), true), Ok(PathInfo::Link)), "its target is outside");
        assert!(!stage.at("shared/new").exists(), "nothing is made outside");
        assert!(stage.at("own/new/deep").is_dir());
    }
    // A prefix that does not exist yet.
    let prefix = stage.at("own/later");
    let rules = PathResolver::new(false).within(Some(vec![&prefix]));
    assert!(rules.create_place(&stage.at("own/later/a/b"), 0o755).is_ok());
    assert!(rules.place(&stage.at("own/latest")).is_err());
}

#[test]
fn special_files_neither_block_nor_are_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    let rules = PathResolver::new(false);
    for name in ["pipe", "socket"] {
        for hash in [true, false] {
            assert!(
                matches!(rules.inspect(&at(name), hash), Ok(PathInfo::Object { info, .. }) if info.kind == FileKind::Other),
                "{name}"
            );
        }
        assert!(matches!(rules.read(&at(name), 10), Err(FsError::NotAFile(_))), "{name}");
        let place = rules.place(&at(name)).unwrap().unwrap();
        assert!(matches!(place.set(WriteSpec { uid: None, gid: None, mode: 0o600 }), Err(FsError::NotAFile(_))), "{name}");
    }
    assert!(matches!(rules.read(dir.path(), 10), Err(FsError::NotAFile(_))));
    assert!(matches!(rules.existing_place(&at("none/f")), Err(FsError::NoParent(_))));
    assert!(matches!(rules.create_place(&at("pipe/f"), 0o755), Err(FsError::NoParent(_) | FsError::Io { .. })));
    assert!(rules.place(Path::new("/")).unwrap().unwrap().inspect(false).is_ok());
    assert!(matches!(
        rules.inspect(Path::new("/proc/self/status"), true),
        Ok(PathInfo::Link | PathInfo::Object { .. }) | Err(FsError::ForeignLink { .. })
    ));
}

#[test]
fn objects_are_made_in_the_opened_directory() {
    let Some(stage) = Stage::new() else { return };
    let place = PathResolver::new(false).existing_place(&stage.at("theirs/f")).unwrap();
    fs::rename(stage.at("theirs"), stage.at("moved")).unwrap();
    stage.link("theirs", "own");
    place.temp_file(&mut "mine".as_bytes(), WriteSpec { uid: None, gid: None, mode: 0o600 }).unwrap().persist().unwrap();
    assert_eq!(fs::read_to_string(stage.at("moved/f")).unwrap(), "mine");
    assert_eq!(fs::read_to_string(stage.at("own/f")).unwrap(), "own/f");
    place.write_link(Path::new("x"), None, None).unwrap();
    place.remove_all().unwrap();
    assert!(!stage.at("moved/f").exists() && stage.at("own/f").exists());
}

#[test]
fn a_temporary_file_that_was_swapped_is_not_put_in_place() {
    let dir = tempfile::tempdir().unwrap();
    let place = PathResolver::new(false).existing_place(&dir.path().join("f")).unwrap();
    let staged = place.temp_file(&mut "mine".as_bytes(), WriteSpec { uid: None, gid: None, mode: 0o600 }).unwrap();
    fs::rename(staged.path(), dir.path().join("taken")).unwrap();
    fs::write(staged.path(), "theirs").unwrap();
    assert!(matches!(staged.persist(), Err(FsError::Changed(_))));
    assert!(!dir.path().join("f").exists());
}
