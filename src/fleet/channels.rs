//! What stands in the fleet: the latest of every channel, and how far the nodes are.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use crate::model::NodeId;
use crate::transport::{Bus, TransportError};
use crate::wire::command::{Action, Audience, Channel, Command};
use crate::wire::{Envelope, NodeState, Subjects, json};

/// The latest of a channel, as it is published. What is in it is shown, and nothing is done because of it: nodes check
/// its signature.
#[derive(Debug, Clone, PartialEq)]
pub struct Desired {
    /// Its place.
    pub place: Channel,
    /// The command.
    pub command: Command,
    /// When it was published.
    pub published: Option<Timestamp>,
}

/// The latest of every channel, by name.
///
/// # Errors
/// When the stream can't be read.
pub async fn desired(bus: &Bus, subjects: &Subjects) -> Result<BTreeMap<String, Desired>, TransportError> {
    let filter = subjects.all_desired();
    let mut all = BTreeMap::new();
    for message in bus.last_per_subject(&subjects.stream("DESIRED"), filter.as_str()).await? {
        let command = Envelope::parse(&message.payload).ok().and_then(|envelope| json::read::<Command>(&envelope.payload).ok());
        match command.and_then(|command| Some((command.channel.clone()?, command))) {
            Some((place, command)) if subjects.desired(&place.name).as_str() == message.subject => {
                all.insert(place.name.clone(), Desired { place, command, published: message.time });
            }
            _ => tracing::warn!(subject = message.subject, "what is published for a channel can't be read"),
        }
    }
    Ok(all)
}

/// A channel and its nodes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChannelRow {
    /// The channel.
    pub channel: String,
    /// The epoch of the latest.
    pub epoch: u64,
    /// Its serial.
    pub serial: u64,
    /// Its command.
    pub id: Uuid,
    /// The URL of what is assigned; nothing when the channel was withdrawn.
    pub manifest: Option<String>,
    /// SHA-256 of it.
    pub sha256: Option<String>,
    /// False: drift is said and not repaired.
    pub enforce: bool,
    /// Which nodes.
    pub to: Audience,
    /// When it must have been signed again.
    pub expires: Timestamp,
    /// Why, as who signed it says.
    pub reason: Option<String>,
    /// How many nodes it is for, as far as that can be said without their facts.
    pub nodes: usize,
    /// How many of them have the latest in force.
    pub in_force: usize,
    /// How many of them are at each serial, or at none.
    pub serials: BTreeMap<String, usize>,
    /// Those that do not have it in force, the first few.
    pub behind: Vec<NodeId>,
}

/// So many nodes that are behind are named.
const NAMED: usize = 20;

/// The channels, and how far the nodes are.
pub fn rows(desired: &BTreeMap<String, Desired>, states: &BTreeMap<NodeId, NodeState>) -> Vec<ChannelRow> {
    desired.values().map(|desired| row(desired, states)).collect()
}

fn row(desired: &Desired, states: &BTreeMap<NodeId, NodeState>) -> ChannelRow {
    let Desired { place, command, .. } = desired;
    let assign = if let Action::Assign(assign) = &command.action { Some(assign) } else { None };
    let nodes: Vec<&NodeState> = states.values().filter(|state| command.to.includes(&state.node, &state.groups)).collect();
    let mut serials = BTreeMap::new();
    for state in &nodes {
        let at = state.channels.get(&place.name).map_or_else(|| "none".to_owned(), |at| at.serial.to_string());
        *serials.entry(at).or_default() += 1;
    }
    let behind: Vec<NodeId> = nodes.iter().filter(|state| !has_it(state, desired)).map(|state| state.node.clone()).collect();
    ChannelRow {
        channel: place.name.clone(),
        epoch: place.epoch,
        serial: place.serial,
        id: command.id,
        manifest: assign.map(|assign| assign.manifest.url.clone()),
        sha256: assign.map(|assign| assign.manifest.sha256.clone()),
        enforce: assign.is_some_and(|assign| assign.enforce),
        to: command.to.clone(),
        expires: command.expires,
        reason: command.reason.clone(),
        nodes: nodes.len(),
        in_force: nodes.len() - behind.len(),
        serials,
        behind: behind.into_iter().take(NAMED).collect(),
    }
}

/// Whether a node keeps to the latest: the assignment is in force, or need not be there; the withdrawal has arrived.
fn has_it(state: &NodeState, desired: &Desired) -> bool {
    let mine = state.assignments.iter().find(|assignment| assignment.channel == desired.place.name);
    match (&desired.command.action, mine) {
        (Action::Assign(assign), Some(mine)) => {
            mine.id == desired.command.id && (!mine.selected || mine.in_force.as_ref() == Some(&assign.manifest.sha256))
        }
        (Action::Assign(_), None) => false,
        _ => state.channels.get(&desired.place.name).is_some_and(|at| at.serial == desired.place.serial),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::select::tests::state;
    use super::*;
    use crate::wire::report::{AssignmentState, ChannelState};

    fn command(action: &serde_json::Value) -> Command {
        serde_json::from_value(json!({
            "id": "0198c1f2-7a3b-7c4d-8e5f-102030405060", "fleet": "f", "to": {"groups": ["web"]},
            "issued": "2026-11-20T10:00:00Z", "expires": "2026-12-20T10:00:00Z",
            "channel": {"name": "base", "epoch": 1, "serial": 5}, "action": action,
        }))
        .unwrap()
    }

    fn node(name: &str, group: &str, serial: u64, in_force: Option<&str>, id: &str) -> NodeState {
        let mut state = state(name, &[group], "2026-11-20T10:00:00Z", true);
        state.channels.insert("base".into(), ChannelState { epoch: 1, serial, digest: String::new() });
        state.assignments.push(AssignmentState {
            channel: "base".into(),
            id: id.parse().unwrap(),
            in_force: in_force.map(str::to_owned),
            selected: true,
            enforce: true,
            expires: "2026-12-20T10:00:00Z".parse().unwrap(),
            ran: None,
            outcome: None,
            health: None,
        });
        state
    }

    #[test]
    fn who_is_behind_is_named() {
        const ID: &str = "0198c1f2-7a3b-7c4d-8e5f-102030405060";
        const OLD: &str = "0198c1f2-7a3b-7c4d-8e5f-102030405061";
        let sha = "a".repeat(64);
        let all = [
            node("web1", "web", 5, Some(&sha), ID),
            node("web2", "web", 5, Some("old"), ID),
            node("web3", "web", 4, Some(&sha), OLD),
            node("db1", "db", 4, None, OLD),
            state("web4", &["web"], "2026-11-20T10:00:00Z", true),
        ];
        let states: BTreeMap<_, _> = all.into_iter().map(|state| (state.node.clone(), state)).collect();
        let assign = command(&json!({"assign": {"manifest": {"url": "https://h/m", "sha256": sha, "size": 1}}}));
        let place = assign.channel.clone().unwrap();
        let shown = row(&Desired { place: place.clone(), command: assign, published: None }, &states);
        assert_eq!((shown.nodes, shown.in_force), (4, 1));
        assert_eq!(shown.behind.iter().map(NodeId::as_str).collect::<Vec<_>>(), ["web2", "web3", "web4"]);
        assert_eq!(shown.serials, BTreeMap::from([("4".into(), 1), ("5".into(), 2), ("none".into(), 1)]));
        let withdraw = command(&json!({"withdraw": {}}));
        let shown = row(&Desired { place, command: withdraw, published: None }, &states);
        assert_eq!((shown.manifest, shown.in_force), (None, 2));
    }
}
