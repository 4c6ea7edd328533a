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
