//! Which nodes a command is for, and which of them are there to answer.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::model::NodeId;
use crate::transport::{Bus, TransportError};
use crate::wire::{Audience, NodeState, Subjects, Target, json};

/// A node that must answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// The node.
    pub node: NodeId,
    /// Whether it is there.
    pub presence: Presence,
}

/// Whether a node is there, as far as its states say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// It said so in time.
    Alive,
    /// It was stopped in order, or has said nothing for two of its intervals. The time is that of its last word.
    Offline(Timestamp),
    /// Nobody ever heard of it.
    Unknown,
}

/// The latest state of every node, by node.
///
/// # Errors
/// When the stream of states can't be read.
pub async fn states(bus: &Bus, subjects: &Subjects) -> Result<BTreeMap<NodeId, NodeState>, TransportError> {
    let messages = bus.last_per_subject(&subjects.stream("STATE"), subjects.states().as_str()).await?;
    let mut states = BTreeMap::new();
    for message in messages {
        // The subject is what the server pins to the node; a state that says otherwise is not the node's.
        match json::read::<NodeState>(&message.payload) {
            Ok(state) if subjects.state(&state.node).as_str() == message.subject => {
                states.insert(state.node.clone(), state);
            }
            Ok(state) => tracing::warn!(subject = message.subject, node = %state.node, "a state under the name of another node"),
            Err(error) => tracing::warn!(subject = message.subject, %error, "a state that can't be read"),
        }
    }
    Ok(states)
}

/// Whether the node is there.
pub fn presence(state: &NodeState, now: Timestamp) -> Presence {
    let grace = SignedDuration::from_secs(i64::try_from(state.interval.saturating_mul(2)).unwrap_or(i64::MAX));
    let due = state.at.saturating_add(grace).unwrap_or(Timestamp::MAX);
    if state.alive && now <= due { Presence::Alive } else { Presence::Offline(state.at) }
}

/// The nodes that a command for `audience` must have an answer from. With a `where`, those that
/// it does not select say so themselves.
pub fn expected(audience: &Audience, states: &BTreeMap<NodeId, NodeState>, now: Timestamp) -> Vec<Expected> {
    let known = |wanted: &dyn Fn(&NodeState) -> bool| {
        let chosen = states.values().filter(|state| wanted(state));
        chosen.map(|state| Expected { node: state.node.clone(), presence: presence(state, now) }).collect()
    };
    match audience.target() {
        None => Vec::new(),
        Some(Target::All) => known(&|_| true),
        Some(Target::Groups(groups)) => known(&|state| groups.iter().any(|group| state.groups.contains(group))),
        Some(Target::Nodes(nodes)) => {
            let of = |node: &NodeId| states.get(node).map_or(Presence::Unknown, |state| presence(state, now));
            nodes.iter().map(|node| Expected { node: node.clone(), presence: of(node) }).collect()
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::wire::report::STATE;

    pub(in super::super) fn state(node: &str, groups: &[&str], at: &str, alive: bool) -> NodeState {
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
            queued: 0,
            last_run: None,
            outbox: 0,
            dropped: 0,
            dropped_results: 0,
            key: None,
            chain: 0,
            troubles: vec![],
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
        let states: BTreeMap<_, _> = all.iter().map(|state| (state.node.clone(), state.clone())).collect();
        let shown = |audience: &Audience| {
            let mut words = Vec::new();
            for Expected { node, presence } in expected(audience, &states, now) {
                words.push(match presence {
                    Presence::Alive => format!("{node} alive"),
                    Presence::Offline(at) => format!("{node} offline {at}"),
                    Presence::Unknown => format!("{node} unknown"),
                });
            }
            words.join(", ")
        };
        let late = "web2 offline 2026-01-02T09:59:59Z";
        let stopped = "db1 offline 2026-01-02T10:00:59Z";
        assert_eq!(shown(&Audience::all()), format!("{stopped}, web1 alive, {late}"));
        assert_eq!(shown(&Audience::groups(vec!["web".into(), "none".into()])), format!("web1 alive, {late}"));
        let named = Audience::nodes(vec!["web1".parse().unwrap(), "typo".parse().unwrap()]);
        assert_eq!(shown(&named), "web1 alive, typo unknown");
        assert_eq!(shown(&Audience { nodes: None, groups: None, all: None, only_where: None }), "");
    }
}
