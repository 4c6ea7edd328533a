use super::*;

use std::os::unix::fs::PermissionsExt;

use crate::unpack::testing::{Raw, file, gzip, other, tar_of};

fn open(packed: &[u8], caps: &BundleLimits) -> (tempfile::TempDir, Result<PathBuf, BundleArchiveError>) {
    let dir = tempfile::tempdir().unwrap();
    let into = dir.path().join("b");
    std::fs::create_dir(&into).unwrap();
    let result = unpack(packed, packed.len() as u64, &into, caps).map(|path| path.strip_prefix(&into).unwrap().to_owned());
    (dir, result)
}

fn refused(entries: &[Raw<'_>]) -> String {
    let (dir, result) = open(&gzip(&tar_of(entries)), &BundleLimits::default());
    let outside: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(outside, ["b"], "something was written outside");
    result.unwrap_err().to_string()
}

fn manifest() -> Raw<'static> {
    file("manifest.yaml", "x")
}

#[test]
fn an_honest_bundle_is_unpacked() {
    let mut run = file("./files/run.sh", "#!/bin/sh\n");
    run.mode = 0o6777;
    let entries = [other(b'5', "./", ""), file("./a/manifest.yaml", "deep"), run, file("./manifest.yaml", "top")];
    let (dir, manifest) = open(&gzip(&tar_of(&entries)), &BundleLimits::default());
    assert_eq!(manifest.unwrap(), Path::new("manifest.yaml"));
    let mode = |path: &str| std::fs::metadata(dir.path().join("b").join(path)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("files/run.sh"), mode("manifest.yaml"), mode("files")), (0o755, 0o644, 0o755));
    assert_eq!(std::fs::read_to_string(dir.path().join("b/manifest.yaml")).unwrap(), "top");
}

#[test]
fn the_shallowest_manifest_counts() {
    let entries = [file("a/b/manifest.yaml", ""), file("c/manifest.yaml", ""), file("d/e/manifest.yaml", "")];
    let (_dir, manifest) = open(&gzip(&tar_of(&entries)), &BundleLimits::default());
    assert_eq!(manifest.unwrap(), Path::new("c/manifest.yaml"));
    let two = [file("a/b/manifest.yaml", ""), file("d/manifest.yaml", ""), file("c/manifest.yaml", "")];
    assert_eq!(refused(&two), "the bundle has two manifests: \"d/manifest.yaml\" and \"c/manifest.yaml\"");
    assert_eq!(refused(&[file("other.yaml", "")]), "the bundle has no manifest.yaml");
    assert_eq!(refused(&[]), "the bundle has no manifest.yaml");
}

#[test]
fn names_outside_of_the_bundle_are_refused() {
    for name in ["../x", "/x", "a/../../x", "a/../x", "./../x", "a//x", "a/./x", "..", "", "a/", "x\ny", "//x"] {
        let message = refused(&[manifest(), file(name, "evil")]);
        assert!(message.contains("has an entry with the name"), "{name:?}: {message}");
    }
    let mut odd = file("x", "evil");
    odd.name = b"a\xff";
    assert!(refused(&[manifest(), odd]).contains("not UTF-8"));
}

#[test]
fn everything_but_files_and_directories_is_refused() {
    for kind in [b'1', b'2', b'3', b'4', b'6', b'7', b'L', b'K', b'S', b'Z'] {
        let message = refused(&[manifest(), other(kind, "x", "/etc/passwd")]);
        assert!(message.contains("only files and directories"), "{}: {message}", char::from(kind));
    }
    // A link and then a file through it.
    assert!(refused(&[other(b'2', "d", "/tmp"), file("d/x", "evil"), manifest()]).contains("kind '2'"));
}

#[test]
fn pax_headers_that_rename_or_resize_are_refused() {
    for (kind, remark, taken) in [
        (b'x', "13 path=../x\n", false),
        (b'x', "10 size=1\n", false),
        (b'x', "17 linkpath=/etc\n", false),
        (b'x', "22 GNU.sparse.major=1\n", false),
        (b'g', "13 path=../x\n", false),
        (b'x', "99 mtime=1\n", false),
        (b'x', "18 mtime=17.25000\n", true),
        (b'g', "19 comment=0123456\n", true),
    ] {
        let mut header = other(kind, "pax", "");
        header.content = remark.as_bytes();
        let (_dir, result) = open(&gzip(&tar_of(&[header, manifest()])), &BundleLimits::default());
        assert_eq!(result.is_ok(), taken, "{remark}");
    }
}

#[test]
fn two_entries_for_one_place_are_refused() {
    for entries in [
        [file("x", "1"), file("x", "2")],
        [file("x", "1"), file("X", "2")],
        [file("x", "1"), file("./x", "2")],
        [file("d/x", "1"), file("D/y", "2")],
        [file("d", "1"), file("d/x", "2")],
        [file("d/x", "1"), file("d", "2")],
        [other(b'5', "d", ""), other(b'5', "d/", "")],
        [file("ä", "1"), file("Ä", "2")],
    ] {
        let message = refused(&entries);
        assert!(message.contains("two entries for one place"), "{message}");
    }
}

#[test]
fn caps_hold() {
    let caps = BundleLimits { total: 64 << 10, entries: 4, file: 1000, path: 20, ratio: 200 };
    let big = "x".repeat(1001);
    let many: Vec<String> = (0..5).map(|number| number.to_string()).collect();
    let long = "d/".repeat(10) + "x";
    for (entries, what) in [
        (vec![file("x", &big)], "a file in it"),
        (many.iter().map(|name| file(name, "")).collect(), "the number of its entries"),
        (vec![file(&long, "")], "it is too long"),
    ] {
        let (_dir, result) = open(&gzip(&tar_of(&entries)), &caps);
        assert!(result.unwrap_err().to_string().contains(what), "{what}");
    }
    let bomb = gzip(&vec![0; 8 << 20]);
    let (_dir, result) = open(&bomb, &caps);
    assert!(result.unwrap_err().to_string().contains("its size unpacked is more than 65536"));
    let ratio = BundleLimits { ratio: 2, ..BundleLimits::default() };
    let zeros = "\0".repeat(4 << 20);
    let (_dir, result) = open(&gzip(&tar_of(&[manifest(), file("x", &zeros)])), &ratio);
    assert!(result.unwrap_err().to_string().contains("its size unpacked"));
}

#[test]
fn bytes_after_the_archive_are_refused() {
    let honest = gzip(&tar_of(&[manifest()]));
    let second_member = [honest.clone(), gzip(&tar_of(&[file("evil", "x")]))].concat();
    let trailing = [honest.clone(), b"x".to_vec()].concat();
    let mut after_end = tar_of(&[manifest()]);
    after_end.extend(tar_of(&[file("evil", "x")]));
    for packed in [second_member, trailing, gzip(&after_end)] {
        let (dir, result) = open(&packed, &BundleLimits::default());
        assert_eq!(result.unwrap_err().to_string(), "the bundle has bytes after its end");
        assert!(!dir.path().join("b/evil").exists());
    }
    // A truncation at any byte is an error.
    for length in 0..honest.len() {
        let (_dir, result) = open(&honest[..length], &BundleLimits::default());
        assert!(matches!(result, Err(BundleArchiveError::Archive(_))), "{length} of {}", honest.len());
    }
    let mut flipped = honest;
    let crc = flipped.len() - 6;
    flipped[crc] ^= 1;
    assert!(matches!(open(&flipped, &BundleLimits::default()).1, Err(BundleArchiveError::Archive(_))));
}

#[test]
fn a_packed_directory_is_always_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("files")).unwrap();
    std::fs::write(dir.path().join("manifest.yaml"), "top").unwrap();
    std::fs::write(dir.path().join("files/run"), "run").unwrap();
    std::fs::set_permissions(dir.path().join("files/run"), std::fs::Permissions::from_mode(0o700)).unwrap();
    let packed = pack(dir.path()).unwrap();
    std::fs::write(dir.path().join("files/run"), "run").unwrap();
    assert_eq!(pack(dir.path()).unwrap(), packed);
    assert!(is_bundle(&packed));
    let (unpacked, manifest) = open(&packed, &BundleLimits::default());
    assert_eq!(manifest.unwrap(), Path::new("manifest.yaml"));
    assert_eq!(std::fs::read_to_string(unpacked.path().join("b/files/run")).unwrap(), "run");
    std::os::unix::fs::symlink("/etc/passwd", dir.path().join("files/link")).unwrap();
    assert!(pack(dir.path()).unwrap_err().to_string().contains("is a symbolic link"));
}
