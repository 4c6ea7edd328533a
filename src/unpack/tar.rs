//! tar: ustar with the extensions of GNU tar (`L`, `K`, large numbers) and POSIX (PAX headers, `x` and `g`).
//!
//! This module reads the extension headers itself, because names and memory depend on them.

use std::io::Read;

use tar::{EntryType, Header, PaxExtensions};

use super::capped::Capped;
use super::entry::{ArchiveEntry, Owner};
use super::error::UnpackError;
use super::name::{Entries, refused_entry, relative_path};

/// The largest extension header, in bytes: room for names, and for access lists of large directories.
const MAX_EXTENSION_HEADER: u64 = 1 << 20;

type Entry<'a, R> = tar::Entry<'a, Capped<R>>;

/// The content of extension headers about the next entry.
#[derive(Default)]
struct PaxOverrides {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    modified: Option<i64>,
    owner: Owner,
}

pub(super) fn walk(tar: Capped<impl Read>, entries: &mut Entries<'_>) -> Result<(), UnpackError> {
    let mut archive = tar::Archive::new(tar);
    let mut said = PaxOverrides::default();
    for entry in archive.entries().map_err(|error| entries.broken(&error))?.raw(true) {
        let mut entry = entry.map_err(|error| entries.broken(&error))?;
        entries.count()?;
        match entry.header().entry_type() {
            EntryType::GNULongName => said.path = Some(long_name(&mut entry, entries)?),
            EntryType::GNULongLink => said.link = Some(long_name(&mut entry, entries)?),
            EntryType::XHeader => pax(&mut entry, entries, &mut said)?,
            EntryType::XGlobalHeader => check_global_header(&mut entry, entries)?,
            _ => unpack_entry(&mut entry, entries, std::mem::take(&mut said))?,
        }
    }
    // Reads to the very end: only there the decoder compares the checksum.
    std::io::copy(&mut archive.into_inner(), &mut std::io::sink()).map_err(|error| entries.broken(&error))?;
    Ok(())
}

fn unpack_entry(entry: &mut Entry<'_, impl Read>, entries: &mut Entries<'_>, said: PaxOverrides) -> Result<(), UnpackError> {
    let name = said.path.unwrap_or_else(|| entry.path_bytes().into_owned());
    let path = relative_path(&name).map_err(|why| refused_entry(&name, why))?;
    let kind = entry.header().entry_type();
    let size = entry.size();
    if said.size.is_some_and(|said| said != size) {
        return Err(refused_entry(&name, "its headers name two different sizes"));
    }
    // Before POSIX, directories were files with a slash at the end.
    let directory = kind.is_dir() || (kind.is_file() && name.ends_with(b"/"));
    if path.as_os_str().is_empty() {
        // The directory itself stays unchanged.
        return if directory { Ok(()) } else { Err(refused_entry(&name, "it names the directory itself")) };
    }
    let header = entry.header();
    let mode = header.mode().map_err(|error| entries.broken(&error))?;
    let item = ArchiveEntry {
        path,
        mode: if directory { mode & 0o1777 } else { mode & 0o777 },
        owner: Some(owner(header, said.owner)),
        modified: said.modified.or_else(|| header.mtime().ok().and_then(|time| i64::try_from(time).ok())),
    };
    let link = said.link.or_else(|| entry.link_name_bytes().map(std::borrow::Cow::into_owned)).unwrap_or_default();
    match kind {
        _ if directory => entries.directory(&item),
        EntryType::Regular | EntryType::Continuous => entries.file(&item, size, entry),
        EntryType::Symlink => entries.symlink(&item, &link),
        EntryType::Link => entries.hard_link(&item, &link),
        other => Err(refused_entry(&name, unsupported_reason(other))),
    }
}

fn unsupported_reason(kind: EntryType) -> String {
    match kind {
        EntryType::Char | EntryType::Block => "it is a device".to_owned(),
        EntryType::Fifo => "it is a pipe".to_owned(),
        EntryType::GNUSparse => "it is a sparse file, which is not supported: pack it without --sparse".to_owned(),
        other => format!("it is of the kind '{}', which is not supported", char::from(other.as_byte()).escape_debug()),
    }
}

fn owner(header: &Header, said: Owner) -> Owner {
    let text = |bytes: Option<&[u8]>| bytes.map_or_else(String::new, |bytes| String::from_utf8_lossy(bytes).into_owned());
    let number = |number: std::io::Result<u64>| number.ok().and_then(|number| u32::try_from(number).ok());
    Owner {
        user: if said.user.is_empty() { text(header.username_bytes()) } else { said.user },
        uid: said.uid.or_else(|| number(header.uid())),
        group: if said.group.is_empty() { text(header.groupname_bytes()) } else { said.group },
        gid: said.gid.or_else(|| number(header.gid())),
    }
}

/// Returns the content of an extension header.
fn extension(entry: &mut Entry<'_, impl Read>, entries: &Entries<'_>) -> Result<Vec<u8>, UnpackError> {
    if entry.size() > MAX_EXTENSION_HEADER {
        return Err(UnpackError::TooLarge { what: "an extension header in it", limit: MAX_EXTENSION_HEADER });
    }
    let mut content = Vec::new();
    entry.read_to_end(&mut content).map_err(|error| entries.broken(&error))?;
    if content.len() as u64 == entry.size() {
        Ok(content)
    } else {
        Err(entries.broken(&std::io::ErrorKind::UnexpectedEof.into()))
    }
}

/// Returns a name that ends with a NUL character.
fn long_name(entry: &mut Entry<'_, impl Read>, entries: &Entries<'_>) -> Result<Vec<u8>, UnpackError> {
    let mut name = extension(entry, entries)?;
    if name.last() == Some(&0) {
        name.pop();
    }
    Ok(name)
}

fn pax(entry: &mut Entry<'_, impl Read>, entries: &Entries<'_>, said: &mut PaxOverrides) -> Result<(), UnpackError> {
    let content = extension(entry, entries)?;
    for remark in PaxExtensions::new(&content) {
        let remark = remark.map_err(|error| entries.broken(&error))?;
        let value = remark.value_bytes();
        let text = String::from_utf8_lossy(value).into_owned();
        match remark.key_bytes() {
            b"path" => said.path = Some(value.to_vec()),
            b"linkpath" => said.link = Some(value.to_vec()),
            b"size" => {
                let size = text.parse().map_err(|_| refused_entry(b"(PAX header)", format!("\"{text}\" is not a size")))?;
                said.size = Some(size);
            }
            // With a fraction, and negative before 1970.
            b"mtime" => said.modified = text.split('.').next().and_then(|seconds| seconds.parse().ok()),
            b"uid" => said.owner.uid = text.parse().ok(),
            b"gid" => said.owner.gid = text.parse().ok(),
            b"uname" => said.owner.user = text,
            b"gname" => said.owner.group = text,
            key if key.starts_with(b"GNU.sparse.") => {
                let name = said.path.clone().unwrap_or_default();
                return Err(refused_entry(&name, unsupported_reason(EntryType::GNUSparse)));
            }
            // Access lists, attributes, other times, comments.
            _ => {}
        }
    }
    Ok(())
}

/// Checks a header about all entries. Accepts only remarks that change none of them, as the comment of `git archive`.
fn check_global_header(entry: &mut Entry<'_, impl Read>, entries: &Entries<'_>) -> Result<(), UnpackError> {
    let content = extension(entry, entries)?;
    for remark in PaxExtensions::new(&content) {
        let remark = remark.map_err(|error| entries.broken(&error))?;
        if matches!(remark.key_bytes(), b"path" | b"linkpath" | b"size") || remark.key_bytes().starts_with(b"GNU.sparse.") {
            return Err(refused_entry(b"(global PAX header)", "it would rename or resize every entry"));
        }
    }
    Ok(())
}
