//! The reconciler: keeps the node in its desired state. The task waits until a channel is due, steps its state machine
//! (`channel`), and carries out the effects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::agent::config::settings_handle::SettingsHandle;
use crate::agent::durable::publisher::{MAX_WRITE_PAUSE, Publisher};
use crate::agent::durable::state::DurableState;
use crate::agent::exec::executor::ReconcileRun;
use crate::agent::exec::fetch::ManifestFetcher;
use crate::agent::exec::job::{Job, RepairSelection};
use crate::agent::exec::result::RunResult;
use crate::agent::identity::AgentInstance;
use crate::agent::jitter;
use crate::agent::rollout::RolloutState;
use crate::agent::rollout::gate::{RolloutProgress, RolloutTurn, poll_interval};
use crate::agent::rollout::wave_verdict::{WaveReports, WaveVerdict};
use crate::agent::status::board::{AlarmKind, StatusBoard};
use crate::agent::status::counters::SharedCounters;
use crate::agent::status::facts_cache::FactsCache;
use crate::agent::status::messages;
use crate::diag::error_chain;
use crate::model::HealthStatus;
use crate::store::Convergence;
use crate::transport::Bus;
use crate::trust::RejectionCode;
use crate::wire::{CommandOutcome, CommandResult};

use super::channel::{AssignmentReport, ChannelEffect, ChannelEvent, ChannelRunEnd, ChannelStep, ChannelView, Timers, step};
use super::desired_state::{Assignment, ChannelAssignments, DesiredState};
use super::watcher::WatchReport;
use super::watchers::Watchers;

/// Time between two questions to the rollout gate for a command without waves. No gate is asked: any value fits.
const NO_GATE: Duration = Duration::ZERO;

/// The handles of the reconciler.
pub(in crate::agent) struct Reconciler {
    pub(in crate::agent) identity: Arc<AgentInstance>,
    pub(in crate::agent) settings: SettingsHandle,
    pub(in crate::agent) durable: Arc<DurableState>,
    pub(in crate::agent) publisher: Publisher,
    pub(in crate::agent) status: Arc<StatusBoard>,
    pub(in crate::agent) counters: Arc<SharedCounters>,
    pub(in crate::agent) facts: Arc<FactsCache>,
    pub(in crate::agent) desired_state: Arc<DesiredState>,
    pub(in crate::agent) rollouts: RolloutState,
    pub(in crate::agent) fetcher: ManifestFetcher,
    pub(in crate::agent) bus: Bus,
}

/// Starts the reconciler. The task asks the executor for one run at a time, and ends with `stop`.
pub(in crate::agent) fn spawn(
    reconciler: Reconciler,
    runs: mpsc::Sender<Box<ReconcileRun>>,
    stop: watch::Receiver<bool>,
) -> JoinHandle<()> {
    let (watchers, reports) = Watchers::new(&reconciler.identity, &reconciler.counters, &reconciler.publisher);
    tokio::spawn(
        Task { reconciler, runs, stop, rollouts: BTreeMap::new(), waves: BTreeMap::new(), reports, watchers, drift: None }.run(),
    )
}

struct Task {
    reconciler: Reconciler,
    runs: mpsc::Sender<Box<ReconcileRun>>,
    stop: watch::Receiver<bool>,
    /// The progress of the rollouts that channels wait for, by channel.
    rollouts: BTreeMap<String, (Uuid, RolloutProgress)>,
    /// The reports about the waves of this node, by channel.
    waves: BTreeMap<String, (Uuid, WaveReports)>,
    /// The reports of the watchers.
    reports: mpsc::Receiver<WatchReport>,
    watchers: Watchers,
    /// The resources that the current repair checks.
    drift: Option<RepairSelection>,
}

impl Reconciler {
    /// Returns the time of the health gate of an assignment, while the gate is pending.
    fn gate_at(&self, assignment: &Assignment) -> Option<Instant> {
        if !self.rollouts.health_gates.is_pending(assignment.command.id) {
            return None;
        }
        Some(Instant::now() + time_until(self.success_counts_at(assignment)?, self.identity.now()))
    }

    pub(super) fn success_counts_at(&self, assignment: &Assignment) -> Option<Timestamp> {
        let plan = assignment.command.options.waves.as_ref()?;
        Some(plan.success_counts_at(self.durable.result(assignment.command.id)?.at))
    }

    fn view(&self, channel: &ChannelAssignments) -> ChannelView {
        let (settings, now) = (self.settings.now(), self.identity.now());
        let latest = &channel.latest;
        let far = Timers { run_at: Instant::now(), health_at: None };
        let timers = |assignment: &Assignment| assignment.assign().map(|assign| channel.timers(assign, &settings, now));
        let gates = &self.rollouts.health_gates;
        let has_checks = latest.assign().is_some_and(|assign| assign.health_interval.is_some());
        ChannelView {
            targets_node: channel.targets_node(&settings),
            has_filter: latest.command.to.filter.is_some(),
            has_waves: latest.command.options.waves.is_some(),
            result_pending: channel.result_pending,
            next_timers: timers(latest).unwrap_or(far),
            good_timers: channel.earlier_good().and_then(|good| timers(good)),
            gate_interval: latest.command.options.waves.as_ref().map_or(NO_GATE, poll_interval),
            is_gate_only: gates.is_pending(latest.command.id) && !gates.is_gated(&latest.command) && !has_checks,
            may_revert: self.may_revert(channel),
            is_reverted: channel.reverted().is_some(),
            previous_timers: channel.previous().and_then(|previous| timers(previous)),
        }
    }

    /// Shows the assignments on the status board, with their watches.
    fn update_board(&self, watchers: &Watchers) {
        let (mut assignments, wrong) = self.desired_state.report(&self.settings.now(), self.identity.now());
        assignments.iter_mut().for_each(|assignment| assignment.watch = watchers.status(&assignment.channel));
        self.status.set(AlarmKind::Watches, watchers.alarm());
        self.status.change(|snapshot| snapshot.assignments = assignments);
        self.status.set(AlarmKind::Channels, wrong);
    }

    /// Forgets the convergence records of a channel without an assignment.
    fn forget(&self, name: &str, latest: &Arc<Assignment>) {
        self.status.report_storage_error(self.desired_state.remove_good(name, latest));
        if let Err(error) = Convergence::remove(&self.settings.now().state_dir, name) {
            tracing::warn!(channel = name, "{}", error_chain(&error));
        }
        self.status.change(|snapshot| {
            snapshot.failing.remove(name);
        });
    }

    /// Publishes a critical health check as a failure of the rollout, as long as other nodes may begin.
    fn report_health(&self, channel: &ChannelAssignments, health: Option<HealthStatus>) {
        let latest = &channel.latest;
        let plan = latest.command.options.waves.as_ref().filter(|plan| plan.health);
        let is_on = plan.is_some() && self.identity.now() < latest.command.latest_start();
        let is_in_force = channel.good.as_ref().is_some_and(|good| good.command.id == latest.command.id);
        if is_on && is_in_force && health == Some(HealthStatus::Critical) {
            self.rollouts.results.publish_failure(&latest.command, &self.result(latest, CommandOutcome::Failed));
        }
    }

    /// Completes the health gate of the rollout, when its time has come.
    fn complete_health_gate(&self, latest: &Assignment, health: Option<HealthStatus>) {
        let is_time = self.success_counts_at(latest).is_none_or(|at| at <= self.identity.now());
        if !is_time || !self.rollouts.health_gates.is_pending(latest.command.id) {
            return;
        }
        if health != Some(HealthStatus::Critical) {
            let outcome = self.durable.result(latest.command.id).map_or(CommandOutcome::Stable, |result| result.outcome);
            self.rollouts.results.publish_success(&latest.command, outcome);
        }
        self.rollouts.health_gates.complete(latest.command.id);
    }

    fn result(&self, latest: &Assignment, outcome: CommandOutcome) -> CommandResult {
        messages::result(&self.identity, Some(latest.command.id), latest.command.digest(), outcome)
    }

    fn not_run(&self, latest: &Assignment, outcome: CommandOutcome, why: (RejectionCode, String)) -> CommandResult {
        messages::not_run(&self.identity, Some(latest.command.id), latest.command.digest(), outcome, why)
    }
}

impl Task {
    async fn run(mut self) {
        let mut settings = self.reconciler.settings.watch();
        loop {
            self.watchers.retain(&self.reconciler.desired_state.watched(&self.reconciler.settings.now()));
            self.reconciler.update_board(&self.watchers);
            let next = self
                .reconciler
                .desired_state
                .next(&self.reconciler.settings.now(), |assignment| self.reconciler.gate_at(assignment));
            let at = next.as_ref().map(|(at, ..)| *at);
            let due = async {
                match at {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            // Cancel-safe: watches keep their last value, a notification keeps its permit, a dropped sleep is made anew from
            // the same time, and a report that is not returned stays in its queue.
            let (is_due, report) = tokio::select! {
                biased;
                _ = self.stop.wait_for(|stop| *stop) => return,
                () = self.reconciler.desired_state.changed() => (false, None),
                _ = settings.changed() => (false, None),
                () = due => (true, None),
                report = self.reports.recv() => (false, report),
            };
            if let Some((_, name, work)) = next.filter(|_| is_due) {
                self.reconcile_channel(&name, ChannelEvent::Due(work)).await;
            }
            if let Some((name, selection)) = report.and_then(|report| self.watchers.receive(report)) {
                self.repair(&name, selection).await;
            }
        }
    }

    /// Repairs the drift of a channel, if its state allows that.
    async fn repair(&mut self, name: &str, selection: RepairSelection) {
        self.drift = Some(selection);
        self.reconcile_channel(name, ChannelEvent::Drifted).await;
        if self.drift.take().is_some() {
            // The next run of all resources starts the watcher again.
            self.watchers.remove(name);
        }
    }

    /// Runs the resources that may have drifted. Returns the event of the end of the run.
    async fn run_selected(&mut self, name: &str, channel: &ChannelAssignments) -> Option<ChannelEvent> {
        let wanted = channel.watched().filter(|assignment| self.watchers.watches(name, assignment.command.id)).cloned();
        let Some((assignment, selection)) = wanted.and_then(|assignment| Some((assignment, self.drift.take()?))) else {
            return Some(ChannelEvent::RunEnded(ChannelRunEnd::Planned(None)));
        };
        let job = Job::repair(&assignment.command, self.new_id(), selection);
        let mut ended = self.perform(&assignment, job).await;
        if ended.is_interrupted() {
            return Some(ChannelEvent::Interrupted);
        }
        if !ended.planned {
            tracing::error!(channel = name, "cannot check for drift: {}", ended.reason());
        }
        self.watchers.run_ended(name, assignment.command.id, std::mem::take(&mut ended.watch), true);
        Some(ChannelEvent::RunEnded(run_end(&ended)))
    }

    /// Steps a channel until it waits for time again, or a later assignment takes its place.
    async fn reconcile_channel(&mut self, name: &str, first: ChannelEvent) {
        let Some(ChannelAssignments { latest, .. }) = self.reconciler.desired_state.channel(name) else { return };
        let mut event = Some(first);
        // The result of the last run of the latest assignment, until it is published.
        let mut result = None;
        while let Some(happened) = event.take() {
            let Some(channel) = self.reconciler.desired_state.channel(name) else { return };
            let ChannelStep { state, effects } =
                step(channel.state.clone(), happened, &self.reconciler.view(&channel), Instant::now());
            if !self.reconciler.desired_state.change(name, &latest, |channel| channel.state = state) {
                return;
            }
            self.reconciler.update_board(&self.watchers);
            for effect in effects {
                if let Some(next) = self.carry_out(name, &latest, effect, &mut result).await {
                    event = Some(next);
                }
            }
        }
    }

    /// Carries out an effect. Returns the event that it ends in.
    async fn carry_out(
        &mut self,
        name: &str,
        latest: &Arc<Assignment>,
        effect: ChannelEffect,
        result: &mut Option<CommandResult>,
    ) -> Option<ChannelEvent> {
        let channel = self.reconciler.desired_state.channel(name)?;
        match effect {
            ChannelEffect::EvaluateFilter => {
                let expression = latest.command.to.filter.clone().unwrap_or_default();
                let selected = self.reconciler.facts.evaluate_in_background(&expression).await;
                return Some(ChannelEvent::FilterEvaluated(selected));
            }
            ChannelEffect::AskGate => return Some(ChannelEvent::GateAnswered(self.ask_gate(name, &channel).await)),
            ChannelEffect::RunLatest => {
                self.rollouts.remove(name);
                // The first run has the id of the command: the run's result is the result of the command.
                let run = if channel.result_pending { latest.command.id } else { self.new_id() };
                let job = Job::reconcile(&latest.command, run);
                let mut ended = self.perform(latest, job.clone()).await;
                self.watchers.run_ended(name, latest.command.id, std::mem::take(&mut ended.watch), false);
                return Some(self.end_latest_run(name, latest, &job, ended, result));
            }
            ChannelEffect::RunLastGood => {
                let good = Arc::clone(channel.good.as_ref()?);
                let job = Job::reconcile(&good.command, self.new_id());
                let mut ended = self.perform(&good, job).await;
                self.watchers.run_ended(name, good.command.id, std::mem::take(&mut ended.watch), false);
                if ended.is_interrupted() {
                    return Some(ChannelEvent::Interrupted);
                }
                self.reconciler.desired_state.record_run(name, latest.command.id, &ended);
                return Some(ChannelEvent::RunEnded(ChannelRunEnd::Planned(ended.health)));
            }
            ChannelEffect::RunSelected => return self.run_selected(name, &channel).await,
            ChannelEffect::CheckHealth => {
                let Some(good) = channel.good.clone() else { return Some(ChannelEvent::HealthChecked(None)) };
                let job = Job::reconcile(&good.command, self.new_id()).health_check();
                let ended = self.perform(&good, job).await;
                if ended.is_interrupted() {
                    return Some(ChannelEvent::Interrupted);
                }
                let health = ended.health;
                self.reconciler.desired_state.change(name, latest, |channel| channel.last_run.health = health);
                if health == Some(HealthStatus::Critical) {
                    tracing::warn!(channel = name, "a health check is critical: the channel runs now");
                }
                return Some(ChannelEvent::HealthChecked(health));
            }
            ChannelEffect::Promote => {
                let ask_at = Reconciler::first_question(latest);
                if let Err(error) = self.reconciler.desired_state.promote(name, latest, ask_at) {
                    self.reconciler.status.raise(AlarmKind::Disk, error_chain(&error));
                }
            }
            ChannelEffect::AskVerdict => return Some(ChannelEvent::VerdictGiven(self.ask_verdict(name, latest).await)),
            ChannelEffect::Revert(cause) => self.reconciler.revert(name, latest, cause),
            ChannelEffect::ReportRevert => self.reconciler.report_revert(name, latest, &channel),
            ChannelEffect::RemovePrevious => {
                self.waves.remove(name);
                let removed = self.reconciler.desired_state.remove_previous(name, latest);
                self.reconciler.status.report_storage_error(removed);
            }
            ChannelEffect::Forget => self.reconciler.forget(name, latest),
            ChannelEffect::ReportHealth(health) => self.reconciler.report_health(&channel, health),
            ChannelEffect::CompleteHealthGate(health) => self.reconciler.complete_health_gate(latest, health),
            ChannelEffect::Publish(report) => self.publish(name, latest, report, result.take()).await,
        }
        None
    }

    fn new_id(&self) -> Uuid {
        self.reconciler.identity.host.new_id()
    }

    /// Returns the event of the end of a run of the latest assignment, and keeps its result for its sender.
    fn end_latest_run(
        &self,
        name: &str,
        latest: &Assignment,
        job: &Job,
        ended: RunResult,
        result: &mut Option<CommandResult>,
    ) -> ChannelEvent {
        if ended.is_interrupted() {
            // The next start runs it again, and has the result.
            return ChannelEvent::Interrupted;
        }
        if ended.planned {
            self.reconciler.desired_state.record_run(name, latest.command.id, &ended);
        } else {
            tracing::error!(channel = name, "cannot apply the new assignment: {}", ended.reason());
        }
        let end = run_end(&ended);
        *result = Some(ended.into_command_result(&self.reconciler.identity, job));
        ChannelEvent::RunEnded(end)
    }

    /// Asks the rollout gate whether the latest assignment may begin.
    ///
    /// A run that began once may go on. An assignment that did not begin before it expired never begins: until then the
    /// ledger knows its end.
    async fn ask_gate(&mut self, name: &str, channel: &ChannelAssignments) -> RolloutTurn {
        let command = &channel.latest.command;
        match self.reconciler.durable.result(command.id) {
            Some(CommandResult { outcome: CommandOutcome::Halted, message, .. }) => {
                RolloutTurn::Ended(message.unwrap_or_default())
            }
            Some(_) => RolloutTurn::Begin,
            None if channel.good.as_ref().is_some_and(|good| good.command.id == command.id) => RolloutTurn::Begin,
            None if self.reconciler.identity.now() > command.expires => {
                RolloutTurn::Ended(format!("the assignment expired at {}", command.expires))
            }
            None => {
                let (id, progress) = self.rollouts.entry(name.to_owned()).or_default();
                if *id != command.id {
                    (*id, *progress) = (command.id, RolloutProgress::default());
                }
                progress.may_begin(command, &self.reconciler.rollouts.gate, &self.reconciler.bus).await
            }
        }
    }

    /// Asks whether the wave of this node failed.
    async fn ask_verdict(&mut self, name: &str, latest: &Arc<Assignment>) -> WaveVerdict {
        let (id, reports) = self.waves.entry(name.to_owned()).or_default();
        if *id != latest.command.id {
            (*id, *reports) = (latest.command.id, WaveReports::default());
        }
        self.reconciler.ask_verdict(name, latest, reports).await
    }

    /// Fetches the manifest of an assignment, and has the executor run it.
    async fn perform(&mut self, assignment: &Assignment, job: Job) -> RunResult {
        let Some(assign) = assignment.assign() else { return RunResult::failed("nothing is assigned") };
        let in_place = self.reconciler.durable.verify_path();
        if self.reconciler.status.report_storage_error(in_place).is_none() {
            // The run would leave no record. The next start begins with the ledger as it is.
            return RunResult::interrupted();
        }
        let until = Instant::now() + assignment.command.options.timeout.as_std();
        // Cancel-safe: a dropped download leaves a file that the next one replaces.
        let fetched = tokio::select! {
            biased;
            _ = self.stop.wait_for(|stop| *stop) => return RunResult::interrupted(),
            fetched = self.reconciler.fetcher.assigned_manifest(&assign.manifest, until) => fetched,
        };
        let source = match fetched {
            Ok(source) => source,
            Err(result) => return *result,
        };
        let (begun, begins) = oneshot::channel();
        let (ended, result) = oneshot::channel();
        if self.runs.send(Box::new(ReconcileRun { job, source, begun, ended })).await.is_err() {
            return RunResult::interrupted();
        }
        self.wait_for_begin(assignment, begins).await;
        // The executor answers each run, and drops the answer only when the agent stops.
        result.await.unwrap_or_else(|_| RunResult::interrupted())
    }

    /// Waits until the executor begins a run, or stops. Raises an alarm while that takes too long.
    async fn wait_for_begin(&self, assignment: &Assignment, mut begins: oneshot::Receiver<()>) {
        let max_wait = self.reconciler.settings.now().max_repair_wait;
        if tokio::time::timeout(max_wait.as_std(), &mut begins).await.is_ok() {
            return;
        }
        let status = &self.reconciler.status;
        let channel = assignment.command.channel.as_ref().map(|channel| channel.name.as_str()).unwrap_or_default();
        let holder = status.read(|snapshot| snapshot.running).map_or_else(
            || "another run".to_owned(),
            |running| format!("the command {running}; hint: `ensign fleet job cancel {running}` stops that command"),
        );
        let why =
            format!("channel {channel}: drift is not repaired, as the run has waited for more than {max_wait} behind {holder}");
        status.raise(AlarmKind::RepairWait, why);
        let _stopped = begins.await;
        status.clear(AlarmKind::RepairWait);
    }

    /// Publishes the result of an assignment once, to its sender.
    async fn publish(&mut self, name: &str, latest: &Assignment, report: AssignmentReport, run: Option<CommandResult>) {
        let channel = self.reconciler.desired_state.channel(name).filter(|channel| channel.result_pending);
        let Some(channel) = channel else { return };
        if !self.save(name).await {
            return;
        }
        let reconciler = &self.reconciler;
        let mut result = match report {
            AssignmentReport::Stable => reconciler.result(latest, CommandOutcome::Stable),
            AssignmentReport::NotSelected => {
                reconciler.rollouts.results.publish_success(&latest.command, CommandOutcome::NotSelected);
                reconciler.result(latest, CommandOutcome::NotSelected)
            }
            AssignmentReport::BadFilter(why) => {
                let why = format!("cannot evaluate its filter (`where`): {why}");
                reconciler.not_run(latest, CommandOutcome::Refused, (RejectionCode::BadWhere, why))
            }
            AssignmentReport::Halted(why) => reconciler.not_run(latest, CommandOutcome::Halted, (RejectionCode::Halted, why)),
            AssignmentReport::Reverted => reconciler.result(latest, CommandOutcome::Failed),
            AssignmentReport::Run => match run {
                Some(result) => result,
                None => return,
            },
        };
        if let Some(text) = channel.revert_text() {
            result = CommandResult { outcome: CommandOutcome::Failed, message: Some(text), ..result };
        }
        // The return published a failure already.
        if channel.reverted().is_none() {
            reconciler.rollouts.results.publish_failure(&latest.command, &result);
        }
        reconciler.rollouts.schedule_health_gate(&latest.command, &result);
        if reconciler.publisher.persist_result(&result, false, &mut self.stop).await {
            reconciler.desired_state.change(name, latest, |channel| channel.result_pending = false);
        }
    }

    /// Returns true when the file of a channel is written, and false when the agent stops before.
    async fn save(&mut self, name: &str) -> bool {
        let mut attempt = 0;
        loop {
            let saved = self.reconciler.desired_state.save(name);
            if self.reconciler.status.report_storage_error(saved).is_some() {
                return true;
            }
            attempt += 1;
            // Cancel-safe: a watch keeps its last value, and a dropped sleep loses nothing.
            tokio::select! {
                _ = self.stop.wait_for(|stop| *stop) => return false,
                () = tokio::time::sleep(jitter::backoff(attempt).min(MAX_WRITE_PAUSE)) => {}
            }
        }
    }
}

/// Returns the end of a run, as far as its channel depends on it.
fn run_end(ended: &RunResult) -> ChannelRunEnd {
    if !ended.planned {
        return ChannelRunEnd::NotPlanned(ended.reason().to_owned());
    }
    if !ended.is_failed() {
        return ChannelRunEnd::Planned(ended.health);
    }
    let failure = ended.failures.iter().next().map(|(resource, error)| format!("{resource}: {error}"));
    ChannelRunEnd::Failed(failure.unwrap_or_else(|| ended.reason().to_owned()), ended.health)
}

fn time_until(then: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(then.duration_since(now)).unwrap_or_default()
}
