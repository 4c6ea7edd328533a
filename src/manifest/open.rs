//! Opening of a fetched file: a plain manifest, or a bundle, which is unpacked. The content decides about the form, not the
//! name.
//!
//! The input is the bytes, which [`super::fetch`] has measured, and an empty directory. The agent and the local commands open
//! fetched files with this module.

use std::io::{self, BufReader, Read, Seek};
use std::path::Path;

use crate::host::fs::{self, FsError};
use crate::host::{Checkpoint, checkpoint};

use super::bundle::{self, BundleArchiveError, BundleLimits};
use super::fetch::ContentPin;
use super::{MAX_MANIFEST, ManifestText};

/// A fetched file that can't be opened. `name` is a path or a URL without credentials.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file is neither a bundle nor a manifest.
    #[error("{name}: {why}")]
    NoManifest {
        /// The name of the file.
        name: String,
        /// The reason.
        why: String,
    },
    /// The bundle can't be unpacked.
    #[error("{name}")]
    Bundle {
        /// The name of the file.
        name: String,
        /// The cause.
        #[source]
        source: BundleArchiveError,
    },
    /// The manifest is not text, or too long.
    #[error("{name}")]
    Text {
        /// The name of the file.
        name: String,
        /// The cause.
        #[source]
        source: FsError,
    },
    /// The fetched file can't be read again.
    #[error("could not read the content of {name}")]
    Read {
        /// The name of the file.
        name: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file of this host can't be read or written: the fetched file is not at fault.
    #[error(transparent)]
    File(#[from] FsError),
}

/// Opens a fetched file, which matches `pin`; unpacks a bundle below `directory`. A plain manifest has no directory of its
/// own.
///
/// # Errors
/// See [`OpenError`]; the caller must remove the files unpacked so far.
pub fn open(mut file: impl Read + Seek, pin: &ContentPin, directory: &Path, name: String) -> Result<ManifestText, OpenError> {
    let digest = Some(pin.sha256.clone());
    let mut head = Vec::new();
    let begun = file.by_ref().take(2).read_to_end(&mut head).and_then(|_| file.rewind());
    if let Err(source) = begun {
        return Err(OpenError::Read { name, source });
    }
    if !bundle::is_bundle(&head) {
        return Ok(ManifestText { text: text(file, &name)?, name, directory: None, digest });
    }
    let into = directory.join("bundle");
    fs::create_directory(&into, 0o755)?;
    let manifest = match bundle::unpack(BufReader::new(file), pin.size, &into, &BundleLimits::default()) {
        Ok(manifest) => manifest,
        Err(BundleArchiveError::File(error)) => return Err(error.into()),
        Err(source) => return Err(OpenError::Bundle { name, source }),
    };
    checkpoint(Checkpoint::RunUnpacked);
    match fs::read_text(&manifest, MAX_MANIFEST) {
        Ok(text) => Ok(ManifestText { text, name, directory: manifest.parent().map(Path::to_owned), digest }),
        Err(source) => Err(OpenError::Text { name, source }),
    }
}

/// Returns the text of a plain manifest.
fn text(file: impl Read, name: &str) -> Result<String, OpenError> {
    let none = |why: String| OpenError::NoManifest { name: name.to_owned(), why };
    let mut bytes = Vec::new();
    let read = file.take(MAX_MANIFEST + 1).read_to_end(&mut bytes);
    read.map_err(|source| OpenError::Read { name: name.to_owned(), source })?;
    if bytes.len() as u64 > MAX_MANIFEST {
        return Err(none(format!("the manifest has more than {MAX_MANIFEST} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| none("it is neither a bundle nor text".to_owned()))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::diag::error_chain;

    fn opened(content: &[u8]) -> (tempfile::TempDir, Result<ManifestText, String>) {
        let directory = tempfile::tempdir().unwrap();
        let pin = ContentPin { sha256: fs::sha256(content), size: content.len() as u64 };
        let source = open(Cursor::new(content), &pin, directory.path(), "https://h/m".to_owned());
        (directory, source.map_err(|error| error_chain(&error)))
    }

    #[test]
    fn the_content_decides_about_the_form() {
        let (_kept, source) = opened(b"ccm: {}\n");
        let source = source.unwrap();
        assert_eq!((&*source.text, &*source.name, source.directory), ("ccm: {}\n", "https://h/m", None));
        let site = tempfile::tempdir().unwrap();
        std::fs::write(site.path().join("manifest.yaml"), "packed").unwrap();
        std::fs::write(site.path().join("note"), "x").unwrap();
        let packed = bundle::pack(site.path()).unwrap();
        let (kept, source) = opened(&packed);
        let source = source.unwrap();
        assert_eq!((&*source.text, source.digest), ("packed", Some(fs::sha256(&packed))));
        let directory = source.directory.unwrap();
        assert!(directory.starts_with(kept.path()) && directory.join("note").is_file());
    }

    #[test]
    fn neither_bundle_nor_manifest_is_an_error() {
        let large = vec![b'#'; usize::try_from(MAX_MANIFEST).unwrap() + 1];
        for (content, said) in [
            (b"\xff\xfe" as &[u8], "https://h/m: it is neither a bundle nor text"),
            (&large, "https://h/m: the manifest has more than"),
            (b"\x1f\x8bxxxx", "https://h/m: the bundle is not a whole gzipped tar archive"),
        ] {
            let (_kept, source) = opened(content);
            let why = source.unwrap_err();
            assert!(why.starts_with(said), "{why}");
        }
    }
}
