//! Reading of the kernel's files, and values that several families need.

use std::io;
use std::path::Path;

use crate::host::fs::{self, FsError};

/// The largest part of a kernel file that is read, in bytes.
const MAX_BYTES: u64 = 8 << 20;

/// The reason for which a family of facts is missing.
#[derive(Debug, thiserror::Error)]
pub enum FactError {
    /// A file could not be read.
    #[error(transparent)]
    File(#[from] FsError),
    /// A system call failed.
    #[error("the kernel did not answer")]
    Kernel(#[from] io::Error),
}

/// Reads a file of the kernel or the system.
pub(super) fn text(path: &str) -> Result<String, FactError> {
    Ok(fs::read_text(Path::new(path), MAX_BYTES)?)
}

/// Reads a file that may be missing, without the white space around its text.
pub(super) fn text_or_empty(path: &str) -> String {
    text(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// Returns the value of the first `name: value` line with this name, without the blanks around it.
pub(super) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.map(|(key, value)| (key.trim(), value.trim())).find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// Returns the part of a whole in percent; 0 when the whole is 0.
#[expect(clippy::cast_precision_loss, reason = "a percentage needs no more digits")]
pub(super) fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 }
}
