//! Reversal: the state before the first run of a resource is recorded. The state comes back when the resource leaves its
//! manifest.
//!
//! A record is made once, before the first change. A resource that another program changed since the last run is kept.

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value, json};

use crate::host::Host;
use crate::manifest;
use crate::model::{OnRemoval, ResourceRef, ReversalRecord, TransactionEvent};
use crate::resource::{BoundResource, Common};
use crate::yaml::YamlDocument;

use super::apply_changes::RunThread;
use super::converge::{Abort, guarded};
use super::plan::{Plan, PlannedResource};
use super::provenance::Provenance;
use super::run::{Counts, Run};
use super::settings::{Diff, ReversalStore, RunSettings};
use super::state_capture::left_digest;

impl Run<'_> {
    /// Reverses the resources that are no longer in the manifest, the last first.
    pub(super) fn reverse_removed(&mut self, plan: &Plan, settings: &RunSettings, host: &Host) {
        let Some(store) = settings.reversals.clone().filter(|_| !settings.health_check_only) else { return };
        if self.manifest.is_incomplete() || self.error.is_some() {
            return;
        }
        let mut removed = Vec::new();
        for resource in store.resources() {
            match self.manifest.on_removal(&resource) {
                None => removed.extend(store.get(&resource).ok().flatten()),
                Some(OnRemoval::Keep) if !settings.noop => remove_record(store.as_ref(), &resource),
                Some(_) => {}
            }
        }
        removed.sort_by_key(|record| std::cmp::Reverse(record.position));
        for record in removed {
            if host.is_over() {
                self.interrupted = true;
                return;
            }
            let event = match &record.properties {
                Some(properties) => self.reverse(&record, properties, plan, settings, host),
                None => None,
            };
            let is_done = event.as_ref().map_or(record.properties.is_none(), |event| !event.failed);
            if is_done && !settings.noop {
                remove_record(store.as_ref(), &record.resource);
            }
            event.into_iter().for_each(|event| self.record(event));
        }
    }

    /// Runs a resource with the properties that reverse it, and returns the event.
    fn reverse(
        &self,
        record: &ReversalRecord,
        properties: &Map<String, Value>,
        plan: &Plan,
        settings: &RunSettings,
        host: &Host,
    ) -> Option<TransactionEvent> {
        let planned = planned_reversal(record, properties, plan);
        let planned = planned.inspect_err(|why| tracing::warn!(resource = %record.resource, "cannot reverse: {why}")).ok()?;
        let settings = RunSettings { diff: Diff::None, refreshes: None, registrar: None, reversals: None, ..settings.clone() };
        let started = Instant::now();
        let run = self.resource_run(plan, &planned, &settings, host);
        let mut event = run.new_event();
        let mut decoded = Arc::clone(&planned.decoded);
        let ended = guarded(|| {
            let bound = run.prepare(&mut event, &mut decoded)?;
            let place = run.run_thread(decoded.as_ref());
            let is_unchanged = compare(place, &bound, host, record).map_err(Abort::Failed)?;
            if !is_unchanged {
                return Err(Abort::Skipped);
            }
            let reached = run.apply(&mut event, decoded.as_ref(), &bound, false, None)?;
            run.fill_event(&mut event, reached);
            Ok(())
        });
        let mut event = run.finish(event, decoded.as_ref(), ended, started);
        event.reverted = true;
        if event.skipped {
            event.errors.push("kept: the present state is not the one that the last run left".to_owned());
        }
        if let Some(steps) = event.noop_message.strip_prefix("Would have ") {
            event.noop_message = format!("Would have reverted: {steps}");
        }
        // The captured state belongs to the host, and may hold secrets.
        event.properties = json!({"name": event.name, "ensure": event.requested_ensure});
        event.status = None;
        Counts::default().add(&event, &planned, host);
        Some(event)
    }
}

/// Returns true for a resource as the last run left it, or one that is reversed already.
fn compare(place: RunThread<'_>, bound: &Arc<dyn BoundResource>, host: &Host, record: &ReversalRecord) -> Result<bool, String> {
    let (record, bound, host) = (record.clone(), Arc::clone(bound), host.clone());
    place.run(move || {
        let is_reversed = bound.check(&host, false).is_ok_and(|observed| observed.steps().is_empty());
        // A run that was killed during its change has left the present state.
        let is_unchanged = is_reversed || record.left.is_none() || left_digest(&record, bound.as_ref(), &host)? == record.left;
        Ok(is_unchanged)
    })?
}

/// Plans a resource with properties that are values, not templates.
fn planned_reversal(record: &ReversalRecord, properties: &Map<String, Value>, plan: &Plan) -> Result<PlannedResource, String> {
    let kind = plan.inputs.types.find(&record.resource.kind).ok_or("unknown resource type")?;
    let decoded = kind.decode(properties, &plan.scope).map_err(|error| error.to_string())?;
    let mut document = YamlDocument::from_value(json!([{ kind.name(): {"name": decoded.name()} }]));
    let declarations = manifest::parse::declarations(&mut document, &[]);
    let declaration = declarations.ok().and_then(|all| all.into_iter().next()).ok_or("the record names no resource")?;
    Ok(PlannedResource {
        kind,
        common: Arc::new(Common { provider: record.provider.clone(), ..Common::default() }),
        requires: Vec::new(),
        subscribes: Vec::new(),
        decoded,
        deferred: None,
        received: Vec::new(),
        provenance: Provenance::default(),
        declaration,
    })
}

fn remove_record(store: &dyn ReversalStore, resource: &ResourceRef) {
    if let Err(why) = store.remove(resource) {
        tracing::warn!(%resource, "cannot remove the record of a reversal, so that the next run finds it again: {why}");
    }
}
