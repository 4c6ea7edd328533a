//! The subscribers of resources, and the record of the refreshes that a change causes.

use std::collections::HashMap;
use std::sync::Arc;

use crate::model::{RefreshEdge, ResourceRef};

use super::plan::PlannedResource;
use super::settings::RefreshStore;

/// The subscribers of each resource, by the reference that they use.
#[derive(Default)]
pub(super) struct Subscribers(HashMap<ResourceRef, Vec<ResourceRef>>);

impl Subscribers {
    /// Adds the subscriptions of a manifest. A resource that is only observed is never refreshed, so that none is pending.
    pub(super) fn add(&mut self, resources: &[PlannedResource]) {
        for planned in resources.iter().filter(|planned| !planned.common.policy.noop) {
            for reference in &planned.subscribes {
                self.0.entry(reference.clone()).or_default().push(planned.reference());
            }
        }
    }

    /// Returns the edges from a resource to its subscribers, which may use its name or its alias.
    pub(super) fn edges(&self, planned: &PlannedResource) -> Vec<RefreshEdge> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let subscribers = |changed: ResourceRef| {
            let all = self.0.get(&changed).cloned().unwrap_or_default();
            all.into_iter().map(move |subscriber| RefreshEdge { changed: changed.clone(), subscriber })
        };
        planned.references().flat_map(subscribers).collect()
    }
}

/// The pending refreshes that a change causes, recorded before the change.
#[derive(Clone)]
pub(super) struct PendingRecord {
    store: Arc<dyn RefreshStore>,
    edges: Vec<RefreshEdge>,
}

impl PendingRecord {
    pub(super) fn new(store: &Arc<dyn RefreshStore>, edges: Vec<RefreshEdge>) -> Self {
        Self { store: Arc::clone(store), edges }
    }

    /// Records the refreshes as pending.
    ///
    /// # Errors
    /// With the reason, for people. The resource must not be changed then.
    pub(super) fn record(&self) -> Result<(), String> {
        let add = self.store.add(self.edges.clone());
        add.map_err(|why| format!("cannot record the refresh of its subscribers, so that nothing was changed: {why}"))
    }
}
