//! Convergence steps that touch the host: observe, apply, verify. The steps borrow nothing of the run, so that a thread
//! outside of the confinement can take them too.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::diag::error_chain;
use crate::host::Host;
use crate::host::confine::Worker;
use crate::model::Secrets;
use crate::resource::{BindError, BoundResource, ChangeStep, ObservedResource, ParsedResource, Preview, Providers, ResourceType};

use super::redact;
use super::settings::Diff;
use super::state_capture::StateCapture;
use super::subscribers::PendingRecord;
use super::text_diff::unified_diff;

/// The thread on which a resource is managed.
#[derive(Clone, Copy)]
pub(super) enum RunThread<'a> {
    /// The thread of the run.
    Here,
    /// The thread outside of the confinement.
    Outside(&'a Worker),
}

/// The text of a panic, as events have it.
pub(super) const PANICKED: &str = "the resource type panicked; this is a bug in Ensign";

impl RunThread<'_> {
    /// Runs work on the thread, and waits for it.
    ///
    /// # Errors
    /// When the work panicked outside. A caller on this thread catches panics itself.
    pub(super) fn run<T: Send + 'static>(self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
        match self {
            Self::Here => Ok(work()),
            Self::Outside(worker) => worker.run(work).map_err(|_| PANICKED.to_owned()),
        }
    }
}

/// The part of the settings of a run that applying needs.
#[derive(Clone)]
pub(super) struct ApplySettings {
    pub(super) noop: bool,
    pub(super) omit_details: bool,
    pub(super) diff: Diff,
    pub(super) secrets: Arc<Secrets>,
    /// The refreshes that a change causes; recorded before the change.
    pub(super) refreshes: Option<PendingRecord>,
    /// The state to record before the first change.
    pub(super) capture: Option<StateCapture>,
}

/// The part of the run of a resource that touches the host. Any thread of the run can take it.
pub(super) struct ApplyTask {
    pub(super) settings: ApplySettings,
    pub(super) bound: Box<dyn BoundResource>,
    pub(super) host: Host,
    /// True for a refresh.
    pub(super) refresh: bool,
    /// The thread outside of the confinement, for a resource that needs it.
    pub(super) outside: Option<Worker>,
}

impl ApplyTask {
    /// Runs the task. A panic is a failure.
    pub(super) fn run(self) -> Result<Applied, String> {
        let Self { settings, bound, host, refresh, outside } = self;
        let place = outside.as_ref().map_or(RunThread::Here, RunThread::Outside);
        let ended = catch_unwind(AssertUnwindSafe(|| settings.apply_changes(place, bound, &host, refresh)));
        ended.unwrap_or_else(|_| Err(PANICKED.to_owned()))
    }
}

/// The result of an application.
pub(super) struct Applied {
    pub(super) ensure: String,
    pub(super) status: Option<Map<String, Value>>,
    pub(super) steps: Vec<ChangeStep>,
    pub(super) refreshed: bool,
    pub(super) stable: bool,
    pub(super) diff: Option<String>,
}

impl Applied {
    /// Returns the result of a nested manifest.
    pub(super) fn of_nested_manifest(steps: Vec<ChangeStep>, status: Map<String, Value>) -> Self {
        Self { ensure: "present".to_owned(), status: Some(status), steps, refreshed: false, stable: true, diff: None }
    }
}

/// The changes that a resource needs.
pub(super) struct PendingChanges {
    pub(super) steps: Vec<ChangeStep>,
    refreshed: bool,
    diff: Option<String>,
}

/// The result of an observation.
pub(super) enum Observation {
    /// The resource is converged.
    Converged(Applied),
    /// The resource needs these changes.
    Pending(PendingChanges),
}

/// Chooses the provider of a resource, on its thread.
pub(super) fn bind(
    place: RunThread<'_>,
    decoded: &Arc<dyn ParsedResource>,
    wanted: &str,
    providers: &Arc<Providers>,
    host: &Host,
) -> Result<Result<Box<dyn BoundResource>, BindError>, String> {
    let decoded = Arc::clone(decoded);
    match place {
        RunThread::Here => Ok(decoded.bind(wanted, providers, host)),
        RunThread::Outside(_) => {
            let (wanted, providers, host) = (wanted.to_owned(), Arc::clone(providers), host.clone());
            place.run(move || decoded.bind(&wanted, &providers, &host))
        }
    }
}

/// Applies resources of one type together, on their thread.
pub(super) fn apply_all(
    place: RunThread<'_>,
    kind: &'static dyn ResourceType,
    batch: Vec<Arc<dyn ParsedResource>>,
    wanted: &str,
    providers: &Arc<Providers>,
    host: &Host,
) -> Result<Vec<crate::resource::BatchResult>, String> {
    let (wanted, providers, host) = (wanted.to_owned(), Arc::clone(providers), host.clone());
    place.run(move || kind.apply_all(&batch, &wanted, &providers, &host))
}

impl ApplySettings {
    /// Observes a resource, applies its changes (or only reports them) and verifies it, on its thread.
    pub(super) fn apply_changes(
        &self,
        place: RunThread<'_>,
        bound: Box<dyn BoundResource>,
        host: &Host,
        refresh: bool,
    ) -> Result<Applied, String> {
        match place {
            RunThread::Here => self.apply_changes_here(bound.as_ref(), host, refresh),
            RunThread::Outside(_) => {
                let (how, host) = (self.clone(), host.clone());
                place.run(move || how.apply_changes_here(bound.as_ref(), &host, refresh))?
            }
        }
    }

    fn apply_changes_here(&self, bound: &dyn BoundResource, host: &Host, refresh: bool) -> Result<Applied, String> {
        let text = |error: crate::resource::ResourceError| error_chain(&error);
        if !self.noop {
            bound.refresh_cache(host).map_err(text)?;
        }
        let mut checked = bound.check(host, refresh).map_err(text)?;
        let due = self.pending_changes(checked.as_ref(), host);
        if self.noop {
            return Ok(self.unchanged(checked.as_ref(), due));
        }
        if let Some(capture) = &self.capture {
            capture.before(bound, host, !due.steps.is_empty())?;
        }
        if due.steps.is_empty() {
            return Ok(self.unchanged(checked.as_ref(), due));
        }
        if let Some(refreshes) = &self.refreshes {
            refreshes.record()?;
        }
        let applied = checked.apply(host).map_err(text);
        if let Some(capture) = &self.capture {
            capture.after(bound, host);
        }
        applied?;
        if !bound.converges() {
            return Ok(Applied { stable: false, ..self.applied(checked.as_ref(), due) });
        }
        drop(checked);
        self.verify_here(bound, host, due)
    }

    /// Observes a resource and returns its pending changes, on its thread. For resources that are applied together.
    pub(super) fn observe(
        &self,
        place: RunThread<'_>,
        bound: Box<dyn BoundResource>,
        host: &Host,
    ) -> Result<(Box<dyn BoundResource>, Observation), String> {
        let (how, host) = (self.clone(), host.clone());
        place.run(move || {
            let looked = how.observe_here(bound.as_ref(), &host)?;
            Ok((bound, looked))
        })?
    }

    fn observe_here(&self, bound: &dyn BoundResource, host: &Host) -> Result<Observation, String> {
        let text = |error: crate::resource::ResourceError| error_chain(&error);
        bound.refresh_cache(host).map_err(text)?;
        let checked = bound.check(host, false).map_err(text)?;
        let due = self.pending_changes(checked.as_ref(), host);
        if let Some(capture) = &self.capture {
            capture.before(bound, host, !due.steps.is_empty())?;
        }
        Ok(if due.steps.is_empty() {
            Observation::Converged(self.unchanged(checked.as_ref(), due))
        } else {
            Observation::Pending(due)
        })
    }

    fn pending_changes(&self, checked: &dyn ObservedResource, host: &Host) -> PendingChanges {
        let (steps, refreshed) = (checked.steps(), checked.is_refresh());
        let preview = (self.diff != Diff::None && !steps.is_empty()).then(|| checked.preview(host)).flatten();
        let preview = preview.filter(|preview| self.diff == Diff::All || preview.is_public);
        let diff = preview
            .map(|Preview { before, after, .. }| redact::diff(&self.secrets, &before, &after, || unified_diff(&before, &after)));
        PendingChanges { steps, refreshed, diff }
    }

    /// Returns the result without changes: the resource needs none, or the run is a noop run.
    fn unchanged(&self, checked: &dyn ObservedResource, due: PendingChanges) -> Applied {
        Applied { stable: due.steps.is_empty(), ..self.applied(checked, due) }
    }

    /// Verifies a resource after its steps, on its thread: no change may be left.
    pub(super) fn verify(
        &self,
        place: RunThread<'_>,
        bound: Box<dyn BoundResource>,
        host: &Host,
        due: PendingChanges,
    ) -> Result<Applied, String> {
        let (how, host) = (self.clone(), host.clone());
        place.run(move || {
            if let Some(capture) = &how.capture {
                capture.after(bound.as_ref(), &host);
            }
            how.verify_here(bound.as_ref(), &host, due)
        })?
    }

    fn verify_here(&self, bound: &dyn BoundResource, host: &Host, due: PendingChanges) -> Result<Applied, String> {
        let after = bound.check(host, false).map_err(|error| error_chain(&error))?;
        let left: Vec<String> = after.steps().into_iter().flat_map(|step| step.details).collect();
        if !left.is_empty() {
            return Err(format!("failed to reach desired state: {}", left.join(", ")));
        }
        Ok(self.applied(after.as_ref(), due))
    }

    fn applied(&self, checked: &dyn ObservedResource, due: PendingChanges) -> Applied {
        let status = (!self.omit_details || checked.has_output()).then(|| checked.status());
        let PendingChanges { steps, refreshed, diff } = due;
        Applied { ensure: checked.ensure(), status, steps, refreshed, stable: true, diff }
    }
}
