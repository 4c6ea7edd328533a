//! Liveness of the nodes that a job waits for.
//!
//! The states are read once before a command is sent. A node that lost its connection just before appears online then. Its
//! next heartbeats do not come, and after two intervals the node is offline: the job stops waiting for it.
//!
//! In: the missing nodes (`tracker`), the STATE stream. Out: the nodes that are offline or can't write results, and the last
//! heartbeat of the others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

use crate::model::NodeId;
use crate::transport::{Bus, ConnectionState};
use crate::wire::{NodeState, Subjects};

use crate::fleet::job::event::{JobEvent, MissingNode};
use crate::fleet::job::tracker::JobTracker;
use crate::fleet::targeting::node_identity::NodeKeys;
use crate::fleet::targeting::states;
use crate::fleet::targeting::states::{Liveness, liveness};

/// Time between two checks. A node answers within a second, so most jobs need no check.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Time for nodes to reconnect after the server was unreachable: they pause at most 30 s between two attempts.
const RECONNECT_TIME: Duration = Duration::from_secs(45);
/// Most nodes whose states are read one by one. For more, the whole stream is read.
const MAX_SINGLE_READS: usize = 64;
/// Longest wait for single states.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Single states that are requested at the same time.
const CONCURRENT_READS: usize = 16;

/// Checks the liveness of missing nodes at intervals.
#[derive(Debug)]
pub struct LivenessMonitor {
    bus: Bus,
    subjects: Subjects,
    node_keys: Arc<NodeKeys>,
    /// The start, on both clocks.
    began: (Timestamp, Instant),
    next: Instant,
    link: watch::Receiver<ConnectionState>,
    connects: u64,
}

impl LivenessMonitor {
    /// Starts at `now`.
    pub fn new(bus: Bus, subjects: Subjects, node_keys: Arc<NodeKeys>, now: Timestamp) -> Self {
        let link = bus.watch();
        let connects = link.borrow().connects;
        let began = Instant::now();
        Self { bus, subjects, node_keys, began: (now, began), next: began + CHECK_INTERVAL, link, connects }
    }

    /// Returns the time of the next check.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Marks the nodes that are offline, or can't write results. Returns these events, and the nodes that the job still waits for.
    pub async fn check(&mut self, tracker: &mut JobTracker) -> (Vec<JobEvent>, Vec<MissingNode>) {
        self.next = Instant::now() + CHECK_INTERVAL;
        let link = *self.link.borrow();
        let missing: Vec<(NodeId, bool)> = tracker.missing().map(|(node, acknowledged)| (node.clone(), acknowledged)).collect();
        if !link.connected || link.connects != self.connects {
            // Heartbeats did not arrive during the outage.
            self.connects = link.connects;
            self.next = Instant::now() + RECONNECT_TIME;
            return (
                Vec::new(),
                missing.into_iter().map(|(node, acknowledged)| MissingNode { node, last_seen: None, acknowledged }).collect(),
            );
        }
        let states = self.states(&missing).await;
        let now = self.now();
        let mut events = Vec::new();
        let mut waiting = Vec::new();
        for (node, acknowledged) in missing {
            let state = states.get(&node);
            match state.map(|state| liveness(state, now)) {
                // A node that has the command may reconnect with the result, as after a restart.
                Some(Liveness::Offline(since)) if !acknowledged => events.extend(tracker.take_offline(&node, since)),
                // The disk of the node takes no results: the result of this command comes no sooner.
                Some(Liveness::Alive) if acknowledged && state.is_some_and(|state| state.unwritten.is_some()) => {
                    events.extend(tracker.take_unwritten(&node));
                }
                _ => waiting.push(MissingNode { last_seen: state.map(|state| state.at), node, acknowledged }),
            }
        }
        (events, waiting)
    }

    /// Returns the time by the clock that the monitor started with.
    pub fn now(&self) -> Timestamp {
        let since = SignedDuration::try_from(self.began.1.elapsed()).unwrap_or_default();
        self.began.0.saturating_add(since).unwrap_or(self.began.0)
    }

    /// Reads the latest states of these nodes: the verified states that the server returns in time.
    async fn states(&self, nodes: &[(NodeId, bool)]) -> BTreeMap<NodeId, NodeState> {
        if nodes.len() > MAX_SINGLE_READS {
            let states = states::read_states(&self.bus, &self.subjects, &self.node_keys, self.now()).await;
            return states.map(|states| states.verified).unwrap_or_default();
        }
        let states = stream::iter(nodes).map(|(node, _)| self.state(node)).buffer_unordered(CONCURRENT_READS);
        let states = states.filter_map(|state| std::future::ready(state.map(|state| (state.node.clone(), state)))).collect();
        tokio::time::timeout(READ_TIMEOUT, states).await.unwrap_or_default()
    }

    async fn state(&self, node: &NodeId) -> Option<NodeState> {
        let message = self.bus.last_on(&self.subjects.stream("STATE"), self.subjects.state(node).as_str()).await.ok()?;
        let state = self.node_keys.verify_state(&message, self.now())?.ok()?;
        Some(states::limit_to_server_time(state, message.time))
    }
}
