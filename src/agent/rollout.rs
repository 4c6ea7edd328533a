//! What a node must know of a rollout before it begins: whether its turn has come, what the operators say of the job, and
//! how many nodes failed it.
//!
//! In: the command with its waves, the stream of rollouts (read by direct gets, without a consumer), and the `halt` and
//! `resume` commands that `intake.rs` hears. Out: a [`Turn`] for `waiting.rs`, and for whoever else begins something in
//! waves; and the marks of this node's own failures. Nothing here needs the operator's process.
//!
//! Whatever can't be read holds: a node begins only when it could ask and nothing spoke against it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use tokio::sync::watch;
use uuid::Uuid;

use crate::config::Settings;
use crate::diag::chain;
use crate::host::{Checkpoint, checkpoint};
use crate::model::NodeId;
use crate::store::{Class, Message, StoreError, Word, WordStore};
use crate::transport::{Bus, TransportError};
use crate::trust::{Code, Verified};
use crate::wire::command::{Action, Command, Waves};
use crate::wire::report::{FAILED, FailedMark};
use crate::wire::waves::Place;
use crate::wire::{Done, DoneOutcome, Envelope, Target, json};

use super::{Node, say};

/// How many jobs are remembered of which something was said. What is forgotten is asked of the stream again.
const JOBS: usize = 256;
/// How many of those that failed are named.
const NAMED: usize = 3;

impl Word {
    fn of(verified: &Verified<Command>) -> Option<(Uuid, Self)> {
        let command = verified.get();
        let (job, halted) = match &command.action {
            Action::Halt(wanted) => (wanted.job, true),
            Action::Resume(wanted) => (wanted.job, false),
            _ => return None,
        };
        let by = verified.signers().to_vec();
        Some((job, Self { issued: command.issued, id: command.id, halted, by, reason: command.reason.clone() }))
    }

    /// Later ones count. Ids are ordered by time too, and decide between two of one moment.
    fn is_after(&self, other: &Self) -> bool {
        (self.issued, self.id) > (other.issued, other.id)
    }

    fn sentence(&self) -> String {
        let what = if self.halted { "halted" } else { "resumed" };
        let reason = self.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
        format!("{what} by {} at {}{reason}", self.by.join(", "), self.issued)
    }
}

/// What the operators said of jobs, as far as this node heard it, also before it was started. An older word never undoes
/// a newer one.
pub(super) struct Words {
    store: WordStore,
    latest: Mutex<BTreeMap<Uuid, Word>>,
    /// The last one that did not count, so that it is said only once.
    refused: Mutex<String>,
    /// The last jobs that this node said it failed: once is enough, and the stream keeps only one.
    marked: Mutex<VecDeque<Uuid>>,
    news: watch::Sender<()>,
}

fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whole values are put in: a panic elsewhere leaves none half written.
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Words {
    /// Opens what is on disk.
    pub(super) fn open(settings: &Settings) -> Result<Self, StoreError> {
        let (store, latest) = WordStore::open(&settings.state_dir)?;
        let news = watch::Sender::new(());
        Ok(Self { store, latest: Mutex::new(latest), refused: Mutex::default(), marked: Mutex::default(), news })
    }

    /// Writes down what was said so far.
    fn keep(&self) -> Result<(), StoreError> {
        self.store.write(&held(&self.latest))?;
        checkpoint(Checkpoint::WordKept);
        Ok(())
    }

    /// Notes a verified word; false when a newer one is known.
    fn hear(&self, verified: &Verified<Command>) -> bool {
        let Some((job, word)) = Word::of(verified) else { return false };
        let mut latest = held(&self.latest);
        if latest.get(&job).is_some_and(|known| !word.is_after(known)) {
            return false;
        }
        tracing::info!(%job, "{}", word.sentence());
        latest.insert(job, word);
        if latest.len() > JOBS {
            let oldest = latest.iter().min_by_key(|(_, word)| (word.issued, word.id)).map(|(job, _)| *job);
            oldest.map(|job| latest.remove(&job));
        }
        drop(latest);
        self.news.send_replace(());
        true
    }

    /// By whom and why a job is halted, when it is.
    pub(super) fn halted(&self, job: Uuid) -> Option<String> {
        held(&self.latest).get(&job).filter(|word| word.halted).map(Word::sentence)
    }

    fn is_first_mark(&self, job: Uuid) -> bool {
        let mut marked = held(&self.marked);
        let first = !marked.contains(&job);
        if first {
            marked.push_back(job);
        }
        if marked.len() > JOBS {
            marked.pop_front();
        }
        first
    }

    /// Changes whenever something was said of some job.
    pub(super) fn watch(&self) -> watch::Receiver<()> {
        self.news.subscribe()
    }
}

/// Notes a verified word, on disk before anything is done about it; false when a newer one is known. It counts also when
/// it can't be written down.
fn note(node: &Node, verified: &Verified<Command>) -> bool {
    let newer = node.words.hear(verified);
    if newer {
        node.noted(node.words.keep());
    }
    newer
}

/// What a live `halt` or `resume` means on this node, which has noted it.
pub(super) fn hear(node: &Node, verified: &Verified<Command>) -> Done {
    let command = verified.get();
    let newer = note(node, verified);
    let (Action::Halt(wanted) | Action::Resume(wanted)) = &command.action else {
        return say::done(node, Some(command.id), verified.digest(), DoneOutcome::Failed);
    };
    let halts = matches!(command.action, Action::Halt(_));
    let (outcome, message) = match (newer, node.room.holds(wanted.job)) {
        (false, _) => (DoneOutcome::Stable, "something later was said of this job"),
        (true, true) if halts => (DoneOutcome::Changed, "it waits for its turn, and is halted"),
        (true, true) => (DoneOutcome::Changed, "it waits for its turn, and goes on"),
        (true, false) if node.board.read(|standing| standing.running) == Some(wanted.job) => {
            (DoneOutcome::Stable, "it runs, and ends as any other")
        }
        (true, false) => (DoneOutcome::Stable, "it does not wait here"),
    };
    Done { message: Some(message.to_owned()), ..say::done(node, Some(command.id), verified.digest(), outcome) }
}

/// Whether a node may begin with something in waves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Turn {
    /// Now.
    Begin,
    /// Not before this time.
    Wait(Timestamp),
    /// Not while it is halted, by whom and why. [`Words::watch`] tells when somebody says something else.
    Halted(String),
    /// The stream of rollouts can't be read, for this reason. To be asked again after a pause.
    Unknown(String),
    /// Never: too many nodes failed.
    Over(String),
}

/// A command in waves, and what is known of those who failed it.
#[derive(Debug)]
pub(super) struct Rollout<'a> {
    command: &'a Command,
    waves: &'a Waves,
    /// Who failed, in the order in which the server heard it, as far as the stream was read.
    failed: Vec<NodeId>,
    /// Up to where it was read.
    read: u64,
}

impl<'a> Rollout<'a> {
    /// None for a command without waves, which may begin at any time.
    pub(super) fn of(command: &'a Command) -> Option<Self> {
        let waves = command.options.waves.as_ref()?;
        Some(Self { command, waves, failed: Vec::new(), read: 0 })
    }

    /// Whether this node may begin now. Before its turn nothing is asked of the server.
    pub(super) async fn may_begin(&mut self, node: &Node, bus: &Bus) -> Turn {
        let (_, turn) = self.waves.turn(Place::of(self.command.id, &node.settings().node), self.command.issued);
        if node.now() < turn {
            return Turn::Wait(turn);
        }
        match self.look(node, bus).await {
            Err(error) => Turn::Unknown(chain(&error)),
            Ok(Some(why)) => Turn::Over(why),
            Ok(None) => node.words.halted(self.command.id).map_or(Turn::Begin, Turn::Halted),
        }
    }

    /// Reads what is new in the stream: notes what the operators say, and gives the reason when too many nodes failed.
    ///
    /// # Errors
    /// When it can't be read.
    pub(super) async fn look(&mut self, node: &Node, bus: &Bus) -> Result<Option<String>, TransportError> {
        let stream = node.subjects.stream("ROLLOUTS");
        let control = node.subjects.rollout_control(self.command.id);
        // One message a subject: the first is the last.
        if let Some(message) = bus.stored_after(&stream, control.as_str(), 0).await? {
            self.take_word(node, control.as_str(), &message.payload);
        }
        let failures = node.subjects.rollout_failures(self.command.id);
        while self.failed.len() as u64 <= self.waves.max_failed {
            let Some(message) = bus.stored_after(&stream, failures.as_str(), self.read).await? else { break };
            self.read = message.seq.unwrap_or_default().max(self.read.saturating_add(1));
            // The server pins the name in the subject to the node that says it.
            let name = message.subject.rsplit('.').next().and_then(|name| name.parse().ok());
            self.failed.extend(name.filter(|name| self.counts(name)));
        }
        Ok(self.spent())
    }

    /// A node that the command does not name has no say in how it goes. Who is in a group only the nodes themselves know.
    fn counts(&self, name: &NodeId) -> bool {
        let meant = match self.command.to.target() {
            Some(Target::Nodes(nodes)) => nodes.contains(name),
            _ => true,
        };
        meant && !self.failed.contains(name)
    }

    fn spent(&self) -> Option<String> {
        let most = self.waves.max_failed;
        (self.failed.len() as u64 > most).then(|| {
            let first: Vec<&str> = self.failed.iter().take(NAMED).map(NodeId::as_str).collect();
            format!("the error budget of {most} is spent: {} failed first", first.join(", "))
        })
    }

    /// What does not count is said where refusals are, and is as if it were not there.
    fn take_word(&self, node: &Node, subject: &str, bytes: &[u8]) {
        let refusal = match node.verify(|verifier| verifier.open_control(bytes, self.command)) {
            Ok(verified) => {
                note(node, &verified);
                return;
            }
            Err(refusal) => refusal,
        };
        let mut last = held(&node.words.refused);
        if *last != refusal.digest {
            last.clone_from(&refusal.digest);
            let why = (refusal.code, refusal.message);
            let done = say::not_done(node, refusal.id, &refusal.digest, DoneOutcome::Refused, why);
            tracing::warn!(subject, code = done.code.as_deref(), why = done.message.as_deref(), "refused");
            node.post_refusal(&done, subject, refusal.keyids);
        }
    }
}

/// When it is this node's turn to begin with a command; none for a command without waves.
pub(super) fn due(node: &Node, command: &Command) -> Option<Timestamp> {
    let waves = command.options.waves.as_ref()?;
    Some(waves.turn(Place::of(command.id, &node.settings().node), command.issued).1)
}

/// Says that this node failed a command in waves, unless the command has none or its end does not count as a failure.
/// Before the result: after a crash in between, the mark is there or the result is not yet.
pub(super) fn mark(node: &Node, command: &Command, done: &Done) {
    let refused = |code: Code| done.code.as_deref() == Some(code.as_str());
    let counts = match done.outcome {
        DoneOutcome::Failed | DoneOutcome::Interrupted => true,
        // What the host does not allow, it would have refused from the beginning.
        DoneOutcome::Refused => refused(Code::BadArtifact) || refused(Code::Storage) || refused(Code::PlanChanged),
        _ => false,
    };
    if counts && command.options.waves.is_some() && node.words.is_first_mark(command.id) {
        let name = node.settings().node.clone();
        let subject = node.subjects.rollout_failed(command.id, &name).as_str().to_owned();
        let msg_id = format!("{}.{name}.failed", command.id);
        let mark = FailedMark { protocol: FAILED.to_owned(), id: command.id, node: name, at: done.at, outcome: done.outcome };
        let command = Some(done.digest.clone());
        node.post(&Message { subject, msg_id, payload: say::json(&mark), class: Class::Result, command });
    }
}

/// The same for a command that is only known by the envelope in this node's own ledger.
pub(super) fn mark_envelope(node: &Node, envelope: &[u8], done: &Done) {
    let payload = Envelope::parse(envelope).map(|envelope| envelope.payload);
    if let Some(command) = payload.ok().and_then(|payload| json::read::<Command>(&payload).ok()) {
        mark(node, &command, done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::command::Audience;

    fn word(issued: i64, id: u128, halted: bool) -> Word {
        let issued = Timestamp::from_second(issued).unwrap();
        Word { issued, id: Uuid::from_u128(id), halted, by: vec!["ops".into()], reason: Some("smoke".into()) }
    }

    #[test]
    fn the_latest_word_counts() {
        for (before, after) in [(word(1, 9, true), word(2, 1, false)), (word(2, 1, false), word(2, 2, true))] {
            assert!(after.is_after(&before) && !before.is_after(&after) && !before.is_after(&before));
        }
        assert_eq!(word(0, 1, true).sentence(), "halted by ops at 1970-01-01T00:00:00Z: smoke");
    }

    #[test]
    fn a_budget_is_spent_by_more_nodes_than_it_allows() {
        let mut command: Command = serde_json::from_value(serde_json::json!({
            "id": Uuid::from_u128(1), "fleet": "f", "to": {"all": true},
            "issued": "2026-11-20T10:00:00Z", "expires": "2026-11-20T10:05:00Z", "action": {"status": {}},
            "options": {"waves": {"steps": [{"upto": "ffffffffffffffff", "after": "0s"}], "max_failed": 1}},
        }))
        .unwrap();
        let name = |text: &str| text.parse::<NodeId>().unwrap();
        let mut rollout = Rollout::of(&command).unwrap();
        rollout.failed = vec![name("a")];
        assert_eq!(rollout.spent(), None);
        assert!(!rollout.counts(&name("a")) && rollout.counts(&name("b")), "each node counts once");
        rollout.failed.push(name("b"));
        assert_eq!(rollout.spent().unwrap(), "the error budget of 1 is spent: a, b failed first");
        command.to = Audience::nodes(vec![name("a")]);
        assert!(!Rollout::of(&command).unwrap().counts(&name("b")), "it was not asked");
        command.options.waves = None;
        assert!(Rollout::of(&command).is_none());
    }
}
