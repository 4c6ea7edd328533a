//! Errors of template files, with their places.

use std::fmt;

/// The most characters of a line that an error shows.
const MAX_LINE: usize = 120;

/// A template file that can't be rendered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileError {
    /// The file, as a path below the directory.
    pub file: String,
    /// The line and the column in characters, both from 1, when they are known.
    pub place: Option<(usize, usize)>,
    /// The line itself.
    pub line: String,
    /// The reason.
    pub message: String,
}

impl std::error::Error for FileError {}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, place, line, message } = self;
        match place {
            Some((number, column)) => write!(f, "{file}:{number}:{column}: {message}, in \"{line}\""),
            None if file.is_empty() => f.write_str(message),
            None => write!(f, "{file}: {message}"),
        }
    }
}

impl FileError {
    /// An error without a place.
    pub(super) fn without_place(file: &str, message: String) -> Self {
        Self { file: file.to_owned(), place: None, line: String::new(), message }
    }

    /// An error at a byte of the file.
    pub(super) fn at(file: &str, source: &str, offset: usize, message: impl Into<String>) -> Self {
        let before = source.get(..offset).unwrap_or(source);
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        let line = source.get(start..).unwrap_or_default().lines().next().unwrap_or_default().trim();
        let column = 1 + before.get(start..).unwrap_or_default().chars().count();
        Self {
            file: file.to_owned(),
            place: Some((1 + before.matches('\n').count(), column)),
            line: line.chars().take(MAX_LINE).collect(),
            message: message.into(),
        }
    }
}
