//! Manifests: where they come from and what is written in them.
//!
//! `fetch.rs` brings one here, `open.rs` tells what it is, `bundle.rs` packs and unpacks it with its files, `parse.rs` reads it
//! with positions.
//! Deciding what its resources mean is `engine`'s business.

pub mod bundle;
pub mod fetch;
pub mod open;
pub mod parse;

use std::path::{Path, PathBuf};

use crate::host::{FsError, fs};
use crate::yaml;

pub use parse::{Declaration, Manifest, Resources};

/// The largest manifest, in bytes.
pub const MAX_MANIFEST: u64 = yaml::MAX_BYTES as u64;

/// The text of a manifest, and where it is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The text.
    pub text: String,
    /// The name in errors and events: a path, or a URL without credentials.
    pub name: String,
    /// The directory that relative sources are in.
    pub directory: Option<PathBuf>,
    /// SHA-256 of what was fetched, in hex: of the bundle, where it came in one.
    pub digest: Option<String>,
}

impl Source {
    /// A manifest in a file; its directory is that of the file.
    ///
    /// # Errors
    /// When the file can't be read, is larger than [`MAX_MANIFEST`] or is no text.
    pub fn file(path: &Path) -> Result<Self, FsError> {
        Self::of(path, fs::read(path, MAX_MANIFEST)?)
    }

    /// The manifest of a file that has these bytes.
    ///
    /// # Errors
    /// When they are more than [`MAX_MANIFEST`] or no text.
    pub fn of(path: &Path, bytes: Vec<u8>) -> Result<Self, FsError> {
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
