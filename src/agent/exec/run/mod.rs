//! A run of the engine: plans a manifest or a resource, runs it, and returns its result.
//!
//! `confined.rs` is the part on the confined thread. `exec/event_sink.rs` keeps the records of the run outside of it.

mod confined;

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Instant;

use crate::diag::{Diagnostic, error_chain};
use crate::host::confine::{ConfineError, Confined, Worker};
use crate::host::{Cancel, Checkpoint, Host, LockMode, ProgressEvent, RunLock, RunLockError, checkpoint, run_lock};
use crate::manifest::ManifestText;
use crate::model::summary::Summary;
use crate::model::{ApplyState, DiscoveryClient, ManifestId, RunOutcome};
use crate::store::history::RunEnd;
use crate::trust::RejectionCode;

use super::confinement::{self, Placement, UnconfinedBus};
use super::context::RunContext;
use super::event_sink::RunRecorder;
use super::job::{Job, JobKind};
use super::result::{RunResult, WatchUpdate, outcome_and_reason};
use super::summary::{publish_health, publish_state, summary};
use crate::agent::config::limits;
use crate::agent::exec::approval;

use confined::{ConfinedResult, ConfinedRun};

/// Most problems of a manifest that a result names.
const MAX_PROBLEMS: usize = 10;

/// Plans and runs, until the end, `cancel` or `until`. The run has a confined thread of its own. The calling thread keeps the
/// records of the run and does the work that must stay outside.
pub(in crate::agent) fn run(
    context: &Arc<RunContext>,
    job: &Job,
    source: Option<&ManifestText>,
    exchange: &Arc<dyn DiscoveryClient>,
    cancel: Cancel,
    until: Instant,
) -> RunResult {
    let approved = match approval::approved_plan(context, job) {
        Ok(approved) => approved,
        Err(why) => return RunResult::refused(RejectionCode::PlanChanged, why),
    };
    let settings = context.settings.now();
    let mut host = Host::with_journal(context.search_path.as_deref(), Arc::clone(&context.orphans.journal))
        .with_deadline(cancel, Some(until))
        .with_limits(limits::resource_limits(&settings.limits));
    host = host.with_listener(Arc::new(|news: ProgressEvent<'_>| {
        if let ProgressEvent::Message(what) = news {
            tracing::info!("{what}");
        }
    }));
    let directory = source.and_then(|source| source.directory.as_deref());
    if let Some(directory) = directory {
        host = host.with_directory(directory);
    }
    // A local run of a person goes first. Local runs wait for this run, too.
    let _turn = match acquire_run_lock(context, job, &host, until) {
        Ok(turn) => turn,
        Err(ended) => return *ended,
    };
    let record = RunRecorder::new(context, job);
    let confinement = confinement::from_settings(&settings, directory);
    let inside = |confined: Result<Confined, ConfineError>, worker: Worker| {
        let confined =
            confined.map_err(|error| Box::new(RunResult::failed(format!("cannot confine the run: {}", error_chain(&error)))))?;
        let exchange = Arc::new(UnconfinedBus { inner: Arc::clone(exchange), worker: worker.clone() });
        let placement = Arc::new(Placement {
            worker,
            write: confined.write,
            unnamed_types: settings.limits.paths.is_some() && settings.limits.types.is_none(),
        });
        confined::run(&ConfinedRun { context, job, source, approved, host: &host, exchange, placement, record: &record })
    };
    let ran = match confinement::run_confined(&confinement, inside) {
        Some(Ok(ran)) => ran,
        Some(Err(ended)) => return *ended,
        None => return RunResult::failed("the run panicked: the program has an error"),
    };
    let (report, watched) = match ran {
        ConfinedResult::Unplanned(wrong) => return not_planned(context, job, source, &wrong),
        ConfinedResult::Planned(report, watched) => (*report, watched),
    };
    checkpoint(Checkpoint::RunEnded);
    let (told, manifest) =
        record.record_end(&RunEnd { ended: context.identity.now(), outcome: report.outcome, summary: report.summary.clone() });
    let (outcome, why) = outcome_and_reason(report.outcome, report.error, host.cancel(), job);
    let corrective = told.causes.finish(context, job.selection.is_none() && report.outcome != RunOutcome::Interrupted);
    let state = ApplyState { corrective, ..summary(context, job, manifest, report.outcome, why.clone(), report.summary) };
    // Checks that follow from the agent's own changes are of no interest.
    let is_quiet = job.selection.is_some() && report.outcome == RunOutcome::Stable;
    if job.kind == JobKind::HealthCheck {
        publish_health(context, job, &state, told.health);
    } else if !is_quiet {
        publish_state(context, job, state.clone());
    }
    // An incomplete plan must not be approved.
    let whole = report.outcome != RunOutcome::Interrupted && why.is_none();
    RunResult {
        event: told.last,
        apply: Some(state),
        failures: told.failures,
        plan: told.changes.filter(|_| whole).map(|changes| changes.into_plan(job)),
        checked: told.checked,
        planned: true,
        health: told.health,
        watch: WatchUpdate { resources: watched, late: report.late_targets, checks: told.checks },
        ..RunResult::new(outcome, why)
    }
}

/// Acquires the run lock for a run that changes something, after local runs. Returns none where the lock cannot be used.
fn acquire_run_lock(context: &RunContext, job: &Job, host: &Host, until: Instant) -> Result<Option<RunLock>, Box<RunResult>> {
    let Some(path) = run_lock::path(|name| context.environ.get(name).map(OsString::from)).filter(|_| !job.is_dry()) else {
        return Ok(None);
    };
    let what = format!("ensign agent, command {}", job.id());
    let waiting = |holder: &run_lock::RunLockHolder| host.notify(&format!("waiting for another run: {holder}"));
    match RunLock::acquire(&path, &what, LockMode::Shared, until, host, &waiting) {
        Ok(turn) => Ok(Some(turn)),
        Err(RunLockError::RunEnded(_)) if host.cancel().is_cancelled() => {
            Err(Box::new(host.cancel().reason().map_or_else(RunResult::interrupted, RunResult::cancelled)))
        }
        Err(RunLockError::Busy(holder) | RunLockError::RunEnded(holder)) => {
            Err(Box::new(RunResult::failed(format!("another run took longer than {}: {holder}", job.command.options.timeout))))
        }
        Err(RunLockError::File(error)) => {
            tracing::warn!("cannot use the run lock, so that runs of this host may overlap: {}", error_chain(&error));
            Ok(None)
        }
    }
}

/// Returns the result of a manifest that cannot be planned: a failed run, which the fleet view shows as one.
fn not_planned(context: &RunContext, job: &Job, source: Option<&ManifestText>, wrong: &[Diagnostic]) -> RunResult {
    let why = wrong.iter().take(MAX_PROBLEMS).map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let manifest = source.map(|source| ManifestId { source: source.name.clone(), digest: source.digest.clone() });
    let state = summary(context, job, manifest, RunOutcome::Failed, Some(why.clone()), Summary::default());
    publish_state(context, job, state.clone());
    RunResult { apply: Some(state), ..RunResult::failed(why) }
}
