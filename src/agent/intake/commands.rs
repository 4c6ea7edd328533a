//! Intake: takes messages, verifies, writes down, answers. It never runs anything, and answers within a second.
//!
//! Order: verify → room in the queue → on disk → queue → acknowledge. What is not on disk is not run.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::config::{MAX_QUEUE, Settings};
use crate::diag::chain;
use crate::host::{Checkpoint, checkpoint};
use crate::transport::{Bus, Inbox, Message, TransportError};
use crate::trust::{OpenedMessage, Rejection, RejectionCode, Verified, Verifier};
use crate::wire::command::{Action, Command};
use crate::wire::report;
use crate::wire::subject::{ReportStage, Route};
use crate::wire::{Ack, AckStatus, CommandOutcome, CommandResult};

use super::fair_queue::{FairQueue, QueueLimits};
use super::filter_evaluation::{self, FilterRequest};
use super::forgery_guard::ForgeryGuard;
use crate::agent::Node;
use crate::agent::exec::queries;
use crate::agent::exec::run::Job;
use crate::agent::rollout::{gate, queue};
use crate::agent::status::board::AlarmKind;
use crate::agent::status::messages;

/// Messages between the subscriptions and the one task that looks at them. Verifying one takes far less
/// than a millisecond: what waits here is a burst. Behind it, each subscription has a backlog of its own.
const MAX_INBOUND: usize = 64;
/// Commands that were carried here by hand and wait for their turn: people are slow, and who waits is told to.
const BY_HAND: usize = 4;

/// The queue of commands has room for what so many keys may have waiting: as many would have to be stolen to fill it.
const KEYS: usize = 8;

/// Refusals of so many channels are remembered: more than a fleet has.
const REMEMBERED: usize = 256;

/// Where commands go that were accepted.
pub(in crate::agent) struct Queues {
    /// To the supervisor, one after the other.
    pub(in crate::agent) work: Arc<FairQueue>,
    /// Past it: questions wait for no run.
    pub(in crate::agent) questions: Arc<FairQueue>,
}

/// The running intake.
pub(in crate::agent) struct Handle {
    /// Takes what another part of the agent has found for it.
    pub(in crate::agent) hall: mpsc::Sender<Message>,
    task: JoinHandle<()>,
    /// Takes what is carried here by hand.
    pub(in crate::agent) carried: mpsc::Sender<LocalCommand>,
}

impl Handle {
    /// Subscribes, also across reconnects, and starts.
    ///
    /// # Errors
    /// When a subject can't be subscribed to at all.
    pub(in crate::agent) async fn spawn(
        node: Arc<Node>,
        bus: Bus,
        queues: Queues,
        stop: watch::Receiver<bool>,
    ) -> Result<Self, TransportError> {
        let (hall, messages) = mpsc::channel(MAX_INBOUND);
        let mut subscriptions = Subscriptions { hall: hall.clone(), open: BTreeMap::new() };
        let settings = node.settings.watch();
        subscriptions.follow(&node, &bus).await?;
        let refusals = RateLimiter::new(50, Duration::from_millis(100));
        let (carried, by_hand) = mpsc::channel(BY_HAND);
        let refused = HashMap::new();
        let (asked, evaluated) = filter_evaluation::spawn(Arc::clone(&node));
        let forged = ForgeryGuard::default();
        let task = Task {
            node,
            bus,
            queues,
            messages,
            carried: by_hand,
            asked,
            evaluated,
            settings,
            subscriptions,
            stop,
            refusals,
            forged,
            refused,
        };
        Ok(Self { hall, task: tokio::spawn(task.run()), carried })
    }

    /// Waits until nothing is taken any more.
    pub(in crate::agent) async fn ended(self) {
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the intake broke");
        }
    }
}

/// The subscriptions to the subjects of this node, its groups and all.
struct Subscriptions {
    hall: mpsc::Sender<Message>,
    open: BTreeMap<String, JoinHandle<()>>,
}

impl Subscriptions {
    /// Subscribes to what the groups of the node ask for, then ends what they do not ask for any more. What is in both
    /// is left alone, so that no command for it is lost.
    async fn follow(&mut self, node: &Node, bus: &Bus) -> Result<(), TransportError> {
        let settings = node.settings();
        let wanted: BTreeSet<String> =
            node.subjects.work_subscriptions(&settings.node, &settings.groups).iter().map(ToString::to_string).collect();
        for subject in wanted.iter().filter(|subject| !self.open.contains_key(*subject)).collect::<Vec<_>>() {
            let inbox = bus.subscribe(subject).await?;
            self.open.insert(subject.clone(), tokio::spawn(forward(inbox, self.hall.clone())));
        }
        self.open.retain(|subject, subscription| {
            let keep = wanted.contains(subject);
            if !keep {
                subscription.abort();
            }
            keep
        });
        Ok(())
    }
}

impl Drop for Subscriptions {
    fn drop(&mut self) {
        for subscription in self.open.values() {
            subscription.abort();
        }
    }
}

async fn forward(mut inbox: Inbox, hall: mpsc::Sender<Message>) {
    while let Some(message) = inbox.next().await {
        if hall.send(message).await.is_err() {
            return;
        }
    }
}

struct Task {
    node: Arc<Node>,
    bus: Bus,
    queues: Queues,
    messages: mpsc::Receiver<Message>,
    carried: mpsc::Receiver<LocalCommand>,
    /// To where the `where` of commands is evaluated.
    asked: mpsc::Sender<FilterRequest>,
    /// What came back from there, to be verified again.
    evaluated: mpsc::Receiver<Incoming>,
    settings: watch::Receiver<Arc<Settings>>,
    subscriptions: Subscriptions,
    stop: watch::Receiver<bool>,
    refusals: RateLimiter,
    /// What forged messages cost of late.
    forged: ForgeryGuard,
    /// What was refused last of each channel.
    refused: HashMap<String, (RejectionCode, String)>,
}

/// A command that somebody carried here by hand.
pub(in crate::agent) struct LocalCommand {
    /// The signed command as it was carried.
    pub(in crate::agent) envelope: Vec<u8>,
    /// Where the answer goes.
    pub(in crate::agent) answer: oneshot::Sender<Answer>,
}

/// What is answered.
pub(in crate::agent) enum Answer {
    /// An acknowledgement, to whoever asked and to the stream.
    Ack(Box<Ack>),
    /// The result that the stream has already.
    Again(Box<CommandResult>),
    /// It is refused or the node is busy.
    No(Box<CommandResult>, Vec<String>),
    /// Nobody waits for one.
    Nothing,
}

/// What the intake decides on.
pub(in crate::agent) enum Incoming {
    /// A message of the bus.
    Message(Message),
    /// A command that was carried here.
    Carried(LocalCommand),
}

/// What comes of looking at a message.
enum Decision {
    /// This is answered.
    Answer(Answer),
    /// The expression of its `where` is evaluated first. Where there is no room for that, this is answered.
    Evaluate(String, Answer),
}

/// Where an accepted command waits.
enum QueuePlace<'a> {
    /// In the supervisor's queue.
    InQueue(&'a FairQueue),
    /// In the waiting room.
    InRoom,
}

impl Task {
    async fn run(mut self) {
        loop {
            // Cancel-safe: a watch keeps its last value, and `recv` takes nothing that it does not give.
            let incoming = tokio::select! {
                biased;
                _ = self.stop.changed() => return,
                changed = self.settings.changed() => {
                    if changed.is_ok() && let Err(error) = self.subscriptions.follow(&self.node, &self.bus).await {
                        tracing::error!(error = %chain(&error), "the groups of this node are not listened to");
                    }
                    continue;
                }
                Some(evaluated) = self.evaluated.recv() => Some(evaluated),
                Some(carried) = self.carried.recv() => Some(Incoming::Carried(carried)),
                message = self.messages.recv() => message.map(Incoming::Message),
            };
            match incoming {
                None => return,
                Some(Incoming::Carried(carried)) => self.take_local(carried).await,
                Some(Incoming::Message(message)) => self.take(message).await,
            }
        }
    }

    /// A message of the bus.
    async fn take(&mut self, message: Message) {
        let reply = message.reply.as_deref().filter(|reply| is_inbox(reply));
        // Who follows the stream has no use for what is there anyway; of a fleet, that is much.
        let wanted = reply.filter(|_| message.header(report::ANSWER) != Some(report::NOT_TAKEN));
        let answer = match self.decide(&message, wanted) {
            Decision::Answer(answer) => answer,
            Decision::Evaluate(expression, busy) => {
                let incoming = Incoming::Message(message.clone());
                match self.asked.try_send(FilterRequest { expression, incoming }) {
                    Ok(()) => return,
                    Err(_full) => busy,
                }
            }
        };
        let reply = if matches!(answer, Answer::Ack(..)) { wanted } else { reply };
        self.answer(&answer, &message.subject, reply).await;
    }

    /// What somebody carried here by hand: treated as what comes over the bus, and answered to who brought it as well.
    async fn take_local(&mut self, carried: LocalCommand) {
        let message = Message { payload: carried.envelope.clone(), ..Message::default() };
        let (answer, carried) = match self.decide(&message, None) {
            Decision::Answer(answer) => (answer, carried),
            Decision::Evaluate(expression, busy) => {
                match self.asked.try_send(FilterRequest { expression, incoming: Incoming::Carried(carried) }) {
                    Ok(()) => return,
                    Err(full) => match full.into_inner().incoming {
                        Incoming::Carried(carried) => (busy, carried),
                        Incoming::Message(_) => return,
                    },
                }
            }
        };
        self.answer(&answer, "", None).await;
        // It fails when whoever asked has gone: the stream has the answer.
        let _gone = carried.answer.send(answer);
    }

    /// Everything that must not be torn apart; nothing in here waits for the network.
    fn decide(&mut self, message: &Message, reply: Option<&str>) -> Decision {
        let began = Instant::now();
        let answer = self.classify(message, reply);
        self.node.count.verified_in(began.elapsed());
        answer
    }

    fn classify(&mut self, message: &Message, reply: Option<&str>) -> Decision {
        let subject = subject_of(message);
        let (opened, expression) = self.open(message, subject);
        match (opened, expression) {
            // Everything else was right with it.
            (Err(Rejection { digest, id, keyids, .. }), Some(expression)) => {
                let why = "too many commands wait for the facts of this node".to_owned();
                let busy = messages::not_done(&self.node, id, &digest, CommandOutcome::Busy, (RejectionCode::Busy, why));
                Decision::Evaluate(expression, Answer::No(Box::new(busy), keyids))
            }
            (opened, _) => Decision::Answer(self.opened(opened, message, subject, reply)),
        }
    }

    fn opened(
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
            Ok(OpenedMessage::NotSelected(verified)) => {
                self.node.count.not_selected();
                gate::publish_success(&self.node, &verified, CommandOutcome::NotSelected);
                self.acknowledge(&verified, AckStatus::NotSelected)
            }
            Ok(OpenedMessage::Elsewhere(verified)) => self.accept_assignment(&Arc::new(verified), subject, false),
            // The streams say the same again and again: who asks for a result asks otherwise.
            Ok(OpenedMessage::Seen { id, .. }) if self.is_desired(message) => {
                self.restore_assignment(id, &message.payload);
                Answer::Nothing
            }
            Ok(OpenedMessage::Seen { id, digest }) => {
                self.node.count.command_repeated();
                match self.node.disk.result(id) {
                    Some(done) => Answer::Again(Box::new(done)),
                    None => Answer::Ack(Box::new(messages::ack(&self.node, id, &digest, AckStatus::Accepted))),
                }
            }
            Err(refusal) if self.is_desired(message) && !self.is_news(message, &refusal) => Answer::Nothing,
            Err(Rejection { code, message: why, digest, id, keyids }) => {
                if matches!(code, RejectionCode::SerialConflict | RejectionCode::StaleSerial) && self.is_desired(message) {
                    self.node.standing.request_sync();
                }
                let outcome = if code == RejectionCode::Expired { CommandOutcome::Expired } else { CommandOutcome::Refused };
                Answer::No(Box::new(messages::not_done(&self.node, id, &digest, outcome, (code, why))), keyids)
            }
        }
    }

    /// Verifies a message, for as much as forged ones may cost at present.
    /// With the expression that must be evaluated first, where there is one.
    fn open(&mut self, message: &Message, subject: Option<&str>) -> (Result<OpenedMessage, Rejection>, Option<String>) {
        if let Some(refusal) = self.forged.known(&message.payload, self.node.trust().digest()) {
            return (Err(refusal.clone()), None);
        }
        let mut effort = self.forged.effort();
        let open = |verifier: &Verifier<'_>| verifier.open_within(&message.payload, subject, &mut effort);
        let (opened, expression) = self.node.verify_or_ask(open);
        if let Err(refusal) = &opened
            && matches!(refusal.code, RejectionCode::UnknownKey | RejectionCode::BadSignature | RejectionCode::Busy)
        {
            self.forged.note(&message.payload, refusal, effort.spent());
        }
        (opened, expression)
    }

    fn is_desired(&self, message: &Message) -> bool {
        matches!(self.node.subjects.route(&message.subject), Some((_, Route::Desired(_))))
    }

    /// Whether this refusal was not said before: what is wrong in the stream is found there at every look.
    fn is_news(&mut self, message: &Message, refusal: &Rejection) -> bool {
        let Some((_, Route::Desired(channel))) = self.node.subjects.route(&message.subject) else { return true };
        if self.refused.len() >= REMEMBERED {
            self.refused.clear();
        }
        let said = (refusal.code, refusal.digest.clone());
        self.refused.insert(channel, said.clone()) != Some(said)
    }

    /// Takes what was accepted and is not here any more: its file was removed, or is an older one.
    fn restore_assignment(&self, id: Uuid, envelope: &[u8]) {
        let node = &self.node;
        if node.standing.has(id) {
            return;
        }
        // What the host does not allow any more stays out.
        let Ok(verified) = node.verify(|verifier| verifier.reverify_assignment(envelope)) else { return };
        let state = verified.get().channel_state();
        if verified.get().action.is_desired_state()
            && state.is_some_and(|(name, state)| node.disk.channels().get(name) == Some(&state))
        {
            tracing::warn!(%id, "stands again: it was accepted, and was not here any more");
            node.report_storage_error(node.standing.accept(&Arc::new(verified), false));
        }
    }

    /// Takes what stands from here on: on disk first, then known, then acknowledged. `here`: this node was asked.
    fn accept_assignment(&self, verified: &Arc<Verified<Command>>, subject: Option<&str>, here: bool) -> Answer {
        let (id, digest) = (verified.get().id, verified.digest().to_owned());
        let no = |outcome, code, why: String| {
            Answer::No(
                Box::new(messages::not_done(&self.node, Some(id), &digest, outcome, (code, why))),
                verified.signers().to_vec(),
            )
        };
        if let Err(why) = self.node.disk.find_place(verified) {
            return no(CommandOutcome::Busy, RejectionCode::Busy, why);
        }
        checkpoint(Checkpoint::IntakeVerified);
        if let Err(error) = self.node.record_accepted(verified, subject) {
            let why = chain(&error);
            self.node.board.raise(AlarmKind::Disk, why.clone());
            return no(CommandOutcome::Refused, RejectionCode::Storage, why);
        }
        checkpoint(Checkpoint::IntakeRecorded);
        // From here on it is accepted, and in force: a file that can't be written now is written later, or by the next
        // start from the ledger, which has it until its end is written down.
        let kept = self.node.report_storage_error(self.node.standing.accept(verified, here)).is_some();
        if kept && !here {
            self.node.report_storage_error(self.node.close_unselected(verified.get(), &digest));
        }
        checkpoint(Checkpoint::IntakeQueued);
        tracing::info!(%id, action = verified.get().action.name(), signers = ?verified.signers(), here, "stands");
        if self.node.board.read(|standing| standing.alarms.contains_key(&AlarmKind::Divergence)) {
            self.node.standing.request_sync();
        }
        self.node.accepted(verified.get());
        self.node.count.command_accepted();
        if here { self.acknowledge(verified, AckStatus::Accepted) } else { Answer::Nothing }
    }

    fn accept(&self, verified: &Arc<Verified<Command>>, subject: Option<&str>, reply: Option<&str>) -> Answer {
        if matches!(verified.get().action, Action::Halt(_) | Action::Resume(_) | Action::Go(_)) {
            return self.accept_override(verified, subject);
        }
        let (id, digest) = (verified.get().id, verified.digest().to_owned());
        let no = |outcome, code, why: String| {
            Answer::No(
                Box::new(messages::not_done(&self.node, Some(id), &digest, outcome, (code, why))),
                verified.signers().to_vec(),
            )
        };
        let place = match self.place(verified) {
            Ok(place) => place,
            Err((outcome, code, why)) => return no(outcome, code, why),
        };
        checkpoint(Checkpoint::IntakeVerified);
        if let Err(error) = self.node.record_accepted(verified, subject) {
            let why = chain(&error);
            self.node.board.raise(AlarmKind::Disk, why.clone());
            return no(CommandOutcome::Refused, RejectionCode::Storage, why);
        }
        checkpoint(Checkpoint::IntakeRecorded);
        tracing::info!(%id, action = verified.get().action.name(), signers = ?verified.signers(), "accepted");
        let job = Box::new(Job::once(Arc::clone(verified), reply.map(str::to_owned)));
        match place {
            QueuePlace::InQueue(place) => {
                place.push(job);
                self.shows_queue();
            }
            QueuePlace::InRoom => queue::enqueue(&self.node, &self.bus, &self.queues.work, *job),
        }
        checkpoint(Checkpoint::IntakeQueued);
        self.node.accepted(verified.get());
        self.node.count.command_accepted();
        self.acknowledge(verified, AckStatus::Accepted)
    }

    /// Shows on the board how many commands wait, also while one runs for long.
    fn shows_queue(&self) {
        // Counted under the lock of the board: the supervisor counts too.
        self.node.board.change(|standing| standing.queued = self.queues.work.len() as u64);
    }

    fn acknowledge(&self, verified: &Verified<Command>, status: AckStatus) -> Answer {
        let (rule, signers) = messages::allowed(verified);
        let ack = messages::ack(&self.node, verified.get().id, verified.digest(), status);
        let wave = gate::wave(&self.node, verified.get()).filter(|_| status == AckStatus::Accepted);
        Answer::Ack(Box::new(Ack { rule, signers, wave, ..ack }))
    }

    /// A place for one more command, or why there is none. Intake alone gives places away, and it takes one command at a
    /// time: a place that was found is there until the command is in it.
    fn place(&self, verified: &Verified<Command>) -> Result<QueuePlace<'_>, (CommandOutcome, RejectionCode, String)> {
        let (command, signers) = (verified.get(), verified.signers());
        let busy = |why: String| (CommandOutcome::Busy, RejectionCode::Busy, why);
        self.node.disk.find_place(verified).map_err(busy)?;
        if command.options.waves.is_some() {
            let found = self.node.room.find_place(signers, |job| self.node.words.halted(job).is_some());
            return found.map(|()| QueuePlace::InRoom).map_err(|full| busy(full.sentence("commands in waves")));
        }
        let (queue, places, what) = if queries::is_query(&command.action) {
            (&self.queues.questions, queries::MAX_WAITING, "questions")
        } else {
            let each = self.node.settings().queue;
            (&self.queues.work, QueueLimits { all: each.saturating_mul(KEYS).min(MAX_QUEUE), each }, "commands")
        };
        if queue.is_closed() {
            return Err((CommandOutcome::Refused, RejectionCode::ShuttingDown, "the agent is stopping".to_owned()));
        }
        queue.find_place(places, signers).map(|()| QueuePlace::InQueue(queue)).map_err(|full| busy(full.sentence(what)))
    }

    /// A word on a job in waves needs no run, nor a place in the queue: it counts at once, and that is its end.
    fn accept_override(&self, verified: &Verified<Command>, subject: Option<&str>) -> Answer {
        // It counts also when it can't be written down, or its key has its share of what is: a node that asks later asks the stream of rollouts again.
        let done = gate::record_override(&self.node, verified);
        if self.node.disk.find_place(verified).is_ok()
            && self.node.report_storage_error(self.node.record_accepted(verified, subject)).is_some()
        {
            // What can't be written now ends with the next start of the agent.
            let _written = self.node.finish(&done, &mut false);
        }
        Answer::Again(Box::new(done))
    }

    async fn answer(&mut self, answer: &Answer, subject: &str, reply: Option<&str>) {
        let (payload, command, job) = match answer {
            Answer::Nothing => return,
            Answer::Ack(ack) => {
                let job = self.node.subjects.job(ack.id, &self.node.settings().node, ReportStage::Ack);
                (messages::json(ack), ack.digest.as_str(), Some(job))
            }
            Answer::Again(done) => (messages::json(done), done.digest.as_str(), None),
            Answer::No(done, keyids) => {
                self.node.count.command_rejected(done);
                tracing::warn!(id = ?done.id, code = done.code.as_deref(), why = done.message.as_deref(), subject, "refused");
                // Anybody who can publish can make refusals: they must not fill the disk.
                if self.refusals.take() {
                    self.node.post_rejection(done, subject, keyids.clone());
                    self.node.post_result_of_rejected(done);
                }
                (messages::json(done), done.digest.as_str(), None)
            }
        };
        if let Some(reply) = reply {
            self.node.publish_best_effort(&self.bus, reply, payload.clone(), Some(command)).await;
        }
        if let Some(job) = job {
            // Not kept for later: the result says as much, and comes for certain.
            self.node.publish_best_effort(&self.bus, job.as_str(), payload, Some(command)).await;
            checkpoint(Checkpoint::IntakeAnswered);
        }
    }
}

/// The subject that a message came on; none for one that was carried here by hand.
fn subject_of(message: &Message) -> Option<&str> {
    Some(message.subject.as_str()).filter(|subject| !subject.is_empty())
}

/// Only inboxes are answered: a reply subject is not signed, and must not make a node speak elsewhere.
pub(in crate::agent) fn is_inbox(reply: &str) -> bool {
    reply.starts_with("_INBOX") && !reply.contains(['*', '>', ' '])
}

/// So many at once, and one more after every interval.
pub(in crate::agent) struct RateLimiter {
    most: u32,
    left: u32,
    interval: Duration,
    since: Instant,
}

impl RateLimiter {
    /// That many, all of them at hand.
    pub(in crate::agent) fn new(most: u32, interval: Duration) -> Self {
        Self { most, left: most, interval, since: Instant::now() }
    }

    /// Takes one, when there is one left.
    pub(in crate::agent) fn take(&mut self) -> bool {
        let gained = self.since.elapsed().as_millis() / self.interval.as_millis().max(1);
        if gained > 0 {
            self.left = self.left.saturating_add(u32::try_from(gained).unwrap_or(u32::MAX)).min(self.most);
            self.since = Instant::now();
        }
        let some = self.left > 0;
        self.left = self.left.saturating_sub(1);
        some
    }
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

    #[test]
    fn an_allowance_runs_out_and_comes_back() {
        let mut allowance = RateLimiter::new(2, Duration::from_millis(500));
        assert_eq!([allowance.take(), allowance.take(), allowance.take()], [true, true, false]);
        std::thread::sleep(Duration::from_millis(600));
        assert!(allowance.take());
    }
}
