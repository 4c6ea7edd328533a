//! Archives as they are read: formats, entries, names, links, and caps against bombs. Pure over readers; where entries
//! go is for a [`Sink`] to say, which `host::tree` helps with.
//!
//! What leads out of the directory is refused, not repaired, and the archive with it.

mod name;
mod tar;
#[cfg(test)]
pub(crate) mod testing;
mod zip;
mod zstd;

use std::io::{self, BufReader, ErrorKind, Read, Seek};
use std::path::{Path, PathBuf};

use crate::diag::chain;

/// The largest window that a decoder may ask for: `xz -9` takes 64 MiB, `zstd --long` 128 MiB.
const WINDOW: u64 = 128 << 20;
/// What xz takes beside its window, in KiB.
const XZ_EXTRA: u64 = 8 << 10;
/// A small archive may be this large unpacked, whatever its ratio.
const RATIO_FLOOR: u64 = 64 << 20;

/// Any error of a sink.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

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
    /// The format of a file of this name, in upper or lower case.
    pub fn of(name: &str) -> Option<Self> {
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

    /// Its name.
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

/// How large an archive may become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// All of it unpacked, in bytes.
    pub total: u64,
    /// Its entries.
    pub entries: u64,
    /// Unpacked bytes for one packed byte.
    pub ratio: u64,
}

/// An archive that is not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The bytes are no archive of this kind, or a cut one.
    #[error("it is not a whole {format} archive")]
    Broken {
        /// The kind.
        format: &'static str,
        /// What the decoder says.
        #[source]
        cause: Cause,
    },
    /// An entry that is not taken.
    #[error("its entry \"{}\" is refused: {why}", name.escape_debug())]
    Entry {
        /// The entry's name.
        name: String,
        /// Why not.
        why: String,
    },
    /// A cap was reached.
    #[error("it is too large: {what} is more than {limit}")]
    TooLarge {
        /// What.
        what: &'static str,
        /// The cap.
        limit: u64,
    },
    /// The sink failed.
    #[error("its entry \"{}\" could not be unpacked", name.escape_debug())]
    Sink {
        /// The entry's name.
        name: String,
        /// Why.
        #[source]
        cause: Cause,
    },
}

/// Whom an entry belongs to, where it was packed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Owner {
    /// The name of the user; empty when it is not known.
    pub user: String,
    /// The number of the user.
    pub uid: Option<u32>,
    /// The name of the group; empty when it is not known.
    pub group: String,
    /// The number of the group.
    pub gid: Option<u32>,
}

/// What is known of an entry beside its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Where it goes: relative, plain names only.
    pub path: PathBuf,
    /// Permission bits. Never setuid and setgid: an archive gives nobody the rights of another. The sticky bit is kept
    /// on directories.
    pub mode: u32,
    /// Whom it belongs to, where the archive says so.
    pub owner: Option<Owner>,
    /// When it was changed, in seconds since 1970, where the archive says so.
    pub modified: Option<i64>,
}

/// Where entries go, in the order of the archive. Later ones replace earlier ones of the same path.
pub trait Sink {
    /// A directory.
    ///
    /// # Errors
    /// When it can't be made.
    fn directory(&mut self, item: &Item) -> Result<(), Cause>;
    /// A regular file; all of its content is read.
    ///
    /// # Errors
    /// When it can't be written, or reading fails.
    fn file(&mut self, item: &Item, content: &mut dyn Read) -> Result<(), Cause>;
    /// A symbolic link, which does not lead out of the directory.
    ///
    /// # Errors
    /// When it can't be made.
    fn symlink(&mut self, item: &Item, target: &Path) -> Result<(), Cause>;
    /// Another name of a regular file that came before.
    ///
    /// # Errors
    /// When it can't be made.
    fn hard_link(&mut self, item: &Item, target: &Path) -> Result<(), Cause>;
}

/// A sink that takes everything and keeps nothing: for a look at an archive before anything is written.
#[derive(Debug, Default)]
pub struct Look {
    /// The bytes of all files so far.
    pub bytes: u64,
}

impl Sink for Look {
    fn directory(&mut self, _: &Item) -> Result<(), Cause> {
        Ok(())
    }

    fn file(&mut self, _: &Item, content: &mut dyn Read) -> Result<(), Cause> {
        self.bytes += io::copy(content, &mut io::sink())?;
        Ok(())
    }

    fn symlink(&mut self, _: &Item, _: &Path) -> Result<(), Cause> {
        Ok(())
    }

    fn hard_link(&mut self, _: &Item, _: &Path) -> Result<(), Cause> {
        Ok(())
    }
}

/// Gives every entry of an archive of `size` bytes to `sink`, and reads it to its end.
///
/// # Errors
/// See [`UnpackError`]; the sink has then had a part of it.
pub fn walk(format: Format, archive: impl Read + Seek, size: u64, caps: &Caps, sink: &mut dyn Sink) -> Result<(), UnpackError> {
    let limit = caps.total.min(size.saturating_mul(caps.ratio).max(RATIO_FLOOR));
    let mut entries = name::Entries::new(format, caps.entries, limit, sink);
    let packed = BufReader::with_capacity(1 << 16, archive);
    let tar: Box<dyn Read + '_> = match format {
        Format::Zip => return zip::walk(packed, &mut entries),
        Format::Tar => Box::new(packed),
        Format::TarGz => Box::new(flate2::bufread::MultiGzDecoder::new(packed)),
        Format::TarBz2 => Box::new(bzip2::bufread::MultiBzDecoder::new(packed)),
        Format::TarXz => {
            let kib = u32::try_from(WINDOW / 1024 + XZ_EXTRA).unwrap_or(u32::MAX);
            Box::new(lzma_rust2::XzReader::new_mem_limit(packed, true, kib))
        }
        Format::TarZst => Box::new(zstd::Frames::new(packed, WINDOW)),
    };
    tar::walk(Capped::new(tar, limit), &mut entries)
}

/// A reader that fails with [`ErrorKind::FileTooLarge`], instead of ending, when its limit is reached.
#[derive(Debug)]
pub struct Capped<R> {
    inner: R,
    left: u64,
}

impl<R> Capped<R> {
    /// At most `limit` bytes of `inner`.
    pub fn new(inner: R, limit: u64) -> Self {
        Self { inner, left: limit }
    }

    /// The reader itself.
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

/// What a decoder said, as an error of the archive.
fn broken(format: Format, error: &io::Error, limit: u64) -> UnpackError {
    if error.kind() == ErrorKind::FileTooLarge {
        return UnpackError::TooLarge { what: "its size unpacked, in bytes,", limit };
    }
    UnpackError::Broken { format: format.as_str(), cause: chain(error).into() }
}

#[cfg(test)]
mod tests;
