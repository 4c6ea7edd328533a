//! The records of a run: the events that are published, the history, and the counts of the result. The records go into the
//! state directory of the agent, which the run itself cannot reach.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::config::PublishEvents;
use crate::diag::error_chain;
use crate::engine::Plan;
use crate::model::{HealthResult, HealthStatus, ManifestId, ResourceOutcome, TransactionEvent, lock};
use crate::store::history::{Recording, RunEnd, RunStart};
use crate::store::{History, OutboxMessage, Priority};
use crate::wire::report::HealthReport;
use crate::wire::subject::EventKind;

use super::approval::PlanRecorder;
use super::change_causes::ChangeCauses;
use super::context::RunContext;
use super::job::{Job, JobKind};
use super::result::{truncate_error, within_size};
use crate::agent::status::messages;

/// Most failed resources that a result names. The stream of events has all of them.
const MAX_FAILURES: usize = 10;

/// The records of one run. Clones share them.
#[derive(Clone)]
pub(in crate::agent) struct RunRecorder(Arc<Mutex<RecorderState>>);

struct RecorderState {
    sink: RunEventSink,
    recording: Recording,
    /// The begin of a repair of drift, which is recorded with the first event that matters.
    pending_start: Option<(History, RunStart)>,
    manifest: Option<ManifestId>,
}

impl RunRecorder {
    pub(in crate::agent) fn new(context: &Arc<RunContext>, job: &Job) -> Self {
        Self(Arc::new(Mutex::new(RecorderState {
            sink: RunEventSink::new(context, job),
            recording: Recording::default(),
            pending_start: None,
            manifest: None,
        })))
    }

    /// Records the begin of the run.
    pub(in crate::agent) fn record_begin(&self, context: &RunContext, job: &Job, what: String, manifest: Option<ManifestId>) {
        let mut records = lock(&self.0);
        let history = History::in_directory(context.settings.now().state_dir.join("runs"));
        let digest = manifest.as_ref().and_then(|manifest| manifest.digest.clone());
        let start = RunStart { run_id: job.run, started: context.identity.now(), what, digest };
        // The history has no noop runs, and no checks that found everything as wanted.
        if job.selection.is_some() && !job.is_dry() {
            records.pending_start = Some((history, start));
        } else {
            records.recording = Recording::begin(Some(&history).filter(|_| !job.is_dry()), &start);
        }
        records.manifest = manifest;
    }

    /// Records an event.
    pub(in crate::agent) fn record_event(&self, event: TransactionEvent) {
        let mut records = lock(&self.0);
        let matters = event.outcome() != ResourceOutcome::Stable;
        records.sink.receive(event);
        if let Some((history, start)) = records.pending_start.take_if(|_| matters) {
            records.recording = Recording::begin(Some(&history), &start);
        }
        let RecorderState { sink: heard, recording, .. } = &mut *records;
        if let Some(event) = &heard.record.last {
            recording.event(event);
        }
    }

    /// Records the end of the run. Returns the collected events, and the manifest.
    pub(in crate::agent) fn record_end(self, end: &RunEnd) -> (RunRecord, Option<ManifestId>) {
        let mut records = lock(&self.0);
        if let Err(error) = std::mem::take(&mut records.recording).end(end) {
            tracing::warn!("cannot write the run to the history: {}", error_chain(&error));
        }
        (std::mem::take(&mut records.sink.record), records.manifest.take())
    }
}

/// Returns the name of a run in the history.
pub(in crate::agent) fn run_name(job: &Job, plan: &Plan) -> String {
    match job.manifest() {
        None => plan.resources.first().map(|planned| planned.reference().to_string()).unwrap_or_default(),
        Some(manifest) => manifest.url.clone(),
    }
}

fn without_details(event: TransactionEvent) -> TransactionEvent {
    TransactionEvent { properties: Value::Null, status: None, health_check: Vec::new(), diff: None, ..event }
}

/// Receives the events of a run as they happen.
pub(in crate::agent) struct RunEventSink {
    context: Arc<RunContext>,
    job: Job,
    pub(in crate::agent) record: RunRecord,
}

/// The part of the events of a run that its result needs.
#[derive(Default)]
pub(in crate::agent) struct RunRecord {
    pub(in crate::agent) last: Option<TransactionEvent>,
    pub(in crate::agent) failures: BTreeMap<String, String>,
    pub(in crate::agent) health: Option<HealthStatus>,
    /// The changes that a noop run would make.
    pub(in crate::agent) changes: Option<PlanRecorder>,
    /// The reports of health checks, for an observation of health checks.
    pub(in crate::agent) checked: Vec<HealthReport>,
    /// The reasons for the changes.
    pub(in crate::agent) causes: ChangeCauses,
    /// The events of a repair of drift, without details.
    pub(in crate::agent) checks: Vec<TransactionEvent>,
}

impl RunEventSink {
    pub(in crate::agent) fn new(context: &Arc<RunContext>, job: &Job) -> Self {
        let changes = job.noop.then(|| PlanRecorder::for_job(job));
        let record = RunRecord { changes, causes: ChangeCauses::for_job(context, job), ..RunRecord::default() };
        Self { context: Arc::clone(context), job: job.clone(), record }
    }

    pub(in crate::agent) fn receive(&mut self, mut event: TransactionEvent) {
        self.record.causes.record(&mut event, self.context.identity.now());
        let matters = event.outcome() != ResourceOutcome::Stable || !event.errors.is_empty();
        if matters || self.context.settings.now().events == PublishEvents::All {
            let payload = messages::json(&within_size(event.clone()));
            let event = self.context.publisher.event(EventKind::Transaction, event.event_id, payload, Priority::Event);
            self.context.publisher.post(&OutboxMessage { command: Some(self.job.digest().to_owned()), ..event });
        }
        if matches!(event.outcome(), ResourceOutcome::Failed | ResourceOutcome::Unmet)
            && self.record.failures.len() < MAX_FAILURES
        {
            let mut error = event.errors.join("; ");
            if error.is_empty() {
                error = format!("requirements are not met: {}", event.unmet_requirements.join(", "));
            }
            self.record.failures.insert(event.label(), truncate_error(error));
        }
        let checked = event.health_check.iter().map(|check| check.status);
        self.record.health = checked.chain(self.record.health).max_by_key(|status| status.severity());
        if let Some(changes) = &mut self.record.changes {
            changes.record(&event);
        }
        if self.job.kind == JobKind::HealthCheck {
            let of =
                |result: &HealthResult| HealthReport { channel: String::new(), resource: event.label(), result: result.clone() };
            self.record.checked.extend(event.health_check.iter().map(of));
        }
        let is_told = self.job.selection.is_some() || event.outcome() != ResourceOutcome::Stable;
        if self.job.kind == JobKind::Reconcile && is_told {
            self.record.checks.push(without_details(event.clone()));
        }
        self.record.last = Some(event);
    }
}
