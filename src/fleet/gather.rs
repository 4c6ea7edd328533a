//! What becomes of a command on every node: [`Gather`] takes reports and says who is missing.
//!
//! The JOBS stream is the truth: the server pins the node in a report's subject to the node that
//! says it. What comes to the reply subject of the command is taken only where the stream may not
//! have it (a node that did not take the command), and gives way to what the stream says.

use std::collections::BTreeMap;
use std::time::Instant;

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use uuid::Uuid;

use crate::model::NodeId;
use crate::transport::{Feed, Inbox, Message, TransportError};
use crate::wire::subject::Stage;
use crate::wire::{Ack, AckStatus, Done, DoneOutcome, Subjects, json};

use super::select::{Expected, Presence};

/// The state of a command on a node. All but the first two are terminal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Nothing was heard.
    Pending,
    /// The node has it, and works on it or will.
    Accepted,
    /// Everything was as wanted.
    Stable,
    /// Something was changed (or would be), nothing failed.
    Changed,
    /// The `where` of the command does not select it.
    NotSelected,
    /// Something failed.
    Failed,
    /// It would not do it, for the reason of this code.
    Refused(String),
    /// Its queue is full.
    Busy,
    /// The command's time was over before it could run.
    Expired,
    /// The agent died or was stopped while it ran.
    Interrupted,
    /// The job was halted, or its error budget used up, before it began.
    Halted,
    /// It is not there, and said its last word at this time.
    Offline(Option<Timestamp>),
    /// It did not answer in time, though nothing says that it is not there.
    NoAnswer,
    /// It has the command, but did not end in time.
    Unfinished,
}

/// How outcomes count for the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// As wanted.
    Good,
    /// Nobody knows, or not done.
    Incomplete,
    /// The node would not.
    Refused,
    /// It went wrong.
    Failed,
}

impl Outcome {
    /// The one word for it, as in JSON and on the terminal.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Accepted => "accepted",
            Self::Stable => "stable",
            Self::Changed => "changed",
            Self::NotSelected => "not_selected",
            Self::Failed => "failed",
            Self::Refused(_) => "refused",
            Self::Busy => "busy",
            Self::Expired => "expired",
            Self::Interrupted => "interrupted",
            Self::Halted => "halted",
            Self::Offline(_) => "offline",
            Self::NoAnswer => "no_answer",
            Self::Unfinished => "unfinished",
        }
    }

    /// How it counts.
    pub fn grade(&self) -> Grade {
        match self {
            Self::Stable | Self::Changed | Self::NotSelected => Grade::Good,
            Self::Failed => Grade::Failed,
            Self::Refused(_) => Grade::Refused,
            _ => Grade::Incomplete,
        }
    }

    fn is_terminal(&self) -> bool {
        !matches!(self, Self::Pending | Self::Accepted)
    }

    fn of(done: &Done) -> Self {
        match done.outcome {
            DoneOutcome::Stable => Self::Stable,
            DoneOutcome::Changed => Self::Changed,
            DoneOutcome::Failed => Self::Failed,
            DoneOutcome::Refused => Self::Refused(done.code.clone().unwrap_or_default()),
            DoneOutcome::Busy => Self::Busy,
            DoneOutcome::Expired => Self::Expired,
            DoneOutcome::Interrupted => Self::Interrupted,
            DoneOutcome::Halted => Self::Halted,
            DoneOutcome::NotSelected => Self::NotSelected,
        }
    }
}

impl Serialize for Outcome {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

/// What became of a command on one node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeResult {
    /// The node.
    pub node: NodeId,
    /// The state.
    pub outcome: Outcome,
    /// For `refused`: the code of the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// For `offline`: when it was last heard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// What the node said at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done: Option<Done>,
}

impl NodeResult {
    fn new(node: NodeId, outcome: Outcome, done: Option<Done>) -> Self {
        let code = if let Outcome::Refused(code) = &outcome { Some(code.clone()) } else { None };
        let since = if let Outcome::Offline(since) = outcome { since } else { None };
        Self { node, outcome, code, since, done }
    }
}

/// Something new.
#[derive(Debug, Clone, PartialEq)]
pub enum Update {
    /// A node has the command.
    Acked(NodeId),
    /// A node came to its end.
    Ended(Box<NodeResult>),
}

#[derive(Debug)]
struct Seen {
    presence: Presence,
    outcome: Outcome,
    done: Option<Done>,
    /// The outcome is only what came to the reply subject.
    hearsay: bool,
}

/// Follows one command until every node has come to its end.
#[derive(Debug)]
pub struct Gather {
    subjects: Subjects,
    id: Uuid,
    digest: String,
    nodes: BTreeMap<NodeId, Seen>,
    /// How many nodes that are there have not come to their end.
    missing: usize,
}

impl Gather {
    /// Waits for `expected` to answer the command `id`, whose payload has this digest.
    pub fn new(subjects: Subjects, id: Uuid, digest: impl Into<String>, expected: Vec<Expected>) -> Self {
        let mut gather = Self { subjects, id, digest: digest.into(), nodes: BTreeMap::new(), missing: 0 };
        for Expected { node, presence } in expected {
            gather.nodes.insert(node, Seen { presence, outcome: Outcome::Pending, done: None, hearsay: false });
        }
        gather.recount();
        gather
    }

    /// The command.
    pub fn id(&self) -> Uuid {
        self.id
    }

    fn count(&self, which: impl Fn(&Seen) -> bool) -> usize {
        self.nodes.values().filter(|seen| which(seen)).count()
    }

    /// How many nodes have come to their end, and how many there are.
    pub fn progress(&self) -> (usize, usize) {
        (self.count(|seen| seen.outcome.is_terminal()), self.nodes.len())
    }

    /// True when nobody is left to wait for: nodes that are not there are not waited for, unless
    /// they answered after all.
    pub fn is_complete(&self) -> bool {
        self.missing == 0
    }

    /// Takes a message of the JOBS stream.
    pub fn take_report(&mut self, message: &Message) -> Option<Update> {
        let (id, node, stage) = self.subjects.report(&message.subject)?;
        if id != self.id {
            return None;
        }
        match stage {
            Stage::Ack => {
                let ack: Ack = json::read(&message.payload).ok()?;
                (ack.node == node && ack.digest == self.digest).then(|| self.acked(node, ack.status))?
            }
            Stage::Done => {
                let done: Done = json::read(&message.payload).ok()?;
                // Another digest is a report on another command with the same id: somebody's replay.
                (done.node == node && done.digest == self.digest).then(|| self.ended(node, done, false))?
            }
        }
    }

    /// Takes an answer to the reply subject; `asked` is the one node whose subject the message went to.
    pub fn take_answer(&mut self, message: &Message, asked: Option<&NodeId>) -> Option<Update> {
        if message.no_responders {
            return asked.and_then(|node| self.nobody_listens(node));
        }
        let done: Done = json::read(&message.payload).ok()?;
        let ours = done.digest == self.digest && done.id.is_none_or(|id| id == self.id);
        let not_taken = matches!(done.outcome, DoneOutcome::Refused | DoneOutcome::Busy | DoneOutcome::Expired);
        if !ours || !not_taken || asked.is_some_and(|node| *node != done.node) {
            return None;
        }
        self.ended(done.node.clone(), done, true)
    }

    fn entry(&mut self, node: &NodeId) -> &mut Seen {
        // A node that joined since the states were read.
        let new = Seen { presence: Presence::Unknown, outcome: Outcome::Pending, done: None, hearsay: false };
        self.nodes.entry(node.clone()).or_insert(new)
    }

    fn acked(&mut self, node: NodeId, status: AckStatus) -> Option<Update> {
        let seen = self.entry(&node);
        if seen.outcome.is_terminal() && !seen.hearsay {
            return None;
        }
        // It lives, whatever its state said.
        seen.presence = Presence::Alive;
        seen.hearsay = false;
        let update = match status {
            AckStatus::Accepted => {
                seen.outcome = Outcome::Accepted;
                Update::Acked(node)
            }
            AckStatus::NotSelected => {
                seen.outcome = Outcome::NotSelected;
                Update::Ended(Box::new(NodeResult::new(node, Outcome::NotSelected, None)))
            }
        };
        self.recount();
        Some(update)
    }

    fn ended(&mut self, node: NodeId, done: Done, hearsay: bool) -> Option<Update> {
        let seen = self.entry(&node);
        if seen.outcome.is_terminal() && (hearsay || !seen.hearsay) {
            return None;
        }
        let repeated = seen.hearsay && seen.outcome == Outcome::of(&done);
        seen.outcome = Outcome::of(&done);
        seen.hearsay = hearsay;
        seen.done = Some(done.clone());
        self.recount();
        let result = NodeResult::new(node, Outcome::of(&done), Some(done));
        (!repeated).then(|| Update::Ended(Box::new(result)))
    }

    /// The server itself says that no agent listens for this node.
    fn nobody_listens(&mut self, node: &NodeId) -> Option<Update> {
        let seen = self.nodes.get_mut(node).filter(|seen| seen.outcome == Outcome::Pending)?;
        let since = if let Presence::Offline(at) = seen.presence { Some(at) } else { None };
        seen.outcome = Outcome::Offline(since);
        self.recount();
        Some(Update::Ended(Box::new(NodeResult::new(node.clone(), Outcome::Offline(since), None))))
    }

    fn recount(&mut self) {
        self.missing = self.count(|seen| !seen.is_gone() && !seen.outcome.is_terminal());
    }

    /// The end: every node with its terminal state.
    pub fn finish(self) -> Vec<NodeResult> {
        let results = self.nodes.into_iter().map(|(node, seen)| {
            let outcome = match (seen.outcome, seen.presence) {
                (Outcome::Pending, Presence::Offline(at)) => Outcome::Offline(Some(at)),
                (Outcome::Pending, _) => Outcome::NoAnswer,
                (Outcome::Accepted, _) => Outcome::Unfinished,
                (outcome, _) => outcome,
            };
            NodeResult::new(node, outcome, seen.done)
        });
        results.collect()
    }
}

impl Seen {
    /// Its state says that it is not there, and it has not answered.
    fn is_gone(&self) -> bool {
        matches!(self.presence, Presence::Offline(_)) && self.outcome == Outcome::Pending
    }
}

/// Takes reports until every node has come to its end or `deadline` is over; tells `on_update` of each.
///
/// `asked` has the node of each reply subject, by the number that is its last token.
///
/// # Errors
/// When the stream of reports can't be read any more.
pub async fn gather(
    gather: &mut Gather,
    feed: &mut Feed,
    mut answers: Option<(&mut Inbox, &[Option<NodeId>])>,
    deadline: Instant,
    on_update: &mut dyn FnMut(&Gather, Update),
) -> Result<(), TransportError> {
    while !gather.is_complete() {
        let update = tokio::select! {
            // Safe to cancel: a feed loses no message (see `Feed::next`).
            report = feed.next() => match report {
                Some(report) => gather.take_report(&report?),
                None => return Err(TransportError::Disconnected),
            },
            // Safe to cancel: so does an inbox. When it is closed, this waits for ever and the others go on.
            (answer, asked) = next_answer(&mut answers) => gather.take_answer(&answer, asked.as_ref()),
            // Safe to cancel: a moment in time.
            () = tokio::time::sleep_until(deadline.into()) => return Ok(()),
        };
        if let Some(update) = update {
            on_update(gather, update);
        }
    }
    Ok(())
}

async fn next_answer(answers: &mut Option<(&mut Inbox, &[Option<NodeId>])>) -> (Message, Option<NodeId>) {
    if let Some((inbox, asked)) = answers {
        if let Some(message) = inbox.next().await {
            let number = message.subject.rsplit('.').next().and_then(|token| token.parse::<usize>().ok());
            let node = number.and_then(|number| asked.get(number)).cloned().flatten();
            return (message, node);
        }
        *answers = None;
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ID: Uuid = Uuid::from_u128(1);
    const DIGEST: &str = "d1";

    fn subjects() -> Subjects {
        Subjects::new("f")
    }

    fn node(name: &str) -> NodeId {
        name.parse().unwrap()
    }

    fn body(name: &str, extra: &serde_json::Value) -> Vec<u8> {
        let mut body = json!({"protocol": "p", "id": ID, "digest": DIGEST, "node": name, "at": "2026-01-01T00:00:00Z"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        serde_json::to_vec(&body).unwrap()
    }

    fn report(name: &str, stage: Stage, extra: &serde_json::Value) -> Message {
        let subject = subjects().job(ID, &node(name), stage).as_str().to_owned();
        Message { subject, payload: body(name, extra), ..Message::default() }
    }

    fn done(name: &str, outcome: &str) -> Message {
        report(name, Stage::Done, &json!({"outcome": outcome}))
    }

    fn gather(nodes: &[(&str, Presence)]) -> Gather {
        let expected = nodes.iter().map(|(name, presence)| Expected { node: node(name), presence: *presence }).collect();
        Gather::new(subjects(), ID, DIGEST, expected)
    }

    fn words(gather: Gather) -> String {
        let results = gather.finish();
        results.iter().map(|result| format!("{}={}", result.node, result.outcome.word())).collect::<Vec<_>>().join(" ")
    }

    const GONE: Presence = Presence::Offline(Timestamp::UNIX_EPOCH);

    #[test]
    fn every_node_ends_in_a_named_state() {
        let mut all = gather(&[
            ("ok", Presence::Alive),
            ("slow", Presence::Alive),
            ("silent", Presence::Alive),
            ("where", Presence::Alive),
            ("gone", GONE),
            ("back", GONE),
            ("typo", Presence::Unknown),
        ]);
        let acked = all.take_report(&report("slow", Stage::Ack, &json!({"status": "accepted"})));
        assert_eq!(acked, Some(Update::Acked(node("slow"))));
        assert!(all.take_report(&done("ok", "stable")).is_some());
        assert!(all.take_report(&done("ok", "failed")).is_none(), "the first end stays");
        assert!(all.take_report(&report("where", Stage::Ack, &json!({"status": "not_selected"}))).is_some());
        assert!(all.take_report(&done("back", "changed")).is_some());
        assert!(all.take_report(&done("joined", "busy")).is_some());
        assert!(!all.is_complete());
        assert_eq!(
            words(all),
            "back=changed gone=offline joined=busy ok=stable silent=no_answer slow=unfinished typo=no_answer where=not_selected"
        );
    }

    #[test]
    fn it_is_complete_when_everybody_who_is_there_has_ended() {
        let mut two = gather(&[("a", Presence::Alive), ("b", GONE)]);
        assert!(!two.is_complete());
        two.take_report(&report("b", Stage::Ack, &json!({"status": "accepted"})));
        two.take_report(&done("a", "stable"));
        assert!(!two.is_complete(), "b is back, and at work");
        two.take_report(&done("b", "interrupted"));
        assert!(two.is_complete());
        assert!(gather(&[("b", GONE)]).is_complete());
        assert!(!gather(&[("c", Presence::Unknown)]).is_complete(), "it may be new");
    }

    #[test]
    fn reports_of_others_do_not_count() {
        let mut one = gather(&[("a", Presence::Alive)]);
        let mut other_node = done("a", "stable");
        other_node.payload = body("b", &json!({"outcome": "stable"}));
        let other_digest = report("a", Stage::Done, &json!({"outcome": "stable", "digest": "d2"}));
        let other_job = Message {
            subject: subjects().job(Uuid::from_u128(2), &node("a"), Stage::Done).as_str().into(),
            ..done("a", "stable")
        };
        let garbage = Message { payload: b"{".to_vec(), ..done("a", "stable") };
        for message in [other_node, other_digest, other_job, garbage] {
            assert_eq!(one.take_report(&message), None);
        }
        assert_eq!(words(one), "a=no_answer");
    }

    #[test]
    fn answers_are_hearsay() {
        let answer = |name: &str, extra: serde_json::Value| Message { payload: body(name, &extra), ..Message::default() };
        let refusal = json!({"outcome": "refused", "code": "bad_signature", "id": null});
        let mut two = gather(&[("a", Presence::Alive), ("b", Presence::Alive)]);
        // Only refusals, and only of the node that was asked.
        assert_eq!(two.take_answer(&answer("a", json!({"outcome": "stable"})), None), None);
        assert_eq!(two.take_answer(&answer("a", refusal.clone()), Some(&node("b"))), None);
        assert!(two.take_answer(&answer("a", refusal.clone()), None).is_some());
        assert!(two.take_answer(&answer("b", refusal), Some(&node("b"))).is_some());
        assert!(two.is_complete());
        // What the stream says counts more.
        assert!(two.take_report(&done("a", "changed")).is_some());
        assert_eq!(words(two), "a=changed b=refused");
    }

    #[test]
    fn the_server_knows_when_nobody_listens() {
        let mut one = gather(&[("a", Presence::Alive)]);
        let nobody = Message { no_responders: true, ..Message::default() };
        assert_eq!(one.take_answer(&nobody, None), None);
        assert!(one.take_answer(&nobody, Some(&node("a"))).is_some());
        assert!(one.is_complete());
        assert_eq!(words(one), "a=offline");
    }

    #[test]
    fn grades_order_the_exit_codes() {
        let worst =
            [Outcome::Stable, Outcome::Busy, Outcome::Refused("x".into()), Outcome::Failed].map(|outcome| outcome.grade());
        assert!(worst.is_sorted());
    }
}
