//! The supervisor: takes accepted commands one by one, runs each on a thread of its own, says how it ended.
//!
//! Order: what `intake` wrote down → checked again → started, on disk → run → result, on disk and in the outbox → reply.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::config::PublishRegistrations;
use crate::host::{Cancel, Checkpoint, checkpoint};
use crate::manifest::Source;
use crate::model::{DiscoveryClient, HealthStatus};
use crate::registry::{Publish as How, Registry};
use crate::transport::Bus;
use crate::trust::RejectionCode;
use crate::wire::command::{Action, Healthcheck};
use crate::wire::{CommandOutcome, CommandResult, Subject};

use super::bus_values::VerifiedBus;
use super::recovery::{self, Recovered};
use super::{fetch, healthcheck, queries};
use crate::agent::Node;
use crate::agent::exec::run;
use crate::agent::exec::run::{Job, RunOutcomeReport, Work};
use crate::agent::intake::fair_queue::{FairQueue, JobReceiver};
use crate::agent::reconcile::reconciler::ReconcileRun;
use crate::agent::rollout::queue;
use crate::agent::rollout::queue::QueueDecision;
use crate::agent::rollout::{gate, health_gate};
use crate::agent::status::board::AlarmKind;
use crate::agent::status::messages;

/// How long a run may go on by itself after the agent was asked to stop. Killing a package manager leaves a mess.
const GRACE: Duration = Duration::from_secs(5);
/// How long a cancelled run may take to end.
const CANCELLED: Duration = Duration::from_secs(3);

/// The running supervisor.
pub(in crate::agent) struct Handle {
    /// Takes commands. Intake holds the bound that is configured, which may change, and answers `busy` to what is over it.
    pub(in crate::agent) queue: Arc<FairQueue>,
    /// Takes runs of what stands, one at a time: commands go first. Boxed: a channel has room for 32 from the start.
    pub(in crate::agent) runs: mpsc::Sender<Box<ReconcileRun>>,
    task: JoinHandle<()>,
}

impl Handle {
    /// Starts it. `left` is what an earlier agent accepted and did not end.
    pub(in crate::agent) fn spawn(node: Arc<Node>, bus: Bus, left: Recovered, stop: watch::Receiver<bool>) -> Self {
        let (queue, jobs) = FairQueue::open();
        for job in left.jobs {
            queue.push(Box::new(job));
        }
        // The enforcer waits for the end of each before it asks for the next.
        let (runs, asked) = mpsc::channel(1);
        let task = tokio::spawn(Task { node, bus, queue: Arc::clone(&queue), jobs, asked, stop }.run(left.ended));
        Self { queue, runs, task }
    }

    /// Waits until the run that was going on has ended, one way or the other.
    pub(in crate::agent) async fn ended(self) {
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the supervisor broke");
        }
    }
}

struct Task {
    node: Arc<Node>,
    bus: Bus,
    /// For what has to wait before it comes again.
    queue: Arc<FairQueue>,
    jobs: JobReceiver,
    asked: mpsc::Receiver<Box<ReconcileRun>>,
    stop: watch::Receiver<bool>,
}

/// What is to be run next.
enum Next {
    /// A command.
    Command(Box<Job>),
    /// What stands.
    Standing(Box<ReconcileRun>),
}

impl Task {
    async fn run(mut self, ended: Vec<recovery::RecoveredEnd>) {
        for recovery::RecoveredEnd { done, posted } in ended {
            self.node.persist_result(&done, posted, &mut self.stop).await;
        }
        while let Some(next) = self.next().await {
            match next {
                Next::Command(job) => self.command(&job).await,
                Next::Standing(asked) => self.stand(*asked).await,
            }
        }
        // What still waits is in the ledger, and is taken up by the next start.
    }

    async fn command(&mut self, job: &Job) {
        self.shows(Some(job.run));
        let began = Instant::now();
        match queue::call(&self.node, &self.bus, &self.queue, job).await {
            QueueDecision::Begin if job.health_check_only => self.look(job).await,
            QueueDecision::Begin => {
                let done = self.execute_command(job).await;
                self.node.count.command_ended(&done, began.elapsed());
                self.finish(job, done).await;
            }
            QueueDecision::Ended(done) => {
                self.node.count.command_ended(&done, began.elapsed());
                self.finish(job, *done).await;
            }
            QueueDecision::Later => {}
        }
        if job.manifest().is_some() {
            fetch::clean(&self.node, job.id());
        }
        self.shows(None);
    }

    async fn stand(&mut self, asked: ReconcileRun) {
        let ReconcileRun { job, source, ended } = asked;
        tracing::info!(id = %job.id(), run = %job.run, "running what stands");
        self.shows(Some(job.run));
        let until = Instant::now() + job.command.options.timeout.get();
        checkpoint(Checkpoint::StandingBegun);
        let end = self.execute(&job, Some(source), until).await;
        self.shows(None);
        // Only an enforcer that was stopped does not wait for it.
        let _heard = ended.send(end);
    }

    /// Shows on the board what runs, and how many commands wait.
    fn shows(&self, running: Option<uuid::Uuid>) {
        self.node.board.change(|standing| {
            standing.running = running;
            // Counted under the lock of the board: intake counts too.
            standing.queued = self.jobs.len() as u64;
        });
    }

    async fn next(&mut self) -> Option<Next> {
        if *self.stop.borrow() {
            return None;
        }
        // Cancel-safe: a watch keeps its last value, and neither `next` nor `recv` takes what it does not give.
        tokio::select! {
            biased;
            _ = self.stop.changed() => None,
            job = self.jobs.next() => Some(Next::Command(job)),
            Some(asked) = self.asked.recv() => Some(Next::Standing(asked)),
        }
    }

    async fn execute_command(&mut self, job: &Job) -> CommandResult {
        let node = Arc::clone(&self.node);
        if node.now() > job.command.latest_start() {
            let why = format!("it expired at {} while it waited", job.command.latest_start());
            return messages::not_done(
                &node,
                Some(job.id()),
                job.digest(),
                CommandOutcome::Expired,
                (RejectionCode::Expired, why),
            );
        }
        // Trust and limits may have changed while it waited: a key that is revoked asks for nothing any more.
        let job = match node.verify(|verifier| verifier.recheck(&job.command)) {
            Ok(rights) => &Job { rights, ..job.clone() },
            Err(refusal) => return RunOutcomeReport::refused(refusal.code, refusal.message).into_done(&node, job),
        };
        if let Err(error) = node.disk.start(job.id()) {
            let why = crate::diag::chain(&error);
            node.board.raise(AlarmKind::Disk, why.clone());
            return RunOutcomeReport::refused(RejectionCode::Storage, why).into_done(&node, job);
        }
        checkpoint(Checkpoint::RunStarted);
        tracing::info!(id = %job.id(), action = job.command.action.name(), "running");
        self.perform(job).await.into_done(&node, job)
    }

    /// Looks at the health checks of a job in waves that has ended well, and says that it failed when one is critical.
    async fn look(&mut self, job: &Job) {
        tracing::info!(id = %job.id(), "looking at its health before the next wave begins");
        let ended = self.perform(job).await;
        if ended.health == Some(HealthStatus::Critical) {
            let done = CommandResult { outcome: CommandOutcome::Failed, ..ended.into_done(&self.node, job) };
            tracing::warn!(id = %job.id(), failures = ?done.failures, "its health is critical: it counts as failed");
            gate::publish_failure(&self.node, &job.command, &done);
        } else if ended.is_interrupted() {
            // The agent stops. Its next start looks again.
            return;
        } else {
            let outcome = self.node.disk.result(job.id()).map_or(CommandOutcome::Stable, |done| done.outcome);
            gate::publish_success(&self.node, &job.command, outcome);
        }
        health_gate::complete(&self.node, job.id());
    }

    async fn perform(&mut self, job: &Job) -> RunOutcomeReport {
        let until = Instant::now() + job.command.options.timeout.get();
        match &job.command.action {
            Action::Ensure(_) => self.execute(job, None, until).await,
            Action::Apply(apply) => {
                // Cancel-safe: a download that is dropped leaves files that are cleaned up after every command.
                let fetched = tokio::select! {
                    biased;
                    _ = self.stop.changed() => return RunOutcomeReport::interrupted(),
                    fetched = fetch::manifest(&self.node, &self.bus, job.id(), apply, until) => fetched,
                };
                match fetched {
                    Ok(source) => self.execute(job, Some(source), until).await,
                    Err(missing) => RunOutcomeReport::without(missing),
                }
            }
            Action::Healthcheck(wanted) => self.health(wanted, until).await,
            action => queries::answer(&self.node, action).await,
        }
    }

    /// Looks at the health checks of what stands here.
    async fn health(&mut self, wanted: &Healthcheck, until: Instant) -> RunOutcomeReport {
        let mut looked = Vec::new();
        for statement in healthcheck::assignments_in_force(&self.node, wanted) {
            // Cancel-safe: a download that is dropped leaves a file that the next one replaces.
            let fetched = tokio::select! {
                biased;
                _ = self.stop.changed() => return RunOutcomeReport::interrupted(),
                fetched = healthcheck::source(&self.node, &self.bus, &statement, until) => fetched,
            };
            let ended = match fetched {
                Ok(source) => self.execute(&healthcheck::job(&self.node, &statement), Some(source), until).await,
                Err(missing) => RunOutcomeReport::without(missing),
            };
            looked.push((statement, ended));
        }
        healthcheck::answer(looked, wanted)
    }

    async fn execute(&mut self, job: &Job, source: Option<Source>, until: Instant) -> RunOutcomeReport {
        let cancel = Cancel::default();
        let (node, owned, flag) = (Arc::clone(&self.node), job.clone(), cancel.clone());
        // The sender goes with a run that breaks, which the receiver hears.
        let (done, run) = oneshot::channel();
        match &self.node.work {
            Work::Engine => {
                let exchange = self.exchange();
                // Not one of the pool: nothing of a run may be left on a thread that others get.
                let spawned = thread::Builder::new().name("outside".to_owned()).spawn(move || {
                    drop(done.send(run::run(&node, &owned, source.as_ref(), &exchange, flag, until)));
                });
                if let Err(error) = spawned {
                    return RunOutcomeReport::failed(format!("could not start a thread: {error}"));
                }
            }
            Work::Rehearsal(play) => {
                let played = run::rehearse(node, owned, Arc::clone(play), source, until);
                tokio::spawn(async move { drop(done.send(played.await)) });
            }
        }
        self.watch(run, &cancel).await
    }

    /// The bus for a run, which asks on a thread of its own while this one drives the connection.
    fn exchange(&self) -> Arc<dyn DiscoveryClient> {
        let wanted = self.node.settings().registration.clone();
        let publish = match wanted.publish {
            PublishRegistrations::Nats => How::Announced,
            PublishRegistrations::Jetstream | PublishRegistrations::Off => How::Stored,
        };
        let door = Arc::new(VerifiedBus::open(&self.node));
        Arc::new(Registry::over(runtime::Handle::current(), self.bus.clone(), wanted.stream, publish, door))
    }

    /// Waits for a run; a stop gives it some time, then cancels it.
    async fn watch(&mut self, mut run: oneshot::Receiver<RunOutcomeReport>, cancel: &Cancel) -> RunOutcomeReport {
        let broken = |_| RunOutcomeReport::failed("the run broke: the program has an error");
        // Cancel-safe: the receiver is borrowed and asked again below, a watch keeps its last value.
        tokio::select! {
            ended = &mut run => return ended.unwrap_or_else(broken),
            _ = self.stop.changed() => {}
        }
        if let Ok(ended) = tokio::time::timeout(GRACE, &mut run).await {
            return ended.unwrap_or_else(broken);
        }
        cancel.cancel();
        match tokio::time::timeout(CANCELLED, run).await {
            Ok(ended) => ended.unwrap_or_else(broken),
            // It hangs in the kernel: the process ends around it.
            Err(_) => RunOutcomeReport::interrupted(),
        }
    }

    async fn finish(&mut self, job: &Job, done: CommandResult) {
        tracing::info!(id = %job.id(), outcome = ?done.outcome, why = done.message.as_deref(), "done");
        gate::publish_failure(&self.node, &job.command, &done);
        health_gate::schedule(&self.node, &job.command, &done);
        self.node.persist_result(&done, false, &mut self.stop).await;
        queue::look_later(&self.node, &self.queue, job, &done);
        if done.outcome == CommandOutcome::Refused {
            let subject = self.node.subjects.command(&job.command).into_iter().next();
            self.node.post_rejection(&done, subject.as_ref().map_or("", Subject::as_str), Vec::new());
        }
        // The stream is the truth; this only saves whoever waits a way.
        if let Some(reply) = &job.reply {
            self.node.publish_best_effort(&self.bus, reply, messages::json(&done), Some(job.digest())).await;
        }
    }
}
