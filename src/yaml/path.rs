//! Paths into a document.

/// A step of a path into a document.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum KeyOrIndex {
    /// The value of this key.
    Key(String),
    /// The element at this index, from 0.
    Index(usize),
}

impl From<&str> for KeyOrIndex {
    fn from(key: &str) -> Self {
        Self::Key(key.to_owned())
    }
}

impl From<usize> for KeyOrIndex {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}
