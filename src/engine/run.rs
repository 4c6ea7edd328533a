//! A run: the resources of a plan in their order, each with an event.

use std::cell::RefCell;
use std::sync::Arc;

use crate::diag::error_chain;
use crate::host::Host;
use crate::model::summary::SummaryBuilder;
use crate::model::{RunOutcome, Summary, TransactionEvent};
use crate::resource::Providers;
use crate::store::Session;

use super::batch;
use super::converge::ResourceRun;
use super::plan::{Plan, PlannedResource};
use super::run_outputs::RunOutputs;
use super::settings::RunSettings;
use super::subscribers::Subscribers;

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunReport {
    /// The counts over the session.
    pub summary: Summary,
    /// The outcome.
    pub outcome: RunOutcome,
    /// The number of resources of the manifest that were not reached.
    pub unreached: usize,
    /// The error that ended the run early, when the session could not be written.
    pub error: Option<String>,
}

/// Runs a plan. Every reached resource leaves an event in `session`, and then in `sink`.
pub fn run(
    plan: &Plan,
    settings: &RunSettings,
    host: &Host,
    session: &mut dyn Session,
    sink: &mut dyn FnMut(TransactionEvent),
) -> RunReport {
    let mut tally = SummaryBuilder::default();
    tally.start(host.now());
    let mut run = Run {
        providers: Arc::default(),
        subscribers: Subscribers::default(),
        outputs: RunOutputs::default(),
        session,
        sink,
        tally,
        seq: 0,
        depth: 0,
        interrupted: false,
        error: None,
    };
    let seen = host.clone().with_secrets(plan.shared_secrets());
    let seen = if settings.noop { seen.for_dry_run() } else { seen };
    let counts = run.run_plan(plan, settings, &seen);
    let summary = run.tally.summary();
    let interrupted = run.interrupted || host.is_over();
    let outcome = if interrupted { RunOutcome::Interrupted } else { RunOutcome::from_summary(&summary) };
    RunReport { summary, outcome, unreached: plan.resources.len().saturating_sub(counts.reached), error: run.error }
}

/// A run, with its nested manifests.
pub(super) struct Run<'a> {
    providers: Arc<Providers>,
    /// The subscribers in this manifest and those around it.
    subscribers: Subscribers,
    outputs: RunOutputs,
    session: &'a mut dyn Session,
    sink: &'a mut dyn FnMut(TransactionEvent),
    tally: SummaryBuilder,
    seq: u64,
    /// The number of manifests around the current one.
    pub(super) depth: usize,
    interrupted: bool,
    error: Option<String>,
}

/// The counts of the resources of one manifest.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) reached: usize,
    pub(super) changed: u64,
    pub(super) failed: u64,
}

impl Run<'_> {
    /// Runs the resources of one plan.
    pub(super) fn run_plan(&mut self, plan: &Plan, settings: &RunSettings, host: &Host) -> Counts {
        let mut counts = Counts::default();
        if settings.refreshes.is_some() {
            self.subscribers.add(&plan.resources);
        }
        if !settings.health_check_only {
            batch::prefetch(&plan.resources, &self.providers, settings, host);
        }
        self.outputs.add_uses(&plan.resources);
        let mut left = plan.resources.as_slice();
        while !left.is_empty() && self.error.is_none() {
            if host.is_over() {
                self.interrupted = true;
                break;
            }
            let together = batch::batch_length(left, settings, plan.fail_on_error).clamp(1, left.len());
            let (now, later) = left.split_at(together);
            left = later;
            counts.reached += now.len();
            let mut failed = false;
            // Values that templates made are freed when their resource is done.
            let taken = plan.scope.budget().used_memory();
            if let Some(first) = now.first() {
                host.notify_started(first.kind.name(), first.decoded.name(), now.len() - 1);
                tracing::debug!(resource = %first.reference(), "started");
            }
            let events = self.converge_resources(plan, now, settings, host);
            host.notify_ended();
            plan.scope.budget().release_since(taken, 0);
            for (event, planned) in events.into_iter().zip(now) {
                if event.noop && event.changed {
                    host.note_effects(planned.effects(), event.requested_ensure == "absent");
                }
                counts.changed += u64::from(event.changed);
                counts.failed += u64::from(event.failed || !event.unmet_requirements.is_empty());
                failed |= event.failed;
                self.record(event);
            }
            if plan.fail_on_error && failed && !settings.health_check_only {
                break;
            }
        }
        counts
    }

    fn converge_resources(
        &mut self,
        plan: &Plan,
        now: &[PlannedResource],
        settings: &RunSettings,
        host: &Host,
    ) -> Vec<TransactionEvent> {
        if let [planned] = now
            && let Some(nested) = planned.decoded.nested()
        {
            return vec![self.nested(plan, planned, &nested, settings, host)];
        }
        let resource_runs: Vec<_> = now.iter().map(|planned| self.resource_run(plan, planned, settings, host)).collect();
        let events = match resource_runs.as_slice() {
            [one] => vec![one.event()],
            several => batch::apply_batch(several),
        };
        events.into_iter().map(|event| self.numbered(event)).collect()
    }

    pub(super) fn resource_run<'b>(
        &'b self,
        plan: &'b Plan,
        planned: &'b PlannedResource,
        settings: &'b RunSettings,
        host: &'b Host,
    ) -> ResourceRun<'b> {
        ResourceRun {
            plan,
            planned,
            settings,
            host,
            providers: &self.providers,
            subscribers: &self.subscribers,
            session: &*self.session,
            late: RefCell::default(),
            outputs: &self.outputs,
            produced: RefCell::default(),
        }
    }

    /// Numbers an event within the run.
    pub(super) fn numbered(&mut self, mut event: TransactionEvent) -> TransactionEvent {
        self.seq += 1;
        event.seq = self.seq;
        event
    }

    fn record(&mut self, event: TransactionEvent) {
        self.tally.add(&event);
        if let Err(cause) = self.session.record(&event) {
            self.error = Some(error_chain(&cause));
        }
        (self.sink)(event);
    }
}
