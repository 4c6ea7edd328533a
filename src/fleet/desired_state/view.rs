//! What stands in the fleet: the latest of every channel, and how far the nodes are.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use crate::model::NodeId;
use crate::transport::{Bus, Message, TransportError};
use crate::wire::command::{Action, Channel, Command, Target};
use crate::wire::{Envelope, NodeState, Subjects, json};

/// The latest of a channel, as it is published. What is in it is shown, and nothing is done because of it: nodes check
/// its signature.
#[derive(Debug, Clone, PartialEq)]
pub struct Desired {
    /// Its place.
    pub place: Channel,
    /// The command.
    pub command: Command,
    /// SHA-256 of its signed bytes.
    pub digest: String,
    /// The key ids that the envelope names: hints, not facts.
    pub keyids: Vec<String>,
    /// The envelope as it is published.
    pub envelope: Vec<u8>,
    /// When it was published.
    pub published: Option<Timestamp>,
}

/// The latest of every channel, by name.
///
/// # Errors
/// When the stream can't be read.
pub async fn desired(bus: &Bus, subjects: &Subjects) -> Result<BTreeMap<String, Desired>, TransportError> {
    let filter = subjects.all_desired();
    let messages = bus.last_per_subject(&subjects.stream("DESIRED"), filter.as_str()).await?;
    let all = messages.into_iter().filter_map(|message| read(message, subjects));
    Ok(all.map(|desired| (desired.place.name.clone(), desired)).collect())
}

/// The last message of a channel.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Latest {
    /// Its sequence number in the stream; 0 when the channel has no message.
    pub sequence: u64,
    /// The command in it; none when there is no message, or it can't be read.
    pub desired: Option<Desired>,
}

/// The last message of one channel.
///
/// # Errors
/// When the stream can't be read.
pub async fn latest(bus: &Bus, subjects: &Subjects, name: &str) -> Result<Latest, TransportError> {
    // By a consumer, which the leader of the stream serves: another server may be behind.
    let messages = bus.last_per_subject(&subjects.stream("DESIRED"), subjects.desired(name).as_str()).await?;
    let Some(message) = messages.into_iter().next() else { return Ok(Latest::default()) };
    Ok(Latest { sequence: message.seq.unwrap_or(0), desired: read(message, subjects) })
}

/// The command in a message of the stream, if it is one of the channel that the subject names.
fn read(message: Message, subjects: &Subjects) -> Option<Desired> {
    let envelope = Envelope::parse(&message.payload).ok();
    let command = envelope.as_ref().and_then(|envelope| json::read::<Command>(&envelope.payload).ok());
    let place = command.as_ref().and_then(|command| command.channel.clone());
    match (envelope, command, place) {
        (Some(envelope), Some(command), Some(place)) if subjects.desired(&place.name).as_str() == message.subject => {
            let digest = envelope.digest();
            let keyids = envelope.signatures.into_iter().map(|signature| signature.keyid).collect();
            Some(Desired { place, command, digest, keyids, envelope: message.payload, published: message.time })
        }
        _ => {
            tracing::warn!(subject = message.subject, "what is published for a channel can't be read");
            None
        }
    }
}

/// A channel and its nodes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChannelRow {
    /// The channel.
    pub channel: String,
    /// The epoch of the latest; 0 when the stream has nothing of a channel that nodes keep to.
    pub epoch: u64,
    /// Its serial; 0 in the same case.
    pub serial: u64,
    /// Its command; nothing in the same case, as all that it says.
    pub id: Option<Uuid>,
    /// The URL of what is assigned; nothing when the channel was withdrawn.
    pub manifest: Option<String>,
    /// SHA-256 of it.
    pub sha256: Option<String>,
    /// False: drift is said and not repaired.
    pub enforce: bool,
    /// Which nodes.
    pub to: Option<Target>,
    /// When it must have been signed again.
    pub expires: Option<Timestamp>,
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
    /// How many nodes keep to something that is not in the stream: other content under the same serial, or under a later one.
    pub differing: usize,
    /// They, the first few.
    pub differ: Vec<NodeId>,
}

/// So many nodes that are behind are named.
const NAMED: usize = 20;

/// The channels, and how far the nodes are.
pub fn rows(desired: &BTreeMap<String, Desired>, states: &BTreeMap<NodeId, NodeState>) -> Vec<ChannelRow> {
    let mut rows: BTreeMap<&str, ChannelRow> =
        desired.iter().map(|(name, desired)| (name.as_str(), row(desired, states))).collect();
    for state in states.values() {
        for kept in state.assignments.iter().filter(|kept| !desired.contains_key(&kept.channel)) {
            let row = rows.entry(&kept.channel).or_insert_with(|| unknown(&kept.channel));
            let at = state.channels.get(&kept.channel).map_or_else(|| "none".to_owned(), |at| at.serial.to_string());
            *row.serials.entry(at).or_default() += 1;
            row.differing += 1;
            if row.differ.len() < NAMED {
                row.differ.push(state.node.clone());
            }
        }
    }
    rows.into_values().collect()
}

/// A channel that nodes keep to, and of which the stream has nothing.
fn unknown(name: &str) -> ChannelRow {
    ChannelRow {
        channel: name.to_owned(),
        epoch: 0,
        serial: 0,
        id: None,
        manifest: None,
        sha256: None,
        enforce: false,
        to: None,
        expires: None,
        reason: None,
        nodes: 0,
        in_force: 0,
        serials: BTreeMap::new(),
        behind: Vec::new(),
        differing: 0,
        differ: Vec::new(),
    }
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
    let differ: Vec<NodeId> = states.values().filter(|state| differs(state, desired)).map(|state| state.node.clone()).collect();
    ChannelRow {
        channel: place.name.clone(),
        epoch: place.epoch,
        serial: place.serial,
        id: Some(command.id),
        manifest: assign.map(|assign| assign.manifest.url.clone()),
        sha256: assign.map(|assign| assign.manifest.sha256.clone()),
        enforce: assign.is_some_and(|assign| assign.enforce),
        to: Some(command.to.clone()),
        expires: Some(command.expires),
        reason: command.reason.clone(),
        nodes: nodes.len(),
        in_force: nodes.len() - behind.len(),
        serials,
        behind: behind.into_iter().take(NAMED).collect(),
        differing: differ.len(),
        differ: differ.into_iter().take(NAMED).collect(),
    }
}

/// True when a node keeps to what the stream does not have. One that has not come as far yet is behind only.
fn differs(state: &NodeState, desired: &Desired) -> bool {
    let Some(at) = state.channels.get(&desired.place.name) else { return false };
    if (at.epoch, at.serial) < (desired.place.epoch, desired.place.serial) {
        return false;
    }
    match state.assignments.iter().find(|kept| kept.channel == desired.place.name) {
        Some(kept) => kept.id != desired.command.id,
        // A later serial without an assignment is that of an apply in the same series.
        None => {
            at.serial == desired.place.serial
                && desired.command.channel_state().is_some_and(|(_, state)| state.epoch == at.epoch && state.digest != at.digest)
        }
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
        });
        state
    }

    fn of(command: Command) -> Desired {
        let place = command.channel.clone().unwrap();
        Desired { place, command, digest: String::new(), keyids: vec![], envelope: vec![], published: None }
    }

    #[test]
    fn who_keeps_to_something_else_is_named() {
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
        let found = rows(&BTreeMap::from([("base".to_owned(), desired)]), &states);
        let names = |row: &ChannelRow| row.differ.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!((found.len(), names(&found[0])), (1, ["db1", "web2", "web4", "web6"].map(String::from).to_vec()));
        // The stream was lost: what nodes keep to is shown all the same.
        let found = rows(&BTreeMap::new(), &states);
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
        let shown = row(&of(assign), &states);
        assert_eq!((shown.nodes, shown.in_force), (4, 1));
        assert_eq!(shown.behind.iter().map(NodeId::as_str).collect::<Vec<_>>(), ["web2", "web3", "web4"]);
        assert_eq!(shown.serials, BTreeMap::from([("4".into(), 1), ("5".into(), 2), ("none".into(), 1)]));
        let withdraw = command(&json!({"withdraw": {}}));
        let shown = row(&of(withdraw), &states);
        assert_eq!((shown.manifest, shown.in_force), (None, 2));
    }
}
