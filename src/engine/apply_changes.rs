//! Convergence steps that touch the host: observe, apply, verify. The steps borrow nothing of the run, so that a thread
//! outside of the confinement can take them too.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::diag::error_chain;
use crate::host::Host;
use crate::host::confine::Worker;
use crate::model::Secrets;
use crate::resource::{BindError, BoundResource, ChangeStep, ObservedResource, ParsedResource, Preview, Providers, TypeRef};

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
    /// True when later templates may use the outputs.
    pub(super) outputs: bool,
    /// The state to record before the first change.
    pub(super) capture: Option<StateCapture>,
}

/// The result of an application.
pub(super) struct Applied {
    pub(super) ensure: String,
    pub(super) status: Option<Map<String, Value>>,
    pub(super) steps: Vec<ChangeStep>,
    pub(super) refreshed: bool,
    pub(super) stable: bool,
    pub(super) diff: Option<String>,
    /// The outputs; none when no template uses them.
    pub(super) outputs: Option<Map<String, Value>>,
}

impl Applied {
    /// Returns the result of a nested manifest.
    pub(super) fn of_nested_manifest(steps: Vec<ChangeStep>, status: Map<String, Value>) -> Self {
        let ensure = "present".to_owned();
        Self { ensure, status: Some(status), steps, refreshed: false, stable: true, diff: None, outputs: None }
    }
}

/// The changes that a resource needs.
pub(super) struct PendingChanges {
    pub(super) steps: Vec<ChangeStep>,
    pub(super) refreshed: bool,
    pub(super) diff: Option<String>,
}

/// A failed attempt to apply a resource.
pub(super) struct FailedAttempt {
    /// The reason, for people.
    pub(super) why: String,
    /// The changes that the attempt has begun; none when the attempt changed nothing.
    pub(super) begun: Option<PendingChanges>,
    /// True when all changes were made, and the verification found some of them undone.
    pub(super) is_undone: bool,
}

/// The result of one attempt.
pub(super) type AttemptResult = Result<Applied, FailedAttempt>;

impl From<String> for FailedAttempt {
    /// Creates the failure of an attempt that changed nothing.
    fn from(why: String) -> Self {
        Self { why, begun: None, is_undone: false }
    }
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
) -> Result<Result<Arc<dyn BoundResource>, BindError>, String> {
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
    kind: TypeRef,
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
        bound: &Arc<dyn BoundResource>,
        host: &Host,
        refresh: bool,
    ) -> Result<AttemptResult, String> {
        match place {
            RunThread::Here => Ok(self.apply_changes_here(bound.as_ref(), host, refresh)),
            RunThread::Outside(_) => {
                let (how, bound, host) = (self.clone(), Arc::clone(bound), host.clone());
                place.run(move || how.apply_changes_here(bound.as_ref(), &host, refresh))
            }
        }
    }

    fn apply_changes_here(&self, bound: &dyn BoundResource, host: &Host, refresh: bool) -> AttemptResult {
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
        let applied = checked.apply(host);
        if let Some(capture) = &self.capture {
            capture.after(bound, host);
        }
        if let Err(error) = applied {
            return Err(FailedAttempt { why: text(error), begun: Some(due), is_undone: false });
        }
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
        bound: &Arc<dyn BoundResource>,
        host: &Host,
    ) -> Result<Result<Observation, String>, String> {
        let (how, bound, host) = (self.clone(), Arc::clone(bound), host.clone());
        place.run(move || how.observe_here(bound.as_ref(), &host))
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
        bound: &Arc<dyn BoundResource>,
        host: &Host,
        due: PendingChanges,
    ) -> Result<AttemptResult, String> {
        let (how, bound, host) = (self.clone(), Arc::clone(bound), host.clone());
        place.run(move || {
            if let Some(capture) = &how.capture {
                capture.after(bound.as_ref(), &host);
            }
            how.verify_here(bound.as_ref(), &host, due)
        })
    }

    fn verify_here(&self, bound: &dyn BoundResource, host: &Host, due: PendingChanges) -> AttemptResult {
        let after = match bound.check(host, false) {
            Ok(after) => after,
            Err(error) => return Err(FailedAttempt { why: error_chain(&error), begun: Some(due), is_undone: false }),
        };
        let left: Vec<String> = after.steps().into_iter().flat_map(|step| step.details).collect();
        if !left.is_empty() {
            let why = format!("failed to reach desired state: {}", left.join(", "));
            return Err(FailedAttempt { why, begun: Some(due), is_undone: true });
        }
        Ok(self.applied(after.as_ref(), due))
    }

    fn applied(&self, checked: &dyn ObservedResource, due: PendingChanges) -> Applied {
        let status = (!self.omit_details || checked.has_output()).then(|| checked.status());
        let PendingChanges { steps, refreshed, diff } = due;
        let outputs = self.outputs.then(|| checked.outputs());
        Applied { ensure: checked.ensure(), status, steps, refreshed, stable: true, diff, outputs }
    }
}
