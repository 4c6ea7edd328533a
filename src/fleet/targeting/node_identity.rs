//! The identity of nodes: verifies the messages of nodes with their pinned keys.
//!
//! A key is pinned from the first signed state of the node, or by the operator. From then on, a message without a receipt by
//! this key is shown as unverified, and does not count.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use jiff::Timestamp;

use crate::diag::error_chain;
use crate::host::fs::{self, FsError, WriteSpec};
use crate::model::{NodeId, lock};
use crate::transport::Message;
use crate::trust::{PublicKey, ReceiptError, TrustedBundle, VerifiedReceipt, verify_receipt};
use crate::wire::receipt::HEADER;
use crate::wire::{NodeState, Subjects, json};

use super::admitted_keys;
use super::pinned_keys::{self, PinnedKey, PinnedKeys, PinnedKeysError};
use super::removals::{Removal, RemovalVerifier};

/// Largest `known_nodes` file in bytes: more than any list of nodes needs.
const MAX_FILE: u64 = 64 << 20;
/// Most new nodes whose keys one command pins without the operator. With more at once, no key is pinned.
///
/// Any client that may publish can invent nodes. The operator then names the real nodes (`ensign fleet node trust`).
pub const MAX_NEW_NODES: usize = 256;
/// Most nodes of a fleet with a pinned key; their list takes some ten megabytes.
const MAX_PINNED_KEYS: usize = 100_000;

/// Errors of the `known_nodes` file.
#[derive(Debug, thiserror::Error)]
pub enum NodeKeysError {
    /// The file can't be read or written.
    #[error("cannot use the list of known nodes")]
    File(#[from] FsError),
    /// A line of the file is wrong.
    #[error("cannot read the list of known nodes, {}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line and its error.
        #[source]
        source: PinnedKeysError,
    },
}

/// Errors of verifying a message of a node.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The key of the node is not pinned.
    #[error("the key of the node is not pinned")]
    Unknown,
    /// The node is new, among too many new nodes.
    #[error("the key of the new node is not pinned, as too many nodes are new: see `ensign fleet node trust`")]
    New,
    /// The message is signed with another key than the pinned key.
    #[error(
        "its key has changed: {known} is pinned, {said} signed. If the host was rebuilt, run `ensign fleet node forget {node}`; \
    otherwise another host uses its name"
    )]
    Changed {
        /// The node.
        node: NodeId,
        /// The fingerprint of the pinned key.
        known: String,
        /// The fingerprint of the key that signed.
        said: String,
    },
    /// The node was removed, and its key was not pinned since.
    #[error("it was removed on {:.0} by {}; if it is back, run `ensign fleet node trust {} KEY`", .0.at, .0.by.join(", "), .0.node)]
    Removed(Removal),
    /// The receipt of the message is missing or wrong.
    #[error("{0}: forged?")]
    Receipt(#[from] ReceiptError),
    /// The content of the message does not fit its subject.
    #[error("cannot read the message: {0}")]
    Unreadable(String),
}

/// A state that failed verification.
#[derive(Debug)]
pub struct UnverifiedState {
    /// The node in its subject.
    pub node: NodeId,
    /// Its content, when it can be read.
    pub state: Option<NodeState>,
    /// The verification error.
    pub error: IdentityError,
    /// True when a key of the node is pinned: then the node exists.
    pub is_known: bool,
}

/// The pinned keys of the nodes of a fleet. Shared by reference.
#[derive(Debug)]
pub struct NodeKeys {
    subjects: Subjects,
    fleet: String,
    pinned: Mutex<PinnedKeys>,
    /// Keys that were pinned and are not yet in the file.
    unsaved: Mutex<Vec<(NodeId, PinnedKey)>>,
    file: Option<PathBuf>,
    /// Nodes that the operator named: their keys are pinned, for any number of other new nodes.
    named: Mutex<HashSet<NodeId>>,
    /// Number of unnamed nodes whose keys may still be pinned.
    places_left: AtomicUsize,
    /// True when too many nodes are new at once.
    too_many_new: AtomicBool,
    /// Verifies removals and admissions. Without the trust bundle of the operator, none counts.
    removal_verifier: Option<RemovalVerifier>,
    /// The removed nodes.
    removed: Mutex<BTreeMap<NodeId, Removal>>,
}

/// Reads the pinned keys of a file; none when the file is missing.
///
/// # Errors
/// When the file can't be read.
pub fn read_pinned_keys(path: &Path) -> Result<PinnedKeys, NodeKeysError> {
    match fs::read_trusted_text(path, MAX_FILE) {
        Ok(text) => PinnedKeys::parse(&text).map_err(|source| NodeKeysError::Line { path: path.to_owned(), source }),
        Err(error) if error.is_not_found() => Ok(PinnedKeys::default()),
        Err(error) => Err(error.into()),
    }
}

/// Writes all pinned keys to the file.
///
/// # Errors
/// When the file can't be written.
pub fn write_pinned_keys(path: &Path, known: &PinnedKeys) -> Result<(), NodeKeysError> {
    make_parent(path)?;
    Ok(fs::write_atomic(path, &mut known.text().as_bytes(), WriteSpec { uid: None, gid: None, mode: 0o644 })?)
}

/// Appends lines of pinned keys to the file.
///
/// # Errors
/// When the file can't be written.
pub fn append_pinned_keys(path: &Path, lines: &str) -> Result<(), NodeKeysError> {
    make_parent(path)?;
    Ok(fs::append_lines(path, lines, 0o644)?)
}

fn make_parent(path: &Path) -> Result<(), FsError> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() && !fs::is_directory(parent) => fs::create_directory(parent, 0o700),
        _ => Ok(()),
    }
}

impl NodeKeys {
    /// Starts with the pinned keys of a fleet. New keys are saved to `file`; without a file they are lost at the end.
    pub fn new(fleet: impl Into<String>, known: PinnedKeys, file: Option<PathBuf>) -> Self {
        let fleet = fleet.into();
        let subjects = Subjects::new(&fleet);
        Self {
            subjects,
            fleet,
            pinned: Mutex::new(known),
            unsaved: Mutex::default(),
            file,
            named: Mutex::default(),
            places_left: AtomicUsize::new(MAX_NEW_NODES),
            too_many_new: AtomicBool::new(false),
            removal_verifier: None,
            removed: Mutex::default(),
        }
    }

    /// Sets the trust bundle of the operator, by whose keys and rules removals of nodes count. A bundle of another
    /// fleet has no effect.
    #[must_use]
    pub fn with_trust(self, trust: Option<TrustedBundle>) -> Self {
        let removal_verifier = trust.and_then(|trust| RemovalVerifier::new(&self.subjects, trust).ok());
        Self { removal_verifier, ..self }
    }

    /// Forgets the keys of removed nodes. A key that was pinned after the removal stays.
    pub fn apply_removals(&self, removals: &[Message]) {
        let Some(verifier) = &self.removal_verifier else { return };
        for removal in verifier.verified(removals) {
            let mut pinned = lock(&self.pinned);
            if pinned.get(&self.fleet, &removal.node).is_some_and(|key| key.since > removal.at) {
                continue;
            }
            pinned.forget(&self.fleet, &removal.node);
            lock(&self.removed).insert(removal.node.clone(), removal);
        }
    }

    /// True when the operator has a trust bundle of the fleet.
    pub fn has_trust(&self) -> bool {
        self.removal_verifier.is_some()
    }

    /// Returns the nodes with a state among these messages that have no pinned key.
    pub fn nodes_without_key(&self, states: &[Message]) -> Vec<NodeId> {
        let known = lock(&self.pinned);
        let node = |message: &Message| message.subject.rsplit('.').next().and_then(|node| node.parse::<NodeId>().ok());
        states.iter().filter_map(node).filter(|node| known.get(&self.fleet, node).is_none()).collect()
    }

    /// Pins the key of an admitted node that has none. The key of a removed node counts when its admission came later.
    pub fn pin_admitted(&self, message: &Message) {
        let Some(verifier) = &self.removal_verifier else { return };
        let (node, admitted) = match admitted_keys::verify_admitted_key(message, &self.subjects, verifier.trust()) {
            Ok(admitted) => admitted,
            Err(error) => {
                tracing::warn!(subject = %message.subject, "an admission does not count: {}", error_chain(&error));
                return;
            }
        };
        let mut removed = lock(&self.removed);
        let was_removed = match removed.get(&node) {
            Some(removal) if admitted.since <= removal.at => return,
            Some(_) => removed.remove(&node).is_some(),
            None => false,
        };
        let mut known = lock(&self.pinned);
        if known.get(&self.fleet, &node).is_none() && known.count(&self.fleet) < MAX_PINNED_KEYS {
            known.pin(&self.fleet, &node, admitted);
            // The file may have the key from before the removal. Of two lines the first counts.
            if !was_removed {
                lock(&self.unsaved).push((node, admitted));
            }
        }
    }

    /// Returns the removed nodes.
    pub fn removed(&self) -> Vec<Removal> {
        lock(&self.removed).values().cloned().collect()
    }

    /// Marks nodes that the operator named: their keys are pinned from their states.
    pub fn expect(&self, nodes: &[NodeId]) {
        lock(&self.named).extend(nodes.iter().cloned());
    }

    /// Pins the key of every node with a signed state from now on, as the operator requested.
    pub fn expect_all(&self) {
        self.places_left.store(MAX_PINNED_KEYS, Ordering::Relaxed);
    }

    /// Returns the pinned key of a node.
    pub fn key(&self, node: &NodeId) -> Option<PublicKey> {
        lock(&self.pinned).get(&self.fleet, node).map(|known| known.key)
    }

    /// Returns the nodes with a pinned key.
    pub fn nodes(&self) -> Vec<NodeId> {
        lock(&self.pinned).nodes(&self.fleet).map(|(node, _)| node.clone()).collect()
    }

    /// Returns the number of nodes with a pinned key.
    pub fn count(&self) -> usize {
        lock(&self.pinned).count(&self.fleet)
    }

    /// Records whether too many of these states come from new nodes, before any of them is verified.
    pub fn count_new_nodes(&self, states: &[Message]) {
        let new = self.nodes_without_key(states).len();
        self.too_many_new.store(new > self.places_left.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Takes a place for the key of a new node; false when none is left.
    fn take_place(&self, node: &NodeId) -> bool {
        if self.count() >= MAX_PINNED_KEYS {
            return false;
        }
        if lock(&self.named).contains(node) {
            return true;
        }
        let take = |room: usize| room.checked_sub(1);
        !self.too_many_new.load(Ordering::Relaxed)
            && self.places_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Verifies that `node` signed a message.
    ///
    /// # Errors
    /// When the key of the node is not pinned, or the receipt is missing or wrong.
    pub fn verify(&self, node: &NodeId, message: &Message) -> Result<VerifiedReceipt, IdentityError> {
        let unknown = || lock(&self.removed).get(node).cloned().map_or(IdentityError::Unknown, IdentityError::Removed);
        let known = lock(&self.pinned).get(&self.fleet, node).copied().ok_or_else(unknown)?;
        Ok(verify_with_key(node, &known.key, message)?)
    }

    /// Verifies a state. Pins the key of a new node from its state.
    ///
    /// # Errors
    /// The unverified state with its error; `None` when the subject is no subject of a state.
    pub fn verify_state(&self, message: &Message, now: Timestamp) -> Option<Result<NodeState, UnverifiedState>> {
        let node: NodeId = message.subject.rsplit('.').next()?.parse().ok()?;
        if self.subjects.state(&node).as_str() != message.subject {
            return None;
        }
        let removal = lock(&self.removed).get(&node).cloned();
        if removal.as_ref().is_some_and(|removal| message.seq < removal.seq) {
            return None;
        }
        let state = match json::read::<NodeState>(&message.payload) {
            Ok(state) => state,
            Err(error) => {
                let known = lock(&self.pinned).get(&self.fleet, &node).is_some();
                return Some(Err(UnverifiedState {
                    node,
                    state: None,
                    error: IdentityError::Unreadable(error_chain(&error)),
                    is_known: known,
                }));
            }
        };
        let checked = match removal {
            Some(removal) => Err(IdentityError::Removed(removal)),
            None => self.check_state(&node, &state, message, now),
        };
        let doubt = match checked {
            Ok(()) if state.node == node => return Some(Ok(state)),
            Ok(()) => IdentityError::Unreadable(format!("the state names the node {}", state.node)),
            Err(doubt) => doubt,
        };
        let known = lock(&self.pinned).get(&self.fleet, &node).is_some();
        Some(Err(UnverifiedState { node, state: Some(state), error: doubt, is_known: known }))
    }

    fn check_state(&self, node: &NodeId, state: &NodeState, message: &Message, now: Timestamp) -> Result<(), IdentityError> {
        // To decode a key takes some microseconds, as it is a point of a curve: it is decoded only when needed.
        let said = || state.key.as_deref().and_then(|key| key.parse::<PublicKey>().ok());
        let known = lock(&self.pinned).get(&self.fleet, node).copied();
        let Some(known) = known else {
            let said = said().ok_or(IdentityError::Receipt(ReceiptError::Missing))?;
            verify_with_key(node, &said, message)?;
            if state.node == *node && !self.pin(node, PinnedKey { key: said, since: now }) {
                return Err(IdentityError::New);
            }
            return Ok(());
        };
        let Err(error) = verify_with_key(node, &known.key, message) else { return Ok(()) };
        match said() {
            Some(said) if said != known.key && verify_with_key(node, &said, message).is_ok() => {
                Err(IdentityError::Changed { node: node.clone(), known: known.key.fingerprint(), said: said.fingerprint() })
            }
            _ => Err(error.into()),
        }
    }

    fn pin(&self, node: &NodeId, new: PinnedKey) -> bool {
        if !self.take_place(node) {
            return false;
        }
        let mut known = lock(&self.pinned);
        // Two threads may verify the same new node: the first key counts.
        if known.get(&self.fleet, node).is_none() {
            known.pin(&self.fleet, node, new);
            lock(&self.unsaved).push((node.clone(), new));
        }
        true
    }

    /// Saves the keys that were pinned since the last call.
    ///
    /// # Errors
    /// When the file can't be written; then the next command pins the keys again.
    pub fn save(&self) -> Result<(), NodeKeysError> {
        let learned = std::mem::take(&mut *lock(&self.unsaved));
        let Some(path) = self.file.as_deref().filter(|_| !learned.is_empty()) else { return Ok(()) };
        let lines: String = learned.iter().map(|(node, known)| pinned_keys::format_line(&self.fleet, node, known)).collect();
        append_pinned_keys(path, &lines)
    }
}

fn verify_with_key(node: &NodeId, key: &PublicKey, message: &Message) -> Result<VerifiedReceipt, ReceiptError> {
    verify_receipt(message.header(HEADER), key, node, &message.subject, &message.payload)
}

/// Messages of nodes, for the tests of this folder.
#[cfg(test)]
pub(in crate::fleet) mod testing {
    use jiff::Timestamp;
    use uuid::Uuid;

    use crate::transport::Message;
    use crate::trust::{SigningKey, issue_receipt};
    use crate::wire::digest;
    use crate::wire::receipt::{HEADER, ReceiptBody};

    pub(in crate::fleet) const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

    /// Adds the receipt of a node to a message.
    pub(in crate::fleet) fn signed(mut message: Message, key: &SigningKey, node: &str, command: Option<&str>) -> Message {
        let statement = ReceiptBody {
            node: node.parse().unwrap(),
            boot: Uuid::nil(),
            seq: None,
            prev: None,
            subject: message.subject.clone(),
            sha256: digest(&message.payload),
            at: NOW,
            command: command.map(str::to_owned),
        };
        message.headers = vec![(HEADER.to_owned(), issue_receipt(key, &statement))];
        message
    }

    pub(in crate::fleet) fn key(seed: u8) -> SigningKey {
        SigningKey::from_seed(&[seed; 32])
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::testing::{NOW, key, signed};
    use super::*;

    fn state(node: &str, signs: u8, says: Option<u8>) -> Message {
        let mut state = crate::fleet::targeting::states::tests::state(node, &[], "2026-01-01T00:00:00Z", true);
        state.key = says.map(|seed| key(seed).public().to_short());
        let subject = Subjects::new("f").state(&state.node).to_string();
        let message = Message { subject, payload: serde_json::to_vec(&state).unwrap(), ..Message::default() };
        signed(message, &key(signs), node, None)
    }

    fn verdict(node_keys: &NodeKeys, message: &Message) -> String {
        match node_keys.verify_state(message, NOW) {
            None => "nothing".to_owned(),
            Some(Ok(state)) => format!("{} verified", state.node),
            Some(Err(doubtful)) => format!("{}: {}", doubtful.node, doubtful.error),
        }
    }

    #[test]
    fn a_key_is_learned_once_and_held_to() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config/known_nodes");
        let node_keys = NodeKeys::new("f", PinnedKeys::default(), Some(path.clone()));
        assert_eq!(verdict(&node_keys, &state("web1", 1, Some(1))), "web1 verified");
        assert!(verdict(&node_keys, &state("web1", 2, Some(2))).starts_with("web1: its key has changed: SHA256:"));
        assert_eq!(
            verdict(&node_keys, &state("web1", 2, Some(1))),
            "web1: its receipt is not signed by the key of the node: forged?"
        );
        assert_eq!(
            verdict(&node_keys, &state("web2", 2, Some(3))),
            "web2: its receipt is not signed by the key of the node: forged?"
        );
        assert_eq!(verdict(&node_keys, &state("web2", 2, None)), "web2: it has no receipt: forged?");
        let moved = Message { subject: "ensign.v1.f.state.web3".into(), ..state("web1", 1, Some(1)) };
        assert_eq!(verdict(&node_keys, &moved), "web3: its receipt is that of the node web1: forged?");
        assert_eq!(verdict(&node_keys, &Message { subject: "ensign.v1.g.state.web1".into(), ..moved }), "nothing");
        node_keys.save().unwrap();
        // The next command reads it. A line without a line end, written by hand, stays whole.
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.trim_end()).unwrap();
        let next = NodeKeys::new("f", read_pinned_keys(&path).unwrap(), Some(path.clone()));
        assert!(verdict(&next, &state("web1", 2, Some(2))).contains("has changed"));
        assert_eq!(verdict(&next, &state("db1", 4, Some(4))), "db1 verified");
        next.save().unwrap();
        assert_eq!(read_pinned_keys(&path).unwrap().nodes("f").count(), 2);
        std::fs::write(&path, "x\n").unwrap();
        assert!(matches!(read_pinned_keys(&path), Err(NodeKeysError::Line { .. })));
    }

    #[test]
    fn a_crowd_of_new_nodes_is_not_learned() {
        let node_keys = NodeKeys::new("f", PinnedKeys::default(), None);
        assert_eq!(verdict(&node_keys, &state("db1", 1, Some(1))), "db1 verified");
        let crowd: Vec<Message> = (0..=MAX_NEW_NODES).map(|n| state(&format!("x{n}"), 2, Some(2))).collect();
        node_keys.count_new_nodes(&crowd);
        assert!(crowd.iter().all(|message| verdict(&node_keys, message).contains("too many nodes are new")));
        assert_eq!(node_keys.count(), 1);
        // A pinned node is verified as before, and the key of a named node is pinned.
        assert_eq!(verdict(&node_keys, &state("db1", 1, Some(1))), "db1 verified");
        node_keys.expect(&["x7".parse().unwrap()]);
        assert_eq!(verdict(&node_keys, &crowd[7]), "x7 verified");
        // The limit also counts nodes that appear one by one.
        let node_keys = NodeKeys::new("f", PinnedKeys::default(), None);
        crowd.iter().for_each(|message| drop(verdict(&node_keys, message)));
        assert_eq!(node_keys.count(), MAX_NEW_NODES);
        node_keys.expect_all();
        node_keys.count_new_nodes(&crowd);
        crowd.iter().for_each(|message| drop(verdict(&node_keys, message)));
        assert_eq!(node_keys.count(), crowd.len());
    }

    #[test]
    fn only_who_is_known_is_believed() {
        let node: NodeId = "web1".parse().unwrap();
        let mut known = PinnedKeys::default();
        known.pin("f", &node, PinnedKey { key: key(1).public(), since: NOW });
        let node_keys = NodeKeys::new("f", known, None);
        let message = Message { subject: "s".into(), payload: json!({}).to_string().into_bytes(), ..Message::default() };
        assert!(node_keys.verify(&node, &signed(message.clone(), &key(1), "web1", None)).is_ok());
        assert!(matches!(node_keys.verify(&node, &message), Err(IdentityError::Receipt(ReceiptError::Missing))));
        assert!(matches!(node_keys.verify(&"db1".parse().unwrap(), &message), Err(IdentityError::Unknown)));
    }
}
