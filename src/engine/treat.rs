//! The treatment of one resource, the same for every type:
//! permit, provider, control, require, deferred templates, observe, diff, act, verify, health, event.
//!
//! Whatever goes wrong, a panic included, becomes a failed event; nothing here ends a run.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::diag::chain;
use crate::host::Host;
use crate::model::event::{TRANSACTION, state_protocol};
use crate::model::{HealthStatus, ResourceRef, TransactionEvent};
use crate::resource::{Bound, Checked, Common, Decoded, Preview, Providers, Step};
use crate::store::Session;

use super::plan::{Plan, Planned, resolve};
use super::run::Settings;
use super::unified::unified;
use super::{health, veil};

pub(super) struct Treatment<'a> {
    pub(super) plan: &'a Plan,
    pub(super) planned: &'a Planned,
    pub(super) settings: &'a Settings,
    pub(super) host: &'a Host,
    pub(super) providers: &'a Providers,
    pub(super) session: &'a dyn Session,
}

/// Why a resource was not brought to its state.
pub(super) enum Stop {
    /// Its control said no.
    Skipped,
    /// These requirements failed.
    Unmet(Vec<ResourceRef>),
    /// Something went wrong.
    Failed(String),
}

/// What an action led to.
pub(super) struct Reached {
    ensure: String,
    status: Option<Map<String, Value>>,
    steps: Vec<Step>,
    refreshed: bool,
    stable: bool,
    diff: Option<String>,
}

/// What is to be done to a resource.
pub(super) struct Due {
    pub(super) steps: Vec<Step>,
    refreshed: bool,
    diff: Option<String>,
}

impl Reached {
    /// What a manifest within a manifest came to.
    pub(super) fn counted(steps: Vec<Step>, status: Map<String, Value>) -> Self {
        Self { ensure: "present".to_owned(), status: Some(status), steps, refreshed: false, stable: true, diff: None }
    }
}

impl Treatment<'_> {
    pub(super) fn event(&self) -> TransactionEvent {
        let started = Instant::now();
        let mut event = self.blank();
        let mut decoded = Arc::clone(&self.planned.decoded);
        let ended = guarded(|| self.converge(&mut event, &mut decoded));
        self.end(event, decoded.as_ref(), ended, started)
    }

    /// What became of a resource, and its health checks, as an event.
    pub(super) fn end(
        &self,
        mut event: TransactionEvent,
        decoded: &dyn Decoded,
        ended: Result<(), Stop>,
        started: Instant,
    ) -> TransactionEvent {
        match ended {
            Ok(()) => {}
            Err(Stop::Skipped) => event.skipped = true,
            Err(Stop::Unmet(failed)) => {
                event.skipped = true;
                event.unmet_requirements = failed.iter().map(ToString::to_string).collect();
            }
            Err(Stop::Failed(why)) => self.fail(&mut event, why),
        }
        if !self.settings.bare {
            event.properties = decoded.shown();
        }
        if !event.skipped {
            self.check_health(&mut event);
            self.register(&mut event);
        }
        let secrets = self.plan.secrets();
        let holds = !secrets.is_empty() && decoded.is(&|properties| secrets.hides_value(properties));
        veil::event(secrets, &mut event);
        veil::digests(holds, self.settings.conceal.as_deref(), &mut event);
        event.duration = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        event
    }

    fn converge(&self, event: &mut TransactionEvent, decoded: &mut Arc<dyn Decoded>) -> Result<(), Stop> {
        let bound = self.prepare(event, decoded)?;
        if self.settings.health_check_only {
            return Ok(());
        }
        let refresh = self.refresh_due()?;
        let reached = self.act(bound.as_ref(), refresh).map_err(Stop::Failed)?;
        self.settle(event, reached);
        Ok(())
    }

    /// Everything before the host is looked at: permit, provider, control, requirements, late templates.
    pub(super) fn prepare(&self, event: &mut TransactionEvent, decoded: &mut Arc<dyn Decoded>) -> Result<Box<dyn Bound>, Stop> {
        let planned = self.planned;
        if let Some(permit) = &self.settings.permit {
            permit.permit(planned.kind.name(), decoded.name()).map_err(Stop::Failed)?;
        }
        let bind = |decoded: &Arc<dyn Decoded>| Arc::clone(decoded).bind(&planned.common.provider, self.providers, self.host);
        let bound = bind(decoded);
        if let Ok(bound) = &bound {
            event.provider = bound.provider().to_owned();
        }
        self.control()?;
        self.require()?;
        let bound = bound.map_err(|error| Stop::Failed(chain(&error)))?;
        if self.settings.health_check_only {
            return Ok(bound);
        }
        let Some(properties) = self.resolve_deferred()? else { return Ok(bound) };
        *decoded = self.plan.decode_late(planned, &properties).map_err(|error| Stop::Failed(error.to_string()))?;
        bind(decoded).map_err(|error| Stop::Failed(chain(&error)))
    }

    fn control(&self) -> Result<(), Stop> {
        let Some(control) = &self.planned.common.control else { return Ok(()) };
        let holds = |name: &str, expression: &Option<String>, default: bool| match expression {
            None => Ok(default),
            Some(expression) => self.plan.scope.condition(expression).map_err(|error| {
                let diagnostic = self.plan.template_error(self.planned, "control", &error);
                Stop::Failed(format!("control {name}: {diagnostic}"))
            }),
        };
        if holds("if", &control.only_if, true)? && !holds("unless", &control.unless, false)? {
            Ok(())
        } else {
            Err(Stop::Skipped)
        }
    }

    fn require(&self) -> Result<(), Stop> {
        let mut failed = Vec::new();
        for reference in &self.planned.requires {
            let last = self.session.last(reference).ok_or_else(|| unknown("require", reference))?;
            if last.failed || last.unmet {
                failed.push(reference.clone());
            }
        }
        if failed.is_empty() { Ok(()) } else { Err(Stop::Unmet(failed)) }
    }

    /// True when a resource that this one subscribes to has changed; the first one decides.
    fn refresh_due(&self) -> Result<bool, Stop> {
        for reference in &self.planned.subscribes {
            if self.session.last(reference).ok_or_else(|| unknown("subscribe", reference))?.changed {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn resolve_deferred(&self) -> Result<Option<Map<String, Value>>, Stop> {
        let Some(properties) = &self.planned.deferred else { return Ok(None) };
        let mut resolved = properties.clone();
        for (key, value) in &mut resolved {
            if self.planned.kind.deferred().contains(&key.as_str()) && !Common::LITERAL.contains(&key.as_str()) {
                *value = resolve(&self.plan.scope, self.planned.kind, key, value)
                    .map_err(|error| Stop::Failed(self.plan.template_error(self.planned, key, &error).to_string()))?;
            }
        }
        Ok(Some(resolved))
    }

    /// Observes, acts (or says what it would do) and looks again.
    fn act(&self, bound: &dyn Bound, refresh: bool) -> Result<Reached, String> {
        let text = |error: crate::resource::ResourceError| chain(&error);
        if !self.settings.noop {
            bound.freshen(self.host).map_err(text)?;
        }
        let mut checked = bound.check(self.host, refresh).map_err(text)?;
        let due = self.due(checked.as_ref());
        if self.settings.noop || due.steps.is_empty() {
            return Ok(self.left_alone(checked.as_ref(), due));
        }
        checked.apply(self.host).map_err(text)?;
        if !bound.converges() {
            return Ok(Reached { stable: false, ..self.reached(checked.as_ref(), due) });
        }
        drop(checked);
        self.verify(bound, due)
    }

    pub(super) fn due(&self, checked: &dyn Checked) -> Due {
        let (steps, refreshed) = (checked.steps(), checked.is_refresh());
        let diff = (self.settings.diff && !steps.is_empty()).then(|| checked.preview(self.host)).flatten();
        let diff =
            diff.map(|Preview { before, after }| veil::diff(self.plan.secrets(), &before, &after, || unified(&before, &after)));
        Due { steps, refreshed, diff }
    }

    /// Nothing was done, because nothing needed to be or because the run is a dry one.
    pub(super) fn left_alone(&self, checked: &dyn Checked, due: Due) -> Reached {
        Reached { stable: due.steps.is_empty(), ..self.reached(checked, due) }
    }

    /// Looks again after the steps were taken: nothing may be left to do.
    pub(super) fn verify(&self, bound: &dyn Bound, due: Due) -> Result<Reached, String> {
        let after = bound.check(self.host, false).map_err(|error| chain(&error))?;
        let left: Vec<String> = after.steps().into_iter().flat_map(|step| step.details).collect();
        if !left.is_empty() {
            return Err(format!("failed to reach desired state: {}", left.join(", ")));
        }
        Ok(self.reached(after.as_ref(), due))
    }

    fn reached(&self, checked: &dyn Checked, due: Due) -> Reached {
        let status = (!self.settings.bare).then(|| checked.status());
        let Due { steps, refreshed, diff } = due;
        Reached { ensure: checked.ensure(), status, steps, refreshed, stable: true, diff }
    }

    pub(super) fn settle(&self, event: &mut TransactionEvent, reached: Reached) {
        event.changed = !reached.steps.is_empty();
        event.refreshed = reached.refreshed;
        event.noop = self.settings.noop;
        if event.noop {
            event.noop_message = would_have(&reached.steps, self.planned.kind.sentences());
        }
        event.changes = reached.steps.into_iter().flat_map(|step| step.details).collect();
        event.diff = reached.diff;
        event.status = reached.status.map(|own| self.status(event, &reached.ensure, reached.stable, own));
        event.final_ensure = reached.ensure;
    }

    /// What every type says of its state, and what this one adds.
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

    /// All checks run, whatever the earlier ones said; one that is not OK fails the resource.
    fn check_health(&self, event: &mut TransactionEvent) {
        let around = health::Around { scope: &self.plan.scope, permit: self.settings.permit.as_deref(), host: self.host };
        for wanted in &self.planned.common.health_checks {
            let result = health::check(wanted, &around);
            if result.status != HealthStatus::Ok {
                event.failed = true;
                let said = if result.output.is_empty() { String::new() } else { format!(": {}", result.output) };
                event.errors.push(format!("health check {} status \"{}\"{said}", result.name, result.status.as_str()));
            }
            event.health_check.push(result);
        }
        event.health_check_only = self.settings.health_check_only;
    }

    /// Tells others where the service is, once it is as wanted and well; also in runs of checks only, to keep it alive.
    fn register(&self, event: &mut TransactionEvent) {
        let Some(registrar) = self.settings.registrar.as_deref().filter(|_| !event.failed && !self.settings.noop) else { return };
        for entry in &self.planned.common.register_when_stable {
            let hides = serde_json::to_value(entry).is_ok_and(|entry| self.plan.secrets().hides_value(&entry));
            if hides {
                self.fail(event, format!("the registration of {} holds a secret, and is not published", entry.service));
                continue;
            }
            if let Err(why) = registrar.register(entry) {
                self.fail(event, format!("could not register {} of {}: {why}", entry.service, entry.cluster));
            }
        }
    }

    fn fail(&self, event: &mut TransactionEvent, why: String) {
        event.failed = true;
        event.errors.push(why);
    }

    pub(super) fn blank(&self) -> TransactionEvent {
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
            node: self.settings.node.as_ref().map(ToString::to_string),
            run_id: Some(self.settings.run_id),
            seq: 0,
            manifest: self.plan.manifest.clone(),
            changes: Vec::new(),
            diff: None,
        }
    }
}

/// A panic in a resource type is the failure of that resource, not the end of the run.
pub(super) fn guarded<T>(treat: impl FnOnce() -> Result<T, Stop>) -> Result<T, Stop> {
    catch_unwind(AssertUnwindSafe(treat))
        .unwrap_or_else(|_| Err(Stop::Failed("the resource type panicked; this is a bug in Ensign".to_owned())))
}

fn unknown(property: &str, reference: &ResourceRef) -> Stop {
    Stop::Failed(format!("{property}: no events found for {reference}: no resource of that name ran before this one"))
}

fn would_have(steps: &[Step], sentences: bool) -> String {
    let done: Vec<&str> = steps.iter().map(|step| step.done.as_str()).collect();
    let between = if sentences { ". Would have " } else { ", would have " };
    if done.is_empty() { String::new() } else { format!("Would have {}", done.join(between)) }
}
