//! A line of `known_nodes`: the pinned public key of a node.

use jiff::Timestamp;

use crate::model::NodeId;

use crate::trust::keys::key::{KeyError, PublicKey};

/// A line that is not `fleet node ed25519:... first-seen`.
#[derive(Debug, thiserror::Error)]
#[error("not `fleet node ed25519:... first-seen`")]
pub struct PinnedKeyLineError(#[source] pub Option<KeyError>);

/// A line with an unparsed key: decoding the point of the curve takes some microseconds.
#[derive(Debug, Clone, Copy)]
pub struct PinnedKeyLine<'a> {
    /// The fleet.
    pub fleet: &'a str,
    /// The node, as written.
    pub node: &'a str,
    key: &'a str,
    since: &'a str,
}

impl<'a> PinnedKeyLine<'a> {
    /// Splits a line into its parts; none for an empty line or a comment.
    ///
    /// # Errors
    /// When the line has not four parts.
    pub fn parse(line: &'a str) -> Result<Option<Self>, PinnedKeyLineError> {
        if line.trim().is_empty() || line.starts_with('#') {
            return Ok(None);
        }
        let parts: Result<[&str; 4], _> = line.split_whitespace().collect::<Vec<_>>().try_into();
        let [fleet, node, key, since] = parts.map_err(|_| PinnedKeyLineError(None))?;
        Ok(Some(Self { fleet, node, key, since }))
    }

    /// Parses the node, its key, and the time when the key was first seen.
    ///
    /// # Errors
    /// When a part can't be read.
    pub fn read(&self) -> Result<(NodeId, PublicKey, Timestamp), PinnedKeyLineError> {
        let key = self.key.parse::<PublicKey>().map_err(|source| PinnedKeyLineError(Some(source)))?;
        let node = self.node.parse::<NodeId>().map_err(|_| PinnedKeyLineError(None))?;
        let since = self.since.parse::<Timestamp>().map_err(|_| PinnedKeyLineError(None))?;
        Ok((node, key, since))
    }
}
