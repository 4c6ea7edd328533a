//! The state of a command on every node: [`JobTracker`] takes reports and knows the missing nodes.
//!
//! Signed reports in the JOBS stream decide. A report without a receipt by the pinned key of its node is shown, and does not
//! count. An answer to the reply subject counts only from a node that did not accept the command. The stream may not have that
//! answer. The answer is provisional, and a report of the stream replaces it.

mod outcome;
mod reader;
mod report_verifier;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use uuid::Uuid;

use crate::model::NodeId;
use crate::transport::Message;
use crate::wire::{Ack, AckStatus, CommandResult, Subjects};

use super::event::{JobEvent, JobProgress};
use crate::fleet::targeting::key_discovery::{HeldMessage, KeyDiscovery};
use crate::fleet::targeting::node_identity::{IdentityError, NodeKeys};
use crate::fleet::targeting::states::{ExpectedNode, Liveness};
use report_verifier::Verdict;

pub use outcome::{Grade, NodeOutcome, NodeResult};
pub use reader::read_reports;
pub use report_verifier::{ReportVerifier, VerifiedReport};

/// Silence after which no further node answers, where the targeted nodes are unknown. A node answers within a second.
const ANSWER_TIME: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct NodeProgress {
    liveness: Liveness,
    outcome: NodeOutcome,
    done: Option<CommandResult>,
    /// True when the outcome is provisional: it came to the reply subject only, or from the liveness monitor.
    provisional: bool,
    /// True when the state of the node is not verified.
    has_unverified_state: bool,
    /// The verification error of a message in its name.
    verification_error: Option<String>,
}

impl NodeProgress {
    fn new(liveness: Liveness, verification_error: Option<String>) -> Self {
        Self {
            liveness,
            outcome: NodeOutcome::Pending,
            done: None,
            provisional: false,
            has_unverified_state: verification_error.is_some(),
            verification_error,
        }
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
    key_discovery: Option<KeyDiscovery>,
    /// The time until which further nodes may answer, where the targeted nodes are unknown.
    open_until: Option<Instant>,
}

/// Counts of nodes by state.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    /// Online nodes without an answer.
    unanswered: usize,
    /// Online nodes that have not reached their terminal state.
    missing: usize,
    /// Nodes in their terminal state.
    ended: usize,
}

impl Counts {
    fn add(&mut self, seen: &NodeProgress) {
        let there = !seen.is_offline();
        self.unanswered += usize::from(there && seen.outcome == NodeOutcome::Pending);
        self.missing += usize::from(there && !seen.outcome.is_terminal());
        self.ended += usize::from(seen.outcome.is_terminal());
    }

    fn remove(&mut self, seen: &NodeProgress) {
        let mut one = Self::default();
        one.add(seen);
        self.unanswered -= one.unanswered;
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
        let verifier = ReportVerifier { node_keys, subjects, id, digest: digest.into(), takes_replies: false };
        let seen =
            |ExpectedNode { node, liveness: presence, verification_error: doubt }| (node, NodeProgress::new(presence, doubt));
        let nodes: BTreeMap<_, _> = expected.into_iter().map(seen).collect();
        let mut counts = Counts::default();
        nodes.values().for_each(|seen| counts.add(seen));
        Self { verifier, began: Instant::now(), nodes, counts, key_discovery: None, open_until: None }
    }

    /// Takes acknowledgements and results from the reply subject: there is no stream of reports. `is_open`: further nodes count
    /// as they answer, until none did for five seconds.
    #[must_use]
    pub fn without_stream(self, is_open: bool) -> Self {
        let verifier = ReportVerifier { takes_replies: true, ..self.verifier };
        Self { verifier, open_until: is_open.then(|| Instant::now() + ANSWER_TIME), ..self }
    }

    /// Returns the time until which further nodes may answer, while it lies ahead.
    pub fn open_until(&self) -> Option<Instant> {
        self.open_until.filter(|until| *until > Instant::now())
    }

    /// Looks up nodes that join meanwhile.
    #[must_use]
    pub fn with_key_discovery(self, newcomers: KeyDiscovery) -> Self {
        Self { key_discovery: Some(newcomers), ..self }
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
        JobProgress { done: self.counts.ended, total: self.nodes.len(), missing: self.counts.missing }
    }

    /// True when every online node is in its terminal state. An offline node that answers counts as online.
    pub fn is_complete(&self) -> bool {
        self.counts.missing == 0
    }

    /// True when the job is complete and expects no answer of further nodes, known or unknown.
    pub fn is_done(&self) -> bool {
        self.is_complete() && self.open_until().is_none() && !self.key_discovery.as_ref().is_some_and(KeyDiscovery::is_waiting)
    }

    /// Returns the online nodes that have not reached their terminal state. The flag is true after an acknowledgement.
    pub fn missing(&self) -> impl Iterator<Item = (&NodeId, bool)> {
        let missing = self.nodes.iter().filter(|(_, seen)| !seen.is_offline() && !seen.outcome.is_terminal());
        missing.map(|(node, seen)| (node, seen.outcome != NodeOutcome::Pending))
    }

    /// True when every online node has answered.
    pub fn is_answered(&self) -> bool {
        self.counts.unanswered == 0
    }

    /// Takes a verified message.
    pub fn take(&mut self, verified: VerifiedReport) -> Option<JobEvent> {
        match verified.0 {
            Verdict::Ack(ack) => self.mark_acknowledged(&ack),
            Verdict::Done(done) => self.mark_ended(done.node.clone(), *done, false),
            Verdict::NotAccepted(done) => self.mark_ended(done.node.clone(), *done, true),
            Verdict::NoResponders(node) => self.mark_disconnected(&node),
            Verdict::Unverified { node, what, error: doubt } => self.mark_unverified(node, format!("{what}: {doubt}")),
            Verdict::UnknownNode { node, what, .. } => self.mark_unverified(node, format!("{what}: {}", IdentityError::Unknown)),
            Verdict::Ignored => None,
        }
    }

    /// Takes a report, as [`JobTracker::take`]. A message of an unknown node waits until its key is found.
    fn take_or_hold(&mut self, verified: VerifiedReport) -> Option<JobEvent> {
        match (verified.0, &mut self.key_discovery) {
            (Verdict::UnknownNode { node, what, message: said }, Some(newcomers)) => {
                let said = newcomers.hold(node.clone(), said).err()?;
                self.take(VerifiedReport(Verdict::UnknownNode { node, what, message: said }))
            }
            (verdict, _) => self.take(VerifiedReport(verdict)),
        }
    }

    /// Takes the messages of unknown nodes whose keys were found, or will not be.
    async fn take_discovered(&mut self) -> Vec<JobEvent> {
        let Some(newcomers) = &mut self.key_discovery else { return Vec::new() };
        let said = newcomers.look_up_due().await;
        self.take_held(said)
    }

    /// Ends the waiting, and takes the messages of unknown nodes as far as their keys were found.
    pub fn give_up(&mut self) -> Vec<JobEvent> {
        let said = self.key_discovery.as_mut().map(KeyDiscovery::give_up).unwrap_or_default();
        self.take_held(said)
    }

    fn take_held(&mut self, said: Vec<HeldMessage>) -> Vec<JobEvent> {
        let take = |said| match said {
            HeldMessage::Report(message) => self.take_report(&message),
            HeldMessage::Answer(message, asked) => self.take_answer(&message, asked.as_ref()),
        };
        said.into_iter().filter_map(take).collect()
    }

    /// Marks a node without an answer as offline since its last heartbeat. A later report of it still counts.
    pub fn take_offline(&mut self, node: &NodeId, since: Timestamp) -> Option<JobEvent> {
        self.nodes.get(node).filter(|seen| seen.outcome == NodeOutcome::Pending)?;
        self.change(node, |seen| (seen.outcome, seen.provisional) = (NodeOutcome::Offline(Some(since)), true));
        Some(JobEvent::NodeDone(Box::new(NodeResult::new(node.clone(), NodeOutcome::Offline(Some(since)), None))))
    }

    /// Marks a node that has the command, and whose disk takes no results. A later report of it still counts.
    pub fn take_unwritten(&mut self, node: &NodeId) -> Option<JobEvent> {
        self.nodes.get(node).filter(|seen| seen.outcome == NodeOutcome::Accepted)?;
        self.change(node, |seen| (seen.outcome, seen.provisional) = (NodeOutcome::Unwritten, true));
        Some(JobEvent::NodeDone(Box::new(NodeResult::new(node.clone(), NodeOutcome::Unwritten, None))))
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
    fn mark_unverified(&mut self, node: NodeId, why: String) -> Option<JobEvent> {
        // An unverified message does not make the tracker wait for a node that the command is not for.
        if !self.nodes.contains_key(&node) {
            return Some(JobEvent::Unverified { node, reason: why });
        }
        let news = self.change(&node, |seen| {
            if seen.outcome.is_terminal() && !seen.provisional {
                return false;
            }
            seen.has_unverified_state &= seen.outcome == NodeOutcome::Pending;
            if seen.has_unverified_state {
                seen.outcome = NodeOutcome::Unverified;
            }
            seen.verification_error.replace(why.clone()).as_ref() != Some(&why)
        });
        news.then_some(JobEvent::Unverified { node, reason: why })
    }

    /// Changes the state of a node, and the counts with it.
    fn change<T>(&mut self, node: &NodeId, change: impl FnOnce(&mut NodeProgress) -> T) -> T {
        let seen = match self.nodes.entry(node.clone()) {
            Entry::Occupied(entry) => entry.into_mut(),
            // A node that joined since the states were read.
            Entry::Vacant(entry) => {
                self.open_until = self.open_until.map(|_| Instant::now() + ANSWER_TIME);
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

    fn mark_acknowledged(&mut self, ack: &Ack) -> Option<JobEvent> {
        let (node, status) = (ack.node.clone(), ack.status);
        let taken = self.change(&node, |seen| {
            if seen.outcome.is_final() && !seen.provisional {
                return false;
            }
            // The node is online, even when its state was too old.
            seen.liveness = Liveness::Alive;
            seen.provisional = false;
            seen.outcome = match status {
                AckStatus::Accepted => ack.wave.map_or(NodeOutcome::Accepted, NodeOutcome::Waiting),
                AckStatus::NotSelected => NodeOutcome::NotSelected,
            };
            true
        });
        taken.then(|| match status {
            AckStatus::Accepted => JobEvent::Acknowledged(node),
            AckStatus::NotSelected => JobEvent::NodeDone(Box::new(NodeResult::new(node, NodeOutcome::NotSelected, None))),
        })
    }

    fn mark_ended(&mut self, node: NodeId, done: CommandResult, hearsay: bool) -> Option<JobEvent> {
        let outcome = NodeOutcome::from_result(&done);
        let news = self.change(&node, |seen| {
            // A node that was busy or refused may have accepted the same command when it was sent again.
            let taken_after_all = seen.outcome.is_not_accepted() && !outcome.is_not_accepted();
            if seen.outcome.is_final() && (hearsay || !(seen.provisional || taken_after_all)) {
                return false;
            }
            let repeated = seen.provisional && seen.outcome == outcome;
            seen.outcome = outcome.clone();
            seen.provisional = hearsay;
            seen.done = Some(done.clone());
            !repeated
        });
        news.then(|| JobEvent::NodeDone(Box::new(NodeResult::new(node, outcome, Some(done)))))
    }

    /// Marks a node as offline: the server reports that no agent listens for it.
    fn mark_disconnected(&mut self, node: &NodeId) -> Option<JobEvent> {
        self.nodes.get(node).filter(|seen| seen.outcome == NodeOutcome::Pending)?;
        let since = self.change(node, |seen| {
            let since = if let Liveness::Offline(at) = seen.liveness { Some(at) } else { None };
            seen.outcome = NodeOutcome::Offline(since);
            since
        });
        Some(JobEvent::NodeDone(Box::new(NodeResult::new(node.clone(), NodeOutcome::Offline(since), None))))
    }

    /// Ends the job, and returns every node with its terminal state.
    pub fn finish(self) -> Vec<NodeResult> {
        let results = self.nodes.into_iter().map(|(node, seen)| {
            let outcome = match (seen.outcome, seen.liveness) {
                (NodeOutcome::Pending, _) if seen.verification_error.is_some() => NodeOutcome::Unverified,
                (NodeOutcome::Pending, Liveness::Offline(at)) => NodeOutcome::Offline(Some(at)),
                (NodeOutcome::Pending, _) => NodeOutcome::NoAnswer,
                (NodeOutcome::Accepted, _) => NodeOutcome::Unfinished,
                (outcome, _) => outcome,
            };
            NodeResult { doubt: seen.verification_error, ..NodeResult::new(node, outcome, seen.done) }
        });
        results.collect()
    }
}

impl NodeProgress {
    /// True for an offline node without an answer.
    fn is_offline(&self) -> bool {
        matches!(self.liveness, Liveness::Offline(_)) && self.outcome == NodeOutcome::Pending
    }
}

#[cfg(test)]
mod tests;
