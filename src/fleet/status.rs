//! The status of the fleet, from the latest states of its nodes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use crate::model::NodeId;
use crate::wire::NodeState;

use crate::diag::count_noun;
use crate::fleet::desired_state::view::{self, ChannelCommand};
use crate::fleet::targeting::states::{Liveness, NodeLiveness, NodeStates, liveness};

/// The fleet at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FleetStatus {
    /// The fleet.
    pub fleet: String,
    /// The time of the status.
    pub at: Timestamp,
    /// Number of nodes.
    pub nodes: usize,
    /// Number of further states of unknown nodes: invented nodes, or more new nodes than are pinned at once.
    pub strangers: usize,
    /// Number of online nodes.
    pub alive: usize,
    /// Number of nodes by the outcome of their last run; `none` for nodes without a run.
    pub last_runs: BTreeMap<&'static str, usize>,
    /// Number of nodes whose last run corrected drift.
    pub drifted: usize,
    /// Number of nodes that repair drift when it happens.
    pub watching: usize,
    /// The part of them on which everything has been as wanted for a while.
    pub converged: usize,
    /// Number of nodes by version of the trust bundle.
    pub trust: BTreeMap<u64, usize>,
    /// Number of nodes by version of the agent.
    pub versions: BTreeMap<String, usize>,
    /// Conditions that need an operator, node by node.
    pub attention: Vec<Alert>,
}

/// A condition of a node that needs an operator.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Alert {
    /// The node.
    pub node: NodeId,
    /// The description for users.
    pub what: String,
}

/// The status of a node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeStatus {
    /// The liveness.
    pub presence: NodeLiveness,
    /// True when the node signed its state.
    pub verified: bool,
    /// The outcome of its last run; `none` without a run.
    pub outcome: &'static str,
    /// Its state.
    #[serde(flatten)]
    pub state: NodeState,
}

/// Returns the outcome of the last run of a node; `none` without a run.
pub fn last_run(state: &NodeState) -> &'static str {
    state.last_run.as_ref().map_or("none", |run| run.outcome.as_str())
}

impl NodeStatus {
    /// Builds the status from a verified state.
    pub fn verified(state: NodeState, now: Timestamp) -> Self {
        Self { presence: NodeLiveness::new(&state, now), verified: true, outcome: last_run(&state), state }
    }
}

/// Returns the status of every node, by name.
pub fn node_statuses(states: &NodeStates) -> Vec<NodeStatus> {
    let verified = states.values().map(|state| NodeStatus::verified(state.clone(), states.read_at));
    let unverified = states.unverified.iter().filter_map(|doubtful| {
        let state = NodeState { node: doubtful.node.clone(), ..doubtful.state.clone()? };
        Some(NodeStatus { presence: NodeLiveness::Unverified, verified: false, outcome: last_run(&state), state })
    });
    let mut nodes: Vec<NodeStatus> = verified.chain(unverified).collect();
    nodes.sort_by(|one, other| one.state.node.cmp(&other.state.node));
    nodes
}

/// Returns the version of the trust bundle that most nodes have. Not the highest: a single node could report any.
fn most_common_trust_version(states: &NodeStates) -> Option<u64> {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    for state in states.values() {
        *counts.entry(state.trust).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(version, nodes)| (*nodes, *version)).map(|(version, _)| version)
}

/// Returns the version of the agent that most nodes have.
fn most_common_version(states: &NodeStates) -> Option<&str> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for state in states.values() {
        *counts.entry(&state.version).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(version, nodes)| (*nodes, release_numbers(version))).map(|(version, _)| version)
}

/// `[0, 12, 1]` for `0.12.1`.
fn release_numbers(version: &str) -> Vec<u64> {
    version.split(['.', '-', '+']).map_while(|part| part.parse().ok()).collect()
}

/// Conditions that narrow a list of nodes. Each further one narrows it more.
#[derive(Debug, Clone, Default)]
pub struct NodeConditions {
    /// Nodes with a failed or interrupted last run, or with a failing resource.
    pub failed: bool,
    /// Nodes that are silent or stopped.
    pub offline: bool,
    /// Nodes with an older agent or trust bundle than most nodes have, or without the latest assignment of a channel. The latest
    /// command of every channel is read by [`view::read_channels`].
    pub outdated: Option<BTreeMap<String, ChannelCommand>>,
}

impl NodeConditions {
    /// Keeps the nodes that meet all conditions.
    pub fn retain(&self, nodes: &mut Vec<NodeStatus>, states: &NodeStates) {
        let (trust, version) = (most_common_trust_version(states), most_common_version(states).map(release_numbers));
        let is_outdated = |state: &NodeState, desired: &BTreeMap<String, ChannelCommand>| {
            trust.is_some_and(|usual| state.trust < usual)
                || version.as_ref().is_some_and(|usual| release_numbers(&state.version) < *usual)
                || view::is_behind(state, desired)
        };
        nodes.retain(|node| {
            let state = &node.state;
            let is_failed = || matches!(node.outcome, "failed" | "interrupted") || !state.failing.is_empty();
            let is_offline = || matches!(node.presence, NodeLiveness::Silent | NodeLiveness::Stopped);
            (!self.failed || is_failed())
                && (!self.offline || is_offline())
                && self.outdated.as_ref().is_none_or(|desired| is_outdated(state, desired))
        });
    }
}

/// Builds the status of the fleet.
pub fn fleet_status(fleet: &str, states: &NodeStates) -> FleetStatus {
    let now = states.read_at;
    let mut view = FleetStatus {
        fleet: fleet.to_owned(),
        at: now,
        nodes: states.len() + states.unverified.len(),
        strangers: states.more_unknown,
        alive: 0,
        last_runs: BTreeMap::new(),
        drifted: 0,
        watching: 0,
        converged: 0,
        trust: BTreeMap::new(),
        versions: BTreeMap::new(),
        attention: Vec::new(),
    };
    let usual = most_common_trust_version(states);
    for state in states.values() {
        *view.last_runs.entry(last_run(state)).or_default() += 1;
        view.drifted += usize::from(state.last_run.as_ref().is_some_and(|run| run.corrective > 0));
        let mut watches = state.assignments.iter().filter_map(|assignment| assignment.watch).peekable();
        if watches.peek().is_some() {
            view.watching += 1;
            view.converged += usize::from(watches.all(|watch| watch.converged));
        }
        *view.trust.entry(state.trust).or_default() += 1;
        *view.versions.entry(state.version.clone()).or_default() += 1;
        let mut attend = |what: String| view.attention.push(Alert { node: state.node.clone(), what });
        match liveness(state, now) {
            Liveness::Offline(since) if state.alive => attend(format!("silent since {since:.0}")),
            Liveness::Offline(since) => attend(format!("stopped at {since:.0}")),
            _ => view.alive += 1,
        }
        for failing in &state.failing {
            let channel = failing.channel.as_ref().map_or_else(String::new, |channel| format!("channel {channel}: "));
            attend(format!("{channel}{} failed: {} (since {:.0})", failing.resource, failing.error, failing.since));
        }
        // The failed resources are listed above; this covers runs without them.
        if matches!(last_run(state), "failed" | "interrupted") && state.failing.is_empty() {
            let run = state.last_run.as_ref();
            let why = run.and_then(|run| run.error.clone()).unwrap_or_else(|| {
                run.map(|run| {
                    format!("{} of {} failed", run.summary.failed_resources, count_noun(run.summary.total_resources, "resource"))
                })
                .unwrap_or_default()
            });
            attend(format!("last run {}: {why}", last_run(state)));
        }
        if state.dropped > 0 {
            let results = state.dropped_results;
            let of = if results > 0 { format!(", of them {}", count_noun(results, "result")) } else { String::new() };
            attend(format!("{} dropped{of}", count_noun(state.dropped, "message")));
        }
        if let Some(usual) = usual.filter(|usual| state.trust < *usual) {
            attend(format!("has version {} of the trust bundle, most nodes have version {usual}", state.trust));
        }
        for alarm in &state.alarms {
            attend(alarm.clone());
        }
    }
    for doubtful in &states.unverified {
        view.attention.push(Alert { node: doubtful.node.clone(), what: format!("its state: {}", doubtful.error) });
    }
    view
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::targeting::node_identity::{IdentityError, UnverifiedState};
    use crate::fleet::targeting::states::tests::state;

    #[test]
    fn each_condition_narrows_the_list_of_nodes() {
        let now: Timestamp = "2026-01-02T10:01:00Z".parse().unwrap();
        let node = |name: &str, at: &str, version: &str, trust: u64| {
            let mut state = state(name, &[], at, true);
            (state.version, state.trust) = (version.into(), trust);
            state
        };
        let fresh = "2026-01-02T10:00:50Z";
        let mut failing = node("web4", fresh, "0.10.0", 2);
        failing.failing =
            serde_json::from_value(serde_json::json!([{"resource": "file#x", "error": "no", "since": fresh}])).unwrap();
        let all = [
            node("web1", fresh, "0.10.0", 2),
            node("web2", "2026-01-02T09:00:00Z", "0.9.3", 2),
            node("web3", fresh, "0.10.0", 1),
            failing,
        ];
        let verified = all.into_iter().map(|state| (state.node.clone(), state)).collect();
        let states = NodeStates { read_at: now, verified, ..NodeStates::default() };
        let names = |conditions: NodeConditions| {
            let mut nodes = node_statuses(&states);
            conditions.retain(&mut nodes, &states);
            nodes.into_iter().map(|node| node.state.node.to_string()).collect::<Vec<_>>().join(" ")
        };
        let outdated = Some(BTreeMap::new());
        assert_eq!(names(NodeConditions::default()), "web1 web2 web3 web4");
        assert_eq!(names(NodeConditions { failed: true, ..NodeConditions::default() }), "web4");
        assert_eq!(names(NodeConditions { offline: true, ..NodeConditions::default() }), "web2");
        assert_eq!(names(NodeConditions { outdated: outdated.clone(), ..NodeConditions::default() }), "web2 web3");
        assert_eq!(names(NodeConditions { offline: true, outdated, ..NodeConditions::default() }), "web2");
    }

    #[test]
    fn conditions_that_need_an_operator_are_listed() {
        let now: Timestamp = "2026-01-02T10:01:00Z".parse().unwrap();
        let mut troubled = state("web1", &[], "2026-01-02T10:00:50Z", true);
        troubled.alarms = vec!["the disk is full".into()];
        troubled.dropped = 3;
        let all = [troubled, state("web2", &[], "2026-01-02T09:00:00Z", true), state("web3", &[], "2026-01-02T10:00:59Z", false)];
        let believed: BTreeMap<_, _> = all.into_iter().map(|state| (state.node.clone(), state)).collect();
        let forged = state("web1", &[], "2026-01-02T10:00:59Z", true);
        let doubtful =
            UnverifiedState { node: "web4".parse().unwrap(), state: Some(forged), error: IdentityError::Unknown, is_known: true };
        let states = NodeStates { read_at: now, verified: believed, unverified: vec![doubtful], ..NodeStates::default() };
        let view = fleet_status("prod", &states);
        assert_eq!((view.nodes, view.alive, view.last_runs.get("none")), (4, 1, Some(&3)));
        let attention: Vec<_> = view.attention.iter().map(|a| format!("{} {}", a.node, a.what)).collect();
        assert_eq!(
            attention,
            [
                "web1 3 messages dropped",
                "web1 the disk is full",
                "web2 silent since 2026-01-02T09:00:00Z",
                "web3 stopped at 2026-01-02T10:00:59Z",
                "web4 its state: the key of the node is not pinned"
            ]
        );
        assert_eq!(
            node_statuses(&states).iter().map(|node| node.presence.as_str()).collect::<Vec<_>>(),
            ["alive", "silent", "stopped", "unverified"]
        );
        // No key of the status hides a key of the state.
        let row = serde_json::to_string(&node_statuses(&states)[0]).unwrap();
        assert!(crate::wire::json::parse(row.as_bytes()).is_ok(), "{row}");
    }
}
