//! Where data from outside comes from: a file. What a URL names is read here too, once it can be fetched from every
//! layer: add the scheme to [`Source`], and what it reads to [`read`].

use std::path::PathBuf;
use std::str::FromStr;

use crate::diag::{Diagnostic, chain};
use crate::host::fs;
use crate::yaml::{Document, MAX_BYTES};

/// Where a document of data is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A YAML or JSON file.
    File(PathBuf),
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once("://") {
            None if text.is_empty() => Err("source is required".to_owned()),
            None => Ok(Self::File(PathBuf::from(text))),
            Some((scheme, _)) => Err(format!("unsupported data source \"{scheme}://\": data comes from a file")),
        }
    }
}

/// Reads the document of a source.
///
/// # Errors
/// When it can't be read, or is no document.
pub fn read(source: &Source) -> Result<Document, Diagnostic> {
    match source {
        Source::File(path) => {
            let text = fs::read_text(path, MAX_BYTES as u64).map_err(|error| Diagnostic::new(chain(&error)))?;
            Document::parse(&text, &path.display().to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_told_by_their_form() {
        assert_eq!("a/b.yaml".parse(), Ok(Source::File("a/b.yaml".into())));
        assert_eq!("".parse::<Source>(), Err("source is required".to_owned()));
        assert!("ftp://x/y".parse::<Source>().unwrap_err().contains("\"ftp://\""));
    }

    #[test]
    fn files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d.yaml");
        let source = Source::File(path.clone());
        assert!(read(&source).unwrap_err().message.contains("could not read"));
        std::fs::write(&path, "data: {a: 1}").unwrap();
        assert_eq!(read(&source).unwrap().value()["data"]["a"], 1);
    }
}
