//! The executor: takes jobs one by one, runs each on a thread of its own, and persists its result.
//!
//! Order: accepted, on disk → verified again → started, on disk → run → result, on disk and in the outbox → reply.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::agent::durable::publisher::Publisher;
use crate::agent::intake::fair_queue::{FairQueue, JobReceiver};
use crate::agent::rollout::RolloutState;
use crate::agent::rollout::scheduler::{QueueDecision, RolloutScheduler};
use crate::agent::status::board::AlarmKind;
use crate::agent::status::messages;
use crate::agent::trust::command_verifier::CommandVerifier;
use crate::config::PublishRegistrations;
use crate::host::{Cancel, Checkpoint, checkpoint};
use crate::manifest::ManifestText;
use crate::model::{DiscoveryClient, HealthStatus};
use crate::registry::{PublishMode, Registry};
use crate::transport::Bus;
use crate::trust::RejectionCode;
use crate::wire::command::{Action, Healthcheck};
use crate::wire::{CommandOutcome, CommandResult, Subject};

use super::backend::RunBackend;
use super::bus_values::VerifiedBus;
use super::command_state::{CommandAction, CommandEvent, CommandState};
use super::context::RunContext;
use super::fetch::ManifestFetcher;
use super::healthcheck::HealthChecks;
use super::job::{Job, JobKind};
use super::queries::Queries;
use super::queue_order::ServedQueue;
use super::recovery::RecoveredEnd;
use super::result::RunResult;
use super::run;
use super::simulation::simulate;
use super::upgrade::AgentUpgrade;

/// Longest time for which a run may go on after a stop of the agent. A killed package manager leaves a mess.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// Longest time that a cancelled run may take to end.
const CANCEL_GRACE: Duration = Duration::from_secs(3);

/// A run that the reconciler asks for.
pub(in crate::agent) struct ReconcileRun {
    /// The run.
    pub(in crate::agent) job: Job,
    /// Its manifest.
    pub(in crate::agent) source: ManifestText,
    /// Told when the run begins.
    pub(in crate::agent) begun: oneshot::Sender<()>,
    /// The receiver of its result.
    pub(in crate::agent) ended: oneshot::Sender<RunResult>,
}

/// The running executor.
pub(in crate::agent) struct Handle {
    /// Takes reconcile runs, one at a time: they alternate with commands. Boxed, as a channel has room for 32 from the start.
    pub(in crate::agent) runs: mpsc::Sender<Box<ReconcileRun>>,
    task: JoinHandle<()>,
}

impl Handle {
    /// Starts the executor. `recovered` are the ends that an earlier agent did not persist.
    pub(in crate::agent) fn spawn(
        executor: Executor,
        jobs: JobReceiver,
        recovered: Vec<RecoveredEnd>,
        stop: watch::Receiver<bool>,
    ) -> Self {
        // One: the reconciler waits for the end of each run before it asks for the next.
        let (runs, reconcile) = mpsc::channel(1);
        let task = Task { executor, jobs, reconcile, stop, first: ServedQueue::Commands };
        let task = tokio::spawn(task.run(recovered));
        Self { runs, task }
    }

    /// Waits until the current run has ended, by itself or cancelled.
    pub(in crate::agent) async fn join(self) {
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the executor panicked");
        }
    }
}

/// The handles of the executor.
pub(in crate::agent) struct Executor {
    pub(in crate::agent) context: Arc<RunContext>,
    pub(in crate::agent) verifier: CommandVerifier,
    pub(in crate::agent) publisher: Publisher,
    pub(in crate::agent) rollouts: RolloutState,
    pub(in crate::agent) scheduler: RolloutScheduler,
    pub(in crate::agent) fetcher: ManifestFetcher,
    pub(in crate::agent) health_checks: HealthChecks,
    pub(in crate::agent) queries: Queries,
    pub(in crate::agent) bus: Bus,
    /// The queue, for its length.
    pub(in crate::agent) queue: Arc<FairQueue>,
    pub(in crate::agent) upgrade: AgentUpgrade,
}

struct Task {
    executor: Executor,
    jobs: JobReceiver,
    reconcile: mpsc::Receiver<Box<ReconcileRun>>,
    stop: watch::Receiver<bool>,
    /// The queue that goes first when both have an item.
    first: ServedQueue,
}

/// An item of the two queues.
enum QueueItem {
    /// A command, or the health check of one.
    Job(Box<Job>),
    /// A reconcile run.
    Reconcile(Box<ReconcileRun>),
    /// Nothing has run for a while.
    Idle,
}

impl Task {
    async fn run(mut self, recovered: Vec<RecoveredEnd>) {
        for RecoveredEnd { result, posted } in recovered {
            self.executor.publisher.persist_result(&result, posted, &mut self.stop).await;
        }
        while let Some(item) = self.next().await {
            match item {
                QueueItem::Job(job) => self.take_job(&job).await,
                QueueItem::Reconcile(run) => self.run_reconcile(*run).await,
                QueueItem::Idle => self.executor.upgrade.examine_idle().await,
            }
            if self.executor.upgrade.is_due() {
                break;
            }
        }
        // The ledger has the commands that still wait, for the next start.
    }

    async fn next(&mut self) -> Option<QueueItem> {
        if *self.stop.borrow() {
            return None;
        }
        // Cancel-safe: a watch keeps its last value, neither `next` nor `recv` takes what it does not return, and a pause that
        // work ends begins anew.
        let (item, served) = match self.first {
            ServedQueue::Commands => tokio::select! {
                biased;
                _ = self.stop.changed() => return None,
                job = self.jobs.next() => (QueueItem::Job(job), ServedQueue::Commands),
                Some(run) = self.reconcile.recv() => (QueueItem::Reconcile(run), ServedQueue::Reconciler),
                () = self.executor.upgrade.idle_pause() => return Some(QueueItem::Idle),
            },
            ServedQueue::Reconciler => tokio::select! {
                biased;
                _ = self.stop.changed() => return None,
                Some(run) = self.reconcile.recv() => (QueueItem::Reconcile(run), ServedQueue::Reconciler),
                job = self.jobs.next() => (QueueItem::Job(job), ServedQueue::Commands),
                () = self.executor.upgrade.idle_pause() => return Some(QueueItem::Idle),
            },
        };
        self.first = served.next();
        Some(item)
    }

    async fn take_job(&mut self, job: &Job) {
        self.update_board(Some(job.run));
        match job.kind {
            JobKind::HealthCheck => self.complete_health_gate(job).await,
            JobKind::Command { .. } | JobKind::Reconcile => self.run_command(job).await,
        }
        if job.manifest().is_some() {
            self.executor.fetcher.remove_files(job.id());
        }
        self.update_board(None);
    }

    /// Takes a command from the queue to its end, unless its rollout makes it wait longer.
    async fn run_command(&mut self, job: &Job) {
        let began = Instant::now();
        let mut state = CommandState::Queued;
        let mut event = match self.executor.scheduler.decide(job).await {
            QueueDecision::Later => return,
            QueueDecision::Ended(result) => CommandEvent::Ended(result),
            QueueDecision::Begin => CommandEvent::TurnCame,
        };
        let mut rights = job.rights.clone();
        loop {
            let next;
            (state, next) = state.step(event);
            event = match next {
                CommandAction::Recheck => match self.recheck(job) {
                    Ok(now) => {
                        rights = now;
                        CommandEvent::Rechecked
                    }
                    Err(result) => CommandEvent::Ended(result),
                },
                CommandAction::RecordStart => match self.record_start(job) {
                    Ok(()) => CommandEvent::StartRecorded,
                    Err(result) => CommandEvent::Ended(result),
                },
                CommandAction::Run => {
                    let job = Job { rights: rights.clone(), ..job.clone() };
                    let result = self.perform(&job).await.into_command_result(&self.executor.context.identity, &job);
                    CommandEvent::Ended(Box::new(result))
                }
                CommandAction::Persist(result) => {
                    self.executor.context.counters.command_ended(&result, began.elapsed());
                    self.finish(job, *result).await;
                    CommandEvent::Persisted
                }
                CommandAction::Nothing => return,
            };
        }
    }

    /// Verifies a command again: its time, trust and limits may have changed while it waited.
    fn recheck(&self, job: &Job) -> Result<crate::trust::Rights, Box<CommandResult>> {
        let identity = &self.executor.context.identity;
        if identity.now() > job.command.latest_start() {
            let why = format!("the command expired at {} while it waited", job.command.latest_start());
            let why = (RejectionCode::Expired, why);
            return Err(Box::new(messages::not_run(identity, Some(job.id()), job.digest(), CommandOutcome::Expired, why)));
        }
        if let Some(cancelled) = self.executor.scheduler.cancelled(job) {
            return Err(Box::new(cancelled));
        }
        self.executor.verifier.verify(|verifier| verifier.recheck(&job.command)).map_err(|rejection| {
            Box::new(RunResult::refused(rejection.code, rejection.message).into_command_result(identity, job))
        })
    }

    fn record_start(&self, job: &Job) -> Result<(), Box<CommandResult>> {
        let context = &self.executor.context;
        context.durable.record_start(job.id()).map_err(|error| {
            let why = crate::diag::error_chain(&error);
            context.status.raise(AlarmKind::Disk, why.clone());
            Box::new(RunResult::refused(RejectionCode::Storage, why).into_command_result(&context.identity, job))
        })?;
        checkpoint(Checkpoint::RunStarted);
        tracing::info!(id = %job.id(), action = job.command.action.name(), "running");
        Ok(())
    }

    async fn run_reconcile(&mut self, run: ReconcileRun) {
        let ReconcileRun { job, source, begun, ended } = run;
        let _stopped = begun.send(());
        if job.selection.is_none() {
            tracing::info!(id = %job.id(), run = %job.run, "reconciling");
        } else {
            tracing::debug!(id = %job.id(), run = %job.run, "checking for drift");
        }
        self.update_board(Some(job.run));
        let until = Instant::now() + job.command.options.timeout.as_std();
        checkpoint(Checkpoint::AssignmentStarted);
        let result = self.execute(&job, Some(source), until, None).await;
        self.update_board(None);
        // Only a reconciler that was stopped does not wait for the result.
        let _sent = ended.send(result);
    }

    /// Shows on the board the current run, and the number of waiting commands.
    fn update_board(&self, running: Option<Uuid>) {
        self.executor.context.status.change(|snapshot| {
            snapshot.running = running;
            // Counted under the lock of the board: the intake counts too.
            snapshot.queued = self.executor.queue.len() as u64;
        });
    }

    /// Checks the health after a command in waves, and publishes a failure when it is critical.
    async fn complete_health_gate(&mut self, job: &Job) {
        tracing::info!(id = %job.id(), "checking the health before the next wave begins");
        let result = self.perform(job).await;
        let Executor { context, rollouts, .. } = &self.executor;
        if result.health == Some(HealthStatus::Critical) {
            let result = result.into_command_result(&context.identity, job);
            let result = CommandResult { outcome: CommandOutcome::Failed, ..result };
            tracing::warn!(id = %job.id(), failures = ?result.failures, "the health is critical: the command counts as failed");
            rollouts.results.publish_failure(&job.command, &result);
        } else if result.is_interrupted() {
            // The agent stops. Its next start checks again.
            return;
        } else {
            let outcome = context.durable.result(job.id()).map_or(CommandOutcome::Stable, |result| result.outcome);
            rollouts.results.publish_success(&job.command, outcome);
        }
        rollouts.health_gates.complete(job.id());
    }

    async fn perform(&mut self, job: &Job) -> RunResult {
        let until = Instant::now() + job.command.options.timeout.as_std();
        let command = matches!(job.kind, JobKind::Command { .. }).then(|| job.id());
        match &job.command.action {
            Action::Ensure(_) => self.execute(job, None, until, command).await,
            Action::Apply(apply) => {
                // Cancel-safe: a dropped download leaves files that are removed after every command.
                let fetched = tokio::select! {
                    biased;
                    _ = self.stop.changed() => return RunResult::interrupted(),
                    why = cancelled(&self.executor.context, command) => return RunResult::cancelled(why),
                    fetched = self.executor.fetcher.manifest(job.id(), apply, until) => fetched,
                };
                match fetched {
                    Ok(source) => self.execute(job, Some(source), until, command).await,
                    Err(result) => *result,
                }
            }
            Action::Run(wanted) => self.run_channel(job, &wanted.channel).await,
            Action::Healthcheck(wanted) => self.healthcheck(wanted, until, command).await,
            action => self.executor.queries.answer(action).await,
        }
    }

    /// Runs the assignment of a channel that is in force, with the rights and the time of the assignment.
    async fn run_channel(&mut self, job: &Job, channel: &str) -> RunResult {
        let wanted = Healthcheck { channel: Some(channel.to_owned()) };
        let Some(assignment) = self.executor.health_checks.assignments(&wanted).into_iter().next() else {
            let why = format!("no assignment of the channel {channel} is in force on this node");
            return RunResult::refused(RejectionCode::NoChannel, why);
        };
        let until = Instant::now() + assignment.command.options.timeout.as_std();
        // Cancel-safe: a dropped download leaves a file that the next one replaces.
        let fetched = tokio::select! {
            biased;
            _ = self.stop.changed() => return RunResult::interrupted(),
            why = cancelled(&self.executor.context, Some(job.id())) => return RunResult::cancelled(why),
            fetched = self.executor.health_checks.manifest(&assignment, until) => fetched,
        };
        let result = match fetched {
            Ok(source) => self.execute(&job.run_now(&assignment.command), Some(source), until, Some(job.id())).await,
            Err(result) => *result,
        };
        if !job.noop && !result.is_interrupted() {
            self.executor.health_checks.desired_state.record_run(channel, assignment.command.id, &result);
        }
        result
    }

    /// Checks the health of the assignments in force.
    async fn healthcheck(&mut self, wanted: &Healthcheck, until: Instant, command: Option<Uuid>) -> RunResult {
        let mut checked = Vec::new();
        for assignment in self.executor.health_checks.assignments(wanted) {
            // Cancel-safe: a dropped download leaves a file that the next one replaces.
            let fetched = tokio::select! {
                biased;
                _ = self.stop.changed() => return RunResult::interrupted(),
                why = cancelled(&self.executor.context, command) => return RunResult::cancelled(why),
                fetched = self.executor.health_checks.manifest(&assignment, until) => fetched,
            };
            let result = match fetched {
                Ok(source) => {
                    let job = self.executor.health_checks.job(&assignment);
                    self.execute(&job, Some(source), until, command).await
                }
                Err(result) => *result,
            };
            if result.is_interrupted() {
                return result;
            }
            checked.push((assignment, result));
        }
        super::healthcheck::answer(checked, wanted)
    }

    /// Runs a job. A cancel of `command` ends the run.
    async fn execute(&mut self, job: &Job, source: Option<ManifestText>, until: Instant, command: Option<Uuid>) -> RunResult {
        let cancel = Cancel::default();
        let (context, owned, flag) = (Arc::clone(&self.executor.context), job.clone(), cancel.clone());
        // The sender is dropped with a run that panics, which the receiver hears.
        let (done, run) = oneshot::channel();
        match &self.executor.context.backend {
            RunBackend::Engine => {
                let client = self.discovery_client();
                // Not a thread of the pool: nothing of a run may stay on a thread that others get.
                let spawned = thread::Builder::new().name("outside".to_owned()).spawn(move || {
                    drop(done.send(run::run(&context, &owned, source.as_ref(), &client, flag, until)));
                });
                if let Err(error) = spawned {
                    return RunResult::failed(format!("cannot start a thread: {error}"));
                }
            }
            RunBackend::Simulation(simulation) => {
                let simulated = simulate(context, owned, Arc::clone(simulation), source, until);
                tokio::spawn(async move { drop(done.send(simulated.await)) });
            }
        }
        let result = self.wait_for(run, &cancel, command).await;
        let code = result.code.or(cancel.reason().filter(|_| result.is_interrupted()).map(|_| RejectionCode::Cancelled));
        let result = RunResult { code, ..result };
        match self.executor.upgrade.examine_after_run().await {
            Ok(()) => result,
            Err(why) => result.replace_outcome(CommandOutcome::Failed).replace_reason(why),
        }
    }

    /// Returns the bus for a run, which asks on a thread of its own while this one drives the connection.
    fn discovery_client(&self) -> Arc<dyn DiscoveryClient> {
        let wanted = self.executor.context.settings.now().registration.clone();
        let publish = match wanted.publish {
            PublishRegistrations::Nats => PublishMode::Announced,
            PublishRegistrations::Jetstream | PublishRegistrations::Off => PublishMode::Stored,
        };
        let bus = Arc::new(VerifiedBus::open(&self.executor.context));
        Arc::new(Registry::with_shared_bus(runtime::Handle::current(), self.executor.bus.clone(), wanted.stream, publish, bus))
    }

    /// Waits for a run. A cancel of `command` ends the run at once. A stop gives the run some time, then cancels it.
    async fn wait_for(&mut self, mut run: oneshot::Receiver<RunResult>, cancel: &Cancel, command: Option<Uuid>) -> RunResult {
        let panicked = |_| RunResult::failed("the run panicked: the program has an error");
        // Cancel-safe: the receiver is borrowed and asked again below, a watch keeps its last value.
        tokio::select! {
            result = &mut run => return result.unwrap_or_else(panicked),
            _ = self.stop.changed() => {}
            why = cancelled(&self.executor.context, command) => {
                cancel.cancel_for(why);
                // No other run begins before this one has ended.
                tokio::select! {
                    result = &mut run => return result.unwrap_or_else(panicked),
                    _ = self.stop.changed() => {}
                }
            }
        }
        if let Ok(result) = tokio::time::timeout(STOP_GRACE, &mut run).await {
            return result.unwrap_or_else(panicked);
        }
        cancel.cancel();
        match tokio::time::timeout(CANCEL_GRACE, run).await {
            Ok(result) => result.unwrap_or_else(panicked),
            // The run hangs in the kernel: the process ends around it.
            Err(_) => RunResult::interrupted(),
        }
    }

    async fn finish(&mut self, job: &Job, result: CommandResult) {
        tracing::info!(id = %job.id(), outcome = ?result.outcome, why = result.message.as_deref(), "done");
        let Executor { context, rollouts, publisher, .. } = &self.executor;
        rollouts.results.publish_failure(&job.command, &result);
        rollouts.schedule_health_gate(&job.command, &result);
        publisher.persist_result(&result, false, &mut self.stop).await;
        self.executor.scheduler.complete_later(job, &result);
        if result.outcome == CommandOutcome::Refused {
            let subject = context.identity.subjects.command(&job.command).into_iter().next();
            publisher.post_rejection(&result, subject.as_ref().map_or("", Subject::as_str), Vec::new());
        }
        // The stream is authoritative. The reply only saves the sender a lookup.
        if let Some(reply) = job.reply() {
            publisher.publish_best_effort(&self.executor.bus, reply, messages::json(&result), Some(job.digest())).await;
        }
    }
}

/// Waits until an operator cancels the command of a run. Without a command, the run has no cancel.
async fn cancelled(context: &RunContext, command: Option<Uuid>) -> String {
    match command {
        Some(id) => context.durable.cancelled().wait(id).await,
        None => std::future::pending().await,
    }
}
