//! Manifests: their sources and their content.
//!
//! `fetch.rs` downloads a manifest, `open.rs` recognises its form, `bundle.rs` packs and unpacks its files, `parse.rs` reads
//! it with positions. `engine` decides what the resources mean.

pub mod bundle;
pub mod fetch;
pub mod open;
mod ordering;
pub mod parse;

use std::path::{Path, PathBuf};

use crate::host::{FsError, fs};
use crate::yaml;

pub use ordering::Ordering;
pub use parse::{Declaration, Manifest, Resources};

/// The largest manifest, in bytes.
pub const MAX_MANIFEST: u64 = yaml::MAX_BYTES as u64;

/// The text of a manifest, and its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestText {
    /// The text.
    pub text: String,
    /// The name in errors and events: a path, or a URL without credentials.
    pub name: String,
    /// The base directory of relative paths.
    pub directory: Option<PathBuf>,
    /// SHA-256 of the fetched file, in hex: of the bundle, if there is one.
    pub digest: Option<String>,
}

impl ManifestText {
    /// Reads a manifest from a file; its directory is that of the file.
    ///
    /// # Errors
    /// When the file can't be read, is larger than [`MAX_MANIFEST`] or is not text.
    pub fn file(path: &Path) -> Result<Self, FsError> {
        Self::from_bytes(path, fs::read(path, MAX_MANIFEST)?)
    }

    /// Returns the manifest of a file with these bytes.
    ///
    /// # Errors
    /// When the bytes are more than [`MAX_MANIFEST`] or not text.
    pub fn from_bytes(path: &Path, bytes: Vec<u8>) -> Result<Self, FsError> {
        if bytes.len() as u64 > MAX_MANIFEST {
            return Err(FsError::TooLarge { path: path.to_owned(), limit: MAX_MANIFEST });
        }
        let text = String::from_utf8(bytes).map_err(|_| FsError::NotText(path.to_owned()))?;
        let directory = match path.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let digest = Some(fs::sha256(text.as_bytes()));
        Ok(Self { text, name: path.display().to_string(), directory: Some(directory), digest })
    }
}
