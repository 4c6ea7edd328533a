//! Keys of nodes that appear after the states were read. Each is looked up at its node's first message, by the rules of
//! `node_identity.rs`.
//!
//! In: messages of nodes without a pinned key (`job/tracker`). Out: the same messages, when the key is pinned or the lookup
//! has failed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream;
use jiff::{SignedDuration, Timestamp};

use crate::diag::error_chain;
use crate::model::NodeId;
use crate::transport::{Bus, Message, TransportError};
use crate::wire::Subjects;

use super::node_identity::NodeKeys;

/// Longest time for the state of a node to appear. A node publishes its state when it connects, but its first answer may be
/// stored before that state.
const LOOKUP_TIME: Duration = Duration::from_secs(5);
/// Pause between two lookups of the same state.
const PAUSE: Duration = Duration::from_millis(250);
/// Most states that are requested at the same time.
const CONCURRENT_LOOKUPS: usize = 32;
/// Most new nodes whose admissions are looked up one by one. For more, all admissions are read at once.
const MAX_SINGLE_LOOKUPS: usize = 256;
/// Most messages of unknown nodes that are held. Further messages are verified at once, without a lookup. A node sends three
/// messages about a command.
const MAX_HELD: usize = 4096;
/// Longest wait for the server: an unknown node must not delay the others.
const ANSWER: Duration = Duration::from_secs(2);

/// A message of a node without a pinned key.
#[derive(Debug, Clone)]
pub enum HeldMessage {
    /// A report in the JOBS stream.
    Report(Message),
    /// An answer to the reply subject, with the node of that subject.
    Answer(Message, Option<NodeId>),
}

/// Holds messages of unknown nodes, and looks up the keys of these nodes.
#[derive(Debug)]
pub struct KeyDiscovery {
    bus: Bus,
    subjects: Subjects,
    node_keys: Arc<NodeKeys>,
    /// The start, on both clocks.
    began: (Timestamp, Instant),
    unknown_nodes: BTreeMap<NodeId, UnknownNode>,
    held: usize,
}

#[derive(Debug)]
struct UnknownNode {
    until: Instant,
    next: Instant,
    messages: Vec<HeldMessage>,
}

impl KeyDiscovery {
    /// Starts at `now`, without unknown nodes.
    pub fn new(bus: Bus, subjects: Subjects, node_keys: Arc<NodeKeys>, now: Timestamp) -> Self {
        Self { bus, subjects, node_keys, began: (now, Instant::now()), unknown_nodes: BTreeMap::new(), held: 0 }
    }

    /// Holds a message of an unknown node until its key is looked up.
    ///
    /// # Errors
    /// Returns the message when too many are held.
    pub fn hold(&mut self, node: NodeId, said: Box<HeldMessage>) -> Result<(), Box<HeldMessage>> {
        if self.held >= MAX_HELD {
            return Err(said);
        }
        let now = Instant::now();
        self.held += 1;
        let stranger = self.unknown_nodes.entry(node).or_insert_with(|| UnknownNode {
            until: now + LOOKUP_TIME,
            next: now,
            messages: vec![],
        });
        stranger.messages.push(*said);
        Ok(())
    }

    /// True while messages wait for the keys of their nodes.
    pub fn is_waiting(&self) -> bool {
        !self.unknown_nodes.is_empty()
    }

    /// Returns the time of the next lookup.
    pub fn next_lookup(&self) -> Option<Instant> {
        self.unknown_nodes.values().map(|stranger| stranger.next).min()
    }

    /// Looks up the nodes that are due. Returns the messages of nodes whose lookup ended, with or without a key.
    pub async fn look_up_due(&mut self) -> Vec<HeldMessage> {
        let now = Instant::now();
        let due: Vec<NodeId> =
            self.unknown_nodes.iter().filter(|(_, stranger)| stranger.next <= now).map(|(node, _)| node.clone()).collect();
        if due.is_empty() {
            return Vec::new();
        }
        let met: Vec<(NodeId, bool)> = stream::iter(due)
            .map(|node| async {
                let has_state = self.look_up(&node).await;
                (node, has_state)
            })
            .buffer_unordered(CONCURRENT_LOOKUPS)
            .collect()
            .await;
        if let Err(error) = self.node_keys.save() {
            tracing::warn!("{}", error_chain(&error));
        }
        let now = Instant::now();
        let mut judged = Vec::new();
        for (node, has_state) in met {
            match self.unknown_nodes.get_mut(&node) {
                Some(stranger) if !has_state && now < stranger.until => stranger.next = now + PAUSE,
                _ => judged.extend(self.unknown_nodes.remove(&node).into_iter().flat_map(|stranger| stranger.messages)),
            }
        }
        self.held -= judged.len();
        judged
    }

    /// Ends all lookups, and returns all held messages.
    pub fn give_up(&mut self) -> Vec<HeldMessage> {
        self.held = 0;
        std::mem::take(&mut self.unknown_nodes).into_values().flat_map(|stranger| stranger.messages).collect()
    }

    /// Looks up a node. False when its state is missing, or the server does not answer in time.
    async fn look_up(&self, node: &NodeId) -> bool {
        let since = SignedDuration::try_from(self.began.1.elapsed()).unwrap_or_default();
        let now = self.began.0.saturating_add(since).unwrap_or(self.began.0);
        tokio::time::timeout(ANSWER, pin_key_from_state(&self.bus, &self.subjects, &self.node_keys, node, now))
            .await
            .unwrap_or(false)
    }
}

/// Pins the key of a node from its latest state, as [`crate::fleet::targeting::states`] does for all nodes. False when the
/// state is missing, or can't be read.
pub async fn pin_key_from_state(bus: &Bus, subjects: &Subjects, node_keys: &NodeKeys, node: &NodeId, now: Timestamp) -> bool {
    if node_keys.key(node).is_none() {
        pin_admitted_keys(bus, subjects, node_keys, vec![node.clone()]).await;
    }
    match bus.last_on(&subjects.stream("STATE"), subjects.state(node).as_str()).await {
        // The result of the verification is the pinned key, if any.
        Ok(state) => node_keys.verify_state(&state, now).is_some(),
        Err(TransportError::NotFound(_)) => false,
        Err(error) => {
            tracing::debug!(%node, error = %error_chain(&error), "cannot read the state of a new node");
            false
        }
    }
}

/// Pins the keys of these nodes from their admissions, where there are any. A server that does not answer is logged: the states
/// then decide, as for nodes without an admission.
pub async fn pin_admitted_keys(bus: &Bus, subjects: &Subjects, node_keys: &NodeKeys, nodes: Vec<NodeId>) {
    if nodes.is_empty() || !node_keys.has_trust() {
        return;
    }
    match read_admissions(bus, subjects, nodes).await {
        Ok(admissions) => admissions.iter().for_each(|message| node_keys.pin_admitted(message)),
        Err(error) => tracing::warn!("cannot read the admissions of new nodes: {}", error_chain(&error)),
    }
}

async fn read_admissions(bus: &Bus, subjects: &Subjects, nodes: Vec<NodeId>) -> Result<Vec<Message>, TransportError> {
    let stream_name = subjects.stream("STATE");
    if nodes.len() > MAX_SINGLE_LOOKUPS {
        return bus.last_per_subject(&stream_name, subjects.all_admitted().as_str()).await;
    }
    let stream_name = stream_name.as_str();
    let look_up = |node: NodeId| async move { bus.last(stream_name, subjects.admitted(&node).as_str()).await };
    let found: Vec<Result<Option<Message>, TransportError>> =
        stream::iter(nodes).map(look_up).buffer_unordered(CONCURRENT_LOOKUPS).collect().await;
    found.into_iter().filter_map(Result::transpose).collect()
}
