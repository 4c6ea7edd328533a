//! The work of one command: plan, run, and say how it ended. `work/rehearse.rs` is its stand-in for simulators.

mod rehearse;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;
use uuid::Uuid;

use crate::config::Publish;
use crate::diag::{Diagnostic, chain};
use crate::engine::{self, Inputs, Plan};
use crate::host::{Cancel, Checkpoint, Host, News, checkpoint};
use crate::manifest::Source;
use crate::model::summary::{APPLY_STATE, Summary};
use crate::model::{ApplyState, Exchange, HealthResult, HealthStatus, ManifestId, Outcome, RunOutcome, TransactionEvent, merge};
use crate::store::history::{End, Recording, Start};
use crate::store::{Class, History, MemorySession, Message};
use crate::trust::{Code, Verified};
use crate::wire::command::{Action, Apply, Command};
use crate::wire::report::{CheckedHealth, Planned};
use crate::wire::subject::EventKind;
use crate::wire::{Done, DoneOutcome};

use super::approve::{self, Changes};
use super::limits::{self, Permitted};
use super::obtain::Missing;
use super::{Node, outside, say};

pub(super) use rehearse::rehearse;
pub use rehearse::{Played, Rehearse, Work};

/// How many failed resources a result names; the events name all.
const FAILURES: usize = 10;
/// How much of each of their errors.
const ERROR_LENGTH: usize = 500;
/// The largest event that a result carries; the stream has it anyway.
const EVENT_SIZE: usize = 128 * 1024;

/// A command that was accepted.
#[derive(Debug, Clone)]
pub(super) struct Job {
    /// What to do, as the verifier gave it: when its turn comes, it is asked again whether this may still run.
    pub(super) command: Arc<Verified<Command>>,
    /// Where its sender waits, when somebody does.
    pub(super) reply: Option<String>,
    /// The run: the command's own id, and another one for every further run of what stands.
    pub(super) run: Uuid,
    /// Only the health checks are to be looked at.
    pub(super) health_check_only: bool,
}

impl Job {
    /// A command that runs once.
    pub(super) fn once(command: Arc<Verified<Command>>, reply: Option<String>) -> Self {
        Self { run: command.id, command, reply, health_check_only: false }
    }

    /// SHA-256 of its signed bytes.
    pub(super) fn digest(&self) -> &str {
        self.command.digest()
    }

    pub(super) fn id(&self) -> Uuid {
        self.command.id
    }

    /// The manifest that it is about, when it is about one.
    pub(super) fn manifest(&self) -> Option<&Apply> {
        match &self.command.action {
            Action::Apply(apply) => Some(apply),
            Action::Assign(assign) => Some(&assign.manifest),
            _ => None,
        }
    }

    /// True for a run that changes nothing.
    pub(super) fn is_dry(&self) -> bool {
        self.command.options.noop
            || self.health_check_only
            || matches!(&self.command.action, Action::Assign(assign) if !assign.enforce)
    }
}

/// How the work ended.
pub(super) struct Ended {
    outcome: DoneOutcome,
    why: Option<String>,
    code: Option<Code>,
    event: Option<TransactionEvent>,
    apply: Option<ApplyState>,
    failures: BTreeMap<String, String>,
    plan: Option<Planned>,
    answer: Option<Value>,
    /// For a look at health checks: what they found, still without the channel.
    pub(super) checked: Vec<CheckedHealth>,
    /// Whether the manifest could be planned: what came after that is about the host.
    pub(super) planned: bool,
    /// The worst health check; nothing when there was none.
    pub(super) health: Option<HealthStatus>,
}

impl Ended {
    fn of(outcome: DoneOutcome, why: Option<String>) -> Self {
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
    pub(super) fn plain(outcome: DoneOutcome, why: impl Into<String>) -> Self {
        Self::of(outcome, Some(why.into()))
    }

    /// True when the agent was stopped meanwhile.
    pub(super) fn is_interrupted(&self) -> bool {
        self.outcome == DoneOutcome::Interrupted
    }

    /// Why it ended so, for people.
    pub(super) fn why(&self) -> &str {
        self.why.as_deref().unwrap_or_default()
    }

    /// The summary of the run.
    pub(super) fn apply(&self) -> Option<&ApplyState> {
        self.apply.as_ref()
    }

    /// It was asked something, and this is the answer.
    pub(super) fn answered(answer: Value) -> Self {
        Self { answer: Some(answer), ..Self::of(DoneOutcome::Stable, None) }
    }

    /// The same, with words for people.
    pub(super) fn saying(self, why: impl Into<String>) -> Self {
        Self { why: Some(why.into()), ..self }
    }

    /// The same, with this end.
    pub(super) fn ending(self, outcome: DoneOutcome) -> Self {
        Self { outcome, ..self }
    }

    /// True when something failed or would not be done.
    pub(super) fn is_failed(&self) -> bool {
        matches!(self.outcome, DoneOutcome::Failed | DoneOutcome::Refused)
    }

    /// It could not be done.
    pub(super) fn failed(why: impl Into<String>) -> Self {
        Self::plain(DoneOutcome::Failed, why)
    }

    /// The agent was stopped meanwhile.
    pub(super) fn interrupted() -> Self {
        Self::plain(DoneOutcome::Interrupted, "the agent was stopped")
    }

    /// The node would not do it.
    pub(super) fn refused(code: Code, why: impl Into<String>) -> Self {
        Self { code: Some(code), ..Self::plain(DoneOutcome::Refused, why) }
    }

    /// There is nothing to run.
    pub(super) fn without(missing: Missing) -> Self {
        match missing.code {
            Some(code) => Self::refused(code, missing.why),
            None => Self::failed(missing.why),
        }
    }

    /// The result as it is sent. For an `apply`, it carries the summary instead of the event.
    pub(super) fn into_done(self, node: &Node, job: &Job) -> Done {
        let event = self.event.filter(|_| matches!(job.command.action, Action::Ensure(_)));
        let (rule, signers) = say::allowed(&job.command);
        Done {
            code: self.code.map(|code| code.as_str().to_owned()),
            message: self.why,
            event: event.map(within_size),
            apply: self.apply.filter(|_| job.manifest().is_some()),
            failures: self.failures,
            plan: self.plan,
            answer: self.answer,
            rule,
            signers,
            ..say::done(node, Some(job.id()), job.digest(), self.outcome)
        }
    }
}

/// A message must pass the server's limit: what is too large is left out.
fn within_size(mut event: TransactionEvent) -> TransactionEvent {
    if say::json(&event).len() > EVENT_SIZE {
        event.diff = None;
    }
    if say::json(&event).len() > EVENT_SIZE {
        (event.properties, event.status) = (Value::Null, None);
    }
    event
}

/// Plans and runs, on the thread that it is called on, until done, `cancel` or `until`.
pub(super) fn run(
    node: &Arc<Node>,
    job: &Job,
    source: Option<&Source>,
    exchange: &Arc<dyn Exchange>,
    cancel: Cancel,
    until: Instant,
) -> Ended {
    let approved = match approve::approved(node, job) {
        Ok(approved) => approved,
        Err(why) => return Ended::refused(Code::PlanChanged, why),
    };
    let bounds = limits::bounds(&node.settings().limits);
    let mut host = Host::system(node.search_path.as_deref()).bounded(cancel, Some(until)).within(bounds);
    host = host.heard_by(Arc::new(|news: News<'_>| {
        if let News::Said(what) = news {
            tracing::info!("{what}");
        }
    }));
    if let Some(directory) = source.and_then(|source| source.directory.as_deref()) {
        host = host.in_directory(directory);
    }
    let plan = match plan(node, job, source, exchange, &host) {
        Ok(plan) => plan,
        Err(wrong) => return not_planned(node, job, source, &wrong),
    };
    if let Err(why) = limits::check_rendered(&node.limits(), &plan.rendered()) {
        return Ended::refused(Code::LocalLimit, why);
    }
    checkpoint(Checkpoint::RunPlanned);
    let settings = engine::Settings {
        noop: job.is_dry() && !job.health_check_only,
        health_check_only: job.health_check_only,
        // A diff shows content, and content does not leave the node.
        diff: false,
        bare: false,
        run_id: job.run,
        node: Some(node.settings().node.clone()),
        permit: Some(Arc::new(Permitted(node.limits()))),
        registrar: node.settings().registration.is_published().then(|| Arc::clone(exchange)),
        conceal: Some(conceal(node)),
    };
    if let Some(approved) = &approved {
        let dry = engine::Settings { noop: true, registrar: None, ..settings.clone() };
        let mut changes = Changes::of(job);
        let report = engine::run(&plan, &dry, &host, &mut MemorySession::default(), &mut |event| changes.hear(event));
        if report.outcome == RunOutcome::Interrupted {
            let (outcome, why) = ending(report.outcome, report.error, &host, job);
            return Ended::of(outcome, why);
        }
        if let Err(why) = approved.still_holds(&changes.planned(job)) {
            return Ended::refused(Code::PlanChanged, format!("it is not what was approved: {why}"));
        }
    }
    let mut heard = Heard::new(node, job);
    let mut session = MemorySession::default();
    let mut recording = recording(node, job, &plan);
    let report = engine::run(&plan, &settings, &host, &mut session, &mut |event| {
        recording.event(event);
        heard.hear(event);
    });
    checkpoint(Checkpoint::RunEnded);
    let end = End { ended: node.now(), outcome: report.outcome, summary: report.summary.clone() };
    if let Err(error) = recording.end(&end) {
        tracing::warn!("the run is not in the history: {}", chain(&error));
    }
    let (outcome, why) = ending(report.outcome, report.error, &host, job);
    let state = state(node, job, plan.manifest.clone(), report.outcome, why.clone(), report.summary);
    if job.health_check_only {
        publish_health(node, job, &state, heard.health);
    } else {
        publish_state(node, job, &state);
    }
    // Half a plan is none: nobody shall approve it.
    let whole = report.outcome != RunOutcome::Interrupted && why.is_none();
    Ended {
        event: heard.last,
        apply: Some(state),
        failures: heard.failures,
        plan: heard.changes.filter(|_| whole).map(|changes| changes.planned(job)),
        checked: heard.checked,
        planned: true,
        health: heard.health,
        ..Ended::of(outcome, why)
    }
}

/// How a run ended, and why where it did not come to its end.
fn ending(outcome: RunOutcome, error: Option<String>, host: &Host, job: &Job) -> (DoneOutcome, Option<String>) {
    match outcome {
        RunOutcome::Stable => (DoneOutcome::Stable, error),
        RunOutcome::Changed => (DoneOutcome::Changed, error),
        RunOutcome::Failed => (DoneOutcome::Failed, error),
        RunOutcome::Interrupted if host.cancel().is_cancelled() => {
            (DoneOutcome::Interrupted, Some("the agent was stopped".into()))
        }
        RunOutcome::Interrupted => {
            (DoneOutcome::Failed, Some(format!("it took longer than {}, and was ended", job.command.options.timeout)))
        }
    }
}

/// Digests that only this node can make.
fn conceal(node: &Arc<Node>) -> engine::Conceal {
    let node = Arc::clone(node);
    Arc::new(move |digest| node.disk.notary().conceal(digest))
}

/// The record of a run in the history of the host; dry runs leave none.
fn recording(node: &Node, job: &Job, plan: &Plan) -> Recording {
    let history = History::of(node.settings().state_dir.join("runs"));
    let what = match job.manifest() {
        None => plan.resources.first().map(|planned| planned.reference().to_string()).unwrap_or_default(),
        Some(manifest) => manifest.url.clone(),
    };
    let digest = plan.manifest.as_ref().and_then(|manifest| manifest.digest.clone());
    let start = Start { run_id: job.run, started: node.now(), what, digest };
    Recording::begin(Some(&history).filter(|_| !job.is_dry()), &start)
}

fn plan(
    node: &Node,
    job: &Job,
    source: Option<&Source>,
    exchange: &Arc<dyn Exchange>,
    host: &Host,
) -> Result<Plan, Vec<Diagnostic>> {
    let gather = Arc::clone(&node.facts);
    let mut inputs = Inputs::new(move || gather(), node.environ.clone(), None);
    inputs.exchange = Some(Arc::clone(exchange));
    match (&job.command.action, job.manifest(), source) {
        (Action::Ensure(ensure), ..) => engine::plan_one(&ensure.kind, &Value::Object(ensure.properties.clone()), &inputs, host),
        (_, Some(manifest), Some(source)) => {
            outside::lay(node, &mut inputs, host).map_err(|wrong| vec![wrong])?;
            let signed = manifest.data.clone().into_iter().collect();
            let signed = Some(Value::Object(signed)).filter(|_| !manifest.data.is_empty());
            // What was signed wins over what the host says.
            inputs.data = match (inputs.data.take(), signed) {
                (Some(outside), Some(signed)) => Some(merge::deep_merge(outside, signed)),
                (outside, signed) => outside.or(signed),
            };
            engine::plan_manifest(source, &inputs, host)
        }
        _ => Err(vec![Diagnostic::new("there is no manifest")]),
    }
}

/// A manifest that can't be planned is a failed run, which the fleet view shows as one.
fn not_planned(node: &Node, job: &Job, source: Option<&Source>, wrong: &[Diagnostic]) -> Ended {
    let why = wrong.iter().take(FAILURES).map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let manifest = source.map(|source| ManifestId { source: source.name.clone(), digest: source.digest.clone() });
    let state = state(node, job, manifest, RunOutcome::Failed, Some(why.clone()), Summary::default());
    publish_state(node, job, &state);
    Ended { apply: Some(state), ..Ended::failed(why) }
}

fn state(
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
    }
}

/// A look at the health alone is published when it is not well.
fn publish_health(node: &Node, job: &Job, state: &ApplyState, health: Option<HealthStatus>) {
    if health.is_some_and(|health| health != HealthStatus::Ok) {
        let event = node.event(EventKind::Health, state.event_id, say::json(state), Class::Result);
        node.post(&Message { command: Some(job.digest().to_owned()), ..event });
    }
}

fn publish_state(node: &Node, job: &Job, state: &ApplyState) {
    let event = node.event(EventKind::Run, state.event_id, say::json(state), Class::Result);
    node.post(&Message { command: Some(job.digest().to_owned()), ..event });
    node.board.change(|standing| standing.last_run = Some(state.clone()));
}

/// Hears the events of a run as they happen.
struct Heard<'a> {
    node: &'a Node,
    job: &'a Job,
    last: Option<TransactionEvent>,
    failures: BTreeMap<String, String>,
    health: Option<HealthStatus>,
    /// For a dry run: what it would change.
    changes: Option<Changes>,
    /// For a look at health checks: what they found.
    checked: Vec<CheckedHealth>,
}

impl<'a> Heard<'a> {
    fn new(node: &'a Node, job: &'a Job) -> Self {
        let changes = job.command.options.noop.then(|| Changes::of(job));
        Self { node, job, last: None, failures: BTreeMap::new(), health: None, changes, checked: Vec::new() }
    }

    fn hear(&mut self, event: &TransactionEvent) {
        let matters = event.outcome() != Outcome::Stable || !event.errors.is_empty();
        if matters || self.node.settings().events == Publish::All {
            let payload = say::json(&within_size(event.clone()));
            let event = self.node.event(EventKind::Transaction, event.event_id, payload, Class::Event);
            self.node.post(&Message { command: Some(self.job.digest().to_owned()), ..event });
        }
        if matches!(event.outcome(), Outcome::Failed | Outcome::Unmet) && self.failures.len() < FAILURES {
            let mut error = event.errors.join("; ");
            if error.is_empty() {
                error = format!("requirements are not met: {}", event.unmet_requirements.join(", "));
            }
            let end = error.char_indices().nth(ERROR_LENGTH).map_or(error.len(), |(end, _)| end);
            error.truncate(end);
            self.failures.insert(event.label(), error);
        }
        let checked = event.health_check.iter().map(|check| check.status);
        self.health = checked.chain(self.health).max_by_key(|status| status.gravity());
        if let Some(changes) = &mut self.changes {
            changes.hear(event);
        }
        if self.job.health_check_only {
            let of =
                |result: &HealthResult| CheckedHealth { channel: String::new(), resource: event.label(), result: result.clone() };
            self.checked.extend(event.health_check.iter().map(of));
        }
        self.last = Some(event.clone());
    }
}
