//! The run of one resource, the same for every type. The steps are control, require, runtime templates, permit, provider,
//! observe, diff, apply, verify, health and event.
//!
//! Every failure, a panic included, becomes a failed event; no failure here ends a run.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::diag::error_chain;
use crate::host::Host;
use crate::model::event::{TRANSACTION, state_protocol};
use crate::model::{Effects, HealthStatus, ResourceRef, TransactionEvent, WatchTarget};
use crate::resource::{BoundResource, ChangeStep, ParsedResource, Policy, Providers};
use crate::store::Session;
use crate::template::is_template;

use super::allowed_targets;
use super::apply_changes::{self, Applied, ApplySettings, AttemptResult, PANICKED, RunThread};
use super::attempts::{ApplyTask, Attempts, TaskResult};
use super::plan::{Plan, PlannedResource, resolve};
use super::provenance::{Provenance, ProvenanceError};
use super::run_outputs::RunOutputs;
use super::settings::{Diff, RunSettings, UnconfinedThread};
use super::state_capture::ManifestResources;
use super::subscribers::Subscribers;
use super::{effects, health, redact};

pub(super) struct ResourceRun<'a> {
    pub(super) plan: &'a Plan,
    pub(super) planned: &'a PlannedResource,
    pub(super) settings: &'a RunSettings,
    pub(super) host: &'a Host,
    pub(super) providers: &'a Arc<Providers>,
    pub(super) subscribers: &'a Subscribers,
    pub(super) manifest: &'a ManifestResources,
    pub(super) session: &'a dyn Session,
    /// The provenance of the templates that were resolved when the resource ran.
    pub(super) late: RefCell<Provenance>,
    pub(super) outputs: &'a RunOutputs,
    /// The watch targets that only the run knows.
    pub(super) late_targets: &'a LateTargets,
    /// The outputs of the converged resource.
    pub(super) produced: RefCell<Option<Map<String, Value>>>,
}

/// Watch targets that only the run knows, by resource.
pub(super) type LateTargets = RefCell<BTreeMap<ResourceRef, Vec<WatchTarget>>>;

/// A resource whose task runs on another thread.
pub(super) struct StartedResource {
    event: TransactionEvent,
    decoded: Arc<dyn ParsedResource>,
    started: Instant,
    late: Provenance,
}

/// The reason for which a resource was not converged.
pub(super) enum Abort {
    /// The control excludes the resource.
    Skipped,
    /// These requirements failed.
    Unmet(Vec<ResourceRef>),
    /// A property of a dry run uses an output of this resource, which would change.
    Unresolved { property: String, sender: ResourceRef },
    /// The resource failed, for this reason.
    Failed(String),
}

impl ResourceRun<'_> {
    pub(super) fn event(&self) -> TransactionEvent {
        let started = Instant::now();
        let mut event = self.new_event();
        let mut decoded = Arc::clone(&self.planned.decoded);
        let ended = guarded(|| self.converge(&mut event, &mut decoded));
        self.finish(event, decoded.as_ref(), ended, started)
    }

    /// Returns the event of a resource, after its health checks.
    pub(super) fn finish(
        &self,
        mut event: TransactionEvent,
        decoded: &dyn ParsedResource,
        ended: Result<(), Abort>,
        started: Instant,
    ) -> TransactionEvent {
        match ended {
            Ok(()) => {}
            Err(Abort::Skipped) => event.skipped = true,
            Err(Abort::Unmet(failed)) => {
                event.skipped = true;
                event.unmet_requirements = failed.iter().map(ToString::to_string).collect();
            }
            Err(Abort::Unresolved { property, sender }) => {
                (event.noop, event.changed) = (true, true);
                event.noop_message = format!("Would have used an output of {sender} in {property}, known after that has run");
                event.changes = vec![format!("{property} (known after {sender})")];
            }
            Err(Abort::Failed(why)) => self.fail(&mut event, why),
        }
        if !self.settings.omit_details {
            event.properties = decoded.redacted();
        }
        if !event.skipped {
            self.check_health(&mut event);
            self.register(&mut event);
        }
        if let Err(why) = self.settle_refreshes(&event) {
            self.fail(&mut event, why);
        }
        event.pending_refreshes = self.pending_refreshes();
        self.record_outputs(&event);
        if self.planned.deferred.is_some() {
            let effects = self.known_effects(Some(decoded)).unresolved(is_template);
            let (kind, authorizer) = (self.planned.kind.name(), self.settings.authorizer.as_deref());
            let targets = allowed_targets::of_resource(kind, decoded, &effects, authorizer, self.host);
            self.late_targets.borrow_mut().entry(self.planned.reference()).or_default().extend(targets);
        }
        let secrets = self.plan.secrets();
        let holds = !secrets.is_empty() && decoded.matches(&|properties| secrets.value_contains_secret(properties));
        let mut shaped = self.planned.provenance.clone();
        shaped.extend(self.late.take());
        shaped.redact_event(&mut event, decoded);
        redact::event(secrets, &mut event);
        redact::digests(holds, self.settings.pseudonymize.as_deref(), &mut event);
        event.duration = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        event
    }

    fn converge(&self, event: &mut TransactionEvent, decoded: &mut Arc<dyn ParsedResource>) -> Result<(), Abort> {
        let bound = self.prepare(event, decoded)?;
        if self.settings.health_check_only {
            return Ok(());
        }
        let refresh = self.is_refresh_due()?;
        let reached = self.apply(event, decoded.as_ref(), &bound, refresh, None)?;
        self.fill_applied(event, decoded.as_ref(), reached);
        Ok(())
    }

    /// Takes the steps before the observation. Returns the rest as a task for another thread, or the event when nothing is left.
    pub(super) fn begin(&self) -> Result<(StartedResource, ApplyTask), Box<TransactionEvent>> {
        let started = Instant::now();
        let mut event = self.new_event();
        let mut decoded = Arc::clone(&self.planned.decoded);
        let task = guarded(|| {
            let bound = self.prepare(&mut event, &mut decoded)?;
            if self.settings.health_check_only {
                return Ok(None);
            }
            let refresh = self.is_refresh_due()?;
            let outside = match self.run_thread(decoded.as_ref()) {
                RunThread::Here => None,
                RunThread::Outside(worker) => Some(worker.clone()),
            };
            let (settings, policy, host) = (self.apply_settings(), self.policy().into_owned(), self.host.clone());
            Ok(Some(ApplyTask { settings, policy, bound, host, refresh, outside }))
        });
        match task {
            Ok(Some(task)) => Ok((StartedResource { event, decoded, started, late: self.late.take() }, task)),
            Ok(None) => Err(Box::new(self.finish(event, decoded.as_ref(), Ok(()), started))),
            Err(abort) => Err(Box::new(self.finish(event, decoded.as_ref(), Err(abort), started))),
        }
    }

    /// Takes the steps after the task of [`Self::begin`], and returns the event.
    pub(super) fn end(&self, resource: StartedResource, result: TaskResult) -> TransactionEvent {
        let StartedResource { mut event, decoded, started, late } = resource;
        self.late.replace(late);
        (event.attempts, event.changes) = (result.attempts, result.undone);
        let ended = result.applied.map(|reached| self.fill_applied(&mut event, decoded.as_ref(), reached)).map_err(Abort::Failed);
        self.finish(event, decoded.as_ref(), ended, started)
    }

    fn fill_applied(&self, event: &mut TransactionEvent, decoded: &dyn ParsedResource, mut reached: Applied) {
        reached.diff = reached.diff.take().filter(|_| self.may_show(decoded));
        self.fill_event(event, reached);
    }

    /// Applies the resource, with the retries of its policy. `first` is the result of the first attempt, when a batch made it.
    pub(super) fn apply(
        &self,
        event: &mut TransactionEvent,
        decoded: &dyn ParsedResource,
        bound: &Arc<dyn BoundResource>,
        refresh: bool,
        first: Option<AttemptResult>,
    ) -> Result<Applied, Abort> {
        let (settings, place, mut attempts) = (self.apply_settings(), self.run_thread(decoded), Attempts::default());
        let attempt = |host: &Host| settings.apply_changes(place, bound, host, refresh);
        let applied = attempts.run(&self.policy(), self.host, first, attempt);
        event.attempts = attempts.several();
        if applied.is_err() {
            event.changes = attempts.undone();
        }
        applied.map_err(Abort::Failed)
    }

    /// Returns the policy of the attempts. While drift is repaired, the enforcer itself tries again later.
    /// A pause here would hold up the repair of other resources.
    fn policy(&self) -> Cow<'_, Policy> {
        let policy = &self.planned.common.policy;
        if self.settings.selection.is_none() || policy.retry == 0 {
            return Cow::Borrowed(policy);
        }
        Cow::Owned(Policy { retry: 0, ..policy.clone() })
    }

    /// Returns true when the resource is only observed: in a dry run, or by its policy.
    pub(super) fn is_noop(&self) -> bool {
        self.settings.noop || self.planned.common.policy.noop
    }

    /// Takes the steps before the observation: control, requirements, runtime templates, permit, provider.
    pub(super) fn prepare(
        &self,
        event: &mut TransactionEvent,
        decoded: &mut Arc<dyn ParsedResource>,
    ) -> Result<Arc<dyn BoundResource>, Abort> {
        let planned = self.planned;
        let bind = |decoded: &Arc<dyn ParsedResource>| {
            if let Some(outside) = &self.settings.unconfined_thread {
                outside.permit(planned.kind.name(), decoded.as_ref()).map_err(Abort::Failed)?;
            }
            let place = self.run_thread(decoded.as_ref());
            apply_changes::bind(place, decoded, &planned.common.provider, self.providers, self.host).map_err(Abort::Failed)
        };
        let bound = bind(decoded)?;
        if let Ok(bound) = &bound {
            event.provider = bound.provider().to_owned();
        }
        self.control()?;
        self.require()?;
        let bound = bound.map_err(|error| Abort::Failed(error_chain(&error)))?;
        if self.settings.health_check_only {
            self.permit(&self.known_effects(decoded.nested().is_some().then_some(decoded.as_ref())))?;
            return Ok(bound);
        }
        let Some(properties) = self.resolve_deferred()? else {
            self.permit(&self.known_effects(Some(decoded.as_ref())))?;
            return Ok(bound);
        };
        let late = self.plan.decode_late(planned, &properties, &self.late.borrow());
        *decoded = late.map_err(|error| Abort::Failed(error.to_string()))?;
        decoded.ensure().clone_into(&mut event.requested_ensure);
        self.permit(&self.known_effects(Some(decoded.as_ref())))?;
        bind(decoded)?.map_err(|error| Abort::Failed(error_chain(&error)))
    }

    /// Returns the thread for the resource, by its present name.
    pub(super) fn run_thread(&self, decoded: &dyn ParsedResource) -> RunThread<'_> {
        match &self.settings.unconfined_thread {
            Some(outside) if outside.is_needed(decoded) => RunThread::Outside(outside.worker()),
            _ => RunThread::Here,
        }
    }

    pub(super) fn apply_settings(&self) -> ApplySettings {
        let RunSettings { omit_details, diff, .. } = *self.settings;
        ApplySettings {
            noop: self.is_noop(),
            omit_details,
            diff,
            secrets: self.plan.shared_secrets(),
            refreshes: self.pending_record(),
            outputs: self.has_receivers(),
            capture: self.manifest.state_capture(self.planned, self.settings),
        }
    }

    /// Returns the effects that are known before the observation. Rules of health checks may still have templates; the run
    /// authorizes them again when they are resolved.
    fn known_effects(&self, decoded: Option<&dyn ParsedResource>) -> Effects {
        let common = effects::of_common(&self.planned.common).resolved(is_template);
        decoded.map(ParsedResource::effects).unwrap_or_default().into_iter().chain(common).collect()
    }

    fn may_show(&self, decoded: &dyn ParsedResource) -> bool {
        let permit = self.settings.authorizer.as_ref().filter(|_| self.settings.diff == Diff::Public);
        permit.is_none_or(|permit| permit.may_show(&decoded.effects(), self.host))
    }

    fn permit(&self, effects: &Effects) -> Result<(), Abort> {
        let Some(permit) = &self.settings.authorizer else { return Ok(()) };
        permit.permit(self.planned.kind.name(), effects, self.host).map_err(Abort::Failed)
    }

    fn control(&self) -> Result<(), Abort> {
        let Some(control) = &self.planned.common.control else { return Ok(()) };
        // Only a full run has outputs.
        if self.settings.health_check_only && self.planned.received.iter().any(|received| received.property == "control") {
            return Err(Abort::Skipped);
        }
        let scope = self.late_scope();
        let holds = |name: &str, expression: &Option<String>, default: bool| {
            let Some(expression) = expression else { return Ok(default) };
            let before = self.plan.scope.mark();
            let holds = scope.evaluate_condition(expression);
            let holds = holds.map_err(|error| self.unresolved("control", &format!("control {name}: "), &error));
            if self.plan.scope.since(before).bus {
                return Err(Abort::Failed(ProvenanceError::Bus(format!("control {name}")).message()));
            }
            holds
        };
        if holds("if", &control.only_if, true)? && !holds("unless", &control.unless, false)? {
            Ok(())
        } else {
            Err(Abort::Skipped)
        }
    }

    fn require(&self) -> Result<(), Abort> {
        let mut failed = Vec::new();
        for reference in &self.planned.requires {
            if self.has_failed(reference)? {
                failed.push(reference.clone());
            }
        }
        if failed.is_empty() { Ok(()) } else { Err(Abort::Unmet(failed)) }
    }

    fn has_failed(&self, required: &ResourceRef) -> Result<bool, Abort> {
        match (self.session.last(required), &self.settings.selection) {
            (Some(last), _) => Ok(last.failed || last.unmet),
            (None, Some(selection)) => Ok(selection.failed.contains(required)),
            (None, None) => Err(unknown_reference("require", required)),
        }
    }

    fn resolve_deferred(&self) -> Result<Option<Map<String, Value>>, Abort> {
        let Some(properties) = &self.planned.deferred else { return Ok(None) };
        let (scope, kind) = (self.late_scope(), &*self.planned.kind);
        let mut resolved = properties.clone();
        for (key, value) in &mut resolved {
            if self.planned.is_late(key) {
                let before = scope.mark();
                *value = resolve(&scope, kind, key, value).map_err(|error| self.unresolved(key, "", &error))?;
                let noted = self.late.borrow_mut().record(kind, key, value, scope.since(before), &scope);
                noted.map_err(|unfit| Abort::Failed(unfit.message()))?;
            }
        }
        Ok(Some(resolved))
    }

    pub(super) fn fill_event(&self, event: &mut TransactionEvent, reached: Applied) {
        self.produced.replace(reached.outputs);
        event.changed = !reached.steps.is_empty();
        event.refreshed = reached.refreshed;
        event.noop = self.is_noop();
        if event.noop {
            event.noop_message = would_have(&reached.steps, self.planned.kind.noop_per_step());
        }
        event.changes = reached.steps.into_iter().flat_map(|step| step.details).collect();
        event.diff = reached.diff;
        event.status = reached.status.map(|own| self.status(event, &reached.ensure, reached.stable, own));
        event.final_ensure = reached.ensure;
    }

    /// Returns the status: the fields of every type, and those of this type.
    fn status(&self, event: &TransactionEvent, ensure: &str, stable: bool, own: Map<String, Value>) -> Value {
        let mut status = Map::with_capacity(10 + own.len());
        status.insert("timestamp".to_owned(), Value::String(self.host.now().to_string()));
        status.insert("protocol".to_owned(), Value::String(state_protocol(&event.kind)));
        status.insert("type".to_owned(), Value::String(event.kind.clone()));
        status.insert("name".to_owned(), Value::String(event.name.clone()));
        status.insert("ensure".to_owned(), Value::String(ensure.to_owned()));
        status.insert("changed".to_owned(), Value::Bool(event.changed));
        status.insert("refreshed".to_owned(), Value::Bool(event.refreshed));
        status.insert("stable".to_owned(), Value::Bool(stable));
        status.insert("noop".to_owned(), Value::Bool(event.noop));
        if !event.noop_message.is_empty() {
            status.insert("noop_message".to_owned(), Value::String(event.noop_message.clone()));
        }
        status.extend(own);
        Value::Object(status)
    }

    /// Runs all health checks, also after a failed one. A check that is not OK fails the resource.
    fn check_health(&self, event: &mut TransactionEvent) {
        let context = health::CheckContext {
            scope: &self.plan.scope,
            kind: self.planned.kind.name(),
            permit: self.settings.authorizer.as_deref(),
            host: self.host,
            outside: self.settings.unconfined_thread.as_deref().map(UnconfinedThread::worker),
        };
        for wanted in &self.planned.common.health_checks {
            let result = health::check(wanted, &context);
            if result.status != HealthStatus::Ok {
                event.failed = true;
                let said = if result.output.is_empty() { String::new() } else { format!(": {}", result.output) };
                event.errors.push(format!("health check {} status \"{}\"{said}", result.name, result.status.as_str()));
            }
            event.health_check.push(result);
        }
        event.health_check_only = self.settings.health_check_only;
    }

    /// Registers the service of a converged and healthy resource, also in a run of health checks only. Each registration keeps
    /// the service alive.
    fn register(&self, event: &mut TransactionEvent) {
        let Some(registrar) = self.settings.registrar.as_deref().filter(|_| !event.failed && !self.is_noop()) else { return };
        for entry in &self.planned.common.register_when_stable {
            let hides = serde_json::to_value(entry).is_ok_and(|entry| self.plan.secrets().value_contains_secret(&entry));
            if hides {
                self.fail(event, format!("the registration of {} holds a secret, and is not published", entry.service));
                continue;
            }
            if let Err(why) = registrar.register(entry) {
                self.fail(event, format!("cannot register {} of {}: {why}", entry.service, entry.cluster));
            }
        }
    }

    fn fail(&self, event: &mut TransactionEvent, why: String) {
        event.failed = true;
        event.errors.push(why);
    }

    pub(super) fn new_event(&self) -> TransactionEvent {
        let timestamp: Timestamp = self.host.now();
        TransactionEvent {
            protocol: TRANSACTION.to_owned(),
            event_id: self.host.new_id(),
            timestamp,
            kind: self.planned.kind.name().to_owned(),
            provider: String::new(),
            name: self.planned.decoded.name().to_owned(),
            alias: self.planned.common.alias.clone(),
            requested_ensure: self.planned.decoded.ensure().to_owned(),
            final_ensure: String::new(),
            duration: 0,
            properties: Value::Null,
            status: None,
            noop_message: String::new(),
            health_check: Vec::new(),
            health_check_only: self.settings.health_check_only,
            errors: Vec::new(),
            changed: false,
            refreshed: false,
            failed: false,
            skipped: false,
            noop: false,
            unmet_requirements: Vec::new(),
            pending_refreshes: Vec::new(),
            node: self.settings.node.as_ref().map(ToString::to_string),
            run_id: Some(self.settings.run_id),
            seq: 0,
            manifest: self.plan.manifest.clone(),
            changes: Vec::new(),
            diff: None,
            change_cause: None,
            attempts: None,
            reverted: false,
        }
    }
}

/// Turns a panic in a resource type into a failure of that resource: the run goes on.
pub(super) fn guarded<T>(treat: impl FnOnce() -> Result<T, Abort>) -> Result<T, Abort> {
    catch_unwind(AssertUnwindSafe(treat)).unwrap_or_else(|_| Err(Abort::Failed(PANICKED.to_owned())))
}

pub(super) fn unknown_reference(property: &str, reference: &ResourceRef) -> Abort {
    Abort::Failed(format!("{property}: no events found for {reference}: no resource of that name ran before this one"))
}

fn would_have(steps: &[ChangeStep], sentences: bool) -> String {
    let done: Vec<&str> = steps.iter().map(|step| step.description.as_str()).collect();
    let between = if sentences { ". Would have " } else { ", would have " };
    if done.is_empty() { String::new() } else { format!("Would have {}", done.join(between)) }
}
