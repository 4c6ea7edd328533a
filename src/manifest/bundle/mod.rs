//! Bundles: a manifest with its files in a gzipped tar archive.
//!
//! The archive is untrusted input, so this module reads it itself. Only regular files and directories with plain relative
//! names are accepted, each once, within `Caps`. Unusual entries are refused, not repaired. Two readers that disagree about
//! an entry are a way to smuggle files.

use std::collections::HashMap;
use std::io::{self, BufRead, ErrorKind, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;
use tar::EntryType;

use crate::host::WriteSpec;
use crate::host::fs::{self, FsError};
use crate::host::tree::Tree as Directory;
use crate::unpack::Capped;

/// The base name of the manifest in a bundle.
pub const MANIFEST: &str = "manifest.yaml";

/// Maximum sizes of a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BundleLimits {
    /// The unpacked size of the archive, in bytes.
    pub total: u64,
    /// The number of files and directories.
    pub entries: usize,
    /// The largest file, in bytes.
    pub file: u64,
    /// The longest name, in bytes.
    pub path: usize,
    /// The most unpacked bytes for one packed byte.
    pub ratio: u64,
}

impl Default for BundleLimits {
    fn default() -> Self {
        Self { total: 1 << 30, entries: 20_000, file: 512 << 20, path: 255, ratio: 200 }
    }
}

/// The unpacked size, in bytes, that a small bundle may have whatever its ratio. A tar archive of few short files is mostly
/// zeros.
const RATIO_FLOOR: u64 = 1 << 20;

/// The reason for which a bundle was not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum BundleArchiveError {
    /// The bytes are no gzipped tar archive, or a truncated one.
    #[error("the bundle is not a whole gzipped tar archive")]
    Archive(#[source] io::Error),
    /// The archive is followed by other bytes.
    #[error("the bundle has bytes after its end")]
    Trailing,
    /// An entry that is neither file nor directory, or a header that changes other entries.
    #[error("the bundle has an entry \"{name}\" of kind '{kind}': only files and directories are allowed")]
    Kind {
        /// Its name.
        name: String,
        /// The type flag of the tar header.
        kind: char,
    },
    /// A name that leads out of the bundle, or is not plain text.
    #[error("the bundle has an entry with the name \"{name}\": {why}")]
    Name {
        /// The name.
        name: String,
        /// The reason.
        why: &'static str,
    },
    /// Two entries with one path, also on a file system that ignores case.
    #[error("the bundle has two entries for one place: \"{first}\" and \"{second}\"")]
    Collision {
        /// The first.
        first: String,
        /// The second.
        second: String,
    },
    /// A limit was exceeded.
    #[error("the bundle is too large: {what} is more than {limit}")]
    TooLarge {
        /// The limit that was exceeded.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// Two manifests are equally deep, so the choice is ambiguous.
    #[error("the bundle has two manifests: \"{first}\" and \"{second}\"")]
    Ambiguous {
        /// The first.
        first: String,
        /// The second.
        second: String,
    },
    /// The bundle has no manifest.
    #[error("the bundle has no {MANIFEST}")]
    NoManifest,
    /// A directory that can't be packed.
    #[error("{} can't be packed: {why}", path.display())]
    Unpackable {
        /// The path in the way.
        path: PathBuf,
        /// The reason.
        why: &'static str,
    },
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FsError),
}

/// True when a file that begins with `head` is a bundle; any other file is a plain manifest.
pub fn is_bundle(head: &[u8]) -> bool {
    head.starts_with(&[0x1f, 0x8b])
}

/// Unpacks a bundle of `size` bytes into the directory `into`, which must be empty; returns the path of its manifest.
///
/// The manifest is the entry `manifest.yaml` with the fewest parent directories; there must be only one.
///
/// # Errors
/// See `BundleError`; the caller must remove the files written so far.
pub fn unpack(packed: impl BufRead, size: u64, into: &Path, caps: &BundleLimits) -> Result<PathBuf, BundleArchiveError> {
    let limit = caps.total.min(size.saturating_mul(caps.ratio).max(RATIO_FLOOR));
    let mut archive = tar::Archive::new(Capped::new(GzDecoder::new(packed), limit));
    let too_large = |error: io::Error| {
        if error.kind() == ErrorKind::FileTooLarge {
            BundleArchiveError::TooLarge { what: "its size unpacked", limit }
        } else {
            BundleArchiveError::Archive(error)
        }
    };
    let mut tree = BundleTree::default();
    let mut directory = Directory::open(into)?;
    // Raw entries: the extension headers that would rename or resize the next entry reach `Walk`, which refuses them.
    for entry in archive.entries().map_err(too_large)?.raw(true) {
        let mut entry = entry.map_err(too_large)?;
        if let Some(found) = check_entry(&mut entry, &mut tree, caps)? {
            if found.directory {
                directory.directory(&found.path)?;
                continue;
            }
            let path = into.join(&found.path);
            let mut file = directory.create(&found.path)?;
            let written = io::copy(&mut entry, &mut file).map_err(|error| copy_error(error, &path, limit))?;
            if written != entry.size() {
                return Err(BundleArchiveError::Archive(ErrorKind::UnexpectedEof.into()));
            }
            file.finish(WriteSpec { uid: None, gid: None, mode: found.mode & 0o755 | 0o400 }, None)?;
        }
    }
    check_end(archive.into_inner(), limit)?;
    Ok(into.join(tree.manifest()?))
}

/// Converts a copy error. Reading and writing fail through one call, and an error of the decoder is no error of the file.
fn copy_error(error: io::Error, path: &Path, limit: u64) -> BundleArchiveError {
    match error.kind() {
        ErrorKind::FileTooLarge => BundleArchiveError::TooLarge { what: "its size unpacked", limit },
        ErrorKind::InvalidInput | ErrorKind::InvalidData | ErrorKind::UnexpectedEof => BundleArchiveError::Archive(error),
        _ => BundleArchiveError::File(FsError::io("write", path, error)),
    }
}

/// Checks that only zeros follow up to the end of the archive, and nothing after the one gzip member.
fn check_end(mut rest: Capped<GzDecoder<impl BufRead>>, limit: u64) -> Result<(), BundleArchiveError> {
    let mut buffer = [0; 8192];
    loop {
        match rest.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) if buffer.iter().take(count).all(|byte| *byte == 0) => {}
            Ok(_) => return Err(BundleArchiveError::Trailing),
            Err(error) if error.kind() == ErrorKind::FileTooLarge => {
                return Err(BundleArchiveError::TooLarge { what: "its size unpacked", limit });
            }
            Err(error) => return Err(BundleArchiveError::Archive(error)),
        }
    }
    let mut after = rest.into_inner().into_inner();
    if after.fill_buf().map_err(BundleArchiveError::Archive)?.is_empty() { Ok(()) } else { Err(BundleArchiveError::Trailing) }
}

/// An entry that may be unpacked.
struct BundleEntry {
    path: PathBuf,
    directory: bool,
    mode: u32,
}

/// The entries so far.
#[derive(Default)]
struct BundleTree {
    /// By lower-case name: the name as written, true for a directory, and true where an entry has the name.
    names: HashMap<String, (String, bool, bool)>,
    entries: usize,
    /// The depth of the least deep manifests, and their names.
    manifests: (usize, Vec<String>),
}

/// Checks one entry. `None` for entries without content: the root itself, and harmless remarks.
fn check_entry(
    entry: &mut tar::Entry<'_, impl Read>,
    tree: &mut BundleTree,
    caps: &BundleLimits,
) -> Result<Option<BundleEntry>, BundleArchiveError> {
    tree.entries += 1;
    if tree.entries > caps.entries {
        return Err(BundleArchiveError::TooLarge { what: "the number of its entries", limit: caps.entries as u64 });
    }
    let kind = entry.header().entry_type();
    let shown = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
    let directory = match kind {
        EntryType::Regular => false,
        EntryType::Directory => true,
        EntryType::XHeader | EntryType::XGlobalHeader if is_harmless_remark(entry)? => return Ok(None),
        _ => return Err(BundleArchiveError::Kind { name: shown, kind: char::from(kind.as_byte()) }),
    };
    let Some(path) = plain_name(&shown, &entry.path_bytes(), directory, caps)? else { return Ok(None) };
    if entry.size() > caps.file {
        return Err(BundleArchiveError::TooLarge { what: "a file in it", limit: caps.file });
    }
    if directory && entry.size() != 0 {
        return Err(BundleArchiveError::Name { name: shown, why: "a directory has no content" });
    }
    tree.add(&path, directory)?;
    let mode = entry.header().mode().map_err(BundleArchiveError::Archive)?;
    Ok(Some(BundleEntry { path: path.into(), directory, mode }))
}

/// True for a PAX header that does not affect names or content: times, owners, comments.
fn is_harmless_remark(entry: &mut tar::Entry<'_, impl Read>) -> Result<bool, BundleArchiveError> {
    const HARMLESS: [&[u8]; 8] = [b"mtime", b"atime", b"ctime", b"comment", b"uid", b"gid", b"uname", b"gname"];
    const LONGEST: u64 = 4096;
    if entry.size() > LONGEST {
        return Ok(false);
    }
    let mut text = Vec::new();
    entry.read_to_end(&mut text).map_err(BundleArchiveError::Archive)?;
    Ok(tar::PaxExtensions::new(&text).all(|remark| remark.is_ok_and(|remark| HARMLESS.contains(&remark.key_bytes()))))
}

/// Returns the name without `./` before and `/` after; `None` for the root itself.
fn plain_name(shown: &str, bytes: &[u8], directory: bool, caps: &BundleLimits) -> Result<Option<String>, BundleArchiveError> {
    let wrong = |why| Err(BundleArchiveError::Name { name: shown.to_owned(), why });
    let Ok(text) = std::str::from_utf8(bytes) else { return wrong("it is not UTF-8") };
    if text.len() > caps.path {
        return wrong("it is too long");
    }
    if text.chars().any(char::is_control) {
        return wrong("it has control characters");
    }
    if directory && matches!(text, "." | "./") {
        return Ok(None);
    }
    let text = text.strip_prefix("./").unwrap_or(text);
    let text = if directory { text.strip_suffix('/').unwrap_or(text) } else { text };
    for part in text.split('/') {
        match part {
            "" => return wrong("it is absolute, empty, or has empty parts"),
            "." | ".." => return wrong("it has the part `.` or `..`"),
            _ => {}
        }
    }
    Ok(Some(text.to_owned()))
}

impl BundleTree {
    /// Adds an entry and the directories above it.
    fn add(&mut self, path: &str, directory: bool) -> Result<(), BundleArchiveError> {
        for (slash, _) in path.match_indices('/') {
            self.add_name(path.get(..slash).unwrap_or_default(), true, false)?;
        }
        self.add_name(path, directory, true)?;
        let (above, base) = path.rsplit_once('/').unwrap_or(("", path));
        let depth = if above.is_empty() { 0 } else { above.split('/').count() };
        if base == MANIFEST && !directory {
            let (least, found) = &mut self.manifests;
            if found.is_empty() || depth < *least {
                (*least, *found) = (depth, vec![path.to_owned()]);
            } else if depth == *least {
                found.push(path.to_owned());
            }
        }
        Ok(())
    }

    /// Returns the only manifest.
    fn manifest(&self) -> Result<&str, BundleArchiveError> {
        match self.manifests.1.as_slice() {
            [] => Err(BundleArchiveError::NoManifest),
            [one] => Ok(one),
            [first, second, ..] => Err(BundleArchiveError::Ambiguous { first: first.clone(), second: second.clone() }),
        }
    }

    fn add_name(&mut self, path: &str, directory: bool, entry: bool) -> Result<(), BundleArchiveError> {
        let known = self.names.entry(path.to_lowercase()).or_insert_with(|| (path.to_owned(), directory, false));
        let twice = entry && known.2;
        if twice || known.0 != path || known.1 != directory {
            return Err(BundleArchiveError::Collision { first: known.0.clone(), second: path.to_owned() });
        }
        known.2 |= entry;
        Ok(())
    }
}

/// Packs a directory that has a manifest. Equal files give equal bytes: sorted names, no times, no owners.
///
/// # Errors
/// When there is no manifest, an entry is neither file nor directory, or can't be read.
pub fn pack(directory: &Path) -> Result<Vec<u8>, BundleArchiveError> {
    let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), flate2::Compression::default()));
    let mut tree = BundleTree::default();
    pack_below(directory, "", &mut builder, &mut tree)?;
    tree.manifest()?;
    let gzip = builder.into_inner().map_err(BundleArchiveError::Archive)?;
    gzip.finish().map_err(BundleArchiveError::Archive)
}

type Packing = tar::Builder<GzEncoder<Vec<u8>>>;

fn pack_below(directory: &Path, above: &str, builder: &mut Packing, tree: &mut BundleTree) -> Result<(), BundleArchiveError> {
    for path in fs::list(directory)? {
        let unpackable = |why| BundleArchiveError::Unpackable { path: path.clone(), why };
        let base = path.file_name().and_then(|base| base.to_str()).ok_or_else(|| unpackable("its name is not UTF-8"))?;
        let name = if above.is_empty() { base.to_owned() } else { format!("{above}/{base}") };
        if fs::is_symlink(&path) {
            return Err(unpackable("it is a symbolic link"));
        }
        let look = fs::stat(&path, false)?.ok_or_else(|| unpackable("it went away"))?;
        let directory = match look.kind {
            fs::FileKind::File => false,
            fs::FileKind::Directory => true,
            fs::FileKind::Other => return Err(unpackable("it is neither file nor directory")),
        };
        plain_name(&name, name.as_bytes(), directory, &BundleLimits::default())?;
        tree.add(&name, directory)?;
        let mut header = tar::Header::new_ustar();
        header.set_path(&name).map_err(|_| unpackable("its name is too long"))?;
        header.set_mode(if directory || look.mode & 0o100 != 0 { 0o755 } else { 0o644 });
        header.set_mtime(0);
        if directory {
            header.set_entry_type(EntryType::Directory);
            header.set_size(0);
            header.set_cksum();
            builder.append(&header, io::empty()).map_err(BundleArchiveError::Archive)?;
            pack_below(&path, &name, builder, tree)?;
        } else {
            header.set_entry_type(EntryType::Regular);
            header.set_size(look.size);
            header.set_cksum();
            // At most the size in the header, in case the file grows meanwhile.
            let content = fs::open(&path)?.take(look.size);
            builder.append(&header, content).map_err(|error| BundleArchiveError::File(FsError::io("pack", &path, error)))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
