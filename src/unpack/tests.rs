use std::io::{Cursor, Write};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::testing::{Raw, Zipped, file, gzip, other, pax_of, tar_of, zip_of};
use super::*;
use crate::diag::error_chain;

const CAPS: ArchiveLimits = ArchiveLimits { total: 200 << 20, entries: 100, ratio: 1000 };

/// A tar archive of the directory `d` and the file `d/f`, "hello\n", packed by `xz -9`.
const XZ: &str = "/Td6WFoAAATm1rRGAgAhARwAAAAQz1jM4Cf/AHxdADILvBunjDRE4cIHdekAQB2vet0aoLSXwAL9aZgecwwkgslLlv/yhkkbE5b0+Lm4d1O95srX6TYOTndmWsnCpXGD0ZsLhna7NbsClNvcLJONtGDtCP+zXJ9gNS08ahUrMgc2EnVoPz07hKZ3dnmW2xDPEX8SE6/eLjbTPnUAF7x3Bz49LlUAAZgBgFAAAMjx5Y6xxGf7AgAAAAAEWVo=";
/// The same content with a dictionary of 1.5 GiB.
const XZ_LARGE: &str = "/Td6WFoAAATm1rRGAgAhASUAAAA7eHtB4Cf/AHxdADILvBunjDRE4cIHdekAQB2vet0aoLSXwAL9aZgecwwkgslLlv/yhkkbE5b0+Lm4d1O95srX6TYOTndmWsnCpXGD0ZsLhna7NbsClNvcLJONtGDtCP+zXJ9gNS08ahUrMgc2EnVoPz07hKZ3dnmW2xDPEX8SE6/eLjbTPnUAF7x3Bz49LlUAAZgBgFAAAMjx5Y6xxGf7AgAAAAAEWVo=";
/// The same content, packed by `zstd -19 --check`.
const ZSTD: &str = "KLUv/WQAJ+0CAIIDDBGguwF0+gQtVQ1oLaxy12ixUgedkkEXjqmsykeUs251d0XYav+G7yYi3+Z9d9xFCRAA9sPlDRhQCyAXhEMMEOmQHAXgN8NQDQDC/+8gYNHLAe4BYFAAMJ+AG+pnxbU=";

/// Writes down what it gets.
#[derive(Default)]
struct Notes(Vec<String>);

impl Sink for Notes {
    fn directory(&mut self, item: &ArchiveEntry) -> Result<(), SinkCause> {
        self.0.push(format!("{}/ {:o}", item.path.display(), item.mode));
        Ok(())
    }

    fn file(&mut self, item: &ArchiveEntry, content: &mut dyn Read) -> Result<(), SinkCause> {
        let mut text = String::new();
        content.read_to_string(&mut text)?;
        self.0.push(format!("{} {:o} {}", item.path.display(), item.mode, text.escape_debug()));
        Ok(())
    }

    fn symlink(&mut self, item: &ArchiveEntry, target: &Path) -> Result<(), SinkCause> {
        self.0.push(format!("{} -> {}", item.path.display(), target.display()));
        Ok(())
    }

    fn hard_link(&mut self, item: &ArchiveEntry, target: &Path) -> Result<(), SinkCause> {
        self.0.push(format!("{} = {}", item.path.display(), target.display()));
        Ok(())
    }
}

fn read_within(format: Format, bytes: &[u8], caps: &ArchiveLimits) -> Result<Vec<String>, String> {
    let mut notes = Notes::default();
    walk(format, Cursor::new(bytes), bytes.len() as u64, caps, &mut notes).map(|()| notes.0).map_err(|error| error_chain(&error))
}

fn read(format: Format, bytes: &[u8]) -> Result<Vec<String>, String> {
    read_within(format, bytes, &CAPS)
}

#[track_caller]
fn refused(format: Format, bytes: &[u8], why: &str) {
    let error = read(format, bytes).unwrap_err();
    assert!(error.contains(why), "{error:?} lacks {why:?}");
}

fn decoded(text: &str) -> Vec<u8> {
    STANDARD.decode(text).unwrap()
}

fn bzip2(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn formats_by_name() {
    for (name, wanted) in [
        ("a.tar.gz", Some(Format::TarGz)),
        ("a.TGZ", Some(Format::TarGz)),
        ("a.tar", Some(Format::Tar)),
        ("a.Zip", Some(Format::Zip)),
        ("a.tar.xz", Some(Format::TarXz)),
        ("a.tar.zst", Some(Format::TarZst)),
        ("a.tar.bz2", Some(Format::TarBz2)),
        ("a.gz", None),
        ("tar", None),
        ("a.rar", None),
    ] {
        assert_eq!(Format::from_name(name), wanted, "{name}");
    }
}

#[test]
fn every_format_gives_the_same() {
    let tar = tar_of(&[other(b'5', "d/", ""), file("d/f", "hello\n")]);
    let wanted = ["d/ 755", "d/f 644 hello\\n"];
    for (format, bytes) in [
        (Format::Tar, tar.clone()),
        (Format::TarGz, gzip(&tar)),
        (Format::TarBz2, bzip2(&tar)),
        (Format::TarXz, decoded(XZ)),
        (Format::TarZst, decoded(ZSTD)),
        (Format::Zip, zip_of(&[Zipped("d/", 0o040_755, ""), Zipped("d/f", 0o100_644, "hello\n")])),
    ] {
        assert_eq!(read(format, &bytes).unwrap(), wanted, "{format:?}");
        // As another format, the bytes are no archive.
        for wrong in [Format::TarGz, Format::TarBz2, Format::TarXz, Format::TarZst, Format::Zip] {
            assert!(wrong == format || read(wrong, &bytes).is_err(), "{format:?} as {wrong:?}");
        }
    }
}

#[test]
fn truncated_and_changed_archives_are_refused() {
    let tar = tar_of(&[other(b'5', "d/", ""), file("d/f", "hello\n")]);
    for (format, bytes) in [
        (Format::TarGz, gzip(&tar)),
        (Format::TarBz2, bzip2(&tar)),
        (Format::TarXz, decoded(XZ)),
        (Format::TarZst, decoded(ZSTD)),
        (Format::Zip, zip_of(&[Zipped("f", 0o100_644, "hello\n")])),
    ] {
        for length in 1..bytes.len() {
            assert!(read(format, &bytes[..length]).is_err(), "{format:?}: {length} of {}", bytes.len());
        }
        let mut garbage = bytes.clone();
        garbage.extend(b"and something else");
        assert!(format == Format::Zip || read(format, &garbage).is_err(), "{format:?}");
    }
    // In the middle of an entry; a tar archive has no digest.
    assert!(read(Format::Tar, &tar[..1024 + 3]).is_err());
    assert!(read(Format::Tar, &tar[..700]).is_err());
    // The checksum at the end of a zstd frame, of a gzip member, of a zip entry.
    for (format, mut bytes, from_end) in [(Format::TarZst, decoded(ZSTD), 1), (Format::TarGz, gzip(&tar), 6)] {
        let at = bytes.len() - from_end;
        bytes[at] ^= 1;
        assert!(read(format, &bytes).is_err(), "{format:?}");
    }
    let mut zip = zip_of(&[Zipped("f", 0o100_644, "hello\n")]);
    zip[31] ^= 1;
    assert!(read(Format::Zip, &zip).is_err());
}

#[test]
fn no_byte_makes_it_panic() {
    let tar = tar_of(&[other(b'5', "d/", ""), file("d/f", "hello\n"), other(b'2', "l", "d/f")]);
    for (format, bytes) in [
        (Format::Tar, tar.clone()),
        (Format::TarGz, gzip(&tar)),
        (Format::TarBz2, bzip2(&tar)),
        (Format::TarXz, decoded(XZ)),
        (Format::TarZst, decoded(ZSTD)),
        (Format::Zip, zip_of(&[Zipped("d/", 0o040_755, ""), Zipped("d/f", 0o100_644, "hello\n")])),
    ] {
        for at in 0..bytes.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] ^= flip;
                // The result may be an archive or not: only panics count.
                let _either = read(format, &changed);
            }
        }
    }
}

#[test]
fn several_streams_are_one_archive() {
    let tar = tar_of(&[other(b'5', "d/", ""), file("d/f", "hello\n")]);
    let (head, tail) = tar.split_at(700);
    for (format, bytes) in [
        (Format::TarGz, [gzip(head), gzip(tail)].concat()),
        (Format::TarBz2, [bzip2(head), bzip2(tail)].concat()),
        // A skippable frame, then the one that counts, then one after the end.
        (Format::TarZst, [&b"\x50\x2a\x4d\x18\x03\0\0\0abc"[..], &decoded(ZSTD), &decoded(ZSTD)].concat()),
        (Format::TarXz, [decoded(XZ), decoded(XZ)].concat()),
    ] {
        assert_eq!(read(format, &bytes).unwrap().len(), 2, "{format:?}");
    }
    refused(Format::TarZst, b"\x50\x2a\x4d\x18\xff\0\0\0abc", "not a whole tar.zst");
}

#[test]
fn memory_is_bounded() {
    refused(Format::TarXz, &decoded(XZ_LARGE), "memory");
    // A frame header (RFC 8878, 3.1.1.1) with a window of 2 GiB.
    refused(Format::TarZst, b"\x28\xb5\x2f\xfd\x00\xa8\x01\0\0", "not a whole tar.zst");
    // Long names of 2 MiB.
    let long = "x".repeat(2 << 20);
    for kind in [b'L', b'K', b'x', b'g'] {
        let mut header = other(kind, "././@LongLink", "");
        header.content = long.as_bytes();
        refused(Format::Tar, &tar_of(&[header, file("f", "")]), "an extension header in it");
    }
}

#[test]
fn bombs_are_refused() {
    let zeros = vec![0; (64 << 20) + 1];
    let small = ArchiveLimits { total: 1 << 20, entries: 2, ratio: 1000 };
    let error = read_within(Format::TarGz, &gzip(&zeros), &ArchiveLimits { ratio: 2, ..CAPS }).unwrap_err();
    assert!(error.contains("its size unpacked, in bytes, is more than 67108864"), "{error}");
    let many = tar_of(&[file("a", ""), file("b", ""), file("c", "")]);
    assert!(read_within(Format::Tar, &many, &small).unwrap_err().contains("the number of its entries is more than 2"));
    let many = zip_of(&[Zipped("a", 0, ""), Zipped("b", 0, ""), Zipped("c", 0, "")]);
    assert!(read_within(Format::Zip, &many, &small).unwrap_err().contains("the number of its entries"));
    let content = "x".repeat(600 << 10);
    let large = zip_of(&[Zipped("a", 0, &content), Zipped("b", 0, &content)]);
    assert!(read_within(Format::Zip, &large, &small).unwrap_err().contains("its size unpacked"), "together they are too large");
}

#[test]
fn names_and_links_outside_are_refused() {
    for name in ["../x", "/x", "a/../../x", "a/..", "..", "//x"] {
        for bytes in [tar_of(&[file("good", ""), file(name, "evil")]), tar_of(&[other(b'5', name, "")])] {
            refused(Format::Tar, &bytes, "is refused: its name");
        }
        let hidden = pax_of(&[("path", name)]);
        let mut header = other(b'x', "pax", "");
        header.content = hidden.as_bytes();
        refused(Format::Tar, &tar_of(&[header, file("good", "evil")]), "is refused: its name");
        let (mut long, name) = (other(b'L', "././@LongLink", ""), format!("{name}\0"));
        long.content = name.as_bytes();
        refused(Format::Tar, &tar_of(&[long, file("good", "evil")]), "is refused: its name");
        refused(Format::Zip, &zip_of(&[Zipped(name.trim_end_matches('\0'), 0o100_644, "evil")]), "is refused: its name");
    }
    for target in ["/etc", "..", "../x", "a/../../x"] {
        refused(Format::Tar, &tar_of(&[other(b'2', "l", target), file("l/x", "evil")]), "it links to");
        refused(Format::Zip, &zip_of(&[Zipped("l", 0o120_777, target)]), "it links to");
        refused(Format::Tar, &tar_of(&[other(b'1', "l", target)]), "is refused");
    }
    let hidden = pax_of(&[("linkpath", "/etc")]);
    let mut header = other(b'x', "pax", "");
    header.content = hidden.as_bytes();
    refused(Format::Tar, &tar_of(&[header, other(b'2', "l", "a")]), "absolute");
}

#[test]
fn hard_links_need_an_earlier_file_of_the_archive() {
    let good = tar_of(&[file("d/f", "x"), other(b'1', "h", "./d/f"), other(b'1', "i", "h"), other(b'2', "d/l", "../h")]);
    assert_eq!(read(Format::Tar, &good).unwrap(), ["d/f 644 x", "h = d/f", "i = h", "d/l -> ../h"]);
    for entries in [
        vec![other(b'1', "h", "passwd")],
        vec![other(b'5', "d", ""), other(b'1', "h", "d")],
        // A link that stays within the directory here, but would not elsewhere.
        vec![other(b'2', "a/b/l", "../../x"), other(b'1', "l", "a/b/l")],
        vec![file("f", "x"), other(b'2', "f", "y"), other(b'1', "h", "f")],
    ] {
        refused(Format::Tar, &tar_of(&entries), "which is not an earlier file of the archive");
    }
}

#[test]
fn other_entries_are_refused() {
    for (kind, why) in [(b'3', "a device"), (b'4', "a device"), (b'6', "a pipe"), (b'S', "sparse"), (b'Z', "of the kind 'Z'")] {
        refused(Format::Tar, &tar_of(&[other(kind, "x", "")]), why);
    }
    for (mode, why) in [(0o020_666, "a device"), (0o060_666, "a device"), (0o010_666, "pipe"), (0o140_666, "socket")] {
        refused(Format::Zip, &zip_of(&[Zipped("x", mode, "")]), why);
    }
    refused(Format::Zip, &zip_of(&[Zipped("x", 0, "1"), Zipped("x", 0, "2")]), "the same name");
    let mut encrypted = zip_of(&[Zipped("x", 0, "secret")]);
    let central = encrypted.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
    encrypted[6] |= 1;
    encrypted[central + 8] |= 1;
    assert!(read(Format::Zip, &encrypted).is_err());
    for (remarks, why) in [
        (&[("size", "7")][..], "two different sizes"),
        (&[("size", "many")], "is not a size"),
        (&[("GNU.sparse.major", "1")], "sparse"),
    ] {
        let content = pax_of(remarks);
        let mut header = other(b'x', "pax", "");
        header.content = content.as_bytes();
        refused(Format::Tar, &tar_of(&[header, file("x", "")]), why);
    }
    let content = pax_of(&[("path", "y")]);
    let mut header = other(b'g', "pax", "");
    header.content = content.as_bytes();
    refused(Format::Tar, &tar_of(&[header, file("x", "")]), "every entry");
    refused(Format::Tar, &tar_of(&[file("./", "")]).replace_kind(b'2'), "names the directory itself");
}

trait ReplaceKind {
    fn replace_kind(self, kind: u8) -> Self;
}

impl ReplaceKind for Vec<u8> {
    /// Returns the same archive, with another kind of its first entry.
    fn replace_kind(mut self, kind: u8) -> Self {
        let header = ::tar::Header::from_byte_slice(&self[..512]);
        let mut header = header.clone();
        header.set_entry_type(::tar::EntryType::new(kind));
        header.set_cksum();
        self[..512].copy_from_slice(header.as_bytes());
        self
    }
}

#[test]
fn attributes_and_long_names_are_read() {
    let long = format!("{}/end", "long".repeat(50));
    let name = format!("{long}\0");
    let mut header = other(b'L', "././@LongLink", "");
    header.content = name.as_bytes();
    let remarks = pax_of(&[("path", "ünï/code"), ("mtime", "17.25"), ("comment", "x"), ("uname", "joe"), ("uid", "70000")]);
    let mut pax = other(b'x', "pax", "");
    pax.content = remarks.as_bytes();
    let global = pax_of(&[("comment", "0123456789")]);
    let mut comment = other(b'g', "pax", "");
    comment.content = global.as_bytes();
    let setuid = Raw { mode: 0o6755, ..file("x", "") };
    let sticky = Raw { mode: 0o3777, ..other(b'5', "t", "") };
    let old = Raw { kind: 0, ..file("old/", "") };
    let archive =
        tar_of(&[comment, header, file("short", "1"), pax, file("short", "2"), file("short", "3"), setuid, sticky, old]);
    let wanted = [
        format!("{long} 644 1"),
        "ünï/code 644 2".into(),
        "short 644 3".into(),
        "x 755 ".into(),
        "t/ 1777".into(),
        "old/ 644".into(),
    ];
    assert_eq!(read(Format::Tar, &archive).unwrap(), wanted);

    struct Last(Option<ArchiveEntry>);
    impl Sink for Last {
        fn directory(&mut self, _: &ArchiveEntry) -> Result<(), SinkCause> {
            Err("no".into())
        }
        fn file(&mut self, item: &ArchiveEntry, content: &mut dyn Read) -> Result<(), SinkCause> {
            self.0 = Some(item.clone());
            std::io::copy(content, &mut std::io::sink())?;
            Ok(())
        }
        fn symlink(&mut self, _: &ArchiveEntry, _: &Path) -> Result<(), SinkCause> {
            Err("no".into())
        }
        fn hard_link(&mut self, _: &ArchiveEntry, _: &Path) -> Result<(), SinkCause> {
            Err("no".into())
        }
    }
    let mut pax = other(b'x', "pax", "");
    pax.content = remarks.as_bytes();
    let archive = tar_of(&[pax, file("short", "2")]);
    let mut last = Last(None);
    walk(Format::Tar, Cursor::new(&archive), archive.len() as u64, &CAPS, &mut last).unwrap();
    let item = last.0.unwrap();
    let owner = item.owner.unwrap();
    assert_eq!((item.modified, owner.user.as_str(), owner.uid), (Some(17), "joe", Some(70000)));
    // An error of the sink is not an error of the archive.
    let archive = tar_of(&[other(b'5', "d", "")]);
    let error = walk(Format::Tar, Cursor::new(&archive), archive.len() as u64, &CAPS, &mut Last(None)).unwrap_err();
    assert_eq!(error_chain(&error), "its entry \"d\" could not be unpacked: no");
    // Modes of zip entries: absent, and of another system.
    let zip = zip_of(&[Zipped("a", 0, "x"), Zipped("d/", 0, ""), Zipped("s", 0o106_755, "y")]);
    assert_eq!(read(Format::Zip, &zip).unwrap(), ["a 644 x", "d/ 755", "s 755 y"]);
}
