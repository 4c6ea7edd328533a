//! Which nodes a command is for, and which of them are there to answer.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::diag::chain;
use crate::model::NodeId;
use crate::transport::{Bus, Message, TransportError};
use crate::wire::{NodeState, Selector, Subjects, Target};

use super::node_identity::{IdentityError, NodeKeys, UnverifiedState, share};

/// A node that must answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedNode {
    /// The node.
    pub node: NodeId,
    /// Whether it is there.
    pub presence: Liveness,
    /// Why its state is not believed, when it is not.
    pub doubt: Option<String>,
}

/// Whether a node is there, as far as its states say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// It said so in time.
    Alive,
    /// It was stopped in order, or has said nothing for two of its intervals. The time is that of its last word.
    Offline(Timestamp),
    /// Nobody ever heard of it.
    Unknown,
}

/// The latest states, those that the nodes signed and those that they did not. Derefs to the former.
#[derive(Debug, Default)]
pub struct NodeStates {
    /// What is believed, by node.
    pub believed: BTreeMap<NodeId, NodeState>,
    /// What is not; it counts for nothing but to be shown. Of nodes that nobody knows, the first few.
    pub doubtful: Vec<UnverifiedState>,
    /// How many states beside these are of nodes that nobody knows, and are not believed.
    pub strangers: usize,
}

/// The most states of nodes that nobody knows that are kept to be shown.
const STRANGERS: usize = 256;

impl Deref for NodeStates {
    type Target = BTreeMap<NodeId, NodeState>;

    fn deref(&self) -> &Self::Target {
        &self.believed
    }
}

/// The latest state of every node, held to what `roster` knows of it; what that learns is written down.
///
/// # Errors
/// When the stream of states can't be read.
pub async fn states(
    bus: &Bus,
    subjects: &Subjects,
    roster: &Arc<NodeKeys>,
    now: Timestamp,
) -> Result<NodeStates, TransportError> {
    let messages = bus.last_per_subject(&subjects.stream("STATE"), subjects.states().as_str()).await?;
    roster.survey(&messages);
    let shared = Arc::clone(roster);
    let believe = move |message: &Message| {
        let believed = shared.verify_state(message, now)?;
        Some(believed.map(|state| by_the_servers_clock(state, message.time)))
    };
    let checked = share(messages, believe).await;
    let mut states = NodeStates::default();
    let mut unknown = 0;
    for state in checked.into_iter().flatten() {
        match state {
            Ok(state) => drop(states.believed.insert(state.node.clone(), state)),
            Err(doubtful) if doubtful.known => states.doubtful.push(doubtful),
            Err(UnverifiedState { doubt: IdentityError::New, .. }) => states.strangers += 1,
            Err(_) if unknown >= STRANGERS => states.strangers += 1,
            Err(doubtful) => {
                unknown += 1;
                states.doubtful.push(doubtful);
            }
        }
    }
    if let Err(error) = roster.save() {
        tracing::warn!("{}", chain(&error));
    }
    Ok(states)
}

/// The state, heard when the server stored it at the latest: a node whose clock is ahead is not there for longer than it
/// speaks. One whose clock is behind stays silent, as an old state that somebody repeats must.
pub(in crate::fleet) fn by_the_servers_clock(state: NodeState, stored: Option<Timestamp>) -> NodeState {
    NodeState { at: stored.map_or(state.at, |stored| state.at.min(stored)), ..state }
}

/// Whether the node is there.
pub fn presence(state: &NodeState, now: Timestamp) -> Liveness {
    let grace = SignedDuration::from_secs(i64::try_from(state.interval.saturating_mul(2)).unwrap_or(i64::MAX));
    let due = state.at.saturating_add(grace).unwrap_or(Timestamp::MAX);
    if state.alive && now <= due { Liveness::Alive } else { Liveness::Offline(state.at) }
}

/// The nodes that a command for `audience` must have an answer from. With a `where`, those that
/// it does not select say so themselves.
///
/// A known node whose state is not believed is expected like one that nobody heard of: whether it is meant is what it says
/// itself, but to leave it out would be to believe somebody else. What speaks in the name of no known node is nobody.
pub fn expected(audience: &Target, states: &NodeStates, now: Timestamp) -> Vec<ExpectedNode> {
    let doubt = |doubtful: &UnverifiedState| ExpectedNode {
        node: doubtful.node.clone(),
        presence: Liveness::Unknown,
        doubt: Some(format!("its state: {}", doubtful.doubt)),
    };
    let known = |wanted: &dyn Fn(&NodeState) -> bool| {
        let chosen = states.values().filter(|state| wanted(state));
        let believed = chosen.map(|state| ExpectedNode { node: state.node.clone(), presence: presence(state, now), doubt: None });
        let doubtful = states.doubtful.iter().filter(|doubtful| doubtful.known);
        let doubtful = doubtful.filter(|doubtful| doubtful.state.as_ref().is_none_or(wanted)).map(doubt);
        believed.chain(doubtful).collect()
    };
    match audience.selector() {
        None => Vec::new(),
        Some(Selector::All) => known(&|_| true),
        Some(Selector::Groups(groups)) => known(&|state| groups.iter().any(|group| state.groups.contains(group))),
        Some(Selector::Nodes(nodes)) => {
            let of = |node: &NodeId| match states.doubtful.iter().find(|doubtful| doubtful.node == *node) {
                Some(doubtful) => doubt(doubtful),
                None => ExpectedNode {
                    node: node.clone(),
                    presence: states.get(node).map_or(Liveness::Unknown, |state| presence(state, now)),
                    doubt: None,
                },
            };
            nodes.iter().map(of).collect()
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
            let state = by_the_servers_clock(state("web1", &[], says, true), Some(stored));
            assert_eq!(presence(&state, stored + SignedDuration::from_secs(61)), Liveness::Offline(at));
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
            doubt: IdentityError::Unknown,
            known: true,
        };
        let forged = state("web9", &["web"], "2026-01-02T10:00:59Z", true);
        let mut states = NodeStates { believed, ..NodeStates::default() };
        let shown = |audience: &Target, states: &NodeStates| {
            let mut words = Vec::new();
            for ExpectedNode { node, presence, doubt } in expected(audience, states, now) {
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
        assert_eq!(shown(&Target { nodes: None, groups: None, all: None, only_where: None }, &states), "");
        states.doubtful = vec![doubtful("web9", Some(forged)), doubtful("typo", None)];
        assert_eq!(shown(&named, &states), "web1 alive, typo doubtful");
        assert_eq!(
            shown(&Target::groups(vec!["web".into()]), &states),
            format!("web1 alive, {late}, web9 doubtful, typo doubtful")
        );
        assert_eq!(shown(&Target::groups(vec!["db".into()]), &states), format!("{stopped}, typo doubtful"));
        states.doubtful.iter_mut().for_each(|doubtful| doubtful.known = false);
        assert_eq!(shown(&Target::all(), &states), format!("{stopped}, web1 alive, {late}"), "invented nodes are nobody");
    }
}
