//! Builds a command, signs it, and sends it; who sends is ready to hear every answer before the first node has it.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use crate::model::{HumanDuration, NodeId};
use crate::transport::{Bus, Inbox, StartAt, StreamReader, TransportError};
use crate::trust::{SignError, Signer, sign_envelope_with};
use crate::wire::command::{Channel, MAX_ASSIGNMENT_LIFETIME, MAX_LIFETIME};
use crate::wire::report;
use crate::wire::{
    Action, COMMAND_TYPE, Command, Envelope, MAX_ENVELOPE, NodeState, Options, Selector, Signature, Subject, Subjects, Target,
};

use crate::fleet::desired_state::assign;
use crate::fleet::desired_state::assign::DispatchError;

/// The bytes of an ed25519 signature.
const SIGNATURE: usize = 64;

/// What is to be done, where.
#[derive(Debug, Clone, PartialEq)]
pub struct CommandDraft {
    /// What.
    pub action: Action,
    /// Which nodes.
    pub to: Target,
    /// How.
    pub options: Options,
    /// Its place in a series of applies.
    pub channel: Option<Channel>,
    /// Why.
    pub reason: Option<String>,
    /// How long nodes may accept it; at most [`MAX_LIFE`], or [`MAX_STANDING`] for what stands.
    pub life: HumanDuration,
}

impl CommandDraft {
    /// The command of this order.
    pub fn command(self, fleet: &str, id: Uuid, now: Timestamp) -> Command {
        let longest = if self.action.is_desired_state() { MAX_ASSIGNMENT_LIFETIME } else { MAX_LIFETIME };
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

/// The largest step of a channel in one command, of its epoch and of its serial, that nodes alone can cause.
const STEP: (u64, u64) = (16, 1 << 20);

/// The next place in a channel: one serial after the latest that is `published` and was checked, or that a node of the
/// fleet has. A node says what it wants: its word counts only near to what was checked, so that none uses a channel up.
pub fn next_in_channel(name: &str, states: &BTreeMap<NodeId, NodeState>, published: Option<&Channel>) -> Channel {
    let (epoch, serial) = published.map_or((1, 0), |channel| (channel.epoch, channel.serial));
    let is_near = |at: &(u64, u64)| {
        let base = if at.0 == epoch { serial } else { 0 };
        at.0 <= epoch.saturating_add(STEP.0) && at.1 <= base.saturating_add(STEP.1)
    };
    let reached = states.values().filter_map(|state| state.channels.get(name)).map(|at| (at.epoch, at.serial));
    let (epoch, serial) = reached.filter(is_near).fold((epoch, serial), Ord::max);
    Channel { name: name.to_owned(), epoch, serial: serial.saturating_add(1) }
}

/// A command, signed.
#[derive(Debug, Clone, PartialEq)]
pub struct SealedCommand {
    /// For what a stream keeps: the sequence number of the message of its channel that it follows, 0 for none. It was read
    /// when the serial was chosen, and only there is it stored.
    pub after: u64,
    /// The command.
    pub command: Command,
    /// SHA-256 of the signed bytes.
    pub digest: String,
    /// The envelope as it travels.
    pub envelope: Vec<u8>,
}

/// A command that was not signed.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// No signature was made.
    #[error(transparent)]
    Sign(#[from] SignError),
    /// No node would take it.
    #[error("the command has {0} bytes when signed, and nodes take at most {MAX_ENVELOPE}")]
    TooLarge(usize),
}

/// Signs a command with each key; the id beside a key is a hint.
///
/// # Errors
/// When it can't be written as JSON, is larger than nodes take, or who holds a key does not sign.
pub fn sign(command: Command, keys: &[(&str, &dyn Signer)]) -> Result<SealedCommand, SealError> {
    let payload = serde_json::to_vec(&command).map_err(SignError::from)?;
    // Its size is known before anybody is asked to sign.
    let placeholder = |(id, _): &(&str, &dyn Signer)| Signature { keyid: (*id).to_owned(), sig: vec![0; SIGNATURE] };
    let signatures = keys.iter().map(placeholder).collect();
    let unsigned = Envelope { payload_type: COMMAND_TYPE.to_owned(), payload, signatures };
    let size = unsigned.encode().len();
    if size > MAX_ENVELOPE {
        return Err(SealError::TooLarge(size));
    }
    let envelope = sign_envelope_with(COMMAND_TYPE, unsigned.payload, keys)?;
    Ok(SealedCommand { after: 0, command, digest: envelope.digest(), envelope: envelope.encode() })
}

/// A command that is on its way, with everything that hears what becomes of it.
#[derive(Debug)]
pub struct Dispatched {
    /// Its reports.
    pub feed: StreamReader,
    /// Answers to its reply subject.
    pub inbox: Inbox,
    /// For each number of a reply subject: the one node that was asked there.
    pub asked: Vec<Option<NodeId>>,
}

/// Sends a command.
///
/// What stands is stored in its channel first, and on record after it: who comes second leaves no trace, and the channel
/// is the truth about what is assigned. Everything else is on record before the first node hears of it.
///
/// # Errors
/// When the stream of jobs is not there or the connection is lost. Before the record of a one-shot job is stored nothing
/// was sent. When another command was stored in the channel meanwhile: then nothing was stored.
pub async fn dispatch(bus: &Bus, subjects: &Subjects, signed: &SealedCommand) -> Result<Dispatched, DispatchError> {
    let id = signed.command.id;
    let feed = bus.follow(&subjects.stream("JOBS"), subjects.job_reports(id).as_str(), StartAt::Beginning).await?;
    let (reply, inbox) = bus.request_inbox().await?;
    let mut asked = Vec::new();
    if signed.command.action.is_desired_state() {
        assign::store(bus, subjects, signed).await?;
        return Ok(Dispatched { feed, inbox, asked });
    }
    let message_id = id.to_string();
    let headers = [(crate::transport::MESSAGE_ID, message_id.as_str())];
    bus.publish_stored(subjects.job_command(id).as_str(), &headers, signed.envelope.clone()).await?;
    for (number, (subject, node)) in addressed(subjects, &signed.command).into_iter().enumerate() {
        let headers = [(report::ANSWER, report::NOT_TAKEN)];
        bus.publish_with_reply(subject.as_str(), &format!("{reply}.{number}"), &headers, signed.envelope.clone()).await?;
        asked.push(node);
    }
    match bus.flush_roundtrip().await {
        // A server that passes it on to ten thousand nodes first; whom it did not reach does not answer.
        Ok(()) | Err(TransportError::TimedOut(_)) => Ok(Dispatched { feed, inbox, asked }),
        Err(error) => Err(error.into()),
    }
}

/// Sends a command that was sent before once more, the same bytes: nodes that took it answer from memory. Of named nodes,
/// those in `missing` are asked; of groups and of all, everybody hears it.
///
/// # Errors
/// When the connection is lost.
pub async fn resend(
    bus: &Bus,
    subjects: &Subjects,
    signed: &SealedCommand,
    missing: &[NodeId],
) -> Result<Dispatched, TransportError> {
    // What nodes said before is known: that some were busy then is why they are asked again.
    let feed = bus.follow(&subjects.stream("JOBS"), subjects.job_reports(signed.command.id).as_str(), StartAt::New).await?;
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
    let nodes = if let Some(Selector::Nodes(nodes)) = command.to.selector() { nodes } else { &[] };
    let nodes = nodes.iter().cloned().map(Some).chain(std::iter::repeat(None));
    subjects.command(command).into_iter().zip(nodes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::SigningKey;
    use crate::wire::command::Ensure;

    fn order(to: Target) -> CommandDraft {
        let ensure = Ensure { kind: "file".into(), properties: serde_json::Map::new() };
        let life = HumanDuration::seconds(3600);
        CommandDraft { action: Action::Ensure(ensure), to, options: Options::default(), channel: None, reason: None, life }
    }

    #[test]
    fn a_command_never_lives_longer_than_nodes_accept() {
        let command = order(Target::all()).command("f", Uuid::nil(), "2026-01-01T00:00:00Z".parse().unwrap());
        assert_eq!(command.expires.to_string(), "2026-01-01T00:15:00Z");
    }

    #[test]
    fn what_is_signed_is_what_is_sent() {
        let (key, other) = (SigningKey::from_seed(&[1; 32]), SigningKey::from_seed(&[2; 32]));
        let command = order(Target::all()).command("f", Uuid::nil(), Timestamp::UNIX_EPOCH);
        let signed = sign(command.clone(), &[("a", &key), ("b", &other)]).unwrap();
        let envelope = crate::wire::envelope::Envelope::parse(&signed.envelope).unwrap();
        assert_eq!(envelope.signatures.len(), 2);
        assert_eq!((envelope.digest(), crate::wire::json::read::<Command>(&envelope.payload).unwrap()), (signed.digest, command));
    }

    #[test]
    fn what_is_too_large_is_not_signed() {
        let key = SigningKey::from_seed(&[1; 32]);
        let of = |length: usize| {
            let mut order = order(Target::all());
            order.reason = Some("x".repeat(length));
            sign(order.command("f", Uuid::nil(), Timestamp::UNIX_EPOCH), &[("a", &key)])
        };
        let fits = of(48_000).unwrap();
        let size = match of(49_000) {
            Err(SealError::TooLarge(size)) => size,
            other => panic!("{other:?}"),
        };
        assert!(fits.envelope.len() <= MAX_ENVELOPE && size > MAX_ENVELOPE);
        // The size is that of what would be sent.
        let more = of(48_300).unwrap();
        assert_eq!(more.envelope.len(), fits.envelope.len() + 400);
        assert!(size.abs_diff(fits.envelope.len() + 1000 * 4 / 3) <= 4, "{size}");
    }

    #[test]
    fn a_channel_goes_on_after_the_latest_of_all_nodes() {
        let at = |node: &str, epoch, serial| {
            let mut state = crate::fleet::targeting::states::tests::state(node, &[], "2026-01-01T00:00:00Z", true);
            state.channels.insert("base".into(), crate::wire::report::ChannelPosition { epoch, serial, digest: String::new() });
            (state.node.clone(), state)
        };
        let states = BTreeMap::from([at("a", 1, 9), at("b", 2, 3)]);
        let next = |name| next_in_channel(name, &states, None);
        let published = Channel { name: "base".into(), epoch: 2, serial: 7 };
        assert_eq!(next_in_channel("base", &states, Some(&published)).serial, 8);
        assert_eq!((next("base").epoch, next("base").serial), (2, 4));
        assert_eq!((next("new").epoch, next("new").serial), (1, 1));
        // A node that makes something up moves it a step at most.
        for (epoch, serial) in [(u64::MAX, 1), (2, u64::MAX), (2, 8 + (1 << 20)), (18, u64::MAX)] {
            let states = BTreeMap::from([at("a", epoch, serial)]);
            let next = next_in_channel("base", &states, Some(&published));
            assert_eq!((next.epoch, next.serial), (2, 8), "{epoch}.{serial}");
        }
        assert_eq!(next_in_channel("base", &BTreeMap::from([at("a", 3, 1)]), Some(&published)).epoch, 3);
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
        assert_eq!(shown(Target::nodes(nodes)), ["ensign.v1.f.cmd.ensure.node.a a", "ensign.v1.f.cmd.ensure.node.b b"]);
        assert_eq!(shown(Target::groups(vec!["g".into()])), ["ensign.v1.f.cmd.ensure.group.g -"]);
        assert_eq!(shown(Target::all()), ["ensign.v1.f.cmd.ensure.all -"]);
    }
}
