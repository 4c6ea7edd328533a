//! The work of one command: plan, run, and say how it ended.
//!
//! `work/inside.rs` is the part that is confined, `work/heard.rs` keeps the records of the run outside of that;
//! `work/rehearse.rs` is the stand-in of all of it for simulators.

mod causes;
mod confined;
pub(in crate::agent) mod event_sink;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use uuid::Uuid;

use crate::config::Publish;
use crate::diag::{Diagnostic, chain};
use crate::host::confine::{ConfineError, Confined, Worker};
use crate::host::{Cancel, Checkpoint, Host, ProgressEvent, RunLock, RunLockError, Share, checkpoint, run_lock};
use crate::manifest::Source;
use crate::model::summary::{APPLY_STATE, Summary};
use crate::model::{ApplyState, DiscoveryClient, HealthStatus, ManifestId, RunOutcome, TransactionEvent};
use crate::store::history::RunEnd;
use crate::store::{Message, Priority};
use crate::trust::{RejectionCode, Rights, Verified};
use crate::wire::command::{Action, Apply, Command};
use crate::wire::report::{HealthReport, PlannedChanges};
use crate::wire::subject::EventKind;
use crate::wire::{CommandOutcome, CommandResult};

use super::confinement::{self, ExchangeOutside, Placement};
use super::fetch::FetchFailure;
use super::stable_runs::Telling;
use crate::agent::Node;
use crate::agent::config::limits;
use crate::agent::exec::approval;
use crate::agent::status::messages;

pub(in crate::agent) use crate::agent::exec::simulation::rehearse;
pub use crate::agent::exec::simulation::{Played, Rehearse, Work};
use confined::{Inside, Ran};
use event_sink::Record;

/// How many failed resources a result names; the events name all.
const FAILURES: usize = 10;
/// How much of each of their errors.
const ERROR_LENGTH: usize = 500;
/// The largest event that a result carries; the stream has it anyway.
const EVENT_SIZE: usize = 128 * 1024;

/// A command that was accepted.
#[derive(Debug, Clone)]
pub(in crate::agent) struct Job {
    /// What to do, as the verifier gave it: when its turn comes, it is asked again whether this may still run.
    pub(in crate::agent) command: Arc<Verified<Command>>,
    /// Where its sender waits, when somebody does.
    pub(in crate::agent) reply: Option<String>,
    /// The run: the command's own id, and another one for every further run of what stands.
    pub(in crate::agent) run: Uuid,
    /// Only the health checks are to be looked at.
    pub(in crate::agent) health_check_only: bool,
    /// What the rule that allows it lets it do.
    pub(in crate::agent) rights: Rights,
}

impl Job {
    /// A command that runs once.
    pub(in crate::agent) fn once(command: Arc<Verified<Command>>, reply: Option<String>) -> Self {
        let rights = command.rights().clone();
        Self { run: command.id, command, reply, health_check_only: false, rights }
    }

    /// SHA-256 of its signed bytes.
    pub(in crate::agent) fn digest(&self) -> &str {
        self.command.digest()
    }

    pub(in crate::agent) fn id(&self) -> Uuid {
        self.command.id
    }

    /// The manifest that it is about, when it is about one.
    pub(in crate::agent) fn manifest(&self) -> Option<&Apply> {
        match &self.command.action {
            Action::Apply(apply) => Some(apply),
            Action::Assign(assign) => Some(&assign.manifest),
            _ => None,
        }
    }

    /// True for a run that changes nothing.
    pub(in crate::agent) fn is_dry(&self) -> bool {
        self.command.options.noop
            || self.health_check_only
            || matches!(&self.command.action, Action::Assign(assign) if !assign.enforce)
    }
}

/// How the work ended.
pub(in crate::agent) struct RunOutcomeReport {
    pub(in crate::agent) outcome: CommandOutcome,
    pub(in crate::agent) why: Option<String>,
    pub(in crate::agent) code: Option<RejectionCode>,
    pub(in crate::agent) event: Option<TransactionEvent>,
    pub(in crate::agent) apply: Option<ApplyState>,
    pub(in crate::agent) failures: BTreeMap<String, String>,
    pub(in crate::agent) plan: Option<PlannedChanges>,
    pub(in crate::agent) answer: Option<Value>,
    /// For a look at health checks: what they found, still without the channel.
    pub(in crate::agent) checked: Vec<HealthReport>,
    /// Whether the manifest could be planned: what came after that is about the host.
    pub(in crate::agent) planned: bool,
    /// The worst health check; nothing when there was none.
    pub(in crate::agent) health: Option<HealthStatus>,
}

impl RunOutcomeReport {
    pub(in crate::agent) fn of(outcome: CommandOutcome, why: Option<String>) -> Self {
        Self {
            outcome,
            why,
            code: None,
            event: None,
            apply: None,
            failures: BTreeMap::new(),
            plan: None,
            answer: None,
            checked: Vec::new(),
            planned: false,
            health: None,
        }
    }

    /// It ended, and this is to be said about it.
    pub(in crate::agent) fn plain(outcome: CommandOutcome, why: impl Into<String>) -> Self {
        Self::of(outcome, Some(why.into()))
    }

    /// True when the agent was stopped meanwhile.
    pub(in crate::agent) fn is_interrupted(&self) -> bool {
        self.outcome == CommandOutcome::Interrupted
    }

    /// Why it ended so, for people.
    pub(in crate::agent) fn why(&self) -> &str {
        self.why.as_deref().unwrap_or_default()
    }

    /// The summary of the run.
    pub(in crate::agent) fn apply(&self) -> Option<&ApplyState> {
        self.apply.as_ref()
    }

    /// It was asked something, and this is the answer.
    pub(in crate::agent) fn answered(answer: Value) -> Self {
        Self { answer: Some(answer), ..Self::of(CommandOutcome::Stable, None) }
    }

    /// The same, with words for people.
    pub(in crate::agent) fn saying(self, why: impl Into<String>) -> Self {
        Self { why: Some(why.into()), ..self }
    }

    /// The same, with this end.
    pub(in crate::agent) fn ending(self, outcome: CommandOutcome) -> Self {
        Self { outcome, ..self }
    }

    /// True when something failed or would not be done.
    pub(in crate::agent) fn is_failed(&self) -> bool {
        matches!(self.outcome, CommandOutcome::Failed | CommandOutcome::Refused)
    }

    /// It could not be done.
    pub(in crate::agent) fn failed(why: impl Into<String>) -> Self {
        Self::plain(CommandOutcome::Failed, why)
    }

    /// The agent was stopped meanwhile.
    pub(in crate::agent) fn interrupted() -> Self {
        Self::plain(CommandOutcome::Interrupted, "the agent was stopped")
    }

    /// The node would not do it.
    pub(in crate::agent) fn refused(code: RejectionCode, why: impl Into<String>) -> Self {
        Self { code: Some(code), ..Self::plain(CommandOutcome::Refused, why) }
    }

    /// There is nothing to run.
    pub(in crate::agent) fn without(missing: FetchFailure) -> Self {
        match missing.code {
            Some(code) => Self::refused(code, missing.why),
            None => Self::failed(missing.why),
        }
    }

    /// The result as it is sent. For an `apply`, it carries the summary instead of the event.
    pub(in crate::agent) fn into_done(self, node: &Node, job: &Job) -> CommandResult {
        let event = self.event.filter(|_| matches!(job.command.action, Action::Ensure(_)));
        let (rule, signers) = messages::allowed(&job.command);
        CommandResult {
            code: self.code.map(|code| code.as_str().to_owned()),
            message: self.why,
            event: event.map(within_size),
            apply: self.apply.filter(|_| job.manifest().is_some()),
            failures: self.failures,
            plan: self.plan,
            answer: self.answer,
            rule,
            signers,
            ..messages::done(node, Some(job.id()), job.digest(), self.outcome)
        }
    }
}

/// A message must pass the server's limit: what is too large is left out.
fn within_size(mut event: TransactionEvent) -> TransactionEvent {
    if messages::json(&event).len() > EVENT_SIZE {
        event.diff = None;
    }
    if messages::json(&event).len() > EVENT_SIZE {
        (event.properties, event.status) = (Value::Null, None);
    }
    event
}

/// Plans and runs, until done, `cancel` or `until`: on a confined thread of its own, while the thread that this is called on
/// keeps the records of the run and does what must stay outside.
pub(in crate::agent) fn run(
    node: &Arc<Node>,
    job: &Job,
    source: Option<&Source>,
    exchange: &Arc<dyn DiscoveryClient>,
    cancel: Cancel,
    until: Instant,
) -> RunOutcomeReport {
    let approved = match approval::approved_plan(node, job) {
        Ok(approved) => approved,
        Err(why) => return RunOutcomeReport::refused(RejectionCode::PlanChanged, why),
    };
    let settings = node.settings();
    let mut host = Host::recorded(node.search_path.as_deref(), Arc::clone(&node.leftovers.journal))
        .bounded(cancel, Some(until))
        .within(limits::bounds(&settings.limits));
    host = host.with_listener(Arc::new(|news: ProgressEvent<'_>| {
        if let ProgressEvent::Said(what) = news {
            tracing::info!("{what}");
        }
    }));
    let directory = source.and_then(|source| source.directory.as_deref());
    if let Some(directory) = directory {
        host = host.in_directory(directory);
    }
    // A run of a person on this host goes first; so does this one for that person.
    let _turn = match its_turn(node, job, &host, until) {
        Ok(turn) => turn,
        Err(ended) => return *ended,
    };
    let record = Record::new(node, job);
    let confinement = confinement::of(&settings.limits, directory);
    let inside = |confined: Result<Confined, ConfineError>, worker: Worker| {
        let confined = confined
            .map_err(|error| Box::new(RunOutcomeReport::failed(format!("the run could not be confined: {}", chain(&error)))))?;
        let exchange = Arc::new(ExchangeOutside { inner: Arc::clone(exchange), worker: worker.clone() });
        let placement = Arc::new(Placement {
            worker,
            write: confined.write,
            unnamed_types: settings.limits.paths.is_some() && settings.limits.types.is_none(),
        });
        confined::run(&Inside { node, job, source, approved, host: &host, exchange, placement, record: &record })
    };
    let ran = match confinement::run(&confinement, inside) {
        Some(Ok(ran)) => ran,
        Some(Err(ended)) => return *ended,
        None => return RunOutcomeReport::failed("the run broke: the program has an error"),
    };
    let report = match ran {
        Ran::Unplanned(wrong) => return not_planned(node, job, source, &wrong),
        Ran::Planned(report) => report,
    };
    checkpoint(Checkpoint::RunEnded);
    let (told, manifest) = record.end(&RunEnd { ended: node.now(), outcome: report.outcome, summary: report.summary.clone() });
    let (outcome, why) = ending(report.outcome, report.error, &host, job);
    let corrective = told.causes.end(node, report.outcome != RunOutcome::Interrupted);
    let state = ApplyState { corrective, ..state(node, job, manifest, report.outcome, why.clone(), report.summary) };
    if job.health_check_only {
        publish_health(node, job, &state, told.health);
    } else {
        publish_state(node, job, state.clone());
    }
    // Half a plan is none: nobody shall approve it.
    let whole = report.outcome != RunOutcome::Interrupted && why.is_none();
    RunOutcomeReport {
        event: told.last,
        apply: Some(state),
        failures: told.failures,
        plan: told.changes.filter(|_| whole).map(|changes| changes.planned(job)),
        checked: told.checked,
        planned: true,
        health: told.health,
        ..RunOutcomeReport::of(outcome, why)
    }
}

/// The turn of a run that changes something, once no local run is under way; none where runs can't take turns.
fn its_turn(node: &Node, job: &Job, host: &Host, until: Instant) -> Result<Option<RunLock>, Box<RunOutcomeReport>> {
    let Some(path) = run_lock::path(|name| node.environ.get(name).map(OsString::from)).filter(|_| !job.is_dry()) else {
        return Ok(None);
    };
    let what = format!("ensign agent, command {}", job.id());
    let waiting = |holder: &run_lock::Holder| host.notify(&format!("waiting for another run: {holder}"));
    match RunLock::acquire(&path, &what, Share::Others, until, host, &waiting) {
        Ok(turn) => Ok(Some(turn)),
        Err(RunLockError::Over(_)) if host.cancel().is_cancelled() => Err(Box::new(RunOutcomeReport::interrupted())),
        Err(RunLockError::Busy(holder) | RunLockError::Over(holder)) => Err(Box::new(RunOutcomeReport::failed(format!(
            "another run took longer than {}: {holder}",
            job.command.options.timeout
        )))),
        Err(RunLockError::File(error)) => {
            tracing::warn!("runs of this host can't take turns: {}", chain(&error));
            Ok(None)
        }
    }
}

/// How a run ended, and why where it did not come to its end.
fn ending(outcome: RunOutcome, error: Option<String>, host: &Host, job: &Job) -> (CommandOutcome, Option<String>) {
    match outcome {
        RunOutcome::Stable => (CommandOutcome::Stable, error),
        RunOutcome::Changed if job.is_dry() => (CommandOutcome::WouldChange, error),
        RunOutcome::Changed => (CommandOutcome::Changed, error),
        RunOutcome::Failed => (CommandOutcome::Failed, error),
        RunOutcome::Interrupted if host.cancel().is_cancelled() => {
            (CommandOutcome::Interrupted, Some("the agent was stopped".into()))
        }
        RunOutcome::Interrupted => {
            (CommandOutcome::Failed, Some(format!("it took longer than {}, and was ended", job.command.options.timeout)))
        }
    }
}

/// A manifest that can't be planned is a failed run, which the fleet view shows as one.
fn not_planned(node: &Node, job: &Job, source: Option<&Source>, wrong: &[Diagnostic]) -> RunOutcomeReport {
    let why = wrong.iter().take(FAILURES).map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let manifest = source.map(|source| ManifestId { source: source.name.clone(), digest: source.digest.clone() });
    let state = state(node, job, manifest, RunOutcome::Failed, Some(why.clone()), Summary::default());
    publish_state(node, job, state.clone());
    RunOutcomeReport { apply: Some(state), ..RunOutcomeReport::failed(why) }
}

pub(in crate::agent) fn state(
    node: &Node,
    job: &Job,
    manifest: Option<ManifestId>,
    outcome: RunOutcome,
    error: Option<String>,
    summary: Summary,
) -> ApplyState {
    ApplyState {
        protocol: APPLY_STATE.to_owned(),
        event_id: node.host.new_id(),
        node: node.settings().node.clone(),
        run_id: job.run,
        timestamp: node.now(),
        outcome,
        noop: job.is_dry(),
        manifest,
        error,
        summary,
        corrective: 0,
        stable_runs: 0,
    }
}

/// A look at the health alone is published when it is not well.
fn publish_health(node: &Node, job: &Job, state: &ApplyState, health: Option<HealthStatus>) {
    if health.is_some_and(|health| health != HealthStatus::Ok) {
        let event = node.event(EventKind::Health, state.event_id, messages::json(state), Priority::Result);
        node.post(&Message { command: Some(job.digest().to_owned()), ..event });
    }
}

/// Publishes the summary of a run; of one more run of a channel that found everything as wanted only now and then.
pub(in crate::agent) fn publish_state(node: &Node, job: &Job, mut state: ApplyState) {
    // What would be is not what is: a dry run leaves the last result in its place.
    if !state.noop {
        node.board.change(|standing| standing.last_run = Some(state.clone()));
    }
    let is_assigned = matches!(job.command.action, Action::Assign(_)) && !job.command.options.noop;
    if let Some(channel) = job.command.channel.as_ref().filter(|_| is_assigned) {
        let settings = node.settings();
        let interval = if settings.events == Publish::All { Duration::ZERO } else { settings.stable_interval.get() };
        let mut runs = node.stable.lock().unwrap_or_else(PoisonError::into_inner);
        // The first run of an assignment is what its command came to.
        let interval = if job.run == job.id() { Duration::ZERO } else { interval };
        let telling = runs.ended(&channel.name, state.outcome, interval, Instant::now());
        drop(runs);
        match telling {
            Telling::Summary(before) => state.stable_runs = before,
            Telling::Counts(runs) => return node.post_stable(runs),
            Telling::Nothing => return,
        }
    }
    let event = node.event(EventKind::Run, state.event_id, messages::json(&state), Priority::Result);
    node.post(&Message { command: Some(job.digest().to_owned()), ..event });
}
