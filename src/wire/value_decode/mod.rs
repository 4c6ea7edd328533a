//! Decodes JSON values into types, with the path of an error.
//!
//! The input is a value from [`json`](super::json) or from a manifest. The result is that of `serde_json::from_value`.
//! The path of an error has the keys of a map whose key type reads a text. A number as a key, or a newtype without
//! `#[serde(transparent)]`, is `?` in the path.

use serde::Deserialize;
use serde_json::{Map, Value};

/// An error in a value: the path, such as `action.ensure.type` or `files[2]`, and the reason. A `.` is the top.
pub type Mismatch = serde_path_to_error::Error<serde_json::Error>;

/// Decodes a value.
///
/// # Errors
/// When the value does not fit `T`.
pub fn read<'de, T: Deserialize<'de>>(value: &'de Value) -> Result<T, Mismatch> {
    // Only an error needs the path, and tracking the path takes longer than decoding.
    T::deserialize(value).or_else(|_| serde_path_to_error::deserialize(value))
}

/// Decodes a map.
///
/// # Errors
/// When the map does not fit `T`.
pub fn read_map<'de, T: Deserialize<'de>>(map: &'de Map<String, Value>) -> Result<T, Mismatch> {
    T::deserialize(map).or_else(|_| serde_path_to_error::deserialize(map))
}

#[cfg(test)]
mod tests;
