//! Sends signed commands: the sender reads answers before the first node has the command.

use std::time::{Duration, Instant};

use crate::fleet::desired_state::assign::{self, DispatchError};
use crate::model::NodeId;
use crate::transport::{Bus, Inbox, StartAt, StreamReader, TransportError};
use crate::wire::report;
use crate::wire::{Command, Selector, Subject, Subjects};

use super::seal::SealedCommand;

/// Longest wait for a stream of a cluster that has just lost a server, and elects a leader.
const ELECTION_TIME: Duration = Duration::from_secs(10);
/// Pause between two attempts meanwhile.
const ELECTION_PAUSE: Duration = Duration::from_millis(250);

/// A command that was sent, with the streams of its reports and answers.
#[derive(Debug)]
pub struct Dispatched {
    /// Reports of nodes.
    pub reports: StreamReader,
    /// Answers to its reply subject.
    pub inbox: Inbox,
    /// The node of each number of the reply subject; `None` for several nodes.
    pub asked: Vec<Option<NodeId>>,
}

/// Sends a command.
///
/// An assignment is stored in its channel first, and its record after it. A command that loses against another operator
/// leaves no trace, and the channel is the truth about assignments. The record of every other command is stored before the
/// first node receives the command.
///
/// # Errors
/// When the stream of jobs is missing or the connection is lost. Without a stored record, a one-shot job was not sent. When
/// another command was stored in the channel meanwhile: then this command was not stored.
pub async fn dispatch(bus: &Bus, subjects: &Subjects, signed: &SealedCommand) -> Result<Dispatched, DispatchError> {
    let id = signed.command.id;
    let feed = bus.follow(&subjects.stream("JOBS"), subjects.job_reports(id).as_str(), StartAt::Beginning).await?;
    let (reply, inbox) = bus.request_inbox().await?;
    let mut asked = Vec::new();
    if signed.command.action.is_desired_state() {
        assign::store_in_channel(bus, subjects, signed).await?;
        return Ok(Dispatched { reports: feed, inbox, asked });
    }
    let message_id = id.to_string();
    let headers = [(crate::transport::MESSAGE_ID, message_id.as_str())];
    store_record(bus, subjects.job_command(id).as_str(), &headers, &signed.envelope).await?;
    let headers = [(report::ANSWER, report::NOT_TAKEN)];
    for (number, (subject, node)) in command_subjects(subjects, &signed.command).into_iter().enumerate() {
        bus.publish_with_reply(subject.as_str(), &format!("{reply}.{number}"), &headers, signed.envelope.clone()).await?;
        asked.push(node);
    }
    match bus.flush_roundtrip().await {
        // The server may be busy with ten thousand nodes. A node that the command did not reach does not answer.
        Ok(()) | Err(TransportError::TimedOut(_)) => Ok(Dispatched { reports: feed, inbox, asked }),
        Err(error) => Err(error.into()),
    }
}

/// Stores the record of a command. The stream exists, as its reports are read: without an answer, it elects a leader.
async fn store_record(bus: &Bus, subject: &str, headers: &[(&str, &str)], envelope: &[u8]) -> Result<(), TransportError> {
    let until = Instant::now() + ELECTION_TIME;
    loop {
        match bus.publish_stored(subject, headers, envelope.to_vec()).await {
            Err(TransportError::NoStream(_)) if Instant::now() < until => tokio::time::sleep(ELECTION_PAUSE).await,
            stored => return stored.map(drop),
        }
    }
}

/// Sends a command without a record, for a fleet whose streams do not answer. Nodes answer on the reply subject, also when they
/// accept the command. Returns these answers, and the node of each number of the reply subject.
///
/// # Errors
/// When the connection is lost.
pub async fn dispatch_unrecorded(
    bus: &Bus,
    subjects: &Subjects,
    signed: &SealedCommand,
) -> Result<(Inbox, Vec<Option<NodeId>>), TransportError> {
    let (reply, inbox) = bus.request_inbox().await?;
    let mut asked = Vec::new();
    for (number, (subject, node)) in command_subjects(subjects, &signed.command).into_iter().enumerate() {
        bus.publish_with_reply(subject.as_str(), &format!("{reply}.{number}"), &[], signed.envelope.clone()).await?;
        asked.push(node);
    }
    bus.flush_roundtrip().await?;
    Ok((inbox, asked))
}

/// Sends the bytes of a command again: nodes that accepted the command answer from their ledger. Of named nodes, only those
/// in `missing` get it. Groups and the target `all` get it as a whole.
///
/// # Errors
/// When the connection is lost.
pub async fn resend(
    bus: &Bus,
    subjects: &Subjects,
    signed: &SealedCommand,
    missing: &[NodeId],
) -> Result<Dispatched, TransportError> {
    // Old reports do not count: a node that was busy then is asked again.
    let feed = bus.follow(&subjects.stream("JOBS"), subjects.job_reports(signed.command.id).as_str(), StartAt::New).await?;
    let (reply, inbox) = bus.request_inbox().await?;
    let mut asked = Vec::new();
    let chosen = command_subjects(subjects, &signed.command).into_iter();
    for (subject, node) in chosen.filter(|(_, node)| node.as_ref().is_none_or(|node| missing.contains(node))) {
        let reply = format!("{reply}.{}", asked.len());
        bus.publish_with_reply(subject.as_str(), &reply, &[], signed.envelope.clone()).await?;
        asked.push(node);
    }
    bus.flush_roundtrip().await?;
    Ok(Dispatched { reports: feed, inbox, asked })
}

/// Returns the subjects of a command, each with its node when the subject is of a single node.
fn command_subjects(subjects: &Subjects, command: &Command) -> Vec<(Subject, Option<NodeId>)> {
    let nodes = if let Some(Selector::Nodes(nodes)) = command.to.selector() { nodes } else { &[] };
    let nodes = nodes.iter().cloned().map(Some).chain(std::iter::repeat(None));
    subjects.command(command).into_iter().zip(nodes).collect()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use uuid::Uuid;

    use super::super::draft::tests::draft;
    use super::*;
    use crate::wire::Target;

    #[test]
    fn each_named_node_is_asked_by_itself() {
        let subjects = Subjects::new("f");
        let nodes: Vec<NodeId> = vec!["a".parse().unwrap(), "b".parse().unwrap()];
        let subjects_of = |to| {
            let command = draft(to).command("f", Uuid::nil(), Timestamp::UNIX_EPOCH);
            let all = command_subjects(&subjects, &command);
            all.iter().map(|(s, n)| format!("{s} {}", n.as_ref().map_or("-", NodeId::as_str))).collect::<Vec<_>>()
        };
        assert_eq!(subjects_of(Target::nodes(nodes)), ["ensign.v1.f.cmd.ensure.node.a a", "ensign.v1.f.cmd.ensure.node.b b"]);
        assert_eq!(subjects_of(Target::groups(vec!["g".into()])), ["ensign.v1.f.cmd.ensure.group.g -"]);
        assert_eq!(subjects_of(Target::all()), ["ensign.v1.f.cmd.ensure.all -"]);
    }
}
