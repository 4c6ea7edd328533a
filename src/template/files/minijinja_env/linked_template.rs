//! A template in minijinja's language, with the origins of its code.

use std::sync::Arc;

/// The start of an action in linked code, with its origin.
#[derive(Debug, Clone)]
pub(in crate::template::files) struct CodeOrigin {
    /// In the code, in bytes.
    pub(in crate::template::files) code: usize,
    /// In the file, in bytes.
    pub(in crate::template::files) at: usize,
    pub(in crate::template::files) file: Arc<str>,
}

/// A template in minijinja's language, with all inherited blocks.
#[derive(Default)]
pub(in crate::template::files) struct LinkedTemplate {
    pub(in crate::template::files) code: String,
    pub(in crate::template::files) places: Vec<CodeOrigin>,
}

impl LinkedTemplate {
    /// Returns the origin of a byte of the code.
    pub(in crate::template::files) fn origin(&self, code: usize) -> Option<&CodeOrigin> {
        let after = self.places.partition_point(|place| place.code <= code);
        self.places.get(after.checked_sub(1)?)
    }
}
