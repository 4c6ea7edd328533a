//! A line of `known_nodes`: the pinned public key of a node.

use jiff::Timestamp;

use crate::model::NodeId;

use crate::trust::keys::key::{KeyError, PublicKey};

/// A line that is not `fleet node ed25519:... first-seen`.
#[derive(Debug, thiserror::Error)]
#[error("not `fleet node ed25519:... first-seen`")]
pub struct PinnedKeyLineError(#[source] pub Option<KeyError>);

/// A line, its key not read yet: a key is a point of a curve, and takes some microseconds to find.
#[derive(Debug, Clone, Copy)]
pub struct PinnedKeyLine<'a> {
    /// The fleet.
    pub fleet: &'a str,
    /// The node, as it is written.
    pub node: &'a str,
    key: &'a str,
    since: &'a str,
}

impl<'a> PinnedKeyLine<'a> {
    /// Takes a line apart; nothing for one that is empty or a comment.
    ///
    /// # Errors
    /// When it has not four parts.
    pub fn split(line: &'a str) -> Result<Option<Self>, PinnedKeyLineError> {
        if line.trim().is_empty() || line.starts_with('#') {
            return Ok(None);
        }
        let parts: Result<[&str; 4], _> = line.split_whitespace().collect::<Vec<_>>().try_into();
        let [fleet, node, key, since] = parts.map_err(|_| PinnedKeyLineError(None))?;
        Ok(Some(Self { fleet, node, key, since }))
    }

    /// The node, its key, and when that was first seen.
    ///
    /// # Errors
    /// When one of them can't be read.
    pub fn read(&self) -> Result<(NodeId, PublicKey, Timestamp), PinnedKeyLineError> {
        let key = self.key.parse::<PublicKey>().map_err(|source| PinnedKeyLineError(Some(source)))?;
        let node = self.node.parse::<NodeId>().map_err(|_| PinnedKeyLineError(None))?;
        let since = self.since.parse::<Timestamp>().map_err(|_| PinnedKeyLineError(None))?;
        Ok((node, key, since))
    }
}
