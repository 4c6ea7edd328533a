//! Nodes that are met only after the states were read: their key is looked up when they first say something, by the rules that
//! hold for every first sight (`node_keys.rs`), and what they said is judged then.
//!
//! Comes in: messages of nodes whose key is not known (`job/tracker`). Goes out: the same messages, when the key is known or
//! will not be.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream;
use jiff::{SignedDuration, Timestamp};

use crate::diag::chain;
use crate::model::NodeId;
use crate::transport::{Bus, Message, TransportError};
use crate::wire::Subjects;

use super::node_identity::NodeKeys;

/// A node says its state when it connects; the answer that it gives right after may be stored before it.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks for the same state.
const PAUSE: Duration = Duration::from_millis(250);
/// As many states are asked for at once.
const TOGETHER: usize = 32;
/// As many messages of strangers are kept; what is over that is judged as it is. A node says three things about a command.
const HELD: usize = 4096;
/// How long the server may take to answer: a stranger must not keep the others waiting.
const ANSWER: Duration = Duration::from_secs(2);

/// Something that a node said whose key is not known.
#[derive(Debug, Clone)]
pub enum HeldMessage {
    /// In the JOBS stream.
    Report(Message),
    /// To the reply subject, and the one node that was asked there.
    Answer(Message, Option<NodeId>),
}

/// Looks up who they are.
#[derive(Debug)]
pub struct KeyDiscovery {
    bus: Bus,
    subjects: Subjects,
    node_keys: Arc<NodeKeys>,
    /// The time when this was made, on both clocks.
    began: (Timestamp, Instant),
    strangers: BTreeMap<NodeId, UnknownNode>,
    held: usize,
}

#[derive(Debug)]
struct UnknownNode {
    until: Instant,
    next: Instant,
    said: Vec<HeldMessage>,
}

impl KeyDiscovery {
    /// Nobody yet; `now` is the time.
    pub fn new(bus: Bus, subjects: Subjects, node_keys: Arc<NodeKeys>, now: Timestamp) -> Self {
        Self { bus, subjects, node_keys, began: (now, Instant::now()), strangers: BTreeMap::new(), held: 0 }
    }

    /// Keeps what a stranger said until it is known who that is.
    ///
    /// # Errors
    /// When too much is kept already: gives it back.
    pub fn hold(&mut self, node: NodeId, said: Box<HeldMessage>) -> Result<(), Box<HeldMessage>> {
        if self.held >= HELD {
            return Err(said);
        }
        let now = Instant::now();
        self.held += 1;
        let stranger =
            self.strangers.entry(node).or_insert_with(|| UnknownNode { until: now + PATIENCE, next: now, said: vec![] });
        stranger.said.push(*said);
        Ok(())
    }

    /// True while somebody's word waits to be judged.
    pub fn is_waiting(&self) -> bool {
        !self.strangers.is_empty()
    }

    /// When to look next.
    pub fn next(&self) -> Option<Instant> {
        self.strangers.values().map(|stranger| stranger.next).min()
    }

    /// Looks up those whose time it is; gives what those said who are known now, or will not be.
    pub async fn meet(&mut self) -> Vec<HeldMessage> {
        let now = Instant::now();
        let due: Vec<NodeId> =
            self.strangers.iter().filter(|(_, stranger)| stranger.next <= now).map(|(node, _)| node.clone()).collect();
        if due.is_empty() {
            return Vec::new();
        }
        let met: Vec<(NodeId, bool)> = stream::iter(due)
            .map(|node| async {
                let has_state = self.look_up(&node).await;
                (node, has_state)
            })
            .buffer_unordered(TOGETHER)
            .collect()
            .await;
        if let Err(error) = self.node_keys.save() {
            tracing::warn!("{}", chain(&error));
        }
        let now = Instant::now();
        let mut judged = Vec::new();
        for (node, has_state) in met {
            match self.strangers.get_mut(&node) {
                Some(stranger) if !has_state && now < stranger.until => stranger.next = now + PAUSE,
                _ => judged.extend(self.strangers.remove(&node).into_iter().flat_map(|stranger| stranger.said)),
            }
        }
        self.held -= judged.len();
        judged
    }

    /// Everything that is kept, when nobody waits any more.
    pub fn give_up(&mut self) -> Vec<HeldMessage> {
        self.held = 0;
        std::mem::take(&mut self.strangers).into_values().flat_map(|stranger| stranger.said).collect()
    }

    /// Takes the key of a node from its state; false when it has none yet, or nobody could be asked.
    async fn look_up(&self, node: &NodeId) -> bool {
        let since = SignedDuration::try_from(self.began.1.elapsed()).unwrap_or_default();
        let now = self.began.0.saturating_add(since).unwrap_or(self.began.0);
        tokio::time::timeout(ANSWER, meet(&self.bus, &self.subjects, &self.node_keys, node, now)).await.unwrap_or(false)
    }
}

/// Takes the key of a node from its latest state, as [`crate::fleet::targeting::states`] does for all of them; false when there is no state,
/// or it could not be read.
pub async fn meet(bus: &Bus, subjects: &Subjects, node_keys: &NodeKeys, node: &NodeId, now: Timestamp) -> bool {
    match bus.last_on(&subjects.stream("STATE"), subjects.state(node).as_str()).await {
        // What comes of it is what the node_keys knows then.
        Ok(state) => node_keys.verify_state(&state, now).is_some(),
        Err(TransportError::NotFound(_)) => false,
        Err(error) => {
            tracing::debug!(%node, error = %chain(&error), "the state of a new node can't be read");
            false
        }
    }
}
