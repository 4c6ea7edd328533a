//! The supervisor: takes accepted commands one by one, runs each on a thread of its own, says how it ended.
//!
//! Order: what `intake` wrote down → checked again → started, on disk → run → result, on disk and in the outbox → reply.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::config::file::PublishRegistrations;
use crate::host::Cancel;
use crate::model::Exchange;
use crate::registry::{Publish as How, Registry};
use crate::transport::Bus;
use crate::trust::Code;
use crate::wire::command::Action;
use crate::wire::{Done, DoneOutcome, Subject};

use super::board::Topic;
use super::recover::{self, Left};
use super::work::{self, Ended, Job};
use super::{Node, jitter, obtain, say};

/// How long a run may go on by itself after the agent was asked to stop. Killing a package manager leaves a mess.
const GRACE: Duration = Duration::from_secs(5);
/// How long a cancelled run may take to end.
const CANCELLED: Duration = Duration::from_secs(3);
/// The longest pause before a result is tried to be written once more: it only costs this host something.
const SOON: Duration = Duration::from_secs(5);

/// The running supervisor.
pub(super) struct Handle {
    /// Takes commands. The bound is the configured one: what does not fit is answered with `busy`.
    pub(super) queue: mpsc::Sender<Job>,
    task: JoinHandle<()>,
}

impl Handle {
    /// Starts it. `left` is what an earlier agent accepted and did not end.
    pub(super) fn spawn(node: Arc<Node>, bus: Bus, left: Left, stop: watch::Receiver<bool>) -> Self {
        let (queue, jobs) = mpsc::channel(node.settings.queue);
        let task = tokio::spawn(Task { node, bus, left: left.jobs, jobs, stop }.run(left.ended));
        Self { queue, task }
    }

    /// Waits until the run that was going on has ended, one way or the other.
    pub(super) async fn ended(self) {
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the supervisor broke");
        }
    }
}

struct Task {
    node: Arc<Node>,
    bus: Bus,
    left: VecDeque<Job>,
    jobs: mpsc::Receiver<Job>,
    stop: watch::Receiver<bool>,
}

impl Task {
    async fn run(mut self, ended: Vec<recover::Ended>) {
        for recover::Ended { done, posted } in ended {
            self.write_down(&done, posted).await;
        }
        while let Some(job) = self.next().await {
            let waiting = (self.left.len() + self.jobs.len()) as u64;
            self.node.board.change(|standing| (standing.running, standing.queued) = (Some(job.id()), waiting));
            let done = self.treat(&job).await;
            self.finish(&job, done).await;
            obtain::clean(&self.node, job.id());
            let waiting = (self.left.len() + self.jobs.len()) as u64;
            self.node.board.change(|standing| (standing.running, standing.queued) = (None, waiting));
        }
        // What still waits is in the ledger, and is taken up by the next start.
    }

    async fn next(&mut self) -> Option<Job> {
        if *self.stop.borrow() {
            return None;
        }
        if let Some(job) = self.left.pop_front() {
            return Some(job);
        }
        // Cancel-safe: a watch keeps its last value, and `recv` takes nothing that it does not give.
        tokio::select! {
            biased;
            _ = self.stop.changed() => None,
            job = self.jobs.recv() => job,
        }
    }

    async fn treat(&mut self, job: &Job) -> Done {
        let node = Arc::clone(&self.node);
        if node.now() > job.command.expires {
            let why = format!("it expired at {} while it waited", job.command.expires);
            return say::not_done(&node, Some(job.id()), &job.digest, DoneOutcome::Expired, (Code::Expired, why));
        }
        // Trust may have changed while it waited: a key that is revoked asks for nothing any more.
        if let Err(refusal) = node.verify(|verifier| verifier.reopen(&job.envelope)) {
            return Ended::refused(refusal.code, refusal.message).into_done(&node, job);
        }
        if let Err(error) = node.disk.start(job.id()) {
            let why = crate::diag::chain(&error);
            node.board.trouble(Topic::Disk, why.clone());
            return Ended::refused(Code::Storage, why).into_done(&node, job);
        }
        tracing::info!(id = %job.id(), action = job.command.action.name(), "running");
        self.perform(job).await.into_done(&node, job)
    }

    async fn perform(&mut self, job: &Job) -> Ended {
        let until = Instant::now() + job.command.options.timeout.get();
        let source = match &job.command.action {
            Action::Ensure(_) => None,
            Action::Apply(apply) => {
                // Cancel-safe: a download that is dropped leaves files that are cleaned up after every command.
                let fetched = tokio::select! {
                    biased;
                    _ = self.stop.changed() => return Ended::interrupted(),
                    fetched = obtain::manifest(&self.node, &self.bus, job.id(), apply, until) => fetched,
                };
                match fetched {
                    Ok(source) => Some(source),
                    Err(missing) => return Ended::without(missing),
                }
            }
        };
        let cancel = Cancel::default();
        let (node, owned, flag) = (Arc::clone(&self.node), job.clone(), cancel.clone());
        let exchange = self.exchange();
        let run = tokio::task::spawn_blocking(move || work::run(&node, &owned, source.as_ref(), &exchange, flag, until));
        self.watch(run, &cancel).await
    }

    /// The bus for a run, which asks on a thread of its own while this one drives the connection.
    fn exchange(&self) -> Arc<dyn Exchange> {
        let wanted = &self.node.settings.registration;
        let publish = match wanted.publish {
            PublishRegistrations::Nats => How::Announced,
            PublishRegistrations::Jetstream | PublishRegistrations::Off => How::Stored,
        };
        Arc::new(Registry::over(runtime::Handle::current(), self.bus.clone(), wanted.stream.clone(), publish))
    }

    /// Waits for a run; a stop gives it some time, then cancels it.
    async fn watch(&mut self, mut run: JoinHandle<Ended>, cancel: &Cancel) -> Ended {
        let broken = |_| Ended::failed("the run broke: the program has an error");
        // Cancel-safe: the handle is borrowed and asked again below, a watch keeps its last value.
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
            Err(_) => Ended::interrupted(),
        }
    }

    /// Returns when the end of a command is written down, or the agent stops. While the disk takes no result nothing
    /// else is run either: its result would fare no better.
    async fn write_down(&mut self, done: &Done, mut posted: bool) {
        let mut attempt = 0;
        while !self.node.finish(done, &mut posted) {
            attempt += 1;
            // Cancel-safe: a watch keeps its last value, and a sleep that is dropped is nothing. The value is looked
            // at, as the change itself may have been taken before.
            tokio::select! {
                _ = self.stop.wait_for(|stop| *stop) => return,
                () = tokio::time::sleep(jitter::backoff(attempt).min(SOON)) => {}
            }
        }
    }

    async fn finish(&mut self, job: &Job, done: Done) {
        tracing::info!(id = %job.id(), outcome = ?done.outcome, why = done.message.as_deref(), "done");
        self.write_down(&done, false).await;
        if done.outcome == DoneOutcome::Refused {
            let subject = self.node.subjects.command(&job.command).into_iter().next();
            self.node.post_refusal(&done, subject.as_ref().map_or("", Subject::as_str), Vec::new());
        }
        // The stream is the truth; this only saves whoever waits a way.
        if let Some(reply) = &job.reply {
            self.node.courtesy(&self.bus, reply, say::json(&done)).await;
        }
    }
}
