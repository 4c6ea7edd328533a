//! The waiting room: commands in waves, from their acceptance until their turn.
//!
//! In: what `intake.rs` accepted, and what `recover.rs` found in the ledger. Out: the same jobs, in the supervisor's
//! queue, when they may begin (`rollout.rs` says when) or have come to their end without. A job in here takes no place in
//! the queue, so that other commands run meanwhile. All that must survive is in the ledger: this is only memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::transport::Bus;
use crate::trust::RejectionCode;
use crate::wire::{CommandOutcome, CommandResult};

use super::health_gate;
use crate::agent::exec::run::Job;
use crate::agent::intake::fair_queue::{FairQueue, QueueFull, QueueLimits};
use crate::agent::rollout::gate;
use crate::agent::rollout::gate::{RolloutProgress, RolloutTurn};
use crate::agent::status::messages;
use crate::agent::{Node, jitter};

/// How many commands may wait: more rollouts at a time than anybody can follow, and few enough for memory
/// (64 envelopes of at most 64 KiB). As many more that are halted take no place.
const PLACES: QueueLimits = QueueLimits { all: 64, each: 32 };
/// A halted job is asked for, and the clock looked at anew, after this time at the latest.
const LOOK: Duration = Duration::from_secs(30);
/// Nodes that come back together spread over this time.
const SPREAD: Duration = Duration::from_secs(1);
/// What was asked so short a time ago is not asked again before the job begins.
const FRESH: Duration = Duration::from_secs(2);

/// The waiting room of an agent.
#[derive(Default)]
pub(in crate::agent) struct RolloutQueue {
    waiting: Mutex<BTreeMap<Uuid, WaitingJob>>,
    tasks: Mutex<JoinSet<()>>,
}

/// A job that waits, or that is on its way from here through the queue.
struct WaitingJob {
    wave: u64,
    /// Who signed it.
    signers: Vec<String>,
    /// When it was asked, and what came of it: it may begin, or has ended so.
    called: Option<(Instant, Option<CommandResult>)>,
}

/// What becomes of a job that the queue gives.
pub(in crate::agent) enum QueueDecision {
    /// It is to be run.
    Begin,
    /// It is to be said that it ended so.
    Ended(Box<CommandResult>),
    /// It waits on.
    Later,
}

fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whole values are put in and taken out: a panic elsewhere leaves none half written.
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RolloutQueue {
    /// Finds a place for one more job of these signers. A job that is halted gives its place to others.
    ///
    /// # Errors
    /// When there is none.
    pub(in crate::agent) fn find_place(&self, signers: &[String], is_halted: impl Fn(Uuid) -> bool) -> Result<(), QueueFull> {
        let waiting = held(&self.waiting);
        let (halted, active): (Vec<_>, Vec<_>) = waiting.iter().partition(|(job, _)| is_halted(**job));
        let counted = active.into_iter().chain(halted.into_iter().skip(PLACES.all));
        PLACES.find(counted.map(|(_, waiting)| waiting.signers.as_slice()), signers)
    }

    /// The wave of a job that waits.
    pub(in crate::agent) fn wave(&self, job: Uuid) -> Option<u64> {
        held(&self.waiting).get(&job).map(|waiting| waiting.wave)
    }

    /// Whether a job waits.
    pub(in crate::agent) fn holds(&self, job: Uuid) -> bool {
        self.wave(job).is_some()
    }

    /// Ends all waiting; what waited is in the ledger.
    pub(in crate::agent) fn close(&self) {
        held(&self.tasks).abort_all();
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = held(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    fn call(&self, job: Uuid, ended: Option<CommandResult>) {
        if let Some(waiting) = held(&self.waiting).get_mut(&job) {
            waiting.called = Some((Instant::now(), ended));
        }
    }
}

/// Lets a job wait for its turn; one without waves has it at once.
pub(in crate::agent) fn enqueue(node: &Arc<Node>, bus: &Bus, queue: &Arc<FairQueue>, mut job: Job) {
    let wave = gate::wave(node, &job.command).unwrap_or(1);
    // Whoever asked is not kept waiting; what the node may answer is allowed for minutes only. The stream has it all.
    job.reply = None;
    let signers = job.command.signers().to_vec();
    held(&node.room.waiting).insert(job.id(), WaitingJob { wave, signers, called: None });
    let (owner, bus, queue) = (Arc::clone(node), bus.clone(), Arc::clone(queue));
    node.room.spawn(async move {
        let ended = until_called(&owner, &bus, &job).await;
        owner.room.call(job.id(), ended);
        queue.push(Box::new(job));
    });
}

/// Returns when a job may begin, or how it ended without.
async fn until_called(node: &Node, bus: &Bus, job: &Job) -> Option<CommandResult> {
    let command = &job.command;
    let waves = command.options.waves.as_ref()?;
    let closes = waves.latest_start(command.issued, command.options.timeout);
    let mut rollout = RolloutProgress::default();
    let mut news = node.words.watch();
    let mut attempt = 0;
    loop {
        news.mark_unchanged();
        // A key that was revoked meanwhile keeps no place.
        if let Err(refusal) = node.verify(|verifier| verifier.recheck(command)) {
            let why = (refusal.code, refusal.message);
            return Some(messages::not_done(node, Some(job.id()), job.digest(), CommandOutcome::Refused, why));
        }
        let turn = rollout.may_begin(command, node, bus).await;
        attempt = if matches!(turn, RolloutTurn::Unknown(_)) { attempt + 1 } else { 0 };
        let pause = match turn {
            RolloutTurn::Over(why) => return Some(halted(node, job, why)),
            turn if node.now() > closes => return Some(closed(node, job, closes, turn)),
            RolloutTurn::Begin => return None,
            RolloutTurn::Wait(_) => gate::poll_interval(waves) / 2 + jitter::random_delay(gate::poll_interval(waves)),
            RolloutTurn::Halted(_) => LOOK,
            RolloutTurn::Unknown(why) => {
                if attempt == 1 {
                    tracing::warn!(id = %command.id, why, "it can't be asked whether it may begin");
                }
                jitter::backoff(attempt)
            }
        };
        // Cancel-safe: a watch keeps its last value, and a sleep that is dropped is nothing.
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = reconnected(bus), if attempt > 0 => {}
            // The sender lives as long as the node: no error.
            _ = news.changed() => {}
        }
    }
}

/// Returns soon after there is a connection again; never, while there is one.
async fn reconnected(bus: &Bus) {
    let mut link = bus.watch();
    if bus.is_connected() || link.wait_for(|link| link.connected).await.is_err() {
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(jitter::random_delay(SPREAD)).await;
}

fn until(then: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(then.duration_since(now)).unwrap_or_default()
}

fn halted(node: &Node, job: &Job, why: String) -> CommandResult {
    messages::not_done(node, Some(job.id()), job.digest(), CommandOutcome::Halted, (RejectionCode::Halted, why))
}

fn closed(node: &Node, job: &Job, at: Timestamp, turn: RolloutTurn) -> CommandResult {
    let why = match turn {
        RolloutTurn::Halted(word) => return halted(node, job, format!("{word}; nobody resumed it by {at}")),
        RolloutTurn::Unknown(why) => format!("until {at} it could not be asked whether it may begin: {why}"),
        RolloutTurn::Wait(why) => return halted(node, job, format!("{why}, until {at}")),
        _ => format!("it could begin until {at}"),
    };
    messages::not_done(node, Some(job.id()), job.digest(), CommandOutcome::Expired, (RejectionCode::Expired, why))
}

/// What becomes of a job that the queue gives. It may have been behind a long run: then it is asked once more.
pub(in crate::agent) async fn call(node: &Arc<Node>, bus: &Bus, queue: &Arc<FairQueue>, job: &Job) -> QueueDecision {
    if job.command.options.waves.is_none() || job.health_check_only {
        return QueueDecision::Begin;
    }
    let known = held(&node.room.waiting).remove(&job.id()).and_then(|waiting| waiting.called);
    let may_begin = match known {
        Some((_, Some(done))) => return QueueDecision::Ended(Box::new(done)),
        Some((asked, None)) if asked.elapsed() < FRESH => node.words.halted(job.id()).is_none(),
        Some((_, None)) => RolloutProgress::default().may_still(&job.command, node, bus).await,
        None => RolloutProgress::default().may_begin(&job.command, node, bus).await == RolloutTurn::Begin,
    };
    if may_begin {
        return QueueDecision::Begin;
    }
    enqueue(node, bus, queue, job.clone());
    QueueDecision::Later
}

/// Lets a success of this node count once its hold is over, when the waves want that and the job went well. An agent that
/// dies meanwhile does so after its next start: `looks.rs` has it.
pub(in crate::agent) fn look_later(node: &Arc<Node>, queue: &Arc<FairQueue>, job: &Job, done: &CommandResult) {
    if health_gate::is_wanted(node, &job.command, done) {
        look(node, queue, job, done);
    }
}

/// Says, when the hold is over, that a job went well; or puts a look at its health into the queue, which says that.
pub(in crate::agent) fn look(node: &Arc<Node>, queue: &Arc<FairQueue>, job: &Job, done: &CommandResult) {
    let Some(waves) = &job.command.options.waves else { return };
    let (at, outcome) = (waves.success_counts_at(done.at), done.outcome);
    let (owner, queue, job) = (Arc::clone(node), Arc::clone(queue), Job { health_check_only: true, reply: None, ..job.clone() });
    node.room.spawn(async move {
        loop {
            let left = until(at, owner.now());
            if left.is_zero() {
                break;
            }
            tokio::time::sleep(left.min(LOOK)).await;
        }
        if health_gate::is_gated(&owner, &job.command) {
            queue.push(Box::new(job));
        } else {
            gate::publish_success(&owner, &job.command, outcome);
            health_gate::complete(&owner, job.id());
        }
    });
}
