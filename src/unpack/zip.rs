//! zip, with stored and deflated entries, listed in the directory at its end.

use std::io::{Read, Seek};

use zip::result::ZipError;
use zip::{System, ZipArchive};

use super::capped::Capped;
use super::entry::ArchiveEntry;
use super::error::UnpackError;
use super::name::{Entries, refused_entry, relative_path};

/// The longest target of a symbolic link in bytes, as in the kernel.
const MAX_LINK_TARGET: u64 = 4096;
/// The type bits of a Unix mode.
const TYPE: u32 = 0o170_000;

pub(super) fn walk(zip: impl Read + Seek, entries: &mut Entries<'_>) -> Result<(), UnpackError> {
    let mut archive = ZipArchive::new(zip).map_err(|error| zip_error(error, entries))?;
    // The library keeps one entry of each name; other programs would keep another.
    if archive.has_duplicate_names() {
        return Err(refused_entry(b"", "two entries have the same name"));
    }
    let mut left = entries.limit;
    for index in 0..archive.len() {
        entries.count()?;
        let mut entry = archive.by_index(index).map_err(|error| zip_error(error, entries))?;
        let name = entry.name_raw().to_vec();
        let path = relative_path(&name).map_err(|why| refused_entry(&name, why))?;
        if entry.encrypted() {
            return Err(refused_entry(&name, "it is encrypted"));
        }
        let (mode, directory, size) = (entry.unix_mode(), entry.is_dir(), entry.size());
        if path.as_os_str().is_empty() {
            continue;
        }
        // Entries of systems without Unix modes get a default of the library, which also has rights of a group.
        let most = if entry.system() == System::Unix { 0o1777 } else { 0o755 };
        let bits = mode.map(|mode| mode & most & if directory { 0o1777 } else { 0o777 }).filter(|bits| *bits != 0);
        let item = ArchiveEntry {
            path,
            mode: bits.unwrap_or(if directory { 0o755 } else { 0o644 }),
            owner: None,
            // zip has local times of an unknown time zone.
            modified: None,
        };
        let mut content = Capped::new(&mut entry, left);
        match mode.map_or(0, |mode| mode & TYPE) {
            _ if directory => entries.directory(&item)?,
            0 | 0o100_000 => entries.file(&item, size, &mut content)?,
            0o120_000 => {
                let mut target = Vec::new();
                content.take(MAX_LINK_TARGET + 1).read_to_end(&mut target).map_err(|error| entries.broken(&error))?;
                entries.symlink(&item, &target)?;
            }
            _ => return Err(refused_entry(&name, "it is a device, pipe or socket")),
        }
        left = left.saturating_sub(size);
    }
    Ok(())
}

fn zip_error(error: ZipError, entries: &Entries<'_>) -> UnpackError {
    match error {
        ZipError::Io(error) => entries.broken(&error),
        other => entries.broken(&std::io::Error::other(other)),
    }
}
