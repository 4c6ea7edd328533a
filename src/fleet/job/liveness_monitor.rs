//! Looks, while a command is waited for, whether the nodes that have said nothing about it are still there.
//!
//! The states are read once before a command is sent; a node that was cut off just before that looks alive then. Its next
//! states do not come, and by the rule of [`presence`] it is not there any more: there is no reason to wait longer.
//!
//! Comes in: who is missing (`gather.rs`), the STATE stream. Goes out: who is offline, and of whom nothing was heard for how long.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

use crate::model::NodeId;
use crate::transport::{Bus, Link};
use crate::wire::{NodeState, Subjects};

use crate::fleet::job::tracker::{JobTracker, Update};
use crate::fleet::targeting::node_identity::NodeKeys;
use crate::fleet::targeting::states;
use crate::fleet::targeting::states::{Liveness, presence};

/// A node answers within a second; whoever has not by then is looked at. As often again.
const EVERY: Duration = Duration::from_secs(10);
/// After the server was away, nodes come back within this time: 30 s at most between two attempts.
const RETURN: Duration = Duration::from_secs(45);
/// Up to so many states are read one by one.
const FEW: usize = 64;
/// How long the server may take to give them.
const ANSWER: Duration = Duration::from_secs(5);
/// As many of them at once.
const TOGETHER: usize = 16;

/// A node that is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The node.
    pub node: NodeId,
    /// When it last said anything; none when it never did, or nothing that is believed.
    pub heard: Option<Timestamp>,
    /// It has the command.
    pub has_it: bool,
}

/// Looks every so often.
#[derive(Debug)]
pub struct LivenessMonitor {
    bus: Bus,
    subjects: Subjects,
    roster: Arc<NodeKeys>,
    /// The time when this was made, on both clocks.
    began: (Timestamp, Instant),
    next: Instant,
    link: watch::Receiver<Link>,
    connects: u64,
}

impl LivenessMonitor {
    /// Begins now, which is this time.
    pub fn new(bus: Bus, subjects: Subjects, roster: Arc<NodeKeys>, now: Timestamp) -> Self {
        let link = bus.watch();
        let connects = link.borrow().connects;
        let began = Instant::now();
        Self { bus, subjects, roster, began: (now, began), next: began + EVERY, link, connects }
    }

    /// When to look next.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Ends those that are not there any more; gives that, and who is still waited for.
    pub async fn look(&mut self, gather: &mut JobTracker) -> (Vec<Update>, Vec<Missing>) {
        self.next = Instant::now() + EVERY;
        let link = *self.link.borrow();
        let missing: Vec<(NodeId, bool)> = gather.missing().map(|(node, has_it)| (node.clone(), has_it)).collect();
        if !link.connected || link.connects != self.connects {
            // Nobody could say anything for a while, or not to us.
            self.connects = link.connects;
            self.next = Instant::now() + RETURN;
            return (Vec::new(), missing.into_iter().map(|(node, has_it)| Missing { node, heard: None, has_it }).collect());
        }
        let states = self.states(&missing).await;
        let now = self.now();
        let mut updates = Vec::new();
        let mut waited = Vec::new();
        for (node, has_it) in missing {
            let state = states.get(&node);
            match state.map(|state| presence(state, now)) {
                // One that has it may come back with the result, as after a restart.
                Some(Liveness::Offline(since)) if !has_it => updates.extend(gather.take_silence(&node, since)),
                _ => waited.push(Missing { heard: state.map(|state| state.at), node, has_it }),
            }
        }
        (updates, waited)
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        let since = SignedDuration::try_from(self.began.1.elapsed()).unwrap_or_default();
        self.began.0.saturating_add(since).unwrap_or(self.began.0)
    }

    /// The latest states of these nodes, as far as they can be had and are believed.
    async fn states(&self, nodes: &[(NodeId, bool)]) -> BTreeMap<NodeId, NodeState> {
        if nodes.len() > FEW {
            let states = states::states(&self.bus, &self.subjects, &self.roster, self.now()).await;
            return states.map(|states| states.believed).unwrap_or_default();
        }
        let states = stream::iter(nodes).map(|(node, _)| self.state(node)).buffer_unordered(TOGETHER);
        let states = states.filter_map(|state| std::future::ready(state.map(|state| (state.node.clone(), state)))).collect();
        tokio::time::timeout(ANSWER, states).await.unwrap_or_default()
    }

    async fn state(&self, node: &NodeId) -> Option<NodeState> {
        let message = self.bus.last_on(&self.subjects.stream("STATE"), self.subjects.state(node).as_str()).await.ok()?;
        let state = self.roster.verify_state(&message, self.now())?.ok()?;
        Some(states::by_the_servers_clock(state, message.time))
    }
}
