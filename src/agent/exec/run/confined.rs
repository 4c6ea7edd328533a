//! The confined part of a run: planning and the engine. The unconfined part prepares everything of the agent that it needs.

use std::sync::Arc;

use serde_json::Value;

use crate::config::BusDataPolicy;
use crate::diag::Diagnostic;
use crate::engine::reactive::{WatchedResource, watched_resources};
use crate::engine::{self, Diff, Plan, RunInputs, RunReport};
use crate::host::{Checkpoint, Host, checkpoint};
use crate::manifest::ManifestText;
use crate::model::{DiscoveryClient, RunOutcome, merge};
use crate::store::MemorySession;
use crate::trust::RejectionCode;
use crate::wire::command::Action;
use crate::wire::report::PlannedChanges;

use super::super::confinement::{Placement, UnconfinedBus};
use super::super::host_data;
use crate::agent::config::limits;
use crate::agent::config::limits::RunAuthorizer;
use crate::agent::exec::approval::PlanRecorder;
use crate::agent::exec::context::RunContext;
use crate::agent::exec::event_sink::{self, RunRecorder};
use crate::agent::exec::job::{Job, JobKind};
use crate::agent::exec::refreshes::AgentRefreshes;
use crate::agent::exec::result::{RunResult, outcome_and_reason};
use crate::agent::exec::reversals::AgentReversals;

/// The inputs of the confined thread.
pub(super) struct ConfinedRun<'a> {
    pub(super) context: &'a Arc<RunContext>,
    pub(super) job: &'a Job,
    pub(super) source: Option<&'a ManifestText>,
    pub(super) approved: Option<PlannedChanges>,
    pub(super) host: &'a Host,
    pub(super) exchange: Arc<UnconfinedBus>,
    pub(super) placement: Arc<Placement>,
    pub(super) record: &'a RunRecorder,
}

/// The result of the confined thread.
pub(super) enum ConfinedResult {
    /// The run could not be planned, for these reasons.
    Unplanned(Vec<Diagnostic>),
    /// The engine ran the plan. With the resources to watch from now on.
    Planned(Box<RunReport>, Option<Vec<WatchedResource>>),
}

/// Plans the run and runs it.
///
/// # Errors
/// When the run ends before the engine starts.
pub(super) fn run(inside: &ConfinedRun<'_>) -> Result<ConfinedResult, Box<RunResult>> {
    let ConfinedRun { context, job, host, record, .. } = *inside;
    let worker = &inside.placement.worker;
    let broke = |_| Box::new(RunResult::failed("the run panicked: the program has an error"));
    let plan = match inside.plan() {
        Ok(plan) => plan,
        Err(wrong) => return Ok(ConfinedResult::Unplanned(wrong)),
    };
    checkpoint(Checkpoint::RunPlanned);
    // A plan from other facts or data may have other resources, and then runs as a whole.
    let selection =
        job.selection.as_ref().filter(|repair| repair.matches_plan(&plan)).map(|repair| Arc::clone(&repair.selection));
    let is_whole = selection.is_none();
    let outputs = match job.is_watched() {
        true => context.outputs.of_run(job.id(), is_whole),
        false => engine::OutputStore::default(),
    };
    let settings =
        engine::RunSettings { selection, outputs, ..inside.settings().map_err(|why| Box::new(RunResult::failed(why)))? };
    if let Some(approved) = &inside.approved {
        let dry = engine::RunSettings { noop: true, registrar: None, ..settings.clone() };
        let mut changes = PlanRecorder::for_job(job);
        let report = engine::run(&plan, &dry, host, &mut MemorySession::default(), &mut |event| changes.record(&event));
        if report.outcome == RunOutcome::Interrupted {
            let (outcome, why) = outcome_and_reason(report.outcome, report.error, host.cancel(), job);
            return Err(Box::new(RunResult::new(outcome, why)));
        }
        if let Err(why) = approved.check_unchanged(&changes.into_plan(job)) {
            return Err(Box::new(RunResult::refused(
                RejectionCode::PlanChanged,
                format!("the planned changes differ from the approved ones: {why}"),
            )));
        }
    }
    let (begun, owner, asked) = (record.clone(), Arc::clone(context), job.clone());
    let (name, manifest) = (event_sink::run_name(job, &plan), plan.manifest.clone());
    worker.run(move || begun.record_begin(&owner, &asked, name, manifest)).map_err(broke)?;
    let mut session = MemorySession::default();
    let mut lost = false;
    let report = engine::run(&plan, &settings, host, &mut session, &mut |event| {
        let record = record.clone();
        lost |= worker.post(move || record.record_event(event)).is_err();
    });
    if lost {
        return Err(broke(crate::host::confine::WorkerGone));
    }
    let watched = (job.is_watched() && is_whole).then(|| watched_resources(&plan, settings.authorizer.as_deref(), host));
    Ok(ConfinedResult::Planned(Box::new(report), watched))
}

impl ConfinedRun<'_> {
    /// Returns the settings of the engine.
    ///
    /// # Errors
    /// When the records of earlier runs can't be read.
    fn settings(&self) -> Result<engine::RunSettings, String> {
        let ConfinedRun { context, job, .. } = *self;
        let origin = job.command.signers().iter().min().cloned().unwrap_or_default();
        let worker = &self.placement.worker;
        let reversals = AgentReversals::read(context, job, worker, origin.clone())?;
        let exchange: Arc<dyn DiscoveryClient> = self.exchange.clone();
        Ok(engine::RunSettings {
            noop: job.is_dry() && job.kind != JobKind::HealthCheck,
            health_check_only: job.kind == JobKind::HealthCheck,
            selection: None,
            outputs: engine::OutputStore::default(),
            parallelism: engine::default_parallelism(),
            // The diff of a plan is for people. The diff of a run would only repeat the command.
            diff: if job.noop { Diff::Public } else { Diff::None },
            omit_details: false,
            run_id: job.run,
            node: Some(context.settings.now().node.clone()),
            authorizer: Some(Arc::new(self.authorizer())),
            registrar: context.settings.now().registration.is_published().then_some(exchange),
            refreshes: Some(Arc::new(AgentRefreshes { context: Arc::clone(context), worker: worker.clone(), origin })),
            reversals,
            pseudonymize: Some(pseudonymizer(context)),
            unconfined_thread: Some(self.placement.clone()),
        })
    }

    /// Returns the authorizer of this run.
    fn authorizer(&self) -> RunAuthorizer {
        let ConfinedRun { context, job, .. } = *self;
        let own = limits::own_files(&context.settings.now());
        let bundle = self.source.and_then(|source| source.directory.as_deref());
        RunAuthorizer::new(limits::node_limits(&context.settings.now()), job.rights.clone(), &own, bundle)
    }

    fn plan(&self) -> Result<Plan, Vec<Diagnostic>> {
        let ConfinedRun { context, job, host, .. } = *self;
        let worker = self.placement.worker.clone();
        let gather = Arc::clone(&context.facts);
        // Facts are gathered outside: they read files that a run may not, and run the scripts of the administrator.
        let facts = move || {
            let gather = Arc::clone(&gather);
            worker.run(move || gather.gather()).unwrap_or_default()
        };
        let mut inputs = RunInputs::new(facts, context.environ.clone(), None);
        inputs.exchange = Some(self.exchange.clone());
        inputs.types = context.settings.types();
        inputs.access = Arc::new(self.authorizer());
        inputs.bus = match context.settings.now().limits.bus_data {
            BusDataPolicy::Any => engine::BusData::Any,
            BusDataPolicy::Signed => engine::BusData::Signed { unsigned: Value::Null },
        };
        match (&job.command.action, job.manifest(), self.source) {
            (Action::Ensure(ensure), ..) => {
                engine::plan_one(&ensure.kind, &Value::Object(ensure.properties.clone()), &inputs, host)
            }
            (_, Some(manifest), Some(source)) => {
                let mut inputs = self.with_host_data(inputs)?;
                let signed = manifest.data.clone().into_iter().collect();
                let signed = Some(Value::Object(signed)).filter(|_| !manifest.data.is_empty());
                if let (engine::BusData::Signed { unsigned }, Some(signed)) = (&mut inputs.bus, &signed) {
                    merge::remove_overridden(unsigned, signed);
                }
                // Signed data has priority over the data of the host.
                inputs.data = match (inputs.data.take(), signed) {
                    (Some(outside), Some(signed)) => Some(merge::deep_merge(outside, signed)),
                    (outside, signed) => outside.or(signed),
                };
                engine::plan_manifest(source, &inputs, host)
            }
            _ => Err(vec![Diagnostic::new("the command has no manifest")]),
        }
    }

    /// Returns the inputs with the host data, which is read and kept outside of the confinement.
    fn with_host_data(&self, mut inputs: RunInputs) -> Result<RunInputs, Vec<Diagnostic>> {
        let (context, host) = (Arc::clone(self.context), self.host.clone());
        let laid = self.placement.worker.run(move || host_data::overlay(&context, &mut inputs, &host).map(|()| inputs));
        laid.unwrap_or_else(|gone| Err(Diagnostic::new(gone.to_string()))).map_err(|wrong| vec![wrong])
    }
}

/// Returns the pseudonymizer of digests, which uses the node key.
fn pseudonymizer(context: &Arc<RunContext>) -> engine::Pseudonymize {
    let context = Arc::clone(context);
    Arc::new(move |digest| context.durable.receipt_signer().pseudonymize(digest))
}
