//! The records of `on_removal`: the state of a resource before its first run, and after its latest change.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use crate::diag::error_chain;
use crate::host::{Host, fs};
use crate::model::{OnRemoval, ResourceRef, ReversalRecord};
use crate::resource::BoundResource;

use super::plan::{Plan, PlannedResource};
use super::settings::{ReversalStore, RunSettings};

/// The resources of the manifest of a run, and of the manifests within.
#[derive(Default)]
pub(super) struct ManifestResources {
    /// Position and action of each resource.
    resources: HashMap<ResourceRef, (usize, OnRemoval)>,
    /// The number of manifests within that were not read: their resources are unknown.
    unread: usize,
}

impl ManifestResources {
    /// Adds the resources of a manifest, if a reversal can depend on them.
    pub(super) fn add(&mut self, plan: &Plan, settings: &RunSettings) {
        let Some(store) = &settings.reversals else { return };
        if !plan.features().reverses && store.resources().is_empty() {
            return;
        }
        for planned in &plan.resources {
            let position = self.resources.len();
            self.resources.insert(planned.reference(), (position, planned.common.on_removal));
            self.unread += usize::from(planned.kind.nests());
        }
    }

    /// Returns the action for a resource; none for a resource of no manifest of the run.
    pub(super) fn on_removal(&self, resource: &ResourceRef) -> Option<OnRemoval> {
        self.resources.get(resource).map(|(_, on_removal)| *on_removal)
    }

    /// Returns true when the resources of a manifest within are unknown.
    pub(super) fn is_incomplete(&self) -> bool {
        self.unread > 0
    }

    /// Returns the record to make before a change of a resource; none without an action on removal.
    pub(super) fn state_capture(&self, planned: &PlannedResource, settings: &RunSettings) -> Option<StateCapture> {
        let on_removal = planned.common.on_removal;
        let store = settings.reversals.as_ref().filter(|_| on_removal != OnRemoval::Keep && !settings.noop)?;
        let resource = planned.reference();
        let position = self.resources.get(&resource).map_or(0, |(position, _)| *position);
        let provider = planned.common.provider.clone();
        Some(StateCapture { store: Arc::clone(store), resource, on_removal, position, provider })
    }

    /// Notes that a manifest within was read.
    pub(super) fn read_nested(&mut self) {
        self.unread = self.unread.saturating_sub(1);
    }
}

/// The record to make before a change of a resource.
#[derive(Clone)]
pub(super) struct StateCapture {
    store: Arc<dyn ReversalStore>,
    resource: ResourceRef,
    on_removal: OnRemoval,
    position: usize,
    provider: String,
}

impl StateCapture {
    /// Records the state before the first change; with later changes, that a change begins.
    ///
    /// # Errors
    /// With the reason, for people. The resource must not be changed then.
    pub(super) fn before(&self, bound: &dyn BoundResource, host: &Host, changes: bool) -> Result<(), String> {
        self.record(bound, host, changes).map_err(|why| {
            let wanted = self.on_removal.as_str();
            format!("cannot record the present state for `on_removal: {wanted}`, so that nothing was changed: {why}")
        })
    }

    fn record(&self, bound: &dyn BoundResource, host: &Host, changes: bool) -> Result<(), String> {
        let known = self.store.get(&self.resource)?.filter(|known| known.on_removal == self.on_removal);
        let record = match &known {
            Some(known) => known.clone(),
            None => ReversalRecord {
                resource: self.resource.clone(),
                on_removal: self.on_removal,
                captured: host.now(),
                position: self.position,
                provider: self.provider.clone(),
                properties: bound.reversing(host, self.on_removal).map_err(|error| error_chain(&error))?,
                left: None,
            },
        };
        let left = match &record.left {
            _ if changes => None,
            None => left_digest(&record, bound, host)?,
            known => known.clone(),
        };
        let record = ReversalRecord { left, position: self.position, ..record };
        if known.as_ref() == Some(&record) { Ok(()) } else { self.store.write(record) }
    }

    /// Records the state that a change left.
    pub(super) fn after(&self, bound: &dyn BoundResource, host: &Host) {
        let record = self.store.get(&self.resource).and_then(|record| {
            let Some(record) = record else { return Ok(()) };
            let left = left_digest(&record, bound, host)?;
            self.store.write(ReversalRecord { left, ..record })
        });
        if let Err(why) = record {
            tracing::warn!(resource = %self.resource, "cannot record the state after the change, so that a later change by another program goes unnoticed: {why}");
        }
    }
}

/// Returns the digest of the present state; none for an object that stays anyway.
pub(super) fn left_digest(record: &ReversalRecord, bound: &dyn BoundResource, host: &Host) -> Result<Option<String>, String> {
    let Some(properties) = &record.properties else { return Ok(None) };
    let removes = properties.get("ensure").and_then(Value::as_str) == Some("absent");
    let state = bound.comparable(host, removes).map_err(|error| error_chain(&error))?;
    Ok(Some(fs::sha256(state.to_string().as_bytes())))
}
