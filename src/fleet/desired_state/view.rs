//! The desired state of a fleet: the latest command of every channel, and the nodes that have applied it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use crate::model::NodeId;
use crate::transport::{Bus, Message, TransportError};
use crate::wire::command::{Action, Assign, Channel, Command, Target};
use crate::wire::report::RevertStatus;
use crate::wire::{Envelope, NodeState, Subjects, json};

/// The latest command of a channel, as published and not verified: for display only. Nodes verify its signature.
#[derive(Debug, Clone, PartialEq)]
pub struct ChannelCommand {
    /// Its position in the channel.
    pub place: Channel,
    /// The command.
    pub command: Command,
    /// SHA-256 of its signed bytes.
    pub digest: String,
    /// The key ids that the envelope names: hints, not facts.
    pub keyids: Vec<String>,
    /// The envelope as it is published.
    pub envelope: Vec<u8>,
    /// Time at which the server stored it.
    pub published: Option<Timestamp>,
}

/// Reads the latest command of every channel, by name.
///
/// # Errors
/// When the stream can't be read.
pub async fn read_channels(bus: &Bus, subjects: &Subjects) -> Result<BTreeMap<String, ChannelCommand>, TransportError> {
    let filter = subjects.all_desired();
    let messages = bus.last_per_subject(&subjects.stream("DESIRED"), filter.as_str()).await?;
    let all = messages.into_iter().filter_map(|message| read_command(message, subjects));
    Ok(all.map(|desired| (desired.place.name.clone(), desired)).collect())
}

/// The last message of a channel.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ChannelMessage {
    /// Its sequence number in the stream; 0 for a channel without messages.
    pub sequence: u64,
    /// Its command; `None` without a message, or when the message can't be read.
    pub desired: Option<ChannelCommand>,
}

/// Reads the last message of a channel.
///
/// # Errors
/// When the stream can't be read.
pub async fn read_channel(bus: &Bus, subjects: &Subjects, name: &str) -> Result<ChannelMessage, TransportError> {
    // Read with a consumer, which the leader of the stream serves: other servers may be behind.
    let messages = bus.last_per_subject(&subjects.stream("DESIRED"), subjects.desired(name).as_str()).await?;
    let Some(message) = messages.into_iter().next() else { return Ok(ChannelMessage::default()) };
    Ok(ChannelMessage { sequence: message.seq.unwrap_or(0), desired: read_command(message, subjects) })
}

/// Reads the command in a message of the stream. The command must be for the channel in the subject.
fn read_command(message: Message, subjects: &Subjects) -> Option<ChannelCommand> {
    let envelope = Envelope::parse(&message.payload).ok();
    let command = envelope.as_ref().and_then(|envelope| json::read::<Command>(&envelope.payload).ok());
    let place = command.as_ref().and_then(|command| command.channel.clone());
    match (envelope, command, place) {
        (Some(envelope), Some(command), Some(place)) if subjects.desired(&place.name).as_str() == message.subject => {
            let digest = envelope.digest();
            let keyids = envelope.signatures.into_iter().map(|signature| signature.keyid).collect();
            Some(ChannelCommand { place, command, digest, keyids, envelope: message.payload, published: message.time })
        }
        _ => {
            tracing::warn!(subject = message.subject, "cannot read the command of a channel");
            None
        }
    }
}

/// A channel and its nodes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChannelRow {
    /// The channel.
    pub channel: String,
    /// Its epoch; 0 when nodes have assignments of the channel, and the stream has no command.
    pub epoch: u64,
    /// Its serial; 0 in the same case.
    pub serial: u64,
    /// The id of its command; `None` in the same case, as are all properties of the command.
    pub id: Option<Uuid>,
    /// The URL of the assigned manifest; `None` when the channel was withdrawn.
    pub manifest: Option<String>,
    /// SHA-256 of the manifest.
    pub sha256: Option<String>,
    /// False when nodes report drift without a repair.
    pub enforce: bool,
    /// True when nodes repair drift when it happens.
    pub watch: bool,
    /// The target.
    pub to: Option<Target>,
    /// Time until which it must be signed again.
    pub expires: Option<Timestamp>,
    /// The reason that its signer gave.
    pub reason: Option<String>,
    /// Number of nodes in its target, without its filter: the filter needs the facts of nodes.
    pub nodes: usize,
    /// Number of them on which the latest command is active.
    pub in_force: usize,
    /// Number of them at each serial, or at `none`.
    pub serials: BTreeMap<String, usize>,
    /// Nodes on which it is not active, the first 20.
    pub behind: Vec<NodeId>,
    /// Number of nodes in its target that went back to the assignment before.
    pub reverted: usize,
    /// Number of nodes in divergence: they have another assignment under the same or a later serial.
    pub differing: usize,
    /// Nodes in divergence, the first 20.
    pub differ: Vec<NodeId>,
}

/// Most nodes that a row names.
const MAX_NAMED_NODES: usize = 20;

/// Builds a row for each channel of the stream and of the nodes.
pub fn channel_rows(desired: &BTreeMap<String, ChannelCommand>, states: &BTreeMap<NodeId, NodeState>) -> Vec<ChannelRow> {
    let mut rows: BTreeMap<&str, ChannelRow> =
        desired.iter().map(|(name, desired)| (name.as_str(), channel_row(desired, states))).collect();
    for state in states.values() {
        for kept in state.assignments.iter().filter(|kept| !desired.contains_key(&kept.channel)) {
            let row = rows.entry(&kept.channel).or_insert_with(|| row_without_command(&kept.channel));
            let at = state.channels.get(&kept.channel).map_or_else(|| "none".to_owned(), |at| at.serial.to_string());
            *row.serials.entry(at).or_default() += 1;
            row.differing += 1;
            if row.differ.len() < MAX_NAMED_NODES {
                row.differ.push(state.node.clone());
            }
        }
    }
    rows.into_values().collect()
}

/// Builds the row of a channel that nodes have and the stream does not.
fn row_without_command(name: &str) -> ChannelRow {
    ChannelRow {
        channel: name.to_owned(),
        epoch: 0,
        serial: 0,
        id: None,
        manifest: None,
        sha256: None,
        enforce: false,
        watch: false,
        to: None,
        expires: None,
        reason: None,
        nodes: 0,
        in_force: 0,
        serials: BTreeMap::new(),
        behind: Vec::new(),
        reverted: 0,
        differing: 0,
        differ: Vec::new(),
    }
}

fn channel_row(desired: &ChannelCommand, states: &BTreeMap<NodeId, NodeState>) -> ChannelRow {
    let ChannelCommand { place, command, .. } = desired;
    let assign = if let Action::Assign(assign) = &command.action { Some(assign) } else { None };
    let nodes: Vec<&NodeState> = states.values().filter(|state| command.to.includes(&state.node, &state.groups)).collect();
    let mut serials = BTreeMap::new();
    for state in &nodes {
        let at = state.channels.get(&place.name).map_or_else(|| "none".to_owned(), |at| at.serial.to_string());
        *serials.entry(at).or_default() += 1;
    }
    let behind: Vec<NodeId> = nodes.iter().filter(|state| !has_latest(state, desired)).map(|state| state.node.clone()).collect();
    let differ: Vec<NodeId> =
        states.values().filter(|state| is_diverged(state, desired)).map(|state| state.node.clone()).collect();
    ChannelRow {
        channel: place.name.clone(),
        epoch: place.epoch,
        serial: place.serial,
        id: Some(command.id),
        manifest: assign.map(|assign| assign.manifest.url.clone()),
        sha256: assign.map(|assign| assign.manifest.sha256.clone()),
        enforce: assign.is_some_and(|assign| assign.enforce),
        watch: assign.is_some_and(Assign::is_watched),
        to: Some(command.to.clone()),
        expires: Some(command.expires),
        reason: command.reason.clone(),
        nodes: nodes.len(),
        in_force: nodes.len() - behind.len(),
        serials,
        behind: behind.into_iter().take(MAX_NAMED_NODES).collect(),
        reverted: nodes.iter().filter(|state| revert_status(state, command.id).is_some()).count(),
        differing: differ.len(),
        differ: differ.into_iter().take(MAX_NAMED_NODES).collect(),
    }
}

/// True for a node without the latest command of a channel that targets it.
pub fn is_behind(state: &NodeState, desired: &BTreeMap<String, ChannelCommand>) -> bool {
    desired.values().any(|latest| latest.command.to.includes(&state.node, &state.groups) && !has_latest(state, latest))
}

/// Returns the return of a node from this assignment to the one before, if it went back.
fn revert_status(state: &NodeState, id: Uuid) -> Option<&RevertStatus> {
    state.assignments.iter().find(|assignment| assignment.id == id)?.reverted.as_ref()
}

/// Returns the nodes that went back from this assignment to the one before.
pub fn reverted_nodes(states: &BTreeMap<NodeId, NodeState>, id: Uuid) -> BTreeMap<&NodeId, &RevertStatus> {
    states.iter().filter_map(|(node, state)| Some((node, revert_status(state, id)?))).collect()
}

/// True for a node in divergence: its assignment is not in the stream. A node at an earlier serial is only behind.
fn is_diverged(state: &NodeState, desired: &ChannelCommand) -> bool {
    let Some(at) = state.channels.get(&desired.place.name) else { return false };
    if (at.epoch, at.serial) < (desired.place.epoch, desired.place.serial) {
        return false;
    }
    match state.assignments.iter().find(|kept| kept.channel == desired.place.name) {
        Some(kept) => kept.id != desired.command.id,
        // A later serial without an assignment comes from an apply in the same channel.
        None => {
            at.serial == desired.place.serial
                && desired.command.channel_state().is_some_and(|(_, state)| state.epoch == at.epoch && state.digest != at.digest)
        }
    }
}

/// True when a node has the latest command. Then the assignment is active or does not select the node, or the withdrawal arrived.
fn has_latest(state: &NodeState, desired: &ChannelCommand) -> bool {
    let mine = state.assignments.iter().find(|assignment| assignment.channel == desired.place.name);
    match (&desired.command.action, mine) {
        (Action::Assign(assign), Some(mine)) => {
            let is_active = mine.reverted.is_none() && mine.in_force.as_ref() == Some(&assign.manifest.sha256);
            mine.id == desired.command.id && (!mine.selected || is_active)
        }
        (Action::Assign(_), None) => false,
        _ => state.channels.get(&desired.place.name).is_some_and(|at| at.serial == desired.place.serial),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fleet::targeting::states::tests::state;
    use crate::wire::report::{AssignmentStatus, ChannelPosition};

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
        state.channels.insert("base".into(), ChannelPosition { epoch: 1, serial, digest: String::new() });
        state.assignments.push(AssignmentStatus {
            channel: "base".into(),
            id: id.parse().unwrap(),
            in_force: in_force.map(str::to_owned),
            selected: true,
            enforce: true,
            expires: "2026-12-20T10:00:00Z".parse().unwrap(),
            ran: None,
            outcome: None,
            stable_runs: 0,
            health: None,
            watch: None,
            reverted: None,
        });
        state
    }

    fn of(command: Command) -> ChannelCommand {
        let place = command.channel.clone().unwrap();
        ChannelCommand { place, command, digest: String::new(), keyids: vec![], envelope: vec![], published: None }
    }

    #[test]
    fn nodes_in_divergence_are_named() {
        const ID: &str = "0198c1f2-7a3b-7c4d-8e5f-102030405060";
        const OTHER: &str = "0198c1f2-7a3b-7c4d-8e5f-102030405061";
        let sha = "a".repeat(64);
        let mut ended = node("web6", "web", 5, None, ID);
        ended.assignments.clear();
        let all = [
            node("web1", "web", 5, Some(&sha), ID),
            node("web2", "web", 5, Some(&sha), OTHER),
            node("web3", "web", 4, Some(&sha), OTHER),
            node("web4", "web", 6, Some(&sha), OTHER),
            node("db1", "db", 5, Some(&sha), OTHER),
            ended,
        ];
        let states: BTreeMap<_, _> = all.into_iter().map(|state| (state.node.clone(), state)).collect();
        let desired = of(command(&json!({"assign": {"manifest": {"url": "https://h/m", "sha256": sha, "size": 1}}})));
        let found = channel_rows(&BTreeMap::from([("base".to_owned(), desired)]), &states);
        let names = |row: &ChannelRow| row.differ.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!((found.len(), names(&found[0])), (1, ["db1", "web2", "web4", "web6"].map(String::from).to_vec()));
        // The stream was lost: the assignments of nodes are shown all the same.
        let found = channel_rows(&BTreeMap::new(), &states);
        assert_eq!((found[0].channel.as_str(), found[0].differing, found[0].id), ("base", 5, None));
        assert_eq!(found[0].serials, BTreeMap::from([("4".into(), 1), ("5".into(), 3), ("6".into(), 1)]));
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
        let shown = channel_row(&of(assign), &states);
        assert_eq!((shown.nodes, shown.in_force), (4, 1));
        assert_eq!(shown.behind.iter().map(NodeId::as_str).collect::<Vec<_>>(), ["web2", "web3", "web4"]);
        assert_eq!(shown.serials, BTreeMap::from([("4".into(), 1), ("5".into(), 2), ("none".into(), 1)]));
        // The same manifest with other data is not active either, after the return.
        let mut back = states.values().find(|state| state.node.as_str() == "web1").unwrap().clone();
        back.assignments[0].reverted =
            Some(RevertStatus { to: Some(4), at: "2026-11-20T10:00:00Z".parse().unwrap(), why: "its run failed".into() });
        let states: BTreeMap<_, _> = states.into_iter().chain([(back.node.clone(), back)]).collect();
        let assign = command(&json!({"assign": {"manifest": {"url": "https://h/m", "sha256": sha, "size": 1}}}));
        let shown = channel_row(&of(assign), &states);
        assert_eq!((shown.in_force, shown.reverted), (0, 1));
        assert_eq!(reverted_nodes(&states, ID.parse().unwrap()).len(), 1);
        let withdraw = command(&json!({"withdraw": {}}));
        let shown = channel_row(&of(withdraw), &states);
        assert_eq!((shown.manifest, shown.in_force), (None, 2));
    }
}
