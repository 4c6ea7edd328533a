//! The state of a command on every node: [`JobTracker`] takes reports and knows the missing nodes.
//!
//! Signed reports in the JOBS stream decide. A report without a receipt by the pinned key of its node is shown, and does not
//! count. An answer to the reply subject counts only from a node that did not accept the command, since the stream may not
//! have that answer. Such an answer is provisional, and a report of the stream replaces it.

mod outcome;
mod report_verifier;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt;
use jiff::Timestamp;
use uuid::Uuid;

use crate::model::NodeId;
use crate::transport::{Inbox, Message, StreamReader, TransportError};
use crate::wire::{Ack, AckStatus, CommandResult, Subjects};

use super::event::{JobEvent, JobProgress};
use crate::fleet::targeting::key_discovery::{HeldMessage, KeyDiscovery};
use crate::fleet::targeting::node_identity::{IdentityError, NodeKeys};
use crate::fleet::targeting::parallel::share;
use crate::fleet::targeting::states::{ExpectedNode, Liveness};
use report_verifier::Verdict;

pub use outcome::{Grade, NodeResult, Outcome};
pub use report_verifier::{ReportVerifier, VerifiedReport};

/// Most reports that are verified together: enough for all processors, few enough that a user sees progress.
const TOGETHER: usize = 1024;

#[derive(Debug)]
struct NodeProgress {
    presence: Liveness,
    outcome: Outcome,
    done: Option<CommandResult>,
    /// True when the outcome is provisional: it came to the reply subject only, or from the liveness monitor.
    hearsay: bool,
    /// True when the state of the node is not verified.
    unknown: bool,
    /// The verification error of a message in its name.
    doubt: Option<String>,
}

impl NodeProgress {
    fn new(presence: Liveness, doubt: Option<String>) -> Self {
        Self { presence, outcome: Outcome::Pending, done: None, hearsay: false, unknown: doubt.is_some(), doubt }
    }
}

/// Tracks one command until every node has reached its terminal state.
#[derive(Debug)]
pub struct JobTracker {
    verifier: ReportVerifier,
    began: Instant,
    nodes: BTreeMap<NodeId, NodeProgress>,
    /// Updated with every change: with ten thousand nodes, a new count at each message takes longer than the work.
    counts: Counts,
    /// The lookup of keys for nodes that join meanwhile.
    newcomers: Option<KeyDiscovery>,
}

/// Counts of nodes by state.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    /// Online nodes without an answer.
    silent: usize,
    /// Online nodes that have not reached their terminal state.
    missing: usize,
    /// Nodes in their terminal state.
    ended: usize,
}

impl Counts {
    fn add(&mut self, seen: &NodeProgress) {
        let there = !seen.is_gone();
        self.silent += usize::from(there && seen.outcome == Outcome::Pending);
        self.missing += usize::from(there && !seen.outcome.is_terminal());
        self.ended += usize::from(seen.outcome.is_terminal());
    }

    fn remove(&mut self, seen: &NodeProgress) {
        let mut one = Self::default();
        one.add(seen);
        self.silent -= one.silent;
        self.missing -= one.missing;
        self.ended -= one.ended;
    }
}

impl JobTracker {
    /// Tracks the answers of `expected` to the command `id`, whose payload has this digest.
    pub fn new(
        subjects: Subjects,
        node_keys: Arc<NodeKeys>,
        id: Uuid,
        digest: impl Into<String>,
        expected: Vec<ExpectedNode>,
    ) -> Self {
        let verifier = ReportVerifier { node_keys, subjects, id, digest: digest.into() };
        let seen = |ExpectedNode { node, presence, doubt }| (node, NodeProgress::new(presence, doubt));
        let nodes: BTreeMap<_, _> = expected.into_iter().map(seen).collect();
        let mut counts = Counts::default();
        nodes.values().for_each(|seen| counts.add(seen));
        Self { verifier, began: Instant::now(), nodes, counts, newcomers: None }
    }

    /// Looks up nodes that join meanwhile.
    #[must_use]
    pub fn meeting(self, newcomers: KeyDiscovery) -> Self {
        Self { newcomers: Some(newcomers), ..self }
    }

    /// Returns the id of the command.
    pub fn id(&self) -> Uuid {
        self.verifier.id
    }

    /// Returns the verifier of its reports.
    pub fn verifier(&self) -> &ReportVerifier {
        &self.verifier
    }

    /// Returns the time at which the tracking began.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Returns the count of nodes in a terminal state.
    pub fn progress(&self) -> JobProgress {
        JobProgress { done: self.counts.ended, total: self.nodes.len() }
    }

    /// True when every online node is in its terminal state. An offline node that answers counts as online.
    pub fn is_complete(&self) -> bool {
        self.counts.missing == 0
    }

    /// True when the job is complete, and no message of an unknown node waits for its key.
    pub fn is_done(&self) -> bool {
        self.is_complete() && !self.newcomers.as_ref().is_some_and(KeyDiscovery::is_waiting)
    }

    /// Returns the online nodes that have not reached their terminal state. The flag is true after an acknowledgement.
    pub fn missing(&self) -> impl Iterator<Item = (&NodeId, bool)> {
        let missing = self.nodes.iter().filter(|(_, seen)| !seen.is_gone() && !seen.outcome.is_terminal());
        missing.map(|(node, seen)| (node, seen.outcome != Outcome::Pending))
    }

    /// True when every online node has answered.
    pub fn is_heard(&self) -> bool {
        self.counts.silent == 0
    }

    /// Takes a verified message.
    pub fn take(&mut self, verified: VerifiedReport) -> Option<JobEvent> {
        match verified.0 {
            Verdict::Ack(ack) => self.acked(&ack),
            Verdict::Done(done) => self.ended(done.node.clone(), *done, false),
            Verdict::NotTaken(done) => self.ended(done.node.clone(), *done, true),
            Verdict::NobodyListens(node) => self.nobody_listens(&node),
            Verdict::Doubtful { node, what, doubt } => self.doubted(node, format!("{what}: {doubt}")),
            Verdict::Stranger { node, what, .. } => self.doubted(node, format!("{what}: {}", IdentityError::Unknown)),
            Verdict::Nothing => None,
        }
    }

    /// As [`JobTracker::take`]. A message of an unknown node waits until its key is found.
    fn take_or_hold(&mut self, verified: VerifiedReport) -> Option<JobEvent> {
        match (verified.0, &mut self.newcomers) {
            (Verdict::Stranger { node, what, said }, Some(newcomers)) => {
                let said = newcomers.hold(node.clone(), said).err()?;
                self.take(VerifiedReport(Verdict::Stranger { node, what, said }))
            }
            (verdict, _) => self.take(VerifiedReport(verdict)),
        }
    }

    /// Takes the messages of unknown nodes whose keys were found, or will not be.
    async fn meet(&mut self) -> Vec<JobEvent> {
        let Some(newcomers) = &mut self.newcomers else { return Vec::new() };
        let said = newcomers.meet().await;
        self.take_said(said)
    }

    /// Ends the waiting, and takes the messages of unknown nodes as far as their keys were found.
    pub fn give_up(&mut self) -> Vec<JobEvent> {
        let said = self.newcomers.as_mut().map(KeyDiscovery::give_up).unwrap_or_default();
        self.take_said(said)
    }

    fn take_said(&mut self, said: Vec<HeldMessage>) -> Vec<JobEvent> {
        let take = |said| match said {
            HeldMessage::Report(message) => self.take_report(&message),
            HeldMessage::Answer(message, asked) => self.take_answer(&message, asked.as_ref()),
        };
        said.into_iter().filter_map(take).collect()
    }

    /// Marks a node without an answer as offline since its last heartbeat. A later report of it still counts.
    pub fn take_silence(&mut self, node: &NodeId, since: Timestamp) -> Option<JobEvent> {
        self.nodes.get(node).filter(|seen| seen.outcome == Outcome::Pending)?;
        self.change(node, |seen| (seen.outcome, seen.hearsay) = (Outcome::Offline(Some(since)), true));
        Some(JobEvent::NodeDone(Box::new(NodeResult::new(node.clone(), Outcome::Offline(Some(since)), None))))
    }

    /// Verifies and takes a message of the JOBS stream.
    pub fn take_report(&mut self, message: &Message) -> Option<JobEvent> {
        self.take(self.verifier.report(message))
    }

    /// Verifies and takes an answer to the reply subject. `asked` is the node to whose own subject the command went.
    pub fn take_answer(&mut self, message: &Message, asked: Option<&NodeId>) -> Option<JobEvent> {
        self.take(self.verifier.answer(message, asked))
    }

    /// Records a message that failed verification. The tracker still waits for the node: a verified message may come.
    ///
    /// A node without a pinned key ends as unverified, since no message of such a node can be verified.
    fn doubted(&mut self, node: NodeId, why: String) -> Option<JobEvent> {
        // An unverified message does not make the tracker wait for a node that the command is not for.
        if !self.nodes.contains_key(&node) {
            return Some(JobEvent::Unverified { node, reason: why });
        }
        let news = self.change(&node, |seen| {
            if seen.outcome.is_terminal() && !seen.hearsay {
                return false;
            }
            seen.unknown &= seen.outcome == Outcome::Pending;
            if seen.unknown {
                seen.outcome = Outcome::Unverified;
            }
            seen.doubt.replace(why.clone()).as_ref() != Some(&why)
        });
        news.then_some(JobEvent::Unverified { node, reason: why })
    }

    /// Changes the state of a node, and the counts with it.
    fn change<T>(&mut self, node: &NodeId, change: impl FnOnce(&mut NodeProgress) -> T) -> T {
        let seen = match self.nodes.entry(node.clone()) {
            Entry::Occupied(entry) => entry.into_mut(),
            // A node that joined since the states were read.
            Entry::Vacant(entry) => {
                let seen = entry.insert(NodeProgress::new(Liveness::Unknown, None));
                self.counts.add(seen);
                seen
            }
        };
        self.counts.remove(seen);
        let changed = change(seen);
        self.counts.add(seen);
        changed
    }

    fn acked(&mut self, ack: &Ack) -> Option<JobEvent> {
        let (node, status) = (ack.node.clone(), ack.status);
        let taken = self.change(&node, |seen| {
            if seen.outcome.is_final() && !seen.hearsay {
                return false;
            }
            // The node is online, even when its state was too old.
            seen.presence = Liveness::Alive;
            seen.hearsay = false;
            seen.outcome = match status {
                AckStatus::Accepted => ack.wave.map_or(Outcome::Accepted, Outcome::Waiting),
                AckStatus::NotSelected => Outcome::NotSelected,
            };
            true
        });
        taken.then(|| match status {
            AckStatus::Accepted => JobEvent::Acknowledged(node),
            AckStatus::NotSelected => JobEvent::NodeDone(Box::new(NodeResult::new(node, Outcome::NotSelected, None))),
        })
    }

    fn ended(&mut self, node: NodeId, done: CommandResult, hearsay: bool) -> Option<JobEvent> {
        let outcome = Outcome::of(&done);
        let news = self.change(&node, |seen| {
            // A node that was busy or refused may have accepted the same command when it was sent again.
            let taken_after_all = seen.outcome.is_not_taken() && !outcome.is_not_taken();
            if seen.outcome.is_final() && (hearsay || !(seen.hearsay || taken_after_all)) {
                return false;
            }
            let repeated = seen.hearsay && seen.outcome == outcome;
            seen.outcome = outcome.clone();
            seen.hearsay = hearsay;
            seen.done = Some(done.clone());
            !repeated
        });
        news.then(|| JobEvent::NodeDone(Box::new(NodeResult::new(node, outcome, Some(done)))))
    }

    /// Marks a node as offline: the server reports that no agent listens for it.
    fn nobody_listens(&mut self, node: &NodeId) -> Option<JobEvent> {
        self.nodes.get(node).filter(|seen| seen.outcome == Outcome::Pending)?;
        let since = self.change(node, |seen| {
            let since = if let Liveness::Offline(at) = seen.presence { Some(at) } else { None };
            seen.outcome = Outcome::Offline(since);
            since
        });
        Some(JobEvent::NodeDone(Box::new(NodeResult::new(node.clone(), Outcome::Offline(since), None))))
    }

    /// Ends the job, and returns every node with its terminal state.
    pub fn finish(self) -> Vec<NodeResult> {
        let results = self.nodes.into_iter().map(|(node, seen)| {
            let outcome = match (seen.outcome, seen.presence) {
                (Outcome::Pending, _) if seen.doubt.is_some() => Outcome::Unverified,
                (Outcome::Pending, Liveness::Offline(at)) => Outcome::Offline(Some(at)),
                (Outcome::Pending, _) => Outcome::NoAnswer,
                (Outcome::Accepted, _) => Outcome::Unfinished,
                (outcome, _) => outcome,
            };
            NodeResult { doubt: seen.doubt, ..NodeResult::new(node, outcome, seen.done) }
        });
        results.collect()
    }
}

impl NodeProgress {
    /// True for an offline node without an answer.
    fn is_gone(&self) -> bool {
        matches!(self.presence, Liveness::Offline(_)) && self.outcome == Outcome::Pending
    }
}

/// Takes reports until every node is in its terminal state or `deadline` has passed. A further call continues.
///
/// Calls `on_update` for each event. `answers` has the inbox, and the nodes by the number in the last token of the reply
/// subject.
///
/// # Errors
/// When the stream of reports can't be read any more.
pub async fn gather(
    gather: &mut JobTracker,
    feed: &mut StreamReader,
    mut answers: Option<(&mut Inbox, &[Option<NodeId>])>,
    deadline: Instant,
    on_update: &mut dyn FnMut(&JobTracker, JobEvent),
) -> Result<(), TransportError> {
    while !gather.is_done() {
        let look = gather.newcomers.as_ref().and_then(KeyDiscovery::next);
        let (reports, answer) = tokio::select! {
            // Safe to cancel: a stream reader loses no message (see `StreamReader::next`).
            report = feed.next() => match report {
                Some(report) => (with_those_behind(report?, feed)?, None),
                None => return Err(TransportError::Disconnected),
            },
            // Safe to cancel: an inbox loses no message. On a closed inbox this branch waits for ever, and the others go on.
            answer = next_answer(&mut answers) => (Vec::new(), Some(answer)),
            // Safe to cancel: a timer.
            () = at(look) => (Vec::new(), None),
            // Safe to cancel: a timer.
            () = tokio::time::sleep_until(deadline.into()) => return Ok(()),
        };
        let verifier = gather.verifier.clone();
        let mut verified = share(reports, move |report| verifier.report(report)).await;
        verified.extend(answer.map(|(answer, asked)| gather.verifier.answer(&answer, asked.as_ref())));
        for verified in verified {
            if let Some(update) = gather.take_or_hold(verified) {
                on_update(gather, update);
            }
        }
        for update in gather.meet().await {
            on_update(gather, update);
        }
    }
    Ok(())
}

/// Waits until a time; for ever without a time.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}

/// Returns a report together with the reports that have arrived after it.
fn with_those_behind(first: Message, feed: &mut StreamReader) -> Result<Vec<Message>, TransportError> {
    let mut reports = vec![first];
    while reports.len() < TOGETHER {
        // Safe to cancel: a stream reader loses no message.
        match feed.next().now_or_never() {
            Some(Some(report)) => reports.push(report?),
            Some(None) | None => break,
        }
    }
    Ok(reports)
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
mod tests;
