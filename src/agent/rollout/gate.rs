//! The rules by which a node begins a command in waves: the wave before went well, no operator halts the job, and no more
//! nodes failed than may.
//!
//! In: the command with its waves, the stream of rollouts (read by direct gets, without a consumer), and the `halt` and
//! `resume` commands that `intake.rs` hears. Out: a [`Turn`] for `waiting.rs` and the enforcer; and the marks of this node,
//! that it failed or that it went well. Nothing here needs the operator's process.
//!
//! Time begins nothing: a wave begins by successes of the one before, which its witnesses signed with the keys that the
//! command names. What can't be read holds. A witness that is silent for longer than its wave may take has failed; that
//! time is measured while the stream can be read and the job is not halted, by a clock that never jumps.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::watch;
use uuid::Uuid;

use crate::config::Settings;
use crate::diag::chain;
use crate::host::{Checkpoint, checkpoint};
use crate::model::NodeId;
use crate::store::{Message, Override, OverrideStore, Priority, StoreError};
use crate::transport::{Bus, TransportError};
use crate::trust::{RejectionCode, Verified, proves_success};
use crate::wire::command::{Action, Command, RolloutPlan};
use crate::wire::receipt::HEADER;
use crate::wire::report::{ROLLOUT_FAILURE, ROLLOUT_SUCCESS, RolloutResult};
use crate::wire::rollout_plan::{RolloutPosition, Wave};
use crate::wire::subject::Subject;
use crate::wire::{CommandOutcome, CommandResult, Envelope, Selector, json};

use crate::agent::Node;
use crate::agent::status::messages;

/// How many jobs are remembered of which something was said. What is forgotten is asked of the stream again.
const JOBS: usize = 256;
/// How many of those that failed are named.
const NAMED: usize = 3;

impl Override {
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
pub(in crate::agent) struct Overrides {
    store: OverrideStore,
    latest: Mutex<BTreeMap<Uuid, Override>>,
    /// The last one that did not count, so that it is said only once.
    refused: Mutex<String>,
    /// The last marks of this node, by job and protocol: once is enough, and the stream keeps only one.
    marked: Mutex<VecDeque<(Uuid, &'static str)>>,
    news: watch::Sender<()>,
}

fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whole values are put in: a panic elsewhere leaves none half written.
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Overrides {
    /// Opens what is on disk.
    pub(in crate::agent) fn open(settings: &Settings) -> Result<Self, StoreError> {
        let (store, latest) = OverrideStore::open(&settings.state_dir)?;
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
        let Some((job, word)) = Override::of(verified) else { return false };
        let mut latest = held(&self.latest);
        if latest.get(&job).is_some_and(|known| !word.is_after(known)) {
            return false;
        }
        tracing::info!(%job, "{}", word.sentence());
        latest.insert(job, word);
        if latest.len() > JOBS
            && let Some(oldest) = override_to_forget(&latest)
        {
            latest.remove(&oldest);
        }
        drop(latest);
        self.news.send_replace(());
        true
    }

    /// By whom and why a job is halted, when it is.
    pub(in crate::agent) fn halted(&self, job: Uuid) -> Option<String> {
        held(&self.latest).get(&job).filter(|word| word.halted).map(Override::sentence)
    }

    fn is_first_mark(&self, job: Uuid, protocol: &'static str) -> bool {
        let (mut marked, mark) = (held(&self.marked), (job, protocol));
        let first = !marked.contains(&mark);
        if first {
            marked.push_back(mark);
        }
        if marked.len() > JOBS {
            marked.pop_front();
        }
        first
    }

    /// Lets those who wait look again: something else has changed that their turn depends on.
    pub(in crate::agent) fn wake(&self) {
        self.news.send_replace(());
    }

    /// Changes whenever something was said of some job.
    pub(in crate::agent) fn watch(&self) -> watch::Receiver<()> {
        self.news.subscribe()
    }
}

/// The job whose word is forgotten first: the oldest of the key that said most. One key can't make the others' forgotten.
fn override_to_forget(latest: &BTreeMap<Uuid, Override>) -> Option<Uuid> {
    let mut said: BTreeMap<&[String], usize> = BTreeMap::new();
    for word in latest.values() {
        *said.entry(&word.by).or_default() += 1;
    }
    let most = said.into_iter().max_by_key(|(_, count)| *count).map(|(by, _)| by)?;
    let of_most = latest.iter().filter(|(_, word)| word.by == most);
    of_most.min_by_key(|(_, word)| (word.issued, word.id)).map(|(job, _)| *job)
}

/// Notes a verified word, on disk before anything is done about it; false when a newer one is known. It counts also when
/// it can't be written down.
fn note(node: &Node, verified: &Verified<Command>) -> bool {
    let newer = node.words.hear(verified);
    if newer {
        node.report_storage_error(node.words.keep());
    }
    newer
}

/// What a live `halt` or `resume` means on this node, which has noted it.
pub(in crate::agent) fn record_override(node: &Node, verified: &Verified<Command>) -> CommandResult {
    let command = verified.get();
    let newer = note(node, verified);
    let (Action::Halt(wanted) | Action::Resume(wanted)) = &command.action else {
        return messages::done(node, Some(command.id), verified.digest(), CommandOutcome::Failed);
    };
    let halts = matches!(command.action, Action::Halt(_));
    let (outcome, message) = match (newer, node.room.holds(wanted.job)) {
        (false, _) => (CommandOutcome::Stable, "something later was said of this job"),
        (true, true) if halts => (CommandOutcome::Changed, "it waits for its turn, and is halted"),
        (true, true) => (CommandOutcome::Changed, "it waits for its turn, and goes on"),
        (true, false) if node.board.read(|standing| standing.running) == Some(wanted.job) => {
            (CommandOutcome::Stable, "it runs, and ends as any other")
        }
        (true, false) => (CommandOutcome::Stable, "it does not wait here"),
    };
    CommandResult { message: Some(message.to_owned()), ..messages::done(node, Some(command.id), verified.digest(), outcome) }
}

/// The answer to whether a node may begin with a command in waves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::agent) enum RolloutTurn {
    /// Now.
    Begin,
    /// Not yet, for this reason. To be asked again after [`pause`].
    Wait(String),
    /// Not while it is halted, by whom and why. [`Words::watch`] tells when an operator says something else.
    Halted(String),
    /// The stream of rollouts can't be read, for this reason. To be asked again after a pause.
    Unknown(String),
    /// Never: too many nodes failed, or too few succeeded.
    Over(String),
}

/// The time between two looks of a node that waits, before jitter: a part of the hold, which passes between two waves.
pub(in crate::agent) fn poll_interval(waves: &RolloutPlan) -> Duration {
    (waves.hold.get() / 4).clamp(Duration::from_millis(500), Duration::from_secs(15))
}

/// Two looks that are further apart than this were not looking meanwhile.
const GAP: Duration = Duration::from_secs(60);

/// The progress of one command in waves, as far as this node has read it.
#[derive(Debug, Default)]
pub(in crate::agent) struct RolloutProgress {
    /// Who failed, in the order in which the server heard it, as far as the stream was read.
    failed: Vec<NodeId>,
    /// Up to where it was read.
    read: u64,
    /// The witnesses of the wave before that proved a success.
    ok: BTreeSet<NodeId>,
    /// The highest wave that an operator signed a go-ahead for.
    go: u64,
    /// How long this node has watched the waves before its own.
    watched: Duration,
    /// The last look that went well.
    looked: Option<Instant>,
}

impl RolloutProgress {
    /// Decides whether this node may begin now.
    pub(in crate::agent) async fn may_begin(&mut self, command: &Verified<Command>, node: &Node, bus: &Bus) -> RolloutTurn {
        let Some(waves) = &command.options.waves else { return RolloutTurn::Begin };
        match self.look(command, waves, node, bus).await {
            Err(error) => {
                self.looked = None;
                RolloutTurn::Unknown(chain(&error))
            }
            Ok(Some(why)) => RolloutTurn::Over(why),
            Ok(None) => self.after(command, waves, node, bus).await.unwrap_or_else(|error| {
                self.looked = None;
                RolloutTurn::Unknown(chain(&error))
            }),
        }
    }

    /// Decides for a node whose turn had come, and which had to wait for other work since.
    pub(in crate::agent) async fn may_still(&mut self, command: &Verified<Command>, node: &Node, bus: &Bus) -> bool {
        let Some(waves) = &command.options.waves else { return true };
        self.look(command, waves, node, bus).await.is_ok_and(|over| over.is_none()) && node.words.halted(command.id).is_none()
    }

    async fn after(
        &mut self,
        command: &Verified<Command>,
        waves: &RolloutPlan,
        node: &Node,
        bus: &Bus,
    ) -> Result<RolloutTurn, TransportError> {
        if let Some(word) = node.words.halted(command.id) {
            self.looked = None;
            return Ok(RolloutTurn::Halted(word));
        }
        let wave = waves.wave_number(RolloutPosition::of(command.id, &node.settings().node));
        let Some(before) = waves.previous_wave(wave) else { return Ok(RolloutTurn::Begin) };
        self.watched += self.looked.replace(Instant::now()).map_or(Duration::ZERO, |last| last.elapsed().min(GAP));
        let late = self.watched >= waves.max_wait(wave, command.options.timeout);
        self.read_successes(command, before, late, node, bus).await?;
        let turn = self.judge(waves, wave, before, late);
        if turn == RolloutTurn::Begin && waves.go && !self.is_ahead(command, wave, node, bus).await? {
            return Ok(RolloutTurn::Wait(format!("wave {wave} waits for the go-ahead of an operator")));
        }
        Ok(turn)
    }

    /// Reads which witnesses of the wave before succeeded: up to the first that did not yet, or of all of them once they
    /// are late.
    async fn read_successes(
        &mut self,
        command: &Verified<Command>,
        before: &Wave,
        late: bool,
        node: &Node,
        bus: &Bus,
    ) -> Result<(), TransportError> {
        let stream = node.subjects.stream("ROLLOUTS");
        for witness in &before.witnesses {
            if self.ok.contains(&witness.node) || self.failed.contains(&witness.node) {
                continue;
            }
            let subject = node.subjects.rollout_ok(command.id, &witness.node);
            let found = bus.last(&stream, subject.as_str()).await?;
            let proof = found.as_ref().map(|mark| (mark.header(HEADER), mark.payload.as_slice()));
            if proof.is_some_and(|(receipt, payload)| {
                proves_success(witness, command.id, command.digest(), subject.as_str(), receipt, payload)
            }) {
                self.ok.insert(witness.node.clone());
            } else if !late {
                break;
            }
        }
        Ok(())
    }

    /// Judges the wave before: over as soon as it can't succeed any more, ended when every witness has, or is late.
    fn judge(&self, waves: &RolloutPlan, wave: usize, before: &Wave, late: bool) -> RolloutTurn {
        let names = || before.witnesses.iter().map(|witness| &witness.node);
        let silent: Vec<&str> =
            names().filter(|name| !self.ok.contains(*name) && !self.failed.contains(name)).map(NodeId::as_str).collect();
        // Who failed after it had been well has failed.
        let is_ok = |name: &&NodeId| self.ok.contains(*name) && !self.failed.contains(name);
        let (ok, number) = (names().filter(is_ok).count() as u64, wave.saturating_sub(1));
        if !late && !silent.is_empty() {
            let wanted = before.witnesses.len();
            return RolloutTurn::Wait(format!("wave {wave} waits for wave {number}: {ok} of {wanted} succeeded"));
        }
        if ok < before.min_ok {
            let said = if silent.is_empty() { String::new() } else { format!(", and {} stayed silent", few(&silent)) };
            return RolloutTurn::Over(format!(
                "{ok} of the {} nodes of wave {number} that must succeed did{said}",
                before.min_ok
            ));
        }
        if (self.failed.len() + silent.len()) as u64 > waves.max_failed.max(before.witnesses.len() as u64 - before.min_ok) {
            return RolloutTurn::Over(format!(
                "the error budget of {} is spent: {} stayed silent",
                waves.max_failed,
                few(&silent)
            ));
        }
        RolloutTurn::Begin
    }

    /// Whether an operator signed a go-ahead for this wave.
    async fn is_ahead(&mut self, command: &Command, wave: usize, node: &Node, bus: &Bus) -> Result<bool, TransportError> {
        let wave = wave as u64;
        if self.go >= wave {
            return Ok(true);
        }
        let subject = node.subjects.rollout_go_ahead(command.id);
        if let Some(message) = bus.last(&node.subjects.stream("ROLLOUTS"), subject.as_str()).await?
            && let Some(verified) = opened(node, command, subject.as_str(), &message.payload)
            && let Action::Go(ahead) = &verified.get().action
        {
            self.go = self.go.max(ahead.wave);
        }
        Ok(self.go >= wave)
    }

    /// Reads what is new in the stream: notes what the operators say, and gives the reason when too many nodes failed.
    ///
    /// # Errors
    /// When it can't be read.
    async fn look(
        &mut self,
        command: &Command,
        waves: &RolloutPlan,
        node: &Node,
        bus: &Bus,
    ) -> Result<Option<String>, TransportError> {
        let stream = node.subjects.stream("ROLLOUTS");
        let control = node.subjects.rollout_control(command.id);
        if let Some(message) = bus.last(&stream, control.as_str()).await?
            && let Some(verified) = opened(node, command, control.as_str(), &message.payload)
        {
            note(node, &verified);
        }
        let failures = node.subjects.rollout_failures(command.id);
        while self.failed.len() as u64 <= waves.max_failed {
            let Some(message) = bus.stored_after(&stream, failures.as_str(), self.read).await? else { break };
            self.read = message.seq.unwrap_or_default().max(self.read.saturating_add(1));
            // The server pins the name in the subject to the node that says it.
            let name = message.subject.rsplit('.').next().and_then(|name| name.parse().ok());
            self.failed.extend(name.filter(|name| self.counts(command, name)));
        }
        Ok(self.budget_exhausted(waves))
    }

    /// A node that the command does not name has no say in how it goes. Who is in a group only the nodes themselves know.
    fn counts(&self, command: &Command, name: &NodeId) -> bool {
        let meant = match command.to.selector() {
            Some(Selector::Nodes(nodes)) => nodes.contains(name),
            _ => true,
        };
        meant && !self.failed.contains(name)
    }

    fn budget_exhausted(&self, waves: &RolloutPlan) -> Option<String> {
        let most = waves.max_failed;
        let names: Vec<&str> = self.failed.iter().map(NodeId::as_str).collect();
        (self.failed.len() as u64 > most).then(|| format!("the error budget of {most} is spent: {} failed first", few(&names)))
    }
}

fn few(names: &[&str]) -> String {
    names.get(..NAMED).unwrap_or(names).join(", ")
}

/// Opens the word of an operator on a job. A word that does not count is told where refusals are, once, and is as if it
/// were not there.
fn opened(node: &Node, about: &Command, subject: &str, bytes: &[u8]) -> Option<Verified<Command>> {
    let refusal = match node.verify(|verifier| verifier.open_control(bytes, about)) {
        Ok(verified) => return Some(verified),
        Err(refusal) => refusal,
    };
    let mut last = held(&node.words.refused);
    if *last != refusal.digest {
        last.clone_from(&refusal.digest);
        let why = (refusal.code, refusal.message);
        let done = messages::not_done(node, refusal.id, &refusal.digest, CommandOutcome::Refused, why);
        tracing::warn!(subject, code = done.code.as_deref(), why = done.message.as_deref(), "refused");
        node.post_rejection(&done, subject, refusal.keyids);
    }
    None
}

/// The wave of this node, from 1; none for a command without waves.
pub(in crate::agent) fn wave(node: &Node, command: &Command) -> Option<u64> {
    let waves = command.options.waves.as_ref()?;
    u64::try_from(waves.wave_number(RolloutPosition::of(command.id, &node.settings().node))).ok()
}

/// True when the next wave waits for a success of this node.
pub(in crate::agent) fn is_witness(node: &Node, command: &Command) -> bool {
    command.options.waves.as_ref().is_some_and(|waves| waves.is_witness(&node.settings().node))
}

/// Says that a command in waves went well here, if the next wave waits for that.
pub(in crate::agent) fn publish_success(node: &Node, command: &Verified<Command>, outcome: CommandOutcome) {
    if !is_witness(node, command) {
        return;
    }
    let subject = node.subjects.rollout_ok(command.id, &node.settings().node);
    post_rollout_result(node, command.id, command.digest(), ROLLOUT_SUCCESS, &subject, (node.now(), outcome));
}

/// Posts a mark, once: a command that is not selected is in no ledger, and a server may repeat it any number of times.
fn post_rollout_result(
    node: &Node,
    id: Uuid,
    digest: &str,
    protocol: &'static str,
    subject: &Subject,
    (at, outcome): (Timestamp, CommandOutcome),
) {
    if !node.words.is_first_mark(id, protocol) {
        return;
    }
    let mark = RolloutResult { protocol: protocol.to_owned(), id, node: node.settings().node.clone(), at, outcome };
    let (payload, msg_id) = (messages::json(&mark), format!("{id}.{}.{protocol}", mark.node));
    let (subject, command) = (subject.as_str().to_owned(), Some(digest.to_owned()));
    node.post(&Message { subject, msg_id, payload, class: Priority::Result, command });
}

/// Says that this node failed a command in waves, unless the command has none or its end does not count as a failure.
/// Before the result: after a crash in between, the mark is there or the result is not yet.
pub(in crate::agent) fn publish_failure(node: &Node, command: &Command, done: &CommandResult) {
    let refused = |code: RejectionCode| done.code.as_deref() == Some(code.as_str());
    let counts = match done.outcome {
        CommandOutcome::Failed | CommandOutcome::Interrupted => true,
        // What the host does not allow, it would have refused from the beginning.
        CommandOutcome::Refused => {
            refused(RejectionCode::BadArtifact) || refused(RejectionCode::Storage) || refused(RejectionCode::PlanChanged)
        }
        _ => false,
    };
    if counts && command.options.waves.is_some() {
        let subject = node.subjects.rollout_failed(command.id, &node.settings().node);
        post_rollout_result(node, command.id, &done.digest, ROLLOUT_FAILURE, &subject, (done.at, done.outcome));
    }
}

/// The same for a command that is only known by the envelope in this node's own ledger.
pub(in crate::agent) fn publish_failure_of_envelope(node: &Node, envelope: &[u8], done: &CommandResult) {
    let payload = Envelope::parse(envelope).map(|envelope| envelope.payload);
    if let Some(command) = payload.ok().and_then(|payload| json::read::<Command>(&payload).ok()) {
        publish_failure(node, &command, done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::HumanDuration;
    use crate::wire::command::Target;
    use crate::wire::rollout_plan::{WAVE_MARGIN, Witness};

    fn word(issued: i64, id: u128, halted: bool) -> Override {
        let issued = Timestamp::from_second(issued).unwrap();
        Override { issued, id: Uuid::from_u128(id), halted, by: vec!["ops".into()], reason: Some("smoke".into()) }
    }

    #[test]
    fn the_latest_word_counts() {
        for (before, after) in [(word(1, 9, true), word(2, 1, false)), (word(2, 1, false), word(2, 2, true))] {
            assert!(after.is_after(&before) && !before.is_after(&after) && !before.is_after(&before));
        }
        assert_eq!(word(0, 1, true).sentence(), "halted by ops at 1970-01-01T00:00:00Z: smoke");
    }

    #[test]
    fn one_key_does_not_make_the_words_of_others_forgotten() {
        let mut words: BTreeMap<Uuid, Override> = (10..20).map(|n| (Uuid::from_u128(n), word(100, n, true))).collect();
        let other = Override { by: vec!["other".into()], ..word(1, 1, true) };
        words.insert(Uuid::from_u128(1), other);
        assert_eq!(override_to_forget(&words), Some(Uuid::from_u128(10)));
        assert_eq!(override_to_forget(&BTreeMap::new()), None);
    }

    fn name(text: &str) -> NodeId {
        text.parse().unwrap()
    }

    #[test]
    fn a_budget_is_spent_by_more_nodes_than_it_allows() {
        let mut command: Command = serde_json::from_value(serde_json::json!({
            "id": Uuid::nil(), "fleet": "f", "to": {"all": true}, "issued": "2026-11-20T10:00:00Z",
            "expires": "2026-11-20T10:05:00Z", "action": {"status": {}},
        }))
        .unwrap();
        let waves = waves(&[], 0, 1);
        let mut rollout = RolloutProgress { failed: vec![name("a")], ..RolloutProgress::default() };
        assert_eq!(rollout.budget_exhausted(&waves), None);
        assert!(!rollout.counts(&command, &name("a")) && rollout.counts(&command, &name("b")), "each node counts once");
        rollout.failed.push(name("b"));
        assert_eq!(rollout.budget_exhausted(&waves).unwrap(), "the error budget of 1 is spent: a, b failed first");
        command.to = Target::nodes(vec![name("a")]);
        assert!(!RolloutProgress::default().counts(&command, &name("b")), "it was not asked");
    }

    fn waves(witnesses: &[&str], min_ok: u64, max_failed: u64) -> RolloutPlan {
        let witnesses = witnesses.iter().map(|node| Witness { node: name(node), key: String::new() }).collect();
        let steps = vec![
            Wave { upto: RolloutPosition::try_from("7fffffffffffffff".to_owned()).unwrap(), witnesses, min_ok },
            Wave { upto: RolloutPosition::LAST, witnesses: vec![], min_ok: 0 },
        ];
        RolloutPlan { steps, hold: HumanDuration::seconds(60), margin: WAVE_MARGIN, max_failed, health: false, go: false }
    }

    #[test]
    fn a_wave_begins_by_successes_of_the_one_before() {
        let waits = "wave 2 waits for wave 1: ";
        for (ok, failed, min_ok, max_failed, late, wanted) in [
            (&[][..], &[][..], 2, 0, false, "wave 2 waits for wave 1: 0 of 2 succeeded"),
            (&["a"], &[], 2, 0, false, "wave 2 waits for wave 1: 1 of 2 succeeded"),
            (&["a", "b"], &[], 2, 0, false, ""),
            // Silence is a failure, once the wave has had its time.
            (&[], &[], 2, 0, true, "0 of the 2 nodes of wave 1 that must succeed did, and a, b stayed silent"),
            (&["a"], &[], 2, 0, true, "1 of the 2 nodes of wave 1 that must succeed did, and b stayed silent"),
            (&["a"], &[], 1, 1, false, waits),
            (&["a"], &[], 1, 1, true, ""),
            (&["a"], &["c"], 1, 1, true, "the error budget of 1 is spent: b stayed silent"),
            // A failure within the budget is no success.
            (&["a"], &["b"], 1, 1, false, ""),
            (&[], &["a", "b"], 1, 2, false, "0 of the 1 nodes of wave 1 that must succeed did"),
            (&["a"], &["a"], 1, 1, true, "0 of the 1 nodes of wave 1 that must succeed did, and b stayed silent"),
            // Successes of others prove nothing.
            (&["c", "d"], &[], 2, 0, true, "0 of the 2 nodes of wave 1 that must succeed did, and a, b stayed silent"),
        ] {
            let names = |list: &[&str]| list.iter().map(|node| name(node)).collect::<Vec<_>>();
            let ok = names(ok).into_iter().collect();
            let rollout = RolloutProgress { ok, failed: names(failed), ..RolloutProgress::default() };
            let waves = waves(&["a", "b"], min_ok, max_failed);
            let said = match rollout.judge(&waves, 2, waves.previous_wave(2).unwrap(), late) {
                RolloutTurn::Begin => String::new(),
                RolloutTurn::Wait(why) | RolloutTurn::Over(why) => why,
                other => panic!("{other:?}"),
            };
            assert!(if wanted.is_empty() { said.is_empty() } else { said.starts_with(wanted) }, "{said}, wanted {wanted}");
        }
    }

    #[test]
    fn looks_are_as_far_apart_as_the_hold_is_long() {
        let with = |hold| poll_interval(&RolloutPlan { hold: HumanDuration::seconds(hold), ..waves(&["a"], 1, 0) }).as_millis();
        assert_eq!((with(1), with(8), with(3600)), (500, 2000, 15_000));
    }
}
