//! Archives for tests, put together without the checks of a well-meaning writer.

use std::io::Write;

use flate2::write::GzEncoder;
use tar::EntryType;

/// One entry of an archive.
pub(crate) struct Raw<'a> {
    pub(crate) kind: u8,
    pub(crate) name: &'a [u8],
    pub(crate) content: &'a [u8],
    pub(crate) mode: u32,
    pub(crate) link: &'a str,
}

pub(crate) fn file<'a>(name: &'a str, content: &'a str) -> Raw<'a> {
    Raw { kind: b'0', name: name.as_bytes(), content: content.as_bytes(), mode: 0o644, link: "" }
}

pub(crate) fn other<'a>(kind: u8, name: &'a str, link: &'a str) -> Raw<'a> {
    Raw { kind, name: name.as_bytes(), content: b"", mode: 0o755, link }
}

pub(crate) fn tar_of(entries: &[Raw<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in entries {
        let mut header = tar::Header::new_ustar();
        header.as_mut_bytes()[..entry.name.len()].copy_from_slice(entry.name);
        header.set_entry_type(EntryType::new(entry.kind));
        header.set_mode(entry.mode);
        header.set_size(entry.content.len() as u64);
        if !entry.link.is_empty() {
            header.set_link_name(entry.link).unwrap();
        }
        header.set_cksum();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(entry.content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// An entry of a zip archive: name, Unix mode with its type, content.
pub(crate) struct Zipped<'a>(pub(crate) &'a str, pub(crate) u32, pub(crate) &'a str);

/// A zip archive of stored entries (APPNOTE 4.3).
pub(crate) fn zip_of(entries: &[Zipped<'_>]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for Zipped(name, mode, content) in entries {
        let mut crc = flate2::Crc::new();
        crc.update(content.as_bytes());
        let offset = u32::try_from(bytes.len()).unwrap();
        let (size, length) = (u32::try_from(content.len()).unwrap(), u16::try_from(name.len()).unwrap());
        // Needed version, flags, method, time, date, digest, packed and unpacked size, lengths of name and extra.
        let mut common = [20, 0, 0, 0, 0, 0, 0, 0, 0x21, 0].to_vec();
        for number in [crc.sum(), size, size] {
            common.extend(number.to_le_bytes());
        }
        common.extend(length.to_le_bytes());
        common.extend([0, 0]);
        bytes.extend(b"PK\x03\x04");
        bytes.extend(&common);
        bytes.extend(name.as_bytes());
        bytes.extend(content.as_bytes());
        // Made by version 2.0 on Unix; then comment, disk and inner attributes, which are empty.
        directory.extend(b"PK\x01\x02\x14\x03");
        directory.extend(&common);
        directory.extend([0; 6]);
        directory.extend((mode << 16).to_le_bytes());
        directory.extend(offset.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let (start, size) = (u32::try_from(bytes.len()).unwrap(), u32::try_from(directory.len()).unwrap());
    let count = u16::try_from(entries.len()).unwrap().to_le_bytes();
    bytes.extend(directory);
    bytes.extend(b"PK\x05\x06\0\0\0\0");
    bytes.extend([count, count].concat());
    bytes.extend([size.to_le_bytes(), start.to_le_bytes()].concat());
    bytes.extend([0, 0]);
    bytes
}

/// A PAX header (POSIX.1-2017, pax, "pax Extended Header"): each remark with its own length before it.
pub(crate) fn pax_of(remarks: &[(&str, &str)]) -> String {
    let line = |(key, value): &(&str, &str)| {
        let rest = format!(" {key}={value}\n");
        let length = (1..).find(|length: &usize| length.to_string().len() + rest.len() == *length).unwrap();
        format!("{length}{rest}")
    };
    remarks.iter().map(line).collect()
}
