//! A run: the resources of a plan in their order, each with an event.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::diag::error_chain;
use crate::host::Host;
use crate::manifest::Ordering;
use crate::model::summary::SummaryBuilder;
use crate::model::{ResourceRef, RunOutcome, Summary, TransactionEvent, WatchTarget};
use crate::resource::Providers;
use crate::store::Session;

use super::allowed_targets;
use super::batch;
use super::converge::{LateTargets, ResourceRun};
use super::plan::{Plan, PlannedResource};
use super::remaining::Remaining;
use super::run_outputs::RunOutputs;
use super::session_view::SessionView;
use super::settings::RunSettings;
use super::state_capture::ManifestResources;
use super::subscribers::Subscribers;

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunReport {
    /// The counts over the session.
    pub summary: Summary,
    /// The outcome.
    pub outcome: RunOutcome,
    /// The number of resources of the manifest that were not reached; 0 with a selection.
    pub unreached: usize,
    /// The error that ended the run early, when the session could not be written.
    pub error: Option<String>,
    /// The watch targets of resources whose plan does not know them: with late templates, or with a nested manifest.
    pub late_targets: BTreeMap<ResourceRef, Vec<WatchTarget>>,
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
        manifest: ManifestResources::default(),
        session: SessionView::new(session),
        outputs: RunOutputs::new(&settings.outputs),
        sink,
        tally,
        seq: 0,
        held: None,
        depth: 0,
        interrupted: false,
        error: None,
        late_targets: LateTargets::default(),
        outermost: None,
    };
    let seen = host.clone().with_secrets(plan.shared_secrets());
    let seen = if settings.noop { seen.for_dry_run() } else { seen };
    let counts = run.run_plan(plan, settings, &seen);
    if !(run.interrupted || plan.fail_on_error && counts.failed > 0) {
        run.reverse_removed(plan, settings, &seen);
    }
    let summary = run.tally.summary();
    let interrupted = run.interrupted || host.is_over();
    let outcome = if interrupted { RunOutcome::Interrupted } else { RunOutcome::from_summary(&summary) };
    let wanted = if settings.selection.is_some() { counts.reached } else { plan.resources.len() };
    RunReport {
        summary,
        outcome,
        unreached: wanted.saturating_sub(counts.reached),
        error: run.error,
        late_targets: run.late_targets.into_inner(),
    }
}

/// A run, with its nested manifests.
pub(super) struct Run<'a> {
    providers: Arc<Providers>,
    /// The subscribers in this manifest and those around it.
    subscribers: Subscribers,
    /// The resources of all manifests of the run.
    pub(super) manifest: ManifestResources,
    pub(super) outputs: RunOutputs,
    pub(super) session: SessionView<'a>,
    sink: &'a mut dyn FnMut(TransactionEvent),
    tally: SummaryBuilder,
    seq: u64,
    /// The events of a nested manifest that wait for those of earlier resources.
    pub(super) held: Option<Vec<TransactionEvent>>,
    /// The number of manifests around the current one.
    pub(super) depth: usize,
    pub(super) interrupted: bool,
    pub(super) error: Option<String>,
    late_targets: LateTargets,
    /// The resource whose manifest, or a manifest within it, runs now.
    outermost: Option<ResourceRef>,
}

/// The counts of the resources of one manifest.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) reached: usize,
    pub(super) changed: u64,
    pub(super) failed: u64,
}

impl Counts {
    /// Counts the event of a resource. A dry run also notes the effects, for later resources.
    pub(super) fn add(&mut self, event: &TransactionEvent, planned: &PlannedResource, host: &Host) {
        if event.noop && event.changed {
            host.note_effects(planned.effects(), event.requested_ensure == "absent");
        }
        self.changed += u64::from(event.changed);
        self.failed += u64::from(event.failed || !event.unmet_requirements.is_empty());
    }
}

impl Run<'_> {
    /// Runs the resources of one plan.
    pub(super) fn run_plan(&mut self, plan: &Plan, settings: &RunSettings, host: &Host) -> Counts {
        let mut counts = Counts::default();
        // A nested manifest runs as a whole.
        let selection = settings.selection.as_deref().filter(|_| self.depth == 0);
        let features = plan.features();
        if settings.refreshes.is_some() && features.subscribes {
            self.subscribers.add(&plan.resources);
        }
        self.manifest.add(plan, settings);
        if !settings.health_check_only {
            match selection {
                Some(selection) => {
                    let selected = selection.resources.iter().filter_map(|number| plan.resources.get(*number));
                    batch::prefetch(selected, &self.providers, settings, host);
                }
                None => batch::prefetch(plan.resources.iter(), &self.providers, settings, host),
            }
        }
        if features.receives || features.nests {
            self.outputs.add_uses(&plan.resources);
        }
        if let Some(outermost) = &self.outermost {
            let authorizer = settings.authorizer.as_deref();
            let targets = plan.resources.iter().flat_map(|planned| allowed_targets::of_planned(planned, authorizer, host));
            self.late_targets.borrow_mut().entry(outermost.clone()).or_default().extend(targets);
        }
        if plan.ordering == Ordering::Graph {
            return self.run_graph(plan, plan.graph(), settings, host);
        }
        let mut remaining = Remaining::new(plan, selection);
        while self.error.is_none() {
            let together = batch::batch_length(remaining.iter(), settings, plan.fail_on_error);
            if together == 0 {
                break;
            }
            if host.is_over() {
                self.interrupted = true;
                break;
            }
            let now = remaining.advance(together);
            counts.reached += now.len();
            let mut failed = false;
            // Values that templates made are freed when their resource is done.
            let taken = plan.scope.budget().used_memory();
            if let Some(first) = now.first() {
                host.notify_started(first.kind.name(), first.decoded.name(), now.len() - 1);
                tracing::debug!(resource = %first.reference(), "started");
            }
            let events = self.converge_resources(plan, &now, settings, host);
            host.notify_ended();
            plan.scope.budget().release_since(taken, 0);
            for (event, planned) in events.into_iter().zip(now) {
                counts.add(&event, planned, host);
                failed |= event.failed;
                if event.changed && !event.noop {
                    remaining.select_subscribers(planned);
                }
                remaining.select_receivers(&self.outputs.take_changed());
                self.record(event);
            }
            if plan.fail_on_error && failed && !settings.health_check_only {
                break;
            }
        }
        counts
    }

    pub(super) fn converge_resources(
        &mut self,
        plan: &Plan,
        now: &[&PlannedResource],
        settings: &RunSettings,
        host: &Host,
    ) -> Vec<TransactionEvent> {
        if let [planned] = now
            && let Some(nested) = planned.decoded.nested()
        {
            if self.depth == 0 {
                self.outermost = Some(planned.reference());
                self.late_targets
                    .borrow_mut()
                    .insert(planned.reference(), allowed_targets::of_planned(planned, settings.authorizer.as_deref(), host));
            }
            let event = self.nested(plan, planned, &nested, settings, host);
            if self.depth == 0 {
                self.outermost = None;
            }
            return vec![event];
        }
        let resource_runs: Vec<_> = now.iter().map(|planned| self.resource_run(plan, planned, settings, host)).collect();
        match resource_runs.as_slice() {
            [one] => vec![one.event()],
            several => batch::apply_batch(several),
        }
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
            manifest: &self.manifest,
            session: &self.session,
            late: RefCell::default(),
            outputs: &self.outputs,
            late_targets: &self.late_targets,
            produced: RefCell::default(),
        }
    }

    /// Records an event as the next one of the run.
    pub(super) fn record(&mut self, mut event: TransactionEvent) {
        if let Some(held) = &mut self.held {
            self.session.add_ahead(&event);
            held.push(event);
            return;
        }
        self.seq += 1;
        event.seq = self.seq;
        self.tally.add(&event);
        if let Err(cause) = self.session.record(&event) {
            self.error = Some(error_chain(&cause));
        }
        (self.sink)(event);
    }
}
