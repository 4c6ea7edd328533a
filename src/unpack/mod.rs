//! Reading of archives: formats, entries, names, links, and limits against decompression bombs. Pure over readers: a [`Sink`]
//! writes the entries, with the help of `host::tree`.
//!
//! An entry that leads out of the directory is refused, not repaired, and so is its archive.

mod name;
mod tar;
#[cfg(test)]
pub(crate) mod testing;
mod zip;
mod zstd;

use std::io::{self, BufReader, ErrorKind, Read, Seek};
use std::path::{Path, PathBuf};

use crate::diag::error_chain;

/// The largest window that a decoder may ask for: `xz -9` takes 64 MiB, `zstd --long` 128 MiB.
const MAX_WINDOW: u64 = 128 << 20;
/// Memory of xz beside its window, in KiB.
const XZ_OVERHEAD_KIB: u64 = 8 << 10;
/// The unpacked size, in bytes, that a small archive may have whatever its ratio.
const RATIO_FLOOR: u64 = 64 << 20;

/// Any error of a sink.
pub type SinkCause = Box<dyn std::error::Error + Send + Sync>;

/// The formats, by the end of a file name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `.tar`
    Tar,
    /// `.tar.gz`, `.tgz`
    TarGz,
    /// `.tar.xz`
    TarXz,
    /// `.tar.zst`
    TarZst,
    /// `.tar.bz2`
    TarBz2,
    /// `.zip`
    Zip,
}

impl Format {
    /// Returns the format of a file of this name, in upper or lower case.
    pub fn from_name(name: &str) -> Option<Self> {
        const ENDS: [(&str, Format); 7] = [
            (".tar.gz", Format::TarGz),
            (".tgz", Format::TarGz),
            (".tar.xz", Format::TarXz),
            (".tar.zst", Format::TarZst),
            (".tar.bz2", Format::TarBz2),
            (".tar", Format::Tar),
            (".zip", Format::Zip),
        ];
        let name = name.to_ascii_lowercase();
        ENDS.into_iter().find(|(end, _)| name.ends_with(end)).map(|(_, format)| format)
    }

    /// Returns the name of the format.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tar => "tar",
            Self::TarGz => "tar.gz",
            Self::TarXz => "tar.xz",
            Self::TarZst => "tar.zst",
            Self::TarBz2 => "tar.bz2",
            Self::Zip => "zip",
        }
    }
}

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

/// The reason for which an archive was not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The bytes are no archive of this format, or a truncated one.
    #[error("it is not a whole {format} archive")]
    Broken {
        /// The format.
        format: &'static str,
        /// The cause.
        #[source]
        cause: SinkCause,
    },
    /// A refused entry.
    #[error("its entry \"{}\" is refused: {why}", name.escape_debug())]
    Entry {
        /// The entry's name.
        name: String,
        /// The reason.
        why: String,
    },
    /// A limit was exceeded.
    #[error("it is too large: {what} is more than {limit}")]
    TooLarge {
        /// The limit that was exceeded.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The sink failed.
    #[error("its entry \"{}\" could not be unpacked", name.escape_debug())]
    Sink {
        /// The entry's name.
        name: String,
        /// The cause.
        #[source]
        cause: SinkCause,
    },
}

/// The owner of an entry on the host that packed it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Owner {
    /// The name of the user; empty when unknown.
    pub user: String,
    /// The number of the user.
    pub uid: Option<u32>,
    /// The name of the group; empty when unknown.
    pub group: String,
    /// The number of the group.
    pub gid: Option<u32>,
}

/// The metadata of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveEntry {
    /// The path: relative, plain names only.
    pub path: PathBuf,
    /// Permission bits. Never setuid and setgid: an archive grants no user the rights of another. Directories keep the sticky
    /// bit.
    pub mode: u32,
    /// The owner, where the archive has one.
    pub owner: Option<Owner>,
    /// The modification time, in seconds since 1970, where the archive has one.
    pub modified: Option<i64>,
}

/// The receiver of the entries, in the order of the archive. A later entry replaces an earlier one of the same path.
pub trait Sink {
    /// A directory.
    ///
    /// # Errors
    /// When it can't be made.
    fn directory(&mut self, item: &ArchiveEntry) -> Result<(), SinkCause>;
    /// A regular file; all of its content is read.
    ///
    /// # Errors
    /// When it can't be written, or reading fails.
    fn file(&mut self, item: &ArchiveEntry, content: &mut dyn Read) -> Result<(), SinkCause>;
    /// A symbolic link that stays within the directory.
    ///
    /// # Errors
    /// When it can't be made.
    fn symlink(&mut self, item: &ArchiveEntry, target: &Path) -> Result<(), SinkCause>;
    /// Another name of an earlier regular file.
    ///
    /// # Errors
    /// When it can't be made.
    fn hard_link(&mut self, item: &ArchiveEntry, target: &Path) -> Result<(), SinkCause>;
}

/// A sink that discards everything: it checks an archive before anything is written.
#[derive(Debug, Default)]
pub struct CountingSink {
    /// The size of all files so far, in bytes.
    pub bytes: u64,
}

impl Sink for CountingSink {
    fn directory(&mut self, _: &ArchiveEntry) -> Result<(), SinkCause> {
        Ok(())
    }

    fn file(&mut self, _: &ArchiveEntry, content: &mut dyn Read) -> Result<(), SinkCause> {
        self.bytes += io::copy(content, &mut io::sink())?;
        Ok(())
    }

    fn symlink(&mut self, _: &ArchiveEntry, _: &Path) -> Result<(), SinkCause> {
        Ok(())
    }

    fn hard_link(&mut self, _: &ArchiveEntry, _: &Path) -> Result<(), SinkCause> {
        Ok(())
    }
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

/// A reader that fails with [`ErrorKind::FileTooLarge`] at its limit, instead of ending.
#[derive(Debug)]
pub struct Capped<R> {
    inner: R,
    left: u64,
}

impl<R> Capped<R> {
    /// Reads at most `limit` bytes of `inner`.
    pub fn new(inner: R, limit: u64) -> Self {
        Self { inner, left: limit }
    }

    /// Returns the inner reader.
    pub fn into_inner(self) -> R {
        self.inner
    }
}

impl<R: Read> Read for Capped<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(count as u64).ok_or(ErrorKind::FileTooLarge)?;
        Ok(count)
    }
}

/// Converts an error of a decoder into an error of the archive.
fn broken(format: Format, error: &io::Error, limit: u64) -> UnpackError {
    if error.kind() == ErrorKind::FileTooLarge {
        return UnpackError::TooLarge { what: "its size unpacked, in bytes,", limit };
    }
    UnpackError::Broken { format: format.as_str(), cause: error_chain(error).into() }
}

#[cfg(test)]
mod tests;
