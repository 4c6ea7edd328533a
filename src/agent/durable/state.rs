//! What must survive: the ledger of accepted commands, and the outbox of what the server has not stored yet.
//!
//! Both belong to `store`; here they are shared. Held only for single operations, never across a wait.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::config::Settings;
use crate::host::{Checkpoint, checkpoint};
use crate::store::{
    Acceptance, ChainHead, Ledger, LedgerOrigin, Message, Outbox, Queued, StoreError, StreamQueue, UnfinishedCommand, state_dir,
};
use crate::trust::decide::verify::MAX_CLOCK_SKEW;
use crate::trust::{KnownTrust, ReplayStore, Verified};
use crate::wire::CommandResult;
use crate::wire::command::Command;
use crate::wire::report::{ChannelPosition, DroppedMessages, OpenLinks};

use super::node_key::ReceiptSigner;
use super::state_loss::OpenedLedger;
use super::steady_clock::SteadyClock;
use crate::agent::intake::fair_queue::QueueLimits;
use crate::agent::options::AgentError;

/// Limit of the commands that the ledger remembers: each for the hour and more that its time may last, at a rate that no fleet
/// reaches in its work.
const ENTRIES: QueueLimits = QueueLimits { all: 1 << 14, each: 1 << 13 };

/// How many channels there may be: each is in every state that the node says.
const CHANNELS: QueueLimits = QueueLimits { all: 256, each: 128 };

/// The ledger and the outbox of this node.
#[derive(Debug)]
pub(in crate::agent) struct DurableState {
    state_dir: PathBuf,
    ledger: Mutex<Ledger>,
    clock: Mutex<SteadyClock>,
    started: Instant,
    /// When the ledger was made, when this process made it.
    made: Option<Instant>,
    outbox: Mutex<Outbox>,
    notary: ReceiptSigner,
    posted: QueueSignals,
}

/// Tells of each lane of the outbox that something was put into it.
#[derive(Debug, Default)]
struct QueueSignals {
    rollouts: Notify,
    jobs: Notify,
    events: Notify,
}

impl QueueSignals {
    fn of(&self, lane: StreamQueue) -> &Notify {
        match lane {
            StreamQueue::Rollouts => &self.rollouts,
            StreamQueue::Jobs => &self.jobs,
            StreamQueue::Events => &self.events,
        }
    }
}

fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind it is on disk and was written in whole steps: a panic elsewhere broke none.
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DurableState {
    /// With a ledger that was just opened, by which the state directory is this process's alone. The key of the node is
    /// made when there is none.
    pub(in crate::agent) fn open(
        settings: &Settings,
        OpenedLedger { mut ledger, is_new }: OpenedLedger,
        boot: Uuid,
        now: Timestamp,
    ) -> Result<Self, AgentError> {
        let failed = |source| AgentError::Store { path: settings.state_dir.clone(), source };
        if ledger.was_truncated() {
            tracing::warn!("the end of the ledger was cut off: a record that nobody was told of");
        }
        let started = Instant::now();
        let passed = ledger.floor().or(ledger.origin().map(|birth| birth.at)).unwrap_or(now);
        let mut clock = SteadyClock::from(passed, now);
        ledger.advance_clock_floor(clock.believe(now, Duration::ZERO));
        let notary = ReceiptSigner::open(settings, boot)?;
        let outbox = Outbox::open(&settings.state_dir.join("outbox"), settings.outbox_max).map_err(failed)?;
        Ok(Self {
            state_dir: settings.state_dir.clone(),
            ledger: Mutex::new(ledger),
            clock: Mutex::new(clock),
            started,
            made: is_new.then_some(started),
            outbox: Mutex::new(outbox),
            notary,
            posted: QueueSignals::default(),
        })
    }

    /// Who signs what the node says.
    pub(in crate::agent) fn notary(&self) -> &ReceiptSigner {
        &self.notary
    }

    /// Puts a message into the outbox, with its receipt as the next link of the chain.
    fn push(&self, outbox: &mut Outbox, message: &Message, now: Timestamp) -> Result<(), StoreError> {
        let seal = |message: &Message, head: &ChainHead| {
            self.notary.receipt(&message.subject, &message.payload, message.command.as_deref(), now, Some(head))
        };
        outbox.push(message, now, &seal)?;
        self.posted.of(StreamQueue::for_subject(&message.subject)).notify_one();
        Ok(())
    }

    /// The time, but never before what this node knows has passed, whatever its clock says.
    pub(in crate::agent) fn monotonic_now(&self, now: Timestamp) -> Timestamp {
        let believed = held(&self.clock).believe(now, self.started.elapsed());
        let mut ledger = held(&self.ledger);
        ledger.advance_clock_floor(believed);
        let now = ledger.floor().map_or(now, |floor| floor.max(now));
        if let Some(birth) = ledger.origin()
            && let Some(at) = self.corrected_origin(birth, now)
        {
            tracing::warn!(from = %birth.at, to = %at, "the clock was set: from then on accepted commands are remembered");
            if let Err(error) = ledger.record_origin(LedgerOrigin { at, ..birth }) {
                tracing::warn!(error = %crate::diag::chain(&error), "it is not written down");
            }
        }
        now
    }

    /// When the ledger was made by the clock as it is now, where that is something else than what is written down. That of
    /// a new node which was made in the future, by a clock that then was set back, knows all that was accepted until now.
    /// One that took the place of another does not: setting the clock back must not let in what the other knew.
    fn corrected_origin(&self, birth: LedgerOrigin, now: Timestamp) -> Option<Timestamp> {
        if birth.at.duration_since(now) > MAX_CLOCK_SKEW {
            return (!birth.lost.ledger).then_some(now);
        }
        let age = SignedDuration::try_from(self.made?.elapsed()).ok()?;
        now.checked_sub(age).ok().filter(|made| made.duration_since(birth.at) > MAX_CLOCK_SKEW)
    }

    /// What was lost of the state of this node, when it is known to be, and when that was found out.
    pub(in crate::agent) fn ledger_origin(&self) -> Option<LedgerOrigin> {
        held(&self.ledger).origin()
    }

    /// A trust bundle is in force at the start: that counts as the latest there was, unless something else is known.
    pub(in crate::agent) fn start_trust(&self, version: u64) -> Result<(), StoreError> {
        if self.trust() == KnownTrust::Unknown { Ok(()) } else { self.note_trust(version) }
    }

    /// A trust bundle is in force, and on disk.
    pub(in crate::agent) fn note_trust(&self, version: u64) -> Result<(), StoreError> {
        held(&self.ledger).note_trust(version)
    }

    /// Whether one more command can be remembered, and the channel that it moves.
    pub(in crate::agent) fn find_place(&self, verified: &Verified<Command>) -> Result<(), String> {
        let ledger = held(&self.ledger);
        ENTRIES.find(ledger.signers(), verified.signers()).map_err(|full| full.sentence("commands"))?;
        match verified.channel_state() {
            Some((name, _)) if ledger.channel(name).is_none() => {
                CHANNELS.find(ledger.channel_signers(), verified.signers()).map_err(|full| full.sentence("channels"))
            }
            _ => Ok(()),
        }
    }

    pub(in crate::agent) fn channels(&self) -> BTreeMap<String, ChannelPosition> {
        held(&self.ledger).channels().clone()
    }

    /// Accepted, on disk.
    pub(in crate::agent) fn accept(&self, verified: &Verified<Command>, subject: Option<&str>) -> Result<(), StoreError> {
        let command = verified.get();
        held(&self.ledger).accept(&Acceptance {
            id: command.id,
            digest: verified.digest(),
            issued: command.issued,
            expires: command.expires,
            subject,
            envelope: verified.envelope(),
            channel: command.channel_state(),
            signers: verified.signers(),
        })
    }

    /// Its run begins, on disk.
    pub(in crate::agent) fn start(&self, id: Uuid) -> Result<(), StoreError> {
        held(&self.ledger).start(id)
    }

    /// How a command ended.
    pub(in crate::agent) fn result(&self, id: Uuid) -> Option<CommandResult> {
        held(&self.ledger).result(id).cloned()
    }

    /// The end of a command that is told nobody.
    pub(in crate::agent) fn close(&self, id: Uuid, done: &CommandResult) -> Result<(), StoreError> {
        held(&self.ledger).done(id, done)
    }

    /// How many commands were accepted, and how many of those have ended.
    pub(in crate::agent) fn counts(&self) -> (usize, usize) {
        held(&self.ledger).counts()
    }

    pub(in crate::agent) fn unfinished(&self) -> Vec<UnfinishedCommand> {
        held(&self.ledger).unfinished()
    }

    /// Verifies that the ledger is where the next start looks for it. What is written elsewhere is no record.
    pub(in crate::agent) fn verify_path(&self) -> Result<(), StoreError> {
        held(&self.ledger).verify_path()
    }

    /// Whether the disk takes more: what failed once may still fail.
    pub(in crate::agent) fn probe(&self) -> Result<(), StoreError> {
        self.verify_path()?;
        state_dir::probe(&self.state_dir)
    }

    /// The end of a command: its result in the outbox, then in the ledger. When that failed it can be tried again
    /// with the same `posted` (false at first), which keeps the result from being posted twice.
    ///
    /// The reporter can't get at the outbox in between. So after a crash the result is in the ledger, or still in
    /// the outbox, where [`DurableState::queued_result`] finds it: never nowhere, and never two different ones.
    pub(in crate::agent) fn finish(
        &self,
        id: Uuid,
        done: &CommandResult,
        message: &Message,
        posted: &mut bool,
    ) -> Result<(), StoreError> {
        let mut outbox = held(&self.outbox);
        let pushed = if *posted { Ok(()) } else { self.push(&mut outbox, message, done.at).and_then(|()| outbox.sync()) };
        *posted = pushed.is_ok();
        checkpoint(Checkpoint::ResultPosted);
        // Even when the outbox takes nothing, the ledger can answer whoever asks again.
        let mut ledger = held(&self.ledger);
        let written = if ledger.result(id).is_some() { Ok(()) } else { ledger.done(id, &without_answer(done)) };
        checkpoint(Checkpoint::ResultRecorded);
        drop((outbox, ledger));
        pushed.and(written)
    }

    /// The result with this message id, when it waits in the outbox.
    pub(in crate::agent) fn queued_result(&self, message_id: &str) -> Option<CommandResult> {
        let waiting = held(&self.outbox).peek(StreamQueue::Jobs, usize::MAX, u64::MAX).ok()?;
        let found = waiting.into_iter().find(|queued| queued.message.msg_id == message_id)?;
        serde_json::from_slice(&found.message.payload).ok()
    }

    /// Puts a message into the outbox. It survives this process at once, and a power cut with the end of the next
    /// command: what a run says reaches the disk together with its result, in one go.
    pub(in crate::agent) fn post(&self, message: &Message, now: Timestamp) -> Result<(), StoreError> {
        self.push(&mut held(&self.outbox), message, now)
    }

    /// Returns when everything that was put into the outbox survives a power cut.
    pub(in crate::agent) fn sync(&self) -> Result<(), StoreError> {
        held(&self.outbox).sync()
    }

    /// Returns when something was put into a lane since the last time.
    pub(in crate::agent) async fn posted(&self, lane: StreamQueue) {
        self.posted.of(lane).notified().await;
    }

    /// Drops events that are older than `age`.
    pub(in crate::agent) fn expire(&self, now: Timestamp, age: Duration) -> Result<(), StoreError> {
        let now = self.monotonic_now(now);
        held(&self.outbox).expire(now, SignedDuration::try_from(age).unwrap_or(SignedDuration::MAX))
    }

    /// The oldest messages that wait in a lane.
    pub(in crate::agent) fn batch(&self, lane: StreamQueue, most: usize, bytes: u64) -> Result<Vec<Queued>, StoreError> {
        held(&self.outbox).peek(lane, most, bytes)
    }

    /// The server will never take this message.
    pub(in crate::agent) fn refused(&self, seq: u64) {
        held(&self.outbox).refused(seq);
    }

    /// Puts what was dropped and not yet told of into words, and those into the outbox.
    pub(in crate::agent) fn report_dropped(
        &self,
        now: Timestamp,
        tell: impl FnOnce(&DroppedMessages) -> Message,
    ) -> Result<(), StoreError> {
        let mut outbox = held(&self.outbox);
        let Some(dropped) = outbox.take_unsaid() else { return Ok(()) };
        self.push(&mut outbox, &tell(&dropped), now).inspect_err(|_| outbox.put_back(&dropped))
    }

    /// The server has all messages of a lane up to this one.
    pub(in crate::agent) fn stored(&self, lane: StreamQueue, through: u64) -> Result<(), StoreError> {
        held(&self.outbox).ack(lane, through)
    }

    /// Another size for the outbox: the oldest go when it is smaller than what waits.
    pub(in crate::agent) fn resize_outbox(&self, max_bytes: u64) -> Result<(), StoreError> {
        held(&self.outbox).resize(max_bytes)
    }

    /// How the outbox stands.
    pub(in crate::agent) fn outbox_state(&self) -> OutboxState {
        let outbox = held(&self.outbox);
        let (dropped, dropped_results) = outbox.dropped();
        let (chain, open) = (outbox.head().seq, outbox.open_links());
        OutboxState { outbox: outbox.len() as u64, chain, open, dropped, dropped_results }
    }
}

/// A result as the ledger keeps it: without the answer to a question, which may be large, is in the stream, and can be asked
/// again.
fn without_answer(done: &CommandResult) -> Cow<'_, CommandResult> {
    if done.answer.is_none() { Cow::Borrowed(done) } else { Cow::Owned(CommandResult { answer: None, ..done.clone() }) }
}

/// How the outbox stands.
#[derive(Debug, Clone, Copy)]
pub(in crate::agent) struct OutboxState {
    /// How many messages wait.
    pub(in crate::agent) outbox: u64,
    /// How many messages there were, ever.
    pub(in crate::agent) chain: u64,
    /// What of them is neither stored nor told to be dropped.
    pub(in crate::agent) open: Option<OpenLinks>,
    /// How many had to be dropped.
    pub(in crate::agent) dropped: u64,
    /// How many of them were results.
    pub(in crate::agent) dropped_results: u64,
}

impl ReplayStore for DurableState {
    fn accepted_digest(&self, id: Uuid) -> Option<String> {
        held(&self.ledger).accepted_digest(id).map(str::to_owned)
    }

    fn channel(&self, name: &str) -> Option<ChannelPosition> {
        held(&self.ledger).channel(name).cloned()
    }

    fn remembers_since(&self) -> Option<Timestamp> {
        self.ledger_origin().map(|birth| birth.at)
    }

    fn trust(&self) -> KnownTrust {
        let ledger = held(&self.ledger);
        match (ledger.trust(), ledger.origin()) {
            (Some(version), _) => KnownTrust::AtLeast(version),
            (None, Some(birth)) if birth.lost.trust => KnownTrust::Unknown,
            (None, _) => KnownTrust::AtLeast(0),
        }
    }
}
