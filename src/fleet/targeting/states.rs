//! The latest states of nodes, their liveness, and the nodes that must answer a command.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::diag::error_chain;
use crate::model::NodeId;
use crate::transport::{Bus, Message, TransportError};
use crate::wire::{NodeState, Selector, Subjects, Target};

use super::key_discovery::pin_admitted_keys;
use super::node_identity::{IdentityError, NodeKeys, UnverifiedState};
use super::parallel::map_parallel;

/// A node that must answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedNode {
    /// The node.
    pub node: NodeId,
    /// Its liveness.
    pub liveness: Liveness,
    /// The verification error of its state, if any.
    pub verification_error: Option<String>,
}

/// The liveness of a node for display and JSON.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeLiveness {
    /// Its heartbeats arrive in time.
    Alive,
    /// Its heartbeats stopped without notice.
    Silent,
    /// Its agent was shut down.
    Stopped,
    /// Its state is not signed by its pinned key.
    Unverified,
    /// The fleet has no state of it.
    #[default]
    Unknown,
}

impl NodeLiveness {
    /// Returns its name in tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Silent => "silent",
            Self::Stopped => "stopped",
            Self::Unverified => "unverified",
            Self::Unknown => "unknown",
        }
    }

    /// Returns the liveness by a verified state.
    pub fn new(state: &NodeState, now: Timestamp) -> Self {
        match liveness(state, now) {
            Liveness::Alive => Self::Alive,
            _ if state.alive => Self::Silent,
            _ => Self::Stopped,
        }
    }
}

/// The liveness of a node by its latest verified state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// Online: its last heartbeat arrived in time.
    Alive,
    /// Offline since its last heartbeat at this time: shut down, or without a heartbeat for two of its intervals.
    Offline(Timestamp),
    /// No verified state of the node is known.
    Unknown,
}

/// The latest states of all nodes, verified and unverified. Dereferences to the verified states.
#[derive(Debug, Default)]
pub struct NodeStates {
    /// The time at which they were read, by the server's clock. Liveness refers to it.
    pub read_at: Timestamp,
    /// The verified states, by node.
    pub verified: BTreeMap<NodeId, NodeState>,
    /// The unverified states, for display only. Of unknown nodes, the first 256.
    pub unverified: Vec<UnverifiedState>,
    /// The reason why the states could not be read: no node is known, and commands go without a record.
    pub unavailable: Option<String>,
    /// Number of further unverified states of unknown nodes.
    pub more_unknown: usize,
}

/// Most unverified states of unknown nodes that are kept for display.
const MAX_UNKNOWN_STATES: usize = 256;

impl Deref for NodeStates {
    type Target = BTreeMap<NodeId, NodeState>;

    fn deref(&self) -> &Self::Target {
        &self.verified
    }
}

/// Reads the latest state of every node, and verifies each with `node_keys`. Saves newly pinned keys.
///
/// # Errors
/// When the stream of states can't be read.
pub async fn read_states(
    bus: &Bus,
    subjects: &Subjects,
    node_keys: &Arc<NodeKeys>,
    now: Timestamp,
) -> Result<NodeStates, TransportError> {
    let filter = subjects.states_and_removals();
    let messages = bus.last_per_subject(&subjects.stream("STATE"), filter.as_str()).await?;
    let (removals, messages): (Vec<Message>, _) = messages.into_iter().partition(|message| message.subject.ends_with(".removed"));
    node_keys.apply_removals(&removals);
    pin_admitted_keys(bus, subjects, node_keys, node_keys.nodes_without_key(&messages)).await;
    node_keys.count_new_nodes(&messages);
    let shared = Arc::clone(node_keys);
    let believe = move |message: &Message| {
        let believed = shared.verify_state(message, now)?;
        Some(believed.map(|state| limit_to_server_time(state, message.time)))
    };
    let checked = map_parallel(messages, believe).await;
    let mut states = NodeStates { read_at: now, ..NodeStates::default() };
    let mut unknown = 0;
    for state in checked.into_iter().flatten() {
        match state {
            Ok(state) => drop(states.verified.insert(state.node.clone(), state)),
            Err(doubtful) if doubtful.is_known => states.unverified.push(doubtful),
            Err(UnverifiedState { error: IdentityError::New, .. }) => states.more_unknown += 1,
            Err(_) if unknown >= MAX_UNKNOWN_STATES => states.more_unknown += 1,
            Err(doubtful) => {
                unknown += 1;
                states.unverified.push(doubtful);
            }
        }
    }
    if let Err(error) = node_keys.save() {
        tracing::warn!("{}", error_chain(&error));
    }
    Ok(states)
}

/// Limits the time of a state to the time at which the server stored it.
///
/// A node whose clock is ahead therefore does not stay online for longer than its heartbeats last. A node whose clock is
/// behind counts as silent, as must an old state that another party published again.
pub(in crate::fleet) fn limit_to_server_time(state: NodeState, stored: Option<Timestamp>) -> NodeState {
    NodeState { at: stored.map_or(state.at, |stored| state.at.min(stored)), ..state }
}

/// Returns the liveness of a node by its state: online until two intervals after its last heartbeat.
pub fn liveness(state: &NodeState, now: Timestamp) -> Liveness {
    let grace = SignedDuration::from_secs(i64::try_from(state.interval.saturating_mul(2)).unwrap_or(i64::MAX));
    let due = state.at.saturating_add(grace).unwrap_or(Timestamp::MAX);
    if state.alive && now <= due { Liveness::Alive } else { Liveness::Offline(state.at) }
}

impl NodeStates {
    /// Returns the nodes that must answer a command for `target`. Nodes that its filter does not select answer with
    /// `not_selected`.
    ///
    /// A known node with an unverified state must answer too: its groups are not certain. To leave it out would trust the
    /// unverified state. A node whose key is not pinned is left out.
    pub fn expected(&self, target: &Target) -> Vec<ExpectedNode> {
        let named = target.nodes.iter().flatten().filter(|node| self.may_include(target, node));
        let named = named.map(|node| self.expected_node(node));
        match target.selector() {
            None => Vec::new(),
            Some(Selector::Nodes(_)) => named.collect(),
            Some(Selector::All | Selector::Groups(_) | Selector::Mixed) => {
                let mut expected = self.expected_nodes(target);
                let known: BTreeSet<NodeId> = expected.iter().map(|expected| expected.node.clone()).collect();
                expected.extend(named.filter(|named| !known.contains(&named.node)));
                expected
            }
        }
    }

    /// True when a named node is in the target, as far as known. Only its verified state shows its groups.
    fn may_include(&self, target: &Target, node: &NodeId) -> bool {
        let by_groups = || self.get(node).is_none_or(|state| target.includes(node, &state.groups));
        target.includes_by_name(node).unwrap_or_else(by_groups)
    }

    /// Returns the nodes of a target that have a state.
    fn expected_nodes(&self, target: &Target) -> Vec<ExpectedNode> {
        let is_wanted = |state: &NodeState| target.includes(&state.node, &state.groups);
        let verified = self.values().filter(|state| is_wanted(state)).map(|state| self.build_expected(&state.node, None));
        let is_possible = |doubtful: &&UnverifiedState| {
            let by_groups = || doubtful.state.as_ref().is_none_or(is_wanted);
            doubtful.is_known && target.includes_by_name(&doubtful.node).unwrap_or_else(by_groups)
        };
        let unverified = self.unverified.iter().filter(is_possible);
        verified.chain(unverified.map(|doubtful| self.build_expected(&doubtful.node, Some(doubtful)))).collect()
    }

    fn expected_node(&self, node: &NodeId) -> ExpectedNode {
        self.build_expected(node, self.unverified.iter().find(|doubtful| doubtful.node == *node))
    }

    fn build_expected(&self, node: &NodeId, doubtful: Option<&UnverifiedState>) -> ExpectedNode {
        let state = self.get(node).filter(|_| doubtful.is_none());
        ExpectedNode {
            node: node.clone(),
            liveness: state.map_or(Liveness::Unknown, |state| liveness(state, self.read_at)),
            verification_error: doubtful.map(|doubtful| format!("its state: {}", doubtful.error)),
        }
    }
}

#[cfg(test)]
pub(in crate::fleet) mod tests {
    use super::*;
    use crate::wire::report::STATE;

    pub(in crate::fleet) fn state(node: &str, groups: &[&str], at: &str, alive: bool) -> NodeState {
        NodeState {
            protocol: STATE.into(),
            node: node.parse().unwrap(),
            at: at.parse().unwrap(),
            interval: 30,
            alive,
            hostname: format!("{node}.example.org"),
            boot: uuid::Uuid::nil(),
            started: "2026-01-01T00:00:00Z".parse().unwrap(),
            version: "0.1.0".into(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            trust: 1,
            channels: BTreeMap::new(),
            assignments: vec![],
            running: None,
            unwritten: None,
            queued: 0,
            last_run: None,
            failing: Vec::new(),
            platform: None,
            outbox: 0,
            dropped: 0,
            dropped_results: 0,
            key: None,
            chain: 0,
            open: None,
            confinement: None,
            alarms: vec![],
        }
    }

    #[test]
    fn a_clock_that_is_ahead_keeps_nobody_alive() {
        let stored: Timestamp = "2026-01-02T10:00:00Z".parse().unwrap();
        for (says, at) in [
            ("2026-01-02T09:59:50Z", "2026-01-02T09:59:50Z".parse().unwrap()),
            ("2026-01-02T11:00:00Z", stored),
            ("1970-01-01T00:00:00Z", Timestamp::UNIX_EPOCH),
        ] {
            let state = limit_to_server_time(state("web1", &[], says, true), Some(stored));
            assert_eq!(liveness(&state, stored + SignedDuration::from_secs(61)), Liveness::Offline(at));
        }
    }

    #[test]
    fn every_targeted_node_is_expected_also_when_it_is_not_there() {
        let now: Timestamp = "2026-01-02T10:01:00Z".parse().unwrap();
        let all = [
            state("web1", &["web", "eu"], "2026-01-02T10:00:00Z", true),
            state("web2", &["web"], "2026-01-02T09:59:59Z", true),
            state("db1", &["db"], "2026-01-02T10:00:59Z", false),
        ];
        let believed: BTreeMap<_, _> = all.iter().map(|state| (state.node.clone(), state.clone())).collect();
        let doubtful = |name: &str, state| UnverifiedState {
            node: name.parse().unwrap(),
            state,
            error: IdentityError::Unknown,
            is_known: true,
        };
        let forged = state("web9", &["web"], "2026-01-02T10:00:59Z", true);
        let mut states = NodeStates { read_at: now, verified: believed, ..NodeStates::default() };
        let shown = |audience: &Target, states: &NodeStates| {
            let mut words = Vec::new();
            for ExpectedNode { node, liveness: presence, verification_error: doubt } in states.expected(audience) {
                words.push(match presence {
                    _ if doubt.is_some() => format!("{node} doubtful"),
                    Liveness::Alive => format!("{node} alive"),
                    Liveness::Offline(at) => format!("{node} offline {at}"),
                    Liveness::Unknown => format!("{node} unknown"),
                });
            }
            words.join(", ")
        };
        let late = "web2 offline 2026-01-02T09:59:59Z";
        let stopped = "db1 offline 2026-01-02T10:00:59Z";
        assert_eq!(shown(&Target::all(), &states), format!("{stopped}, web1 alive, {late}"));
        assert_eq!(shown(&Target::groups(vec!["web".into(), "none".into()]), &states), format!("web1 alive, {late}"));
        let named = Target::nodes(vec!["web1".parse().unwrap(), "typo".parse().unwrap()]);
        assert_eq!(shown(&named, &states), "web1 alive, typo unknown");
        assert_eq!(shown(&Target::default(), &states), "");
        let combined = |value: serde_json::Value| serde_json::from_value::<Target>(value).unwrap();
        let not_web2 = combined(serde_json::json!({"groups": ["web"], "not": {"nodes": ["web2"]}}));
        let mixed = combined(serde_json::json!({"nodes": ["typo", "web1"], "globs": ["d*"], "not": {"groups": ["eu"]}}));
        let without_web = combined(serde_json::json!({"nodes": ["web1", "typo"], "not": {"groups": ["web"]}}));
        assert_eq!(shown(&not_web2, &states), "web1 alive");
        assert_eq!(shown(&mixed, &states), format!("{stopped}, typo unknown"));
        assert_eq!(shown(&without_web, &states), "typo unknown");
        states.unverified = vec![doubtful("web9", Some(forged)), doubtful("typo", None)];
        assert_eq!(shown(&not_web2, &states), "web1 alive, web9 doubtful, typo doubtful");
        assert_eq!(shown(&mixed, &states), format!("{stopped}, typo doubtful"));
        assert_eq!(shown(&named, &states), "web1 alive, typo doubtful");
        assert_eq!(
            shown(&Target::groups(vec!["web".into()]), &states),
            format!("web1 alive, {late}, web9 doubtful, typo doubtful")
        );
        assert_eq!(shown(&Target::groups(vec!["db".into()]), &states), format!("{stopped}, typo doubtful"));
        states.unverified.iter_mut().for_each(|doubtful| doubtful.is_known = false);
        assert_eq!(shown(&Target::all(), &states), format!("{stopped}, web1 alive, {late}"), "invented nodes are nobody");
    }
}
