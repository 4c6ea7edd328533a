//! The scheduler of rollouts: moves commands between the rollout queue and the queue of the executor.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::agent::exec::job::{Job, JobKind};
use crate::agent::identity::AgentInstance;
use crate::agent::intake::fair_queue::FairQueue;
use crate::agent::jitter;
use crate::agent::status::messages;
use crate::agent::trust::command_verifier::CommandVerifier;
use crate::transport::Bus;
use crate::trust::RejectionCode;
use crate::wire::{CommandOutcome, CommandResult};

use super::gate::{RolloutProgress, RolloutTurn, poll_interval};
use super::state::RolloutState;

/// Longest pause before a halted command asks the gate again, and before the clock is read again.
const POLL: Duration = Duration::from_secs(30);
/// Nodes that reconnect together spread over this time.
const SPREAD: Duration = Duration::from_secs(1);
/// An answer of the gate that is younger than this counts when the command begins.
const FRESH: Duration = Duration::from_secs(2);

/// The decision about a command that the queue of the executor returns.
pub(in crate::agent) enum QueueDecision {
    /// The command begins.
    Begin,
    /// The command ended without a run.
    Ended(Box<CommandResult>),
    /// The command waits on.
    Later,
}

/// Moves commands between the rollout queue and the queue of the executor.
#[derive(Clone)]
pub(in crate::agent) struct RolloutScheduler {
    pub(in crate::agent) identity: Arc<AgentInstance>,
    pub(in crate::agent) verifier: CommandVerifier,
    pub(in crate::agent) rollouts: RolloutState,
    pub(in crate::agent) bus: Bus,
    /// The queue of the executor.
    pub(in crate::agent) queue: Arc<FairQueue>,
}

impl RolloutScheduler {
    /// Lets a command wait for its turn.
    pub(in crate::agent) fn enqueue(&self, job: Job) {
        let wave = self.rollouts.results.wave(&job.command).unwrap_or(1);
        // The sender does not wait: a reply subject is allowed for minutes only. The stream has every result.
        let job = job.without_reply();
        let signers = job.command.signers().to_vec();
        self.rollouts.queue.insert(job.id(), wave, signers);
        let scheduler = self.clone();
        self.rollouts.queue.spawn(async move {
            let ended = scheduler.wait_for_turn(&job).await;
            scheduler.rollouts.queue.record_answer(job.id(), ended);
            scheduler.queue.push(Box::new(job));
        });
    }

    /// Returns when a command may begin (`None`), or its end without a run.
    async fn wait_for_turn(&self, job: &Job) -> Option<CommandResult> {
        let command = &job.command;
        let plan = command.options.waves.as_ref()?;
        let latest_start = plan.latest_start(command.issued, command.options.timeout);
        let mut progress = RolloutProgress::default();
        let mut overrides = self.rollouts.overrides.watch();
        let mut attempt = 0;
        loop {
            overrides.mark_unchanged();
            // A key that was revoked meanwhile keeps no place.
            if let Err(rejection) = self.verifier.verify(|verifier| verifier.recheck(command)) {
                return Some(self.not_run(job, CommandOutcome::Refused, (rejection.code, rejection.message)));
            }
            let turn = progress.may_begin(command, &self.rollouts.gate, &self.bus).await;
            if let Some(result) = self.cancelled(job) {
                return Some(result);
            }
            attempt = if matches!(turn, RolloutTurn::Unknown(_)) { attempt + 1 } else { 0 };
            let pause = match turn {
                RolloutTurn::Ended(why) => return Some(self.halted(job, why)),
                turn if self.identity.now() > latest_start => return Some(self.end_at_deadline(job, latest_start, turn)),
                RolloutTurn::Begin => return None,
                RolloutTurn::Wait(_) => poll_interval(plan) / 2 + jitter::random_delay(poll_interval(plan)),
                RolloutTurn::Halted(_) => POLL,
                RolloutTurn::Unknown(why) => {
                    if attempt == 1 {
                        tracing::warn!(id = %command.id, why, "cannot ask whether the command may begin");
                    }
                    jitter::backoff(attempt)
                }
            };
            // Cancel-safe: a watch keeps its last value, and a dropped sleep loses nothing.
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.reconnected(), if attempt > 0 => {}
                // The sender lives as long as the agent: no error.
                _ = overrides.changed() => {}
            }
        }
    }

    /// Returns soon after a reconnect. Never returns while there is a connection.
    async fn reconnected(&self) {
        let mut link = self.bus.watch();
        if self.bus.is_connected() || link.wait_for(|link| link.connected).await.is_err() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(jitter::random_delay(SPREAD)).await;
    }

    fn not_run(&self, job: &Job, outcome: CommandOutcome, why: (RejectionCode, String)) -> CommandResult {
        messages::not_run(&self.identity, Some(job.id()), job.digest(), outcome, why)
    }

    /// Returns the end of a command that an operator cancelled; none for another command.
    pub(in crate::agent) fn cancelled(&self, job: &Job) -> Option<CommandResult> {
        let why = self.verifier.durable.cancelled().find(job.id())?;
        Some(self.not_run(job, CommandOutcome::Interrupted, (RejectionCode::Cancelled, why)))
    }

    fn halted(&self, job: &Job, why: String) -> CommandResult {
        self.not_run(job, CommandOutcome::Halted, (RejectionCode::Halted, why))
    }

    fn end_at_deadline(&self, job: &Job, at: Timestamp, turn: RolloutTurn) -> CommandResult {
        let why = match turn {
            RolloutTurn::Halted(halted) => return self.halted(job, format!("{halted}; not resumed by {at}")),
            RolloutTurn::Unknown(why) => format!("cannot ask until {at} whether the command may begin: {why}"),
            RolloutTurn::Wait(why) => return self.halted(job, format!("{why}, until {at}")),
            _ => format!("the command expired at {at}"),
        };
        self.not_run(job, CommandOutcome::Expired, (RejectionCode::Expired, why))
    }

    /// Decides about a command that the queue of the executor returns. After a long wait behind another run, the gate
    /// is asked again.
    pub(in crate::agent) async fn decide(&self, job: &Job) -> QueueDecision {
        if matches!(job.kind, JobKind::HealthCheck) {
            return QueueDecision::Begin;
        }
        let known = self.rollouts.queue.remove(job.id());
        let gate = &self.rollouts.gate;
        let may_begin = match known {
            _ if job.command.options.waves.is_none() => true,
            Some((_, Some(result))) => return QueueDecision::Ended(Box::new(result)),
            Some((asked, None)) if asked.elapsed() < FRESH => self.rollouts.overrides.halted(job.id()).is_none(),
            Some((_, None)) => RolloutProgress::default().may_still_begin(&job.command, gate, &self.bus).await,
            None => RolloutProgress::default().may_begin(&job.command, gate, &self.bus).await == RolloutTurn::Begin,
        };
        if let Some(result) = self.cancelled(job) {
            return QueueDecision::Ended(Box::new(result));
        }
        if may_begin {
            return QueueDecision::Begin;
        }
        self.enqueue(job.clone());
        QueueDecision::Later
    }

    /// Completes the health gate of a command after its hold, if the rollout wants one.
    ///
    /// When the agent ends before, the next start completes the gate: the gate is on disk.
    pub(in crate::agent) fn complete_later(&self, job: &Job, result: &CommandResult) {
        let is_witness = self.rollouts.results.is_witness(&job.command);
        if self.rollouts.health_gates.is_wanted(&job.command, result, is_witness) {
            self.complete_after_hold(job, result);
        }
    }

    /// Publishes the success of a command after its hold, or puts a health check into the queue of the executor.
    pub(in crate::agent) fn complete_after_hold(&self, job: &Job, result: &CommandResult) {
        let Some(plan) = &job.command.options.waves else { return };
        let (at, outcome) = (plan.success_counts_at(result.at), result.outcome);
        let (scheduler, job) = (self.clone(), job.health_check());
        self.rollouts.queue.spawn(async move {
            loop {
                let left = Duration::try_from(at.duration_since(scheduler.identity.now())).unwrap_or_default();
                if left.is_zero() {
                    break;
                }
                tokio::time::sleep(left.min(POLL)).await;
            }
            if scheduler.rollouts.health_gates.is_gated(&job.command) {
                scheduler.queue.push(Box::new(job));
            } else {
                scheduler.rollouts.results.publish_success(&job.command, outcome);
                scheduler.rollouts.health_gates.complete(job.id());
            }
        });
    }
}
