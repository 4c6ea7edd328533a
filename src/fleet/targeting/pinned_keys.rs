//! The file `known_nodes`: the pinned keys of nodes, as `known_hosts` of OpenSSH.
//!
//! Each line is a node: `fleet node ed25519:... first-seen`. Lines that begin with `#` are comments. Of two lines for one
//! node the first counts: the first key stays pinned.

use std::collections::BTreeMap;
use std::fmt::Write;

use jiff::Timestamp;

use crate::model::NodeId;
use crate::trust::keys::pinned_key_line::{PinnedKeyLine, PinnedKeyLineError};
use crate::trust::{KeyError, PublicKey};

use super::parallel::map_parallel_blocking;

const HEAD: &str = "# Public keys of nodes, as they were first seen: ensign fleet node trust | forget\n";

/// A line that can't be read.
#[derive(Debug, thiserror::Error)]
#[error("line {line} is not `fleet node ed25519:... first-seen`")]
pub struct PinnedKeysError {
    /// The number of the line, from 1.
    pub line: usize,
    /// The error of the key; `None` for another error of the line.
    #[source]
    pub source: Option<KeyError>,
}

/// The pinned key of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PinnedKey {
    /// The key.
    pub key: PublicKey,
    /// Time at which the key was pinned.
    pub since: Timestamp,
}

/// The pinned keys of the nodes of several fleets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PinnedKeys {
    /// The keys by fleet and node.
    nodes: BTreeMap<String, BTreeMap<NodeId, PinnedKey>>,
    comments: String,
}

impl PinnedKeys {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// At the first line that can't be read. The key of a skipped line would be pinned again from any new state.
    pub fn parse(text: &str) -> Result<Self, PinnedKeysError> {
        let mut known = Self::default();
        let lines: Vec<(usize, &str)> = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()).collect();
        // To decode a key takes some microseconds, as it is a point of a curve: threads pay off for a large fleet.
        let entries =
            map_parallel_blocking(
                &lines,
                |(number, line)| if line.starts_with('#') { Ok(None) } else { read_line(*number, line).map(Some) },
            );
        for ((_, written), entry) in lines.into_iter().zip(entries) {
            match entry? {
                Some((fleet, node, new)) => {
                    known.nodes.entry(fleet.to_owned()).or_default().entry(node).or_insert(new);
                }
                None => {
                    // Writing to a String does not fail.
                    let _written = writeln!(known.comments, "{written}").is_ok();
                }
            }
        }
        Ok(known)
    }

    /// Returns the text of the file.
    pub fn text(&self) -> String {
        let mut text = if self.comments.is_empty() { HEAD.to_owned() } else { self.comments.clone() };
        for (fleet, nodes) in &self.nodes {
            for (node, known) in nodes {
                text.push_str(&format_line(fleet, node, known));
            }
        }
        text
    }

    /// Returns the pinned key of a node.
    pub fn get(&self, fleet: &str, node: &NodeId) -> Option<&PinnedKey> {
        self.nodes.get(fleet)?.get(node)
    }

    /// Returns the nodes of a fleet with their keys.
    pub fn nodes<'a>(&'a self, fleet: &str) -> impl Iterator<Item = (&'a NodeId, &'a PinnedKey)> {
        self.nodes.get(fleet).into_iter().flatten()
    }

    /// Returns the number of nodes of a fleet.
    pub fn count(&self, fleet: &str) -> usize {
        self.nodes.get(fleet).map_or(0, BTreeMap::len)
    }

    /// Pins the key of a node. Returns the previous key.
    pub fn pin(&mut self, fleet: &str, node: &NodeId, known: PinnedKey) -> Option<PinnedKey> {
        self.nodes.entry(fleet.to_owned()).or_default().insert(node.clone(), known)
    }

    /// Removes the key of a node. Returns the removed key.
    pub fn forget(&mut self, fleet: &str, node: &NodeId) -> Option<PinnedKey> {
        let forgotten = self.nodes.get_mut(fleet)?.remove(node);
        self.nodes.retain(|_, nodes| !nodes.is_empty());
        forgotten
    }
}

/// Reads a line that is no comment: fleet, node and key.
fn read_line(number: usize, written: &str) -> Result<(&str, NodeId, PinnedKey), PinnedKeysError> {
    let wrong = |PinnedKeyLineError(source)| PinnedKeysError { line: number, source };
    let line = PinnedKeyLine::parse(written).map_err(wrong)?.ok_or(PinnedKeysError { line: number, source: None })?;
    let (node, key, since) = line.read().map_err(wrong)?;
    Ok((line.fleet, node, PinnedKey { key, since }))
}

/// Returns the line of one node, with its line end.
pub fn format_line(fleet: &str, node: &NodeId, known: &PinnedKey) -> String {
    // Milliseconds, as a key may be pinned within the second after the removal of its node.
    format!("{fleet} {node} {} {:.3}\n", known.key, known.since)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::SigningKey;

    fn known(seed: u8) -> PinnedKey {
        PinnedKey { key: SigningKey::from_seed(&[seed; 32]).public(), since: "2026-01-01T00:00:00Z".parse().unwrap() }
    }

    #[test]
    fn written_keys_are_read_back() {
        let (web1, db1): (NodeId, NodeId) = ("web1".parse().unwrap(), "db1".parse().unwrap());
        let mut all = PinnedKeys::parse("# mine\n\n").unwrap();
        assert_eq!(all.pin("prod", &web1, known(1)), None);
        all.pin("prod", &db1, known(2));
        all.pin("test", &web1, known(3));
        assert!(all.text().starts_with("# mine\nprod db1 ed25519:"), "{}", all.text());
        let mut again = PinnedKeys::parse(&all.text()).unwrap();
        assert_eq!(again, all);
        // A key that was pinned later does not count.
        let later = format!("{}{}", all.text(), format_line("prod", &web1, &known(9)));
        assert_eq!(PinnedKeys::parse(&later).unwrap().get("prod", &web1), Some(&known(1)));
        assert_eq!(again.pin("prod", &web1, known(4)), Some(known(1)));
        assert_eq!(again.forget("prod", &db1), Some(known(2)));
        assert_eq!(again.nodes("prod").map(|(node, _)| node.as_str()).collect::<Vec<_>>(), ["web1"]);
    }

    #[test]
    fn a_malformed_line_is_named() {
        let good = format_line("prod", &"web1".parse().unwrap(), &known(1));
        for bad in ["x", "prod web1 ed25519:AAAA 2026-01-01T00:00:00Z", "prod a.b k t", &good.replace("Z\n", "\n")] {
            assert_eq!(PinnedKeys::parse(&format!("{good}{bad}\n")).unwrap_err().line, 2, "{bad}");
        }
    }
}
