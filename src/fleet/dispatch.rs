//! Builds a command, signs it, and sends it; who sends is ready to hear every answer before the first node has it.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use crate::model::{NodeId, Span};
use crate::transport::{Bus, Feed, From, Inbox, TransportError};
use crate::trust::{Sign, SignError, seal_by};
use crate::wire::command::{Channel, MAX_LIFE, MAX_STANDING};
use crate::wire::report;
use crate::wire::{Action, Audience, COMMAND_TYPE, Command, NodeState, Options, Subject, Subjects, Target};

/// What is to be done, where.
#[derive(Debug, Clone, PartialEq)]
pub struct Order {
    /// What.
    pub action: Action,
    /// Which nodes.
    pub to: Audience,
    /// How.
    pub options: Options,
    /// Its place in a series of applies.
    pub channel: Option<Channel>,
    /// Why.
    pub reason: Option<String>,
    /// How long nodes may accept it; at most [`MAX_LIFE`], or [`MAX_STANDING`] for what stands.
    pub life: Span,
}

impl Order {
    /// The command of this order.
    pub fn command(self, fleet: &str, id: Uuid, now: Timestamp) -> Command {
        let longest = if self.action.is_standing() { MAX_STANDING } else { MAX_LIFE };
        let life = SignedDuration::try_from(self.life.min(longest).get()).unwrap_or(SignedDuration::ZERO);
        Command {
            id,
            fleet: fleet.to_owned(),
            to: self.to,
            issued: now,
            not_before: None,
            expires: now.saturating_add(life).unwrap_or(now),
            channel: self.channel,
            action: self.action,
            options: self.options,
            reason: self.reason,
        }
    }
}

/// The next place in a channel: one serial after the latest that any node of the fleet has, or that was `published`.
pub fn next_in_channel(name: &str, states: &BTreeMap<NodeId, NodeState>, published: Option<&Channel>) -> Channel {
    let reached = states.values().filter_map(|state| state.channels.get(name)).map(|at| (at.epoch, at.serial));
    let latest = reached.chain(published.map(|channel| (channel.epoch, channel.serial))).max();
    let (epoch, serial) = latest.unwrap_or((1, 0));
    Channel { name: name.to_owned(), epoch, serial: serial + 1 }
}

/// A command, signed.
#[derive(Debug, Clone, PartialEq)]
pub struct Signed {
    /// The command.
    pub command: Command,
    /// SHA-256 of the signed bytes.
    pub digest: String,
    /// The envelope as it travels.
    pub envelope: Vec<u8>,
}

/// Signs a command with each key; the id beside a key is a hint.
///
/// # Errors
/// When it can't be written as JSON, or who holds a key does not sign.
pub fn sign(command: Command, keys: &[(&str, &dyn Sign)]) -> Result<Signed, SignError> {
    let envelope = seal_by(COMMAND_TYPE, serde_json::to_vec(&command)?, keys)?;
    Ok(Signed { command, digest: envelope.digest(), envelope: envelope.encode() })
}

/// A command that is on its way, with everything that hears what becomes of it.
#[derive(Debug)]
pub struct Dispatched {
    /// Its reports.
    pub feed: Feed,
    /// Answers to its reply subject.
    pub inbox: Inbox,
    /// For each number of a reply subject: the one node that was asked there.
    pub asked: Vec<Option<NodeId>>,
}

/// Sends a command.
///
/// # Errors
/// When the stream of jobs is not there or the connection is lost. Before the record of the job is stored nothing was sent.
pub async fn dispatch(bus: &Bus, subjects: &Subjects, signed: &Signed) -> Result<Dispatched, TransportError> {
    let id = signed.command.id;
    let feed = bus.follow(&subjects.stream("JOBS"), subjects.job_reports(id).as_str(), From::Beginning).await?;
    let (reply, inbox) = bus.request_inbox().await?;
    let message_id = id.to_string();
    let headers = [(crate::transport::MESSAGE_ID, message_id.as_str())];
    bus.publish_stored(subjects.job_command(id).as_str(), &headers, signed.envelope.clone()).await?;
    let mut asked = Vec::new();
    if signed.command.action.is_standing() {
        // Into the stream that keeps it; from there the server passes it on.
        for subject in subjects.command(&signed.command) {
            bus.publish_stored(subject.as_str(), &headers, signed.envelope.clone()).await?;
        }
        return Ok(Dispatched { feed, inbox, asked });
    }
    for (number, (subject, node)) in addressed(subjects, &signed.command).into_iter().enumerate() {
        let headers = [(report::ANSWER, report::NOT_TAKEN)];
        bus.publish_with_reply(subject.as_str(), &format!("{reply}.{number}"), &headers, signed.envelope.clone()).await?;
        asked.push(node);
    }
    match bus.flush_roundtrip().await {
        // A server that passes it on to ten thousand nodes first; whom it did not reach does not answer.
        Ok(()) | Err(TransportError::TimedOut(_)) => Ok(Dispatched { feed, inbox, asked }),
        Err(error) => Err(error),
    }
}

/// Sends a command that was sent before once more, the same bytes: nodes that took it answer from memory. Of named nodes,
/// those in `missing` are asked; of groups and of all, everybody hears it.
///
/// # Errors
/// When the connection is lost.
pub async fn resend(bus: &Bus, subjects: &Subjects, signed: &Signed, missing: &[NodeId]) -> Result<Dispatched, TransportError> {
    // What nodes said before is known: that some were busy then is why they are asked again.
    let feed = bus.follow(&subjects.stream("JOBS"), subjects.job_reports(signed.command.id).as_str(), From::New).await?;
    let (reply, inbox) = bus.request_inbox().await?;
    let mut asked = Vec::new();
    let chosen = addressed(subjects, &signed.command).into_iter();
    for (subject, node) in chosen.filter(|(_, node)| node.as_ref().is_none_or(|node| missing.contains(node))) {
        let reply = format!("{reply}.{}", asked.len());
        bus.publish_with_reply(subject.as_str(), &reply, &[], signed.envelope.clone()).await?;
        asked.push(node);
    }
    bus.flush_roundtrip().await?;
    Ok(Dispatched { feed, inbox, asked })
}

/// The subjects of a command, each with the node that it is for when it is for one.
fn addressed(subjects: &Subjects, command: &Command) -> Vec<(Subject, Option<NodeId>)> {
    let nodes = if let Some(Target::Nodes(nodes)) = command.to.target() { nodes } else { &[] };
    let nodes = nodes.iter().cloned().map(Some).chain(std::iter::repeat(None));
    subjects.command(command).into_iter().zip(nodes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::SigningKey;
    use crate::wire::command::Ensure;

    fn order(to: Audience) -> Order {
        let ensure = Ensure { kind: "file".into(), properties: serde_json::Map::new() };
        let life = Span::seconds(3600);
        Order { action: Action::Ensure(ensure), to, options: Options::default(), channel: None, reason: None, life }
    }

    #[test]
    fn a_command_never_lives_longer_than_nodes_accept() {
        let command = order(Audience::all()).command("f", Uuid::nil(), "2026-01-01T00:00:00Z".parse().unwrap());
        assert_eq!(command.expires.to_string(), "2026-01-01T00:15:00Z");
    }

    #[test]
    fn what_is_signed_is_what_is_sent() {
        let (key, other) = (SigningKey::from_seed(&[1; 32]), SigningKey::from_seed(&[2; 32]));
        let command = order(Audience::all()).command("f", Uuid::nil(), Timestamp::UNIX_EPOCH);
        let signed = sign(command.clone(), &[("a", &key), ("b", &other)]).unwrap();
        let envelope = crate::wire::envelope::Envelope::parse(&signed.envelope).unwrap();
        assert_eq!(envelope.signatures.len(), 2);
        assert_eq!((envelope.digest(), crate::wire::json::read::<Command>(&envelope.payload).unwrap()), (signed.digest, command));
    }

    #[test]
    fn a_channel_goes_on_after_the_latest_of_all_nodes() {
        let at = |node: &str, epoch, serial| {
            let mut state = super::super::select::tests::state(node, &[], "2026-01-01T00:00:00Z", true);
            state.channels.insert("base".into(), crate::wire::report::ChannelState { epoch, serial, digest: String::new() });
            (state.node.clone(), state)
        };
        let states = BTreeMap::from([at("a", 1, 9), at("b", 2, 3)]);
        let next = |name| next_in_channel(name, &states, None);
        let published = Channel { name: "base".into(), epoch: 2, serial: 7 };
        assert_eq!(next_in_channel("base", &states, Some(&published)).serial, 8);
        assert_eq!((next("base").epoch, next("base").serial), (2, 4));
        assert_eq!((next("new").epoch, next("new").serial), (1, 1));
    }

    #[test]
    fn each_named_node_is_asked_by_itself() {
        let subjects = Subjects::new("f");
        let nodes: Vec<NodeId> = vec!["a".parse().unwrap(), "b".parse().unwrap()];
        let shown = |to| {
            let command = order(to).command("f", Uuid::nil(), Timestamp::UNIX_EPOCH);
            let all = addressed(&subjects, &command);
            all.iter().map(|(s, n)| format!("{s} {}", n.as_ref().map_or("-", NodeId::as_str))).collect::<Vec<_>>()
        };
        assert_eq!(shown(Audience::nodes(nodes)), ["ensign.v1.f.cmd.ensure.node.a a", "ensign.v1.f.cmd.ensure.node.b b"]);
        assert_eq!(shown(Audience::groups(vec!["g".into()])), ["ensign.v1.f.cmd.ensure.group.g -"]);
        assert_eq!(shown(Audience::all()), ["ensign.v1.f.cmd.ensure.all -"]);
    }
}
