//! Durable state: the ledger of accepted commands, and the outbox of messages that the server has not stored yet.
//!
//! `store` owns both; this module shares them between tasks. A lock is held for single operations, never across a wait.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::config::AgentSettings;
use crate::host::{Checkpoint, checkpoint};
use crate::model::lock;
use crate::store::{
    Acceptance, CancelledJob, ChainHead, Ledger, LedgerOrigin, Outbox, OutboxMessage, QueuedMessage, StoreError, StreamQueue,
    UnfinishedCommand, state_dir,
};
use crate::trust::decide::verify::MAX_CLOCK_SKEW;
use crate::trust::{KnownTrust, ReplayStore, TrustedBundle, Verified};
use crate::wire::CommandResult;
use crate::wire::command::Command;
use crate::wire::report::{ChannelPosition, DroppedMessages, OpenLinks};

use super::cancelled_jobs::{CancelledJobs, RecordCancelError};
use super::node_key::ReceiptSigner;
use super::state_loss::{self, OpenedLedger};
use super::steady_clock::SteadyClock;
use crate::agent::error::AgentError;
use crate::agent::intake::fair_queue::QueueLimits;

/// Most commands that the ledger remembers, each for at least the hour that a command may be valid. A fleet in normal
/// use does not reach this rate.
const COMMAND_LIMITS: QueueLimits = QueueLimits { total: 1 << 14, per_key: 1 << 13 };

/// Most channels: each channel is in every node state.
const CHANNEL_LIMITS: QueueLimits = QueueLimits { total: 256, per_key: 128 };

/// The longest time between the cancel of a job and its arrival. The sum of the job's lifetime and twice the clock skew.
const MAX_ARRIVAL: SignedDuration = SignedDuration::from_mins(16);

/// The ledger and the outbox of this node.
#[derive(Debug)]
pub(in crate::agent) struct DurableState {
    state_dir: PathBuf,
    ledger: Mutex<Ledger>,
    clock: Mutex<SteadyClock>,
    started: Instant,
    /// The time at which this process made the ledger, if it did.
    ledger_made_at: Option<Instant>,
    outbox: Mutex<Outbox>,
    receipt_signer: ReceiptSigner,
    signals: QueueSignals,
    cancelled: CancelledJobs,
}

/// Signals, for each lane of the outbox, that the lane has a new message.
#[derive(Debug, Default)]
struct QueueSignals {
    rollouts: Notify,
    jobs: Notify,
    events: Notify,
}

impl QueueSignals {
    fn signal(&self, lane: StreamQueue) -> &Notify {
        match lane {
            StreamQueue::Rollouts => &self.rollouts,
            StreamQueue::Jobs => &self.jobs,
            StreamQueue::Events => &self.events,
        }
    }
}

impl DurableState {
    /// Opens the durable state with a ledger that was just opened: from then on this process owns the state directory.
    /// Makes the node key when there is none.
    pub(in crate::agent) fn open(
        settings: &AgentSettings,
        OpenedLedger { mut ledger, is_new }: OpenedLedger,
        boot: Uuid,
        now: Timestamp,
    ) -> Result<Self, AgentError> {
        let failed = |source| AgentError::Store { path: settings.state_dir.clone(), source };
        if ledger.was_truncated() {
            tracing::warn!("truncated an incomplete last ledger record");
        }
        let started = Instant::now();
        let passed = ledger.floor().or(ledger.origin().map(|birth| birth.at)).unwrap_or(now);
        let mut clock = SteadyClock::from(passed, now);
        ledger.advance_clock_floor(clock.update(now, Duration::ZERO));
        let notary = ReceiptSigner::open(settings, boot)?;
        let outbox = Outbox::open(&settings.state_dir.join("outbox"), settings.outbox_max).map_err(failed)?;
        Ok(Self {
            state_dir: settings.state_dir.clone(),
            ledger: Mutex::new(ledger),
            clock: Mutex::new(clock),
            started,
            ledger_made_at: is_new.then_some(started),
            outbox: Mutex::new(outbox),
            receipt_signer: notary,
            signals: QueueSignals::default(),
            cancelled: CancelledJobs::open(settings).map_err(failed)?,
        })
    }

    /// Returns the signer of receipts.
    pub(in crate::agent) fn receipt_signer(&self) -> &ReceiptSigner {
        &self.receipt_signer
    }

    /// Puts a message into the outbox, with its receipt as the next link of the hash chain.
    fn push(&self, outbox: &mut Outbox, message: &OutboxMessage, now: Timestamp) -> Result<(), StoreError> {
        let seal = |message: &OutboxMessage, head: &ChainHead| {
            self.receipt_signer.receipt(&message.subject, &message.payload, message.command.as_deref(), now, Some(head))
        };
        outbox.push(message, now, &seal)?;
        self.signals.signal(StreamQueue::for_subject(&message.subject)).notify_one();
        Ok(())
    }

    /// Returns the time, but never an earlier one than the node knows to have passed, whatever its clock shows.
    pub(in crate::agent) fn monotonic_now(&self, now: Timestamp) -> Timestamp {
        let believed = lock(&self.clock).update(now, self.started.elapsed());
        let mut ledger = lock(&self.ledger);
        ledger.advance_clock_floor(believed);
        let now = ledger.floor().map_or(now, |floor| floor.max(now));
        if let Some(birth) = ledger.origin()
            && let Some(at) = self.corrected_origin(birth, now)
        {
            tracing::warn!(from = %birth.at, to = %at, "the clock was corrected: the ledger remembers accepted commands since the new time");
            if let Err(error) = ledger.record_origin(LedgerOrigin { at, ..birth }) {
                tracing::warn!(error = %crate::diag::error_chain(&error), "cannot write the corrected origin of the ledger");
            }
        }
        now
    }

    /// Returns the origin of the ledger by the current clock, when it differs from the recorded one. A clock in the future may
    /// have stamped a new ledger. With the corrected origin, the ledger knows all commands since its creation. A ledger that
    /// replaced a lost one keeps its origin. Setting the clock back must not allow a replay of forgotten commands.
    fn corrected_origin(&self, birth: LedgerOrigin, now: Timestamp) -> Option<Timestamp> {
        if birth.at.duration_since(now) > MAX_CLOCK_SKEW {
            return (!birth.lost.ledger).then_some(now);
        }
        let age = SignedDuration::try_from(self.ledger_made_at?.elapsed()).ok()?;
        now.checked_sub(age).ok().filter(|made| made.duration_since(birth.at) > MAX_CLOCK_SKEW)
    }

    /// Returns the time since which the ledger remembers, and the known losses of state before.
    pub(in crate::agent) fn ledger_origin(&self) -> Option<LedgerOrigin> {
        lock(&self.ledger).origin()
    }

    /// Returns the text of the alarm about lost state.
    pub(in crate::agent) fn loss_alarm(&self, trust: &TrustedBundle, now: Timestamp) -> Option<String> {
        state_loss::alarm(trust, self.trust(), self.ledger_origin(), now)
    }

    /// Records the trust bundle in force at the start. Its version counts as the latest, unless a later one is known.
    pub(in crate::agent) fn record_initial_trust(&self, version: u64) -> Result<(), StoreError> {
        if self.trust() == KnownTrust::Unknown { Ok(()) } else { self.record_trust(version) }
    }

    /// Records a trust bundle that is in force and on disk.
    pub(in crate::agent) fn record_trust(&self, version: u64) -> Result<(), StoreError> {
        lock(&self.ledger).record_trust_version(version)
    }

    /// Verifies that the ledger has room for one more command, and for its channel.
    pub(in crate::agent) fn find_place(&self, verified: &Verified<Command>) -> Result<(), String> {
        let ledger = lock(&self.ledger);
        COMMAND_LIMITS.find_place(ledger.signers(), verified.signers()).map_err(|full| full.sentence("commands"))?;
        match verified.channel_state() {
            Some((name, _)) if ledger.channel(name).is_none() => {
                CHANNEL_LIMITS.find_place(ledger.channel_signers(), verified.signers()).map_err(|full| full.sentence("channels"))
            }
            _ => Ok(()),
        }
    }

    pub(in crate::agent) fn channels(&self) -> BTreeMap<String, ChannelPosition> {
        lock(&self.ledger).channels().clone()
    }

    /// Records an accepted command, on disk.
    pub(in crate::agent) fn record_accepted(
        &self,
        verified: &Verified<Command>,
        subject: Option<&str>,
    ) -> Result<(), StoreError> {
        let command = verified.get();
        lock(&self.ledger).record_acceptance(&Acceptance {
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

    /// Records the start of a run, on disk.
    pub(in crate::agent) fn record_start(&self, id: Uuid) -> Result<(), StoreError> {
        lock(&self.ledger).record_start(id)
    }

    /// Returns the result of a command that ended.
    pub(in crate::agent) fn result(&self, id: Uuid) -> Option<CommandResult> {
        lock(&self.ledger).result(id).cloned()
    }

    /// Records the end of a command without publishing a result.
    pub(in crate::agent) fn record_end(&self, id: Uuid, done: &CommandResult) -> Result<(), StoreError> {
        lock(&self.ledger).record_result(id, done)
    }

    /// Returns the number of accepted commands, and of the ended ones of them.
    pub(in crate::agent) fn counts(&self) -> (usize, usize) {
        lock(&self.ledger).counts()
    }

    /// Returns the jobs that operators cancelled.
    pub(in crate::agent) fn cancelled(&self) -> &CancelledJobs {
        &self.cancelled
    }

    /// Records the cancel of a job, on disk. Returns false when the job was cancelled before.
    ///
    /// A cancel is kept while the job has no end in the ledger. A job that this node did not receive can arrive until it expires.
    ///
    /// # Errors
    /// When there is no place, or the disk cannot be written.
    pub(in crate::agent) fn record_cancel(
        &self,
        job: Uuid,
        verified: &Verified<Command>,
        now: Timestamp,
    ) -> Result<bool, RecordCancelError> {
        let now = self.monotonic_now(now);
        let is_over = |job: Uuid, cancelled: &CancelledJob| match self.accepted_digest(job) {
            Some(_) => self.result(job).is_some(),
            None => now.duration_since(cancelled.issued) > MAX_ARRIVAL,
        };
        self.cancelled.record(job, verified, self.accepted_digest(job).is_some(), is_over)
    }

    pub(in crate::agent) fn unfinished(&self) -> Vec<UnfinishedCommand> {
        lock(&self.ledger).unfinished()
    }

    /// Verifies that the ledger is where the next start looks for it. A record in another place would be lost.
    pub(in crate::agent) fn verify_path(&self) -> Result<(), StoreError> {
        lock(&self.ledger).verify_path()
    }

    /// Verifies that the disk accepts writes again after a failure.
    pub(in crate::agent) fn probe(&self) -> Result<(), StoreError> {
        self.verify_path()?;
        state_dir::check_writable(&self.state_dir)
    }

    /// Ends a command: puts its result into the outbox, then into the ledger. After a failure the caller tries again with the
    /// same `posted` (false at first). So the result is posted once.
    ///
    /// The sender cannot reach the outbox in between. So after a crash the result is in the ledger or still in the outbox,
    /// where [`DurableState::queued_result`] finds it. There are never two different results.
    pub(in crate::agent) fn finish(
        &self,
        id: Uuid,
        done: &CommandResult,
        message: &OutboxMessage,
        posted: &mut bool,
    ) -> Result<(), StoreError> {
        let mut outbox = lock(&self.outbox);
        let pushed = if *posted { Ok(()) } else { self.push(&mut outbox, message, done.at).and_then(|()| outbox.sync()) };
        *posted = pushed.is_ok();
        checkpoint(Checkpoint::ResultPosted);
        // Even when the outbox takes nothing, the ledger can answer a repeated command.
        let mut ledger = lock(&self.ledger);
        let written = if ledger.result(id).is_some() { Ok(()) } else { ledger.record_result(id, &without_answer(done)) };
        checkpoint(Checkpoint::ResultRecorded);
        drop((outbox, ledger));
        pushed.and(written)
    }

    /// Returns the result with this message id while it waits in the outbox.
    pub(in crate::agent) fn queued_result(&self, message_id: &str) -> Option<CommandResult> {
        let waiting = lock(&self.outbox).peek(StreamQueue::Jobs, usize::MAX, u64::MAX).ok()?;
        let found = waiting.into_iter().find(|queued| queued.message.msg_id == message_id)?;
        serde_json::from_slice(&found.message.payload).ok()
    }

    /// Puts a message into the outbox. The message survives a crash of this process at once. From the end of the next command on,
    /// the message survives a power cut. A single sync writes the events of a run with its result.
    pub(in crate::agent) fn post(&self, message: &OutboxMessage, now: Timestamp) -> Result<(), StoreError> {
        self.push(&mut lock(&self.outbox), message, now)
    }

    /// Returns when every message of the outbox survives a power cut.
    pub(in crate::agent) fn sync(&self) -> Result<(), StoreError> {
        lock(&self.outbox).sync()
    }

    /// Returns when a lane got a message since the last call.
    pub(in crate::agent) async fn posted(&self, lane: StreamQueue) {
        self.signals.signal(lane).notified().await;
    }

    /// Drops events that are older than `age`.
    pub(in crate::agent) fn drop_expired(&self, now: Timestamp, age: Duration) -> Result<(), StoreError> {
        let now = self.monotonic_now(now);
        lock(&self.outbox).expire(now, SignedDuration::try_from(age).unwrap_or(SignedDuration::MAX))
    }

    /// Returns the oldest waiting messages of a lane.
    pub(in crate::agent) fn batch(&self, lane: StreamQueue, most: usize, bytes: u64) -> Result<Vec<QueuedMessage>, StoreError> {
        lock(&self.outbox).peek(lane, most, bytes)
    }

    /// Drops a message that the server will never accept.
    pub(in crate::agent) fn drop_refused(&self, seq: u64) {
        lock(&self.outbox).record_rejected(seq);
    }

    /// Puts a message about dropped and unreported messages into the outbox.
    pub(in crate::agent) fn report_dropped(
        &self,
        now: Timestamp,
        tell: impl FnOnce(&DroppedMessages) -> OutboxMessage,
    ) -> Result<(), StoreError> {
        let mut outbox = lock(&self.outbox);
        let Some(dropped) = outbox.take_unreported_drops() else { return Ok(()) };
        self.push(&mut outbox, &tell(&dropped), now).inspect_err(|_| outbox.restore_unreported_drops(&dropped))
    }

    /// Removes the messages of a lane up to this one, which the server has stored.
    pub(in crate::agent) fn remove_stored(&self, lane: StreamQueue, through: u64) -> Result<(), StoreError> {
        lock(&self.outbox).ack(lane, through)
    }

    /// Changes the size of the outbox: the oldest messages are dropped when it is smaller than the backlog.
    pub(in crate::agent) fn resize_outbox(&self, max_bytes: u64) -> Result<(), StoreError> {
        lock(&self.outbox).resize(max_bytes)
    }

    /// Returns the state of the outbox.
    pub(in crate::agent) fn outbox_state(&self) -> OutboxState {
        let outbox = lock(&self.outbox);
        let (dropped, dropped_results) = outbox.dropped();
        let (chain, open) = (outbox.chain_head().seq, outbox.open_links());
        OutboxState { outbox: outbox.len() as u64, chain, open, dropped, dropped_results }
    }
}

/// Returns a result as the ledger keeps it: without the answer to a query. An answer may be large, is in the stream,
/// and the query can be repeated.
fn without_answer(done: &CommandResult) -> Cow<'_, CommandResult> {
    if done.answer.is_none() { Cow::Borrowed(done) } else { Cow::Owned(CommandResult { answer: None, ..done.clone() }) }
}

/// The state of the outbox.
#[derive(Debug, Clone, Copy)]
pub(in crate::agent) struct OutboxState {
    /// The number of waiting messages.
    pub(in crate::agent) outbox: u64,
    /// The number of all messages, ever.
    pub(in crate::agent) chain: u64,
    /// The links of the hash chain that are neither stored nor reported as dropped.
    pub(in crate::agent) open: Option<OpenLinks>,
    /// The number of dropped messages.
    pub(in crate::agent) dropped: u64,
    /// The number of results among the dropped messages.
    pub(in crate::agent) dropped_results: u64,
}

impl ReplayStore for DurableState {
    fn accepted_digest(&self, id: Uuid) -> Option<String> {
        lock(&self.ledger).accepted_digest(id).map(str::to_owned)
    }

    fn channel(&self, name: &str) -> Option<ChannelPosition> {
        lock(&self.ledger).channel(name).cloned()
    }

    fn remembers_since(&self) -> Option<Timestamp> {
        self.ledger_origin().map(|birth| birth.at)
    }

    fn trust(&self) -> KnownTrust {
        let ledger = lock(&self.ledger);
        match (ledger.trust_version(), ledger.origin()) {
            (Some(version), _) => KnownTrust::AtLeast(version),
            (None, Some(birth)) if birth.lost.trust => KnownTrust::Unknown,
            (None, _) => KnownTrust::AtLeast(0),
        }
    }
}
