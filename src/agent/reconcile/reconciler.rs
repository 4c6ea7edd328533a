//! The enforcer: keeps the node to what stands on it. Decides when a channel is due, has the supervisor run it, and says
//! how it went.
//!
//! Order of a turn: does the `where` hold → is it this node's turn in its waves (`enforcer/waves.rs`) → is the manifest here, or can it be had → run → in force → result. What can't be
//! had or planned leaves the last good one in force.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::diag::chain;
use crate::manifest::Source;
use crate::model::{HealthStatus, RunOutcome};
use crate::store::Convergence;
use crate::transport::Bus;
use crate::trust::RejectionCode;
use crate::wire::{CommandOutcome, CommandResult};

use super::desired_state::{Assignment, Channel, DueWork};
use crate::agent::exec::fetch;
use crate::agent::exec::fetch::FetchFailure;
use crate::agent::exec::run::{Job, RunOutcomeReport};
use crate::agent::rollout::{gate, health_gate};
use crate::agent::status::board::AlarmKind;
use crate::agent::status::{facts_cache, messages};
use crate::agent::{Node, SOON, jitter};

/// The pause before something that could not be had is asked for once more.
const RETRY: Duration = Duration::from_secs(30);

/// A run that the supervisor is asked for.
pub(in crate::agent) struct ReconcileRun {
    /// What to run.
    pub(in crate::agent) job: Job,
    /// Its manifest.
    pub(in crate::agent) source: Source,
    /// Where to say how it ended.
    pub(in crate::agent) ended: oneshot::Sender<RunOutcomeReport>,
}

/// Starts it; it ends with `stop`. One run is asked for at a time, so one place on the way to the supervisor is enough.
pub(in crate::agent) fn spawn(
    node: Arc<Node>,
    bus: Bus,
    runs: mpsc::Sender<Box<ReconcileRun>>,
    stop: watch::Receiver<bool>,
) -> JoinHandle<()> {
    tokio::spawn(Task { node, bus, runs, stop, kept: BTreeMap::new(), rollouts: BTreeMap::new() }.run())
}

pub(in crate::agent) struct Task {
    pub(in crate::agent) node: Arc<Node>,
    pub(in crate::agent) bus: Bus,
    runs: mpsc::Sender<Box<ReconcileRun>>,
    stop: watch::Receiver<bool>,
    /// Of channels whose latest waits for its turn: when the one before it runs next.
    pub(in crate::agent) kept: BTreeMap<String, Instant>,
    /// How far this node has read of the waves of what waits for its turn, by channel.
    pub(in crate::agent) rollouts: BTreeMap<String, (uuid::Uuid, gate::RolloutProgress)>,
}

impl Task {
    async fn run(mut self) {
        let mut settings = self.node.settings.watch();
        loop {
            self.show();
            let next = self.node.standing.next(&self.node.settings());
            let at = next.as_ref().map(|(at, ..)| *at);
            let due = async {
                match at {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            // Cancel-safe, all of them: watches keep their last value, a notification its permit, and a sleep that is
            // dropped is made anew from the same moment.
            let is_due = tokio::select! {
                biased;
                _ = self.stop.wait_for(|stop| *stop) => return,
                () = self.node.standing.changed() => false,
                _ = settings.changed() => false,
                () = due => true,
            };
            if let Some((_, name, turn)) = next.filter(|_| is_due) {
                self.reconcile_channel(&name, turn).await;
            }
        }
    }

    /// Puts how the channels stand on the board.
    fn show(&self) {
        let (assignments, wrong) = self.node.standing.report(&self.node.settings(), self.node.now());
        self.node.board.change(|standing| standing.assignments = assignments);
        self.node.board.set(AlarmKind::Channels, wrong);
    }

    async fn reconcile_channel(&mut self, name: &str, turn: DueWork) {
        let Some(channel) = self.node.standing.channel(name) else { return };
        let latest = Arc::clone(&channel.latest);
        let settings = self.node.settings();
        if !channel.is_here(&settings) {
            // Withdrawn, or for other nodes now: all that is left to do is to say so.
            if let Err(error) = Convergence::forget(&settings.state_dir, name) {
                tracing::warn!(channel = name, "{}", chain(&error));
            }
            self.node.board.change(|standing| {
                standing.failing.remove(name);
            });
            self.publish_result(
                name,
                &channel,
                messages::done(&self.node, Some(latest.command.id), latest.command.digest(), CommandOutcome::Stable),
            )
            .await;
            return;
        }
        match self.selected(&latest).await {
            Ok(true) => {
                if turn == DueWork::Run
                    && let Some(again) = self.before_its_turn(name, &channel).await
                {
                    self.node.standing.change(name, &latest, |channel| channel.due = again);
                    return;
                }
                self.run_or_look(name, &channel, turn).await;
            }
            Ok(false) => {
                self.node.standing.change(name, &latest, |channel| channel.went.selected = false);
                if channel.owed {
                    gate::publish_success(&self.node, &latest.command, CommandOutcome::NotSelected);
                }
                let done =
                    messages::done(&self.node, Some(latest.command.id), latest.command.digest(), CommandOutcome::NotSelected);
                self.publish_result(name, &channel, done).await;
            }
            Err(why) => {
                let code = (RejectionCode::BadWhere, format!("its \"where\" can't be evaluated: {why}"));
                self.node.standing.change(name, &latest, |channel| channel.went.trouble = Some(code.1.clone()));
                let done = messages::not_done(
                    &self.node,
                    Some(latest.command.id),
                    latest.command.digest(),
                    CommandOutcome::Refused,
                    code,
                );
                self.publish_result(name, &channel, done).await;
            }
        }
        self.schedule(name, &latest, turn);
    }

    async fn selected(&self, statement: &Assignment) -> Result<bool, String> {
        match statement.command.to.only_where.as_deref() {
            None => Ok(true),
            Some(expression) => facts_cache::evaluate_in_background(&self.node, expression).await,
        }
    }

    async fn run_or_look(&mut self, name: &str, channel: &Channel, turn: DueWork) {
        self.node.standing.change(name, &channel.latest, |channel| channel.went.selected = true);
        match turn {
            DueWork::Run => self.run_channel(name, channel).await,
            DueWork::Health => self.look(name, channel).await,
        }
    }

    /// Runs the latest assignment; where that can't be, the last good one.
    async fn run_channel(&mut self, name: &str, channel: &Channel) {
        let latest = &channel.latest;
        let ended = self.perform(latest, channel.owed, DueWork::Run).await;
        if ended.is_interrupted() {
            // The agent stops. Its next start does it again, and has the result.
            return;
        }
        if ended.planned {
            if let Err(error) = self.node.standing.promote(name, latest) {
                self.node.board.raise(AlarmKind::Disk, chain(&error));
            }
            self.note(name, latest, &ended, None);
            if !channel.owed {
                self.mark_health(channel, ended.health);
            }
        } else {
            self.apply_last_good(name, channel, ended.why()).await;
        }
        let job = job_of(latest, latest.command.id, DueWork::Run);
        let done = ended.into_done(&self.node, &job);
        self.publish_result(name, channel, done).await;
    }

    async fn apply_last_good(&mut self, name: &str, channel: &Channel, why: &str) {
        let good = channel.good.as_ref().filter(|good| good.command.id != channel.latest.command.id);
        let kept = if good.is_some() { "; what was assigned before stays in force" } else { "" };
        let trouble = format!("what is assigned can't be used: {why}{kept}");
        tracing::error!(channel = name, "{trouble}");
        self.node.standing.change(name, &channel.latest, |channel| channel.went.trouble = Some(trouble.clone()));
        if let Some(good) = good {
            let ended = self.perform(good, false, DueWork::Run).await;
            self.note(name, &channel.latest, &ended, Some(trouble));
        }
    }

    /// Looks at the health checks of what is in force; a critical one brings the next run forward.
    async fn look(&mut self, name: &str, channel: &Channel) {
        if self.looked_alone(channel) {
            return;
        }
        let Some(good) = &channel.good else {
            self.looked(channel, None);
            return;
        };
        let ended = self.perform(good, false, DueWork::Health).await;
        let health = ended.health;
        self.mark_health(channel, health);
        if !ended.is_interrupted() {
            self.looked(channel, health);
        }
        self.node.standing.change(name, &channel.latest, |channel| {
            channel.went.health = health;
            if health == Some(HealthStatus::Critical) {
                channel.due = Instant::now();
            }
        });
        if health == Some(HealthStatus::Critical) {
            tracing::warn!(channel = name, "a health check is critical: the channel runs now");
        }
    }

    /// Has a statement run. `first`: under the id of its command, so that the run is what the command came to.
    pub(in crate::agent) async fn perform(
        &mut self,
        statement: &Arc<Assignment>,
        first: bool,
        turn: DueWork,
    ) -> RunOutcomeReport {
        let Some(assign) = statement.assign() else { return RunOutcomeReport::failed("nothing is assigned") };
        if self.node.report_storage_error(self.node.disk.verify_path()).is_none() {
            // No record of it would be left. The next start takes up what its ledger has.
            return RunOutcomeReport::interrupted();
        }
        let run = if first { statement.command.id } else { self.node.host.new_id() };
        let job = job_of(statement, run, turn);
        let until = Instant::now() + statement.command.options.timeout.get();
        // Cancel-safe: a download that is dropped leaves a file that the next one replaces.
        let fetched: Result<Source, FetchFailure> = tokio::select! {
            biased;
            _ = self.stop.wait_for(|stop| *stop) => return RunOutcomeReport::interrupted(),
            fetched = fetch::assigned_manifest(&self.node, &self.bus, &assign.manifest, until) => fetched,
        };
        let source = match fetched {
            Ok(source) => source,
            Err(missing) => return RunOutcomeReport::without(missing),
        };
        let (ended, answer) = oneshot::channel();
        if self.runs.send(Box::new(ReconcileRun { job, source, ended })).await.is_err() {
            return RunOutcomeReport::interrupted();
        }
        // The supervisor answers each, and drops the answer only when the agent stops.
        answer.await.unwrap_or_else(|_| RunOutcomeReport::interrupted())
    }

    pub(in crate::agent) fn note(&self, name: &str, latest: &Assignment, ended: &RunOutcomeReport, trouble: Option<String>) {
        let ran = ended.apply().map(|state| (state.timestamp, state.outcome));
        self.node.standing.change(name, latest, |channel| {
            channel.went.ran = ran.or(channel.went.ran);
            if let Some((_, outcome)) = ran {
                channel.went.stable_runs = if outcome == RunOutcome::Stable { channel.went.stable_runs + 1 } else { 0 };
            }
            channel.went.health = ended.health.or(channel.went.health);
            channel.went.trouble = trouble;
        });
    }

    /// Says what the latest of a channel came to, once, to whoever sent it.
    pub(in crate::agent) async fn publish_result(&mut self, name: &str, channel: &Channel, done: CommandResult) {
        if !channel.owed || !self.persisted(name).await {
            return;
        }
        gate::publish_failure(&self.node, &channel.latest.command, &done);
        health_gate::schedule(&self.node, &channel.latest.command, &done);
        if self.node.persist_result(&done, false, &mut self.stop).await {
            self.node.standing.change(name, &channel.latest, |channel| channel.owed = false);
        }
    }

    /// Returns when the file of a channel is written (true), or the agent stops.
    async fn persisted(&mut self, name: &str) -> bool {
        let mut attempt = 0;
        while self.node.report_storage_error(self.node.standing.save(name)).is_none() {
            attempt += 1;
            // Cancel-safe: a watch keeps its last value, and a sleep that is dropped is nothing.
            tokio::select! {
                _ = self.stop.wait_for(|stop| *stop) => return false,
                () = tokio::time::sleep(jitter::backoff(attempt).min(SOON)) => {}
            }
        }
        true
    }

    fn schedule(&self, name: &str, latest: &Assignment, turn: DueWork) {
        let Some(assign) = latest.assign() else { return };
        let (settings, now, gate) = (self.node.settings(), self.node.now(), self.gate(latest));
        self.node.standing.change(name, latest, |channel| {
            if turn == DueWork::Run {
                let next = channel.slot(assign.interval.get(), &settings, now);
                channel.due = if channel.went.trouble.is_some() { next.min(Instant::now() + RETRY) } else { next };
            }
            let every = assign.health_interval.map(|every| channel.slot(every.get(), &settings, now));
            channel.health_due = every.into_iter().chain(gate).min();
        });
    }
}

/// A run of what stands, or a look at its health checks.
pub(in crate::agent) fn job_of(statement: &Assignment, run: uuid::Uuid, turn: DueWork) -> Job {
    let health_check_only = turn == DueWork::Health;
    Job { run, health_check_only, ..Job::once(Arc::clone(&statement.command), None) }
}
