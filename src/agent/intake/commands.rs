//! The intake of commands: verifies, records, queues, answers. The intake runs nothing, and answers within a second.
//!
//! Order: verify → find a place → on disk → queue → acknowledge. A command that is not on disk does not run.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::agent::config::settings_handle::SettingsHandle;
use crate::agent::durable::publisher::Publisher;
use crate::agent::durable::state::DurableState;
use crate::agent::exec::job::Job;
use crate::agent::exec::queries;
use crate::agent::identity::AgentInstance;
use crate::agent::reconcile::desired_state::DesiredState;
use crate::agent::rollout::RolloutState;
use crate::agent::rollout::scheduler::RolloutScheduler;
use crate::agent::status::board::{AlarmKind, StatusBoard};
use crate::agent::status::counters::SharedCounters;
use crate::agent::status::facts_cache::FactsCache;
use crate::agent::status::messages;
use crate::agent::trust::command_verifier::CommandVerifier;
use crate::config::{AgentSettings, MAX_QUEUE};
use crate::diag::error_chain;
use crate::host::{Checkpoint, checkpoint};
use crate::transport::{Bus, Message, TransportError};
use crate::trust::{OpenedMessage, Rejection, RejectionCode, Verified, Verifier};
use crate::wire::command::{Action, Command};
use crate::wire::report;
use crate::wire::subject::{ReportStage, Route};
use crate::wire::{Ack, AckStatus, CommandOutcome, CommandResult};

use super::cancel::{CancelRejection, JobCanceller};
use super::fair_queue::{FairQueue, QueueLimits};
use super::filter_evaluation::{self, FilterRequest};
use super::forgery_guard::ForgeryGuard;
use super::incoming::{Answer, Incoming, LocalCommand};
use super::rate_limit::RateLimiter;
use super::subscriptions::Subscriptions;

/// Messages between the subscriptions and the task that verifies them. Verification takes far less than a millisecond:
/// more is a burst. Behind it, each subscription has a backlog of its own.
const MAX_INBOUND: usize = 64;
/// Commands by file that wait for verification. People are slow, and a waiting command gets an answer.
const MAX_LOCAL: usize = 4;

/// The queue of commands has room for the share of this many keys. Filling the queue takes as many stolen keys.
const SHARES: usize = 8;

/// Most channels with a remembered rejection: more than a fleet has.
const MAX_REJECTED_CHANNELS: usize = 256;

/// The queues of accepted commands.
pub(in crate::agent) struct Queues {
    /// The queue of the executor.
    pub(in crate::agent) work: Arc<FairQueue>,
    /// The queue of queries, which wait for no run.
    pub(in crate::agent) queries: Arc<FairQueue>,
}

/// The handles of the intake.
pub(in crate::agent) struct IntakeHandles {
    pub(in crate::agent) identity: Arc<AgentInstance>,
    pub(in crate::agent) settings: SettingsHandle,
    pub(in crate::agent) verifier: CommandVerifier,
    pub(in crate::agent) durable: Arc<DurableState>,
    pub(in crate::agent) publisher: Publisher,
    pub(in crate::agent) status: Arc<StatusBoard>,
    pub(in crate::agent) counters: Arc<SharedCounters>,
    pub(in crate::agent) facts: Arc<FactsCache>,
    pub(in crate::agent) desired_state: Arc<DesiredState>,
    pub(in crate::agent) rollouts: RolloutState,
    pub(in crate::agent) scheduler: RolloutScheduler,
}

/// The running intake.
pub(in crate::agent) struct Handle {
    /// Takes messages that another task read from a stream.
    pub(in crate::agent) inbound: mpsc::Sender<Message>,
    task: JoinHandle<()>,
    /// Takes commands by file.
    pub(in crate::agent) local: mpsc::Sender<LocalCommand>,
}

impl Handle {
    /// Subscribes, also across reconnects, and starts.
    ///
    /// # Errors
    /// When a subject cannot be subscribed to.
    pub(in crate::agent) async fn spawn(
        handles: IntakeHandles,
        bus: Bus,
        queues: Queues,
        stop: watch::Receiver<bool>,
    ) -> Result<Self, TransportError> {
        let (inbound, messages) = mpsc::channel(MAX_INBOUND);
        let mut subscriptions = Subscriptions::new(inbound.clone());
        let settings = handles.settings.watch();
        subscriptions.follow(&handles.identity, &handles.settings.now(), &bus).await?;
        let (local, locals) = mpsc::channel(MAX_LOCAL);
        let (filters, evaluated) = filter_evaluation::spawn(Arc::clone(&handles.facts));
        let task = Task {
            handles,
            bus,
            queues,
            messages,
            local: locals,
            filters,
            evaluated,
            settings,
            subscriptions,
            stop,
            rejection_limit: RateLimiter::new(50, Duration::from_millis(100)),
            forgery_guard: ForgeryGuard::default(),
            rejected: HashMap::new(),
        };
        Ok(Self { inbound, task: tokio::spawn(task.run()), local })
    }

    /// Waits until the intake has ended.
    pub(in crate::agent) async fn join(self) {
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the intake panicked");
        }
    }
}

struct Task {
    handles: IntakeHandles,
    bus: Bus,
    queues: Queues,
    messages: mpsc::Receiver<Message>,
    local: mpsc::Receiver<LocalCommand>,
    /// Takes commands whose filter is evaluated first.
    filters: mpsc::Sender<FilterRequest>,
    /// The same commands, with an evaluated filter, to be verified again.
    evaluated: mpsc::Receiver<Incoming>,
    settings: watch::Receiver<Arc<AgentSettings>>,
    subscriptions: Subscriptions,
    stop: watch::Receiver<bool>,
    rejection_limit: RateLimiter,
    /// The recent cost of forged messages.
    forgery_guard: ForgeryGuard,
    /// The last rejection of each channel.
    rejected: HashMap<String, (RejectionCode, String)>,
}

/// The decision about a message.
enum Decision {
    /// Send this answer.
    Answer(Answer),
    /// Evaluate the filter first. Send this answer when there is no room for that.
    Evaluate(String, Answer),
}

/// The place of an accepted command.
enum QueuePlace<'a> {
    /// In the queue of the executor, or of queries.
    Queue(&'a FairQueue),
    /// In the rollout queue.
    RolloutQueue,
}

impl Task {
    async fn run(mut self) {
        loop {
            // Cancel-safe: a watch keeps its last value, and `recv` takes nothing that it does not return.
            let incoming = tokio::select! {
                biased;
                _ = self.stop.changed() => return,
                changed = self.settings.changed() => {
                    if changed.is_ok() && let Err(error) = self.subscriptions.follow(&self.handles.identity, &self.handles.settings.now(), &self.bus).await {
                        tracing::error!(error = %error_chain(&error), "cannot subscribe to the subjects of this node's groups");
                    }
                    continue;
                }
                Some(evaluated) = self.evaluated.recv() => Some(evaluated),
                Some(local) = self.local.recv() => Some(Incoming::Local(local)),
                message = self.messages.recv() => message.map(Incoming::Message),
            };
            match incoming {
                None => return,
                Some(Incoming::Local(local)) => self.handle_local(local).await,
                Some(Incoming::Message(message)) => self.handle_message(message).await,
            }
        }
    }

    /// Handles a message of the bus.
    async fn handle_message(&mut self, message: Message) {
        let reply = message.reply.as_deref().filter(|reply| is_inbox(reply));
        // A sender that follows the stream needs no reply for an accepted command. In a fleet the replies are many.
        let wanted = reply.filter(|_| message.header(report::ANSWER) != Some(report::NOT_TAKEN));
        let answer = match self.decide(&message, wanted) {
            Decision::Answer(answer) => answer,
            Decision::Evaluate(expression, busy) => {
                let incoming = Incoming::Message(message.clone());
                match self.filters.try_send(FilterRequest { expression, incoming }) {
                    Ok(()) => return,
                    Err(_full) => busy,
                }
            }
        };
        let reply = if matches!(answer, Answer::Ack(..)) { wanted } else { reply };
        self.answer(&answer, &message.subject, reply).await;
    }

    /// Handles a command by file as a message of the bus, and also answers its sender.
    async fn handle_local(&mut self, local: LocalCommand) {
        let message = Message { payload: local.envelope.clone(), ..Message::default() };
        let (answer, local) = match self.decide(&message, None) {
            Decision::Answer(answer) => (answer, local),
            Decision::Evaluate(expression, busy) => {
                match self.filters.try_send(FilterRequest { expression, incoming: Incoming::Local(local) }) {
                    Ok(()) => return,
                    Err(full) => match full.into_inner().incoming {
                        Incoming::Local(local) => (busy, local),
                        Incoming::Message(_) => return,
                    },
                }
            }
        };
        self.answer(&answer, "", None).await;
        // Fails when the sender has gone: the stream has the answer.
        let _gone = local.answer.send(answer);
    }

    /// Decides about a message in one step. Nothing in here waits for the network.
    fn decide(&mut self, message: &Message, reply: Option<&str>) -> Decision {
        let began = Instant::now();
        let answer = self.classify(message, reply);
        self.handles.counters.verified_in(began.elapsed());
        answer
    }

    fn classify(&mut self, message: &Message, reply: Option<&str>) -> Decision {
        let subject = subject_of(message);
        let (opened, expression) = self.open(message, subject);
        match (opened, expression) {
            // All other checks of the command passed.
            (Err(Rejection { digest, id, keyids, .. }), Some(expression)) => {
                let why = "too many commands wait for the facts of this node".to_owned();
                let busy =
                    messages::not_run(&self.handles.identity, id, &digest, CommandOutcome::Busy, (RejectionCode::Busy, why));
                Decision::Evaluate(expression, Answer::Rejected(Box::new(busy), keyids))
            }
            (opened, _) => Decision::Answer(self.decide_opened(opened, message, subject, reply)),
        }
    }

    fn decide_opened(
        &mut self,
        opened: Result<OpenedMessage, Rejection>,
        message: &Message,
        subject: Option<&str>,
        reply: Option<&str>,
    ) -> Answer {
        match opened {
            Ok(OpenedMessage::New(verified)) if verified.action.is_desired_state() => {
                self.accept_assignment(&Arc::new(verified), subject, true)
            }
            Ok(OpenedMessage::New(verified)) => self.accept(&Arc::new(verified), subject, reply),
            Ok(OpenedMessage::FilteredOut(verified)) => {
                self.handles.counters.not_selected();
                self.handles.rollouts.results.publish_success(&verified, CommandOutcome::NotSelected);
                self.acknowledge(&verified, AckStatus::NotSelected)
            }
            Ok(OpenedMessage::ForOtherNodes(verified)) => self.accept_assignment(&Arc::new(verified), subject, false),
            Ok(OpenedMessage::NotTargeted) => Answer::Nothing,
            // The streams repeat assignments all the time. An operator asks for a result in another way.
            Ok(OpenedMessage::Duplicate { id, .. }) if self.is_desired(message) => {
                self.restore_assignment(id, &message.payload);
                Answer::Nothing
            }
            Ok(OpenedMessage::Duplicate { id, digest }) => {
                self.handles.counters.command_repeated();
                match self.handles.durable.result(id) {
                    Some(done) => Answer::Ended(Box::new(done)),
                    None => Answer::Ack(Box::new(self.ack(id, &digest, AckStatus::Accepted))),
                }
            }
            Err(refusal) if self.is_desired(message) && !self.is_new_rejection(message, &refusal) => Answer::Nothing,
            Err(Rejection { code, message: why, digest, id, keyids }) => {
                if matches!(code, RejectionCode::SerialConflict | RejectionCode::StaleSerial) && self.is_desired(message) {
                    self.handles.desired_state.request_sync();
                }
                let outcome = if code == RejectionCode::Expired { CommandOutcome::Expired } else { CommandOutcome::Refused };
                Answer::Rejected(Box::new(messages::not_run(&self.handles.identity, id, &digest, outcome, (code, why))), keyids)
            }
        }
    }

    /// Verifies a message within the signature budget that forged messages leave. Returns also the filter that must be
    /// evaluated first, if there is one.
    fn open(&mut self, message: &Message, subject: Option<&str>) -> (Result<OpenedMessage, Rejection>, Option<String>) {
        if let Some(refusal) =
            self.forgery_guard.known_rejection(&message.payload, self.handles.verifier.trust.current().digest())
        {
            return (Err(refusal.clone()), None);
        }
        let mut effort = self.forgery_guard.budget();
        let open = |verifier: &Verifier<'_>| verifier.open_within(&message.payload, subject, &mut effort);
        let (opened, expression) = self.handles.verifier.verify_or_filter(open);
        if let Err(refusal) = &opened
            && matches!(refusal.code, RejectionCode::UnknownKey | RejectionCode::BadSignature | RejectionCode::Busy)
        {
            self.forgery_guard.record(&message.payload, refusal, effort.computed());
        }
        (opened, expression)
    }

    fn is_desired(&self, message: &Message) -> bool {
        matches!(self.handles.identity.subjects.route(&message.subject), Some((_, Route::Desired(_))))
    }

    /// Returns true when this rejection is new: each sync reads the same invalid message of the stream again.
    fn is_new_rejection(&mut self, message: &Message, refusal: &Rejection) -> bool {
        let Some((_, Route::Desired(channel))) = self.handles.identity.subjects.route(&message.subject) else { return true };
        if self.rejected.len() >= MAX_REJECTED_CHANNELS {
            self.rejected.clear();
        }
        let said = (refusal.code, refusal.digest.clone());
        self.rejected.insert(channel, said.clone()) != Some(said)
    }

    /// Restores an accepted assignment that this node lost: its file was removed, or is an older one.
    fn restore_assignment(&self, id: Uuid, envelope: &[u8]) {
        let node = &self.handles;
        if node.desired_state.is_latest(id) {
            return;
        }
        // An assignment that the host no longer allows stays out.
        let Ok(verified) = node.verifier.verify(|verifier| verifier.reverify_assignment(envelope)) else { return };
        let state = verified.get().channel_state();
        if verified.get().action.is_desired_state()
            && state.is_some_and(|(name, state)| node.durable.channels().get(name) == Some(&state))
        {
            tracing::warn!(%id, "restored an accepted assignment that was missing");
            node.status.report_storage_error(node.desired_state.accept(&Arc::new(verified), false));
        }
    }

    /// Accepts an assignment: on disk first, then in memory, then acknowledged. `here`: the assignment is for this node.
    fn accept_assignment(&self, verified: &Arc<Verified<Command>>, subject: Option<&str>, here: bool) -> Answer {
        let (id, digest) = (verified.get().id, verified.digest().to_owned());
        let no = |outcome, code, why: String| {
            Answer::Rejected(
                Box::new(messages::not_run(&self.handles.identity, Some(id), &digest, outcome, (code, why))),
                verified.signers().to_vec(),
            )
        };
        if let Err(why) = self.handles.durable.find_place(verified) {
            return no(CommandOutcome::Busy, RejectionCode::Busy, why);
        }
        checkpoint(Checkpoint::IntakeVerified);
        if let Err(error) = self.handles.publisher.record_accepted(verified, subject) {
            let why = error_chain(&error);
            self.handles.status.raise(AlarmKind::Disk, why.clone());
            return no(CommandOutcome::Refused, RejectionCode::Storage, why);
        }
        checkpoint(Checkpoint::IntakeRecorded);
        // From here on the assignment is accepted and active. A file that cannot be written now is written later, or by the
        // next start from the ledger, which has the assignment until its end is recorded.
        let kept = self.handles.status.report_storage_error(self.handles.desired_state.accept(verified, here)).is_some();
        if kept && !here {
            self.handles.status.report_storage_error(self.handles.publisher.close_unselected(verified.get(), &digest));
        }
        checkpoint(Checkpoint::IntakeQueued);
        tracing::info!(%id, action = verified.get().action.name(), signers = ?verified.signers(), here, "accepted an assignment");
        if self.handles.status.read(|snapshot| snapshot.alarms.contains_key(&AlarmKind::Divergence)) {
            self.handles.desired_state.request_sync();
        }
        self.handles.status.command_accepted(verified.get());
        self.handles.counters.command_accepted();
        if here { self.acknowledge(verified, AckStatus::Accepted) } else { Answer::Nothing }
    }

    fn accept(&self, verified: &Arc<Verified<Command>>, subject: Option<&str>, reply: Option<&str>) -> Answer {
        if matches!(verified.get().action, Action::Halt(_) | Action::Resume(_) | Action::Go(_) | Action::Cancel(_)) {
            return self.accept_override(verified, subject);
        }
        let (id, digest) = (verified.get().id, verified.digest().to_owned());
        let no = |outcome, code, why: String| {
            Answer::Rejected(
                Box::new(messages::not_run(&self.handles.identity, Some(id), &digest, outcome, (code, why))),
                verified.signers().to_vec(),
            )
        };
        let place = match self.find_queue(verified) {
            Ok(place) => place,
            Err((outcome, code, why)) => return no(outcome, code, why),
        };
        checkpoint(Checkpoint::IntakeVerified);
        if let Err(error) = self.handles.publisher.record_accepted(verified, subject) {
            let why = error_chain(&error);
            self.handles.status.raise(AlarmKind::Disk, why.clone());
            return no(CommandOutcome::Refused, RejectionCode::Storage, why);
        }
        checkpoint(Checkpoint::IntakeRecorded);
        tracing::info!(%id, action = verified.get().action.name(), signers = ?verified.signers(), "accepted");
        let job = Box::new(Job::command(Arc::clone(verified), reply.map(str::to_owned)));
        match place {
            QueuePlace::Queue(place) => {
                place.push(job);
                self.update_board();
            }
            QueuePlace::RolloutQueue => self.handles.scheduler.enqueue(*job),
        }
        checkpoint(Checkpoint::IntakeQueued);
        self.handles.status.command_accepted(verified.get());
        self.handles.counters.command_accepted();
        self.acknowledge(verified, AckStatus::Accepted)
    }

    /// Shows on the board how many commands wait, also during a long run.
    fn update_board(&self) {
        // Counted under the lock of the board: the executor counts too.
        self.handles.status.change(|snapshot| snapshot.queued = self.queues.work.len() as u64);
    }

    fn ack(&self, id: Uuid, digest: &str, status: AckStatus) -> Ack {
        let queued = self.handles.status.read(|snapshot| snapshot.queued);
        let ack = messages::ack(&self.handles.identity, id, digest, status, queued);
        Ack { wave: self.handles.rollouts.queue.wave(id), ..ack }
    }

    fn acknowledge(&self, verified: &Verified<Command>, status: AckStatus) -> Answer {
        let (rule, signers) = messages::allowed_by(verified);
        let ack = self.ack(verified.get().id, verified.digest(), status);
        let wave = self.handles.rollouts.results.wave(verified.get()).filter(|_| status == AckStatus::Accepted);
        Answer::Ack(Box::new(Ack { rule, signers, wave, ..ack }))
    }

    /// Finds a place for one more command. Returns the reason when there is none. Only the intake fills the queues, one
    /// command at a time, so that a found place stays free.
    fn find_queue(&self, verified: &Verified<Command>) -> Result<QueuePlace<'_>, (CommandOutcome, RejectionCode, String)> {
        let (command, signers) = (verified.get(), verified.signers());
        let busy = |why: String| (CommandOutcome::Busy, RejectionCode::Busy, why);
        self.handles.durable.find_place(verified).map_err(busy)?;
        if command.options.waves.is_some() {
            let found =
                self.handles.rollouts.queue.find_place(signers, |job| self.handles.rollouts.overrides.halted(job).is_some());
            return found.map(|()| QueuePlace::RolloutQueue).map_err(|full| busy(full.sentence("commands in waves")));
        }
        let (queue, places, what) = if queries::is_query(&command.action) {
            (&self.queues.queries, queries::MAX_WAITING, "queries")
        } else {
            let each = self.handles.settings.now().queue;
            (&self.queues.work, QueueLimits { total: each.saturating_mul(SHARES).min(MAX_QUEUE), per_key: each }, "commands")
        };
        if queue.is_closed() {
            return Err((CommandOutcome::Refused, RejectionCode::ShuttingDown, "the agent is stopping".to_owned()));
        }
        queue.find_place(places, signers).map(|()| QueuePlace::Queue(queue)).map_err(|full| busy(full.sentence(what)))
    }

    /// Accepts a `halt`, `resume` or `cancel`. The command counts at once, without a run or a place in the queue, and ends at once.
    fn accept_override(&self, verified: &Verified<Command>, subject: Option<&str>) -> Answer {
        // An override counts even when it cannot be recorded, or when its key has used up its share of the record. A
        // later start reads the stream of rollouts again.
        let applied = match &verified.get().action {
            Action::Cancel(wanted) => self.cancel(verified, wanted.job),
            _ => Ok(self.apply_override(verified)),
        };
        let done = match applied {
            Ok(done) => done,
            Err((outcome, code, why)) => {
                let (id, why) = (verified.get().id, (code, why));
                let rejected = messages::not_run(&self.handles.identity, Some(id), verified.digest(), outcome, why);
                return Answer::Rejected(Box::new(rejected), verified.signers().to_vec());
            }
        };
        if self.handles.durable.find_place(verified).is_ok()
            && self.handles.status.report_storage_error(self.handles.publisher.record_accepted(verified, subject)).is_some()
        {
            // A result that cannot be written now is written at the next start of the agent.
            let _written = self.handles.publisher.finish(&done, &mut false);
        }
        Answer::Ended(Box::new(done))
    }

    /// Cancels a job on this node.
    fn cancel(&self, verified: &Verified<Command>, job: Uuid) -> Result<CommandResult, CancelRejection> {
        let canceller = JobCanceller {
            identity: &self.handles.identity,
            durable: &self.handles.durable,
            status: &self.handles.status,
            desired_state: &self.handles.desired_state,
            rollouts: &self.handles.rollouts,
            work: &self.queues.work,
            queries: &self.queues.queries,
        };
        let result = canceller.cancel(verified, job);
        self.update_board();
        result
    }

    /// Applies a `halt` or `resume`. Returns its result, which names the effect on this node.
    fn apply_override(&self, verified: &Verified<Command>) -> CommandResult {
        let (handles, command) = (&self.handles, verified.get());
        let result = |outcome| messages::result(&handles.identity, Some(command.id), verified.digest(), outcome);
        let is_newer = handles.rollouts.gate.record_override(verified);
        let (Action::Halt(wanted) | Action::Resume(wanted)) = &command.action else { return result(CommandOutcome::Failed) };
        let halts = matches!(command.action, Action::Halt(_));
        let (outcome, message) = match (is_newer, handles.rollouts.queue.is_waiting(wanted.job)) {
            (false, _) => (CommandOutcome::Stable, "a later `halt` or `resume` of this job is active"),
            (true, true) if halts => (CommandOutcome::Changed, "the job waits for its wave, and is halted"),
            (true, true) => (CommandOutcome::Changed, "the job waits for its wave, and is resumed"),
            (true, false) if handles.status.read(|snapshot| snapshot.running) == Some(wanted.job) => {
                (CommandOutcome::Stable, "the job is running, and will not be stopped")
            }
            (true, false) => (CommandOutcome::Stable, "the job does not wait on this node"),
        };
        CommandResult { message: Some(message.to_owned()), ..result(outcome) }
    }

    async fn answer(&mut self, answer: &Answer, subject: &str, reply: Option<&str>) {
        let (payload, command, job) = match answer {
            Answer::Nothing => return,
            Answer::Ack(ack) => {
                let job = self.handles.identity.subjects.job(ack.id, &self.handles.settings.now().node, ReportStage::Ack);
                (messages::json(ack), ack.digest.as_str(), Some(job))
            }
            Answer::Ended(done) => (messages::json(done), done.digest.as_str(), None),
            Answer::Rejected(done, keyids) => {
                self.handles.counters.command_rejected(done);
                tracing::warn!(id = ?done.id, code = done.code.as_deref(), why = done.message.as_deref(), subject, "rejected a command");
                // Any user that can publish can cause rejections: they must not fill the disk.
                if self.rejection_limit.take() {
                    self.handles.publisher.post_rejection(done, subject, keyids.clone());
                    self.handles.publisher.post_result_of_rejected(done);
                }
                (messages::json(done), done.digest.as_str(), None)
            }
        };
        if let Some(reply) = reply {
            self.handles.publisher.publish_best_effort(&self.bus, reply, payload.clone(), Some(command)).await;
        }
        if let Some(job) = job {
            // Not kept in the outbox: the result has the same facts, and is kept.
            self.handles.publisher.publish_best_effort(&self.bus, job.as_str(), payload, Some(command)).await;
            checkpoint(Checkpoint::IntakeAnswered);
        }
    }
}

/// Returns the subject of a message; none for a command by file.
fn subject_of(message: &Message) -> Option<&str> {
    Some(message.subject.as_str()).filter(|subject| !subject.is_empty())
}

/// Returns true for an inbox. A reply subject is not signed: a node must not publish on any other subject because of one.
pub(in crate::agent) fn is_inbox(reply: &str) -> bool {
    reply.starts_with("_INBOX") && !reply.contains(['*', '>', ' '])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_inboxes_are_answered() {
        for (reply, wanted) in [
            ("_INBOX.abc.1", true),
            ("_INBOX_ops.abc", true),
            ("ensign.v1.prod.cmd.apply.all", false),
            ("$JS.API.STREAM.PURGE.X", false),
            ("_INBOX.>", false),
            ("", false),
        ] {
            assert_eq!(is_inbox(reply), wanted, "{reply}");
        }
    }
}
