//! Whom the operator believes: messages of nodes, held to the keys that are known of them.
//!
//! A key becomes known from the node's own signed state when it is first seen, or because the operator says so. From then
//! on what is not signed with it is not the node's word: it is shown, and counts for nothing.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;

use crate::diag::chain;
use crate::host::fs::{self, FsError, WriteSpec};
use crate::model::NodeId;
use crate::transport::Message;
use crate::trust::{PublicKey, ReceiptError, VerifiedReceipt, verify_receipt};
use crate::wire::receipt::HEADER;
use crate::wire::{NodeState, Subjects, json};

use super::pinned_keys::{self, PinnedKey, PinnedKeys, PinnedKeysError};

/// More than any list of nodes.
const MAX_FILE: u64 = 64 << 20;
/// The most nodes that one command comes to know by themselves. With more at once, none is: whoever may publish can invent
/// nodes, and the operator says which there are (`ensign fleet node trust`).
pub const NEW_AT_ONCE: usize = 256;
/// The most nodes of a fleet that are known; their list takes some ten megabytes.
const MOST_KNOWN: usize = 100_000;

/// A list of nodes that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum NodeKeysError {
    /// The file can't be read or written.
    #[error("the list of known nodes can't be used")]
    File(#[from] FsError),
    /// A line of it is wrong.
    #[error("the list of known nodes, {}, can't be read", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Which line.
        #[source]
        source: PinnedKeysError,
    },
}

/// Why a message is not taken for the word of a node.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// Nobody said which key the node has.
    #[error("the key of the node is not known")]
    Unknown,
    /// It is new, among too many that are.
    #[error("the node is new, as are many others: see `ensign fleet node trust`")]
    New,
    /// It is signed with a key that the node did not have before.
    #[error(
        "its key has changed: {known} is known, {said} signs. When the host was rebuilt: `ensign fleet node forget {node}`; \
         else somebody speaks in its name"
    )]
    Changed {
        /// The node.
        node: NodeId,
        /// The fingerprint of the key that is known.
        known: String,
        /// The fingerprint of the key that signs.
        said: String,
    },
    /// Its receipt does not hold.
    #[error("{0}: forged?")]
    Receipt(#[from] ReceiptError),
    /// It is not what its subject says.
    #[error("it can't be read: {0}")]
    Unreadable(String),
}

/// A state that is not taken for the node's.
#[derive(Debug)]
pub struct UnverifiedState {
    /// The node whose subject it is on.
    pub node: NodeId,
    /// What it says, when it can be read.
    pub state: Option<NodeState>,
    /// Why it is not believed.
    pub doubt: IdentityError,
    /// True when a key of the node is known: then there is such a node.
    pub known: bool,
}

/// The nodes of a fleet whose keys are known. Shared by reference.
#[derive(Debug)]
pub struct NodeKeys {
    subjects: Subjects,
    fleet: String,
    known: Mutex<PinnedKeys>,
    /// What was learned and is not in the file.
    learned: Mutex<Vec<(NodeId, PinnedKey)>>,
    file: Option<PathBuf>,
    /// Nodes that the operator named: they are learned, however many others are new.
    named: Mutex<HashSet<NodeId>>,
    /// How many nodes may still be learned that nobody named.
    room: AtomicUsize,
    /// Too many are new at once.
    crowded: AtomicBool,
}

fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    // Entries are added whole: a panic elsewhere broke none.
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The nodes that a file knows; none when it is not there.
///
/// # Errors
/// When it can't be read.
pub fn read(path: &Path) -> Result<PinnedKeys, NodeKeysError> {
    match fs::read_trusted_text(path, MAX_FILE) {
        Ok(text) => PinnedKeys::parse(&text).map_err(|source| NodeKeysError::Line { path: path.to_owned(), source }),
        Err(error) if error.is_not_found() => Ok(PinnedKeys::default()),
        Err(error) => Err(error.into()),
    }
}

/// Writes the list anew.
///
/// # Errors
/// When it can't be written.
pub fn write(path: &Path, known: &PinnedKeys) -> Result<(), NodeKeysError> {
    make_parent(path)?;
    Ok(fs::write_atomic(path, &mut known.text().as_bytes(), WriteSpec { uid: None, gid: None, mode: 0o644 })?)
}

fn make_parent(path: &Path) -> Result<(), FsError> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() && !parent.is_dir() => fs::create_directory(parent, 0o700),
        _ => Ok(()),
    }
}

impl NodeKeys {
    /// The nodes of a fleet that are known, and the file that learns what is new; without one nothing outlives this.
    pub fn new(fleet: impl Into<String>, known: PinnedKeys, file: Option<PathBuf>) -> Self {
        let fleet = fleet.into();
        let subjects = Subjects::new(&fleet);
        Self {
            subjects,
            fleet,
            known: Mutex::new(known),
            learned: Mutex::default(),
            file,
            named: Mutex::default(),
            room: AtomicUsize::new(NEW_AT_ONCE),
            crowded: AtomicBool::new(false),
        }
    }

    /// The operator named these nodes: their keys are learned from their states.
    pub fn expect(&self, nodes: &[NodeId]) {
        held(&self.named).extend(nodes.iter().cloned());
    }

    /// Every node whose state is signed is learned from here on, because the operator said so.
    pub fn expect_all(&self) {
        self.room.store(MOST_KNOWN, Ordering::Relaxed);
    }

    /// The key that is known of a node.
    pub fn key(&self, node: &NodeId) -> Option<PublicKey> {
        held(&self.known).get(&self.fleet, node).map(|known| known.key)
    }

    /// The nodes of the fleet that are known.
    pub fn names(&self) -> Vec<NodeId> {
        held(&self.known).of(&self.fleet).map(|(node, _)| node.clone()).collect()
    }

    /// How many nodes of the fleet are known.
    pub fn count(&self) -> usize {
        held(&self.known).count(&self.fleet)
    }

    /// Looks whether too many of these states are of new nodes, before any of them is believed.
    pub fn survey(&self, states: &[Message]) {
        let known = held(&self.known);
        let node = |message: &Message| message.subject.rsplit('.').next().and_then(|node| node.parse::<NodeId>().ok());
        let new = states.iter().filter_map(node).filter(|node| known.get(&self.fleet, node).is_none()).count();
        self.crowded.store(new > self.room.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Takes the room that a new node needs; false when there is none.
    fn admits(&self, node: &NodeId) -> bool {
        if self.count() >= MOST_KNOWN {
            return false;
        }
        if held(&self.named).contains(node) {
            return true;
        }
        let take = |room: usize| room.checked_sub(1);
        !self.crowded.load(Ordering::Relaxed) && self.room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Checks that a message is `node`'s.
    ///
    /// # Errors
    /// Why it is not.
    pub fn verify(&self, node: &NodeId, message: &Message) -> Result<VerifiedReceipt, IdentityError> {
        let known = held(&self.known).get(&self.fleet, node).copied().ok_or(IdentityError::Unknown)?;
        Ok(attested(node, &known.key, message)?)
    }

    /// Checks a state; the key of a node that is seen for the first time is taken from it.
    ///
    /// # Errors
    /// Why it is not the node's; `None` when its subject is not that of a state.
    pub fn verify_state(&self, message: &Message, now: Timestamp) -> Option<Result<NodeState, UnverifiedState>> {
        let node: NodeId = message.subject.rsplit('.').next()?.parse().ok()?;
        if self.subjects.state(&node).as_str() != message.subject {
            return None;
        }
        let state = match json::read::<NodeState>(&message.payload) {
            Ok(state) => state,
            Err(error) => {
                let known = held(&self.known).get(&self.fleet, &node).is_some();
                return Some(Err(UnverifiedState { node, state: None, doubt: IdentityError::Unreadable(chain(&error)), known }));
            }
        };
        let doubt = match self.check_state(&node, &state, message, now) {
            Ok(()) if state.node == node => return Some(Ok(state)),
            Ok(()) => IdentityError::Unreadable(format!("it is the state of {}", state.node)),
            Err(doubt) => doubt,
        };
        let known = held(&self.known).get(&self.fleet, &node).is_some();
        Some(Err(UnverifiedState { node, state: Some(state), doubt, known }))
    }

    fn check_state(&self, node: &NodeId, state: &NodeState, message: &Message, now: Timestamp) -> Result<(), IdentityError> {
        // A key is a point of a curve, which takes some microseconds to find: it is looked at only where it matters.
        let said = || state.key.as_deref().and_then(|key| key.parse::<PublicKey>().ok());
        let known = held(&self.known).get(&self.fleet, node).copied();
        let Some(known) = known else {
            let said = said().ok_or(IdentityError::Receipt(ReceiptError::Missing))?;
            attested(node, &said, message)?;
            if state.node == *node && !self.learn(node, PinnedKey { key: said, since: now }) {
                return Err(IdentityError::New);
            }
            return Ok(());
        };
        let Err(error) = attested(node, &known.key, message) else { return Ok(()) };
        match said() {
            Some(said) if said != known.key && attested(node, &said, message).is_ok() => {
                Err(IdentityError::Changed { node: node.clone(), known: known.key.fingerprint(), said: said.fingerprint() })
            }
            _ => Err(error.into()),
        }
    }

    fn learn(&self, node: &NodeId, new: PinnedKey) -> bool {
        if !self.admits(node) {
            return false;
        }
        let mut known = held(&self.known);
        // Two threads may have met it at once: the first counts.
        if known.get(&self.fleet, node).is_none() {
            known.trust(&self.fleet, node, new);
            held(&self.learned).push((node.clone(), new));
        }
        true
    }

    /// Writes down what was learned since the last time.
    ///
    /// # Errors
    /// When it can't be written; then it is learned again by whoever comes next.
    pub fn save(&self) -> Result<(), NodeKeysError> {
        let learned = std::mem::take(&mut *held(&self.learned));
        let Some(path) = self.file.as_deref().filter(|_| !learned.is_empty()) else { return Ok(()) };
        let lines: String = learned.iter().map(|(node, known)| pinned_keys::line(&self.fleet, node, known)).collect();
        make_parent(path)?;
        Ok(fs::append_lines(path, &lines, 0o644)?)
    }
}

fn attested(node: &NodeId, key: &PublicKey, message: &Message) -> Result<VerifiedReceipt, ReceiptError> {
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

    /// The message with the receipt of a node.
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
            Some(Ok(state)) => format!("{} speaks", state.node),
            Some(Err(doubtful)) => format!("{}: {}", doubtful.node, doubtful.doubt),
        }
    }

    #[test]
    fn a_key_is_learned_once_and_held_to() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config/known_nodes");
        let node_keys = NodeKeys::new("f", PinnedKeys::default(), Some(path.clone()));
        assert_eq!(verdict(&node_keys, &state("web1", 1, Some(1))), "web1 speaks");
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
        // The next one knows it; what is written by hand without an end of line is not torn.
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.trim_end()).unwrap();
        let next = NodeKeys::new("f", read(&path).unwrap(), Some(path.clone()));
        assert!(verdict(&next, &state("web1", 2, Some(2))).contains("has changed"));
        assert_eq!(verdict(&next, &state("db1", 4, Some(4))), "db1 speaks");
        next.save().unwrap();
        assert_eq!(read(&path).unwrap().of("f").count(), 2);
        std::fs::write(&path, "x\n").unwrap();
        assert!(matches!(read(&path), Err(NodeKeysError::Line { .. })));
    }

    #[test]
    fn a_crowd_of_new_nodes_is_not_learned() {
        let node_keys = NodeKeys::new("f", PinnedKeys::default(), None);
        assert_eq!(verdict(&node_keys, &state("db1", 1, Some(1))), "db1 speaks");
        let crowd: Vec<Message> = (0..=NEW_AT_ONCE).map(|n| state(&format!("x{n}"), 2, Some(2))).collect();
        node_keys.survey(&crowd);
        assert!(crowd.iter().all(|message| verdict(&node_keys, message).contains("is new, as are many others")));
        assert_eq!(node_keys.count(), 1);
        // Who was known before speaks as ever, and who is named is learned.
        assert_eq!(verdict(&node_keys, &state("db1", 1, Some(1))), "db1 speaks");
        node_keys.expect(&["x7".parse().unwrap()]);
        assert_eq!(verdict(&node_keys, &crowd[7]), "x7 speaks");
        // One by one there is no way around it either.
        let node_keys = NodeKeys::new("f", PinnedKeys::default(), None);
        crowd.iter().for_each(|message| drop(verdict(&node_keys, message)));
        assert_eq!(node_keys.count(), NEW_AT_ONCE);
        node_keys.expect_all();
        node_keys.survey(&crowd);
        crowd.iter().for_each(|message| drop(verdict(&node_keys, message)));
        assert_eq!(node_keys.count(), crowd.len());
    }

    #[test]
    fn only_who_is_known_is_believed() {
        let node: NodeId = "web1".parse().unwrap();
        let mut known = PinnedKeys::default();
        known.trust("f", &node, PinnedKey { key: key(1).public(), since: NOW });
        let node_keys = NodeKeys::new("f", known, None);
        let message = Message { subject: "s".into(), payload: json!({}).to_string().into_bytes(), ..Message::default() };
        assert!(node_keys.verify(&node, &signed(message.clone(), &key(1), "web1", None)).is_ok());
        assert!(matches!(node_keys.verify(&node, &message), Err(IdentityError::Receipt(ReceiptError::Missing))));
        assert!(matches!(node_keys.verify(&"db1".parse().unwrap(), &message), Err(IdentityError::Unknown)));
    }
}
