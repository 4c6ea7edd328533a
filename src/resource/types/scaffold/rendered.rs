//! Rendered templates, and their differences from the target.

use std::collections::BTreeMap;

use crate::host::fs;

use super::properties::ScaffoldEngine;

/// The rendered templates.
#[derive(Debug, PartialEq, Eq)]
pub struct Rendered {
    pub(super) engine: ScaffoldEngine,
    /// Every directory of the source, by its path below it.
    pub(super) directories: Vec<String>,
    /// Every file, by its path below the target.
    pub(super) files: BTreeMap<String, Content>,
}

/// A rendered file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) bytes: Vec<u8>,
    /// SHA-256 of the bytes, in hex.
    pub(super) sha256: String,
    /// Permission bits.
    pub(super) mode: u32,
}

impl Content {
    pub(super) fn from_bytes(bytes: Vec<u8>, mode: u32) -> Self {
        Self { sha256: fs::sha256(&bytes), bytes, mode }
    }
}

/// The differences between target and rendered templates. Paths are relative to the target and sorted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Differences {
    pub(super) added: Vec<String>,
    pub(super) updated: Vec<String>,
    pub(super) stable: Vec<String>,
    /// Files in the target that no template makes.
    pub(super) extra: Vec<String>,
}
