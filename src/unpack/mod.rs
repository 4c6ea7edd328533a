//! Reading of archives: formats, entries, names, links, and limits against decompression bombs. Pure over readers: a [`Sink`]
//! writes the entries, with the help of `host::tree`.
//!
//! An entry that leads out of the directory is refused, not repaired, and so is its archive.

mod capped;
mod entry;
mod error;
mod format;
mod name;
mod tar;
#[cfg(test)]
pub(crate) mod testing;
mod zip;
mod zstd;

use std::io::{BufReader, Read, Seek};

pub use capped::Capped;
pub use entry::{ArchiveEntry, CountingSink, Owner, Sink};
pub use error::{SinkCause, UnpackError};
pub use format::Format;

/// The largest window that a decoder may ask for: `xz -9` takes 64 MiB, `zstd --long` 128 MiB.
const MAX_WINDOW: u64 = 128 << 20;
/// Memory of xz beside its window, in KiB.
const XZ_OVERHEAD_KIB: u64 = 8 << 10;
/// The unpacked size, in bytes, that a small archive may have whatever its ratio.
const RATIO_FLOOR: u64 = 64 << 20;

/// Maximum sizes of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArchiveLimits {
    /// The unpacked size, in bytes.
    pub total: u64,
    /// The number of entries.
    pub entries: u64,
    /// Unpacked bytes for one packed byte.
    pub ratio: u64,
}

/// Reads an archive of `size` bytes to its end and gives every entry to `sink`.
///
/// # Errors
/// See [`UnpackError`]; the sink has then received a part of the entries.
pub fn walk(
    format: Format,
    archive: impl Read + Seek,
    size: u64,
    caps: &ArchiveLimits,
    sink: &mut dyn Sink,
) -> Result<(), UnpackError> {
    let limit = caps.total.min(size.saturating_mul(caps.ratio).max(RATIO_FLOOR));
    let mut entries = name::Entries::new(format, caps.entries, limit, sink);
    let packed = BufReader::with_capacity(1 << 16, archive);
    let tar: Box<dyn Read + '_> = match format {
        Format::Zip => return zip::walk(packed, &mut entries),
        Format::Tar => Box::new(packed),
        Format::TarGz => Box::new(flate2::bufread::MultiGzDecoder::new(packed)),
        Format::TarBz2 => Box::new(bzip2::bufread::MultiBzDecoder::new(packed)),
        Format::TarXz => {
            let kib = u32::try_from(MAX_WINDOW / 1024 + XZ_OVERHEAD_KIB).unwrap_or(u32::MAX);
            Box::new(lzma_rust2::XzReader::new_mem_limit(packed, true, kib))
        }
        Format::TarZst => Box::new(zstd::Frames::new(packed, MAX_WINDOW)),
    };
    tar::walk(Capped::new(tar, limit), &mut entries)
}

#[cfg(test)]
mod tests;
