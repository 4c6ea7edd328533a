//! The outputs of all resources of a run, with the manifests within the manifest.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use serde_json::{Map, Value};

use crate::model::{ResourceRef, TransactionEvent, lock};
use crate::template::{OutputTable, OutputsOfResource, ValueUses};

use super::plan::PlannedResource;

/// The memory of all outputs of a run, in bytes: a quarter of that of all values.
const MAX_BYTES: usize = 16 << 20;

/// The outputs of resources, for the runs of one manifest that is kept in force.
#[derive(Clone, Default)]
pub struct OutputStore(Arc<Mutex<Recorded>>);

/// The outputs of the resources that ran.
#[derive(Default)]
pub(super) struct RunOutputs {
    /// The resources whose outputs templates use.
    used: HashSet<ResourceRef>,
    /// True when a manifest that is not read yet may use any output.
    keeps_all: bool,
    recorded: OutputStore,
    /// The resources whose outputs are others than before.
    changed: Mutex<BTreeSet<ResourceRef>>,
}

#[derive(Default)]
struct Recorded {
    last: HashMap<ResourceRef, LastOutputs>,
    bytes: usize,
}

/// The outputs of the last event of a resource.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum LastOutputs {
    /// The resource is as wanted.
    Present(Map<String, Value>, ValueUses),
    /// The control skipped the resource.
    Skipped,
    /// The resource would change: only a real run knows the outputs.
    Predicted,
    /// The outputs may not be used, for this reason.
    Unavailable(&'static str),
}

impl LastOutputs {
    /// Returns the outputs after an event. `values` has those of a converged resource.
    pub(super) fn from_event(event: &TransactionEvent, values: Option<Map<String, Value>>, uses: ValueUses) -> Self {
        match values {
            _ if event.failed => Self::Unavailable("failed"),
            _ if !event.unmet_requirements.is_empty() => Self::Unavailable("did not run, as one of its requirements failed"),
            _ if event.skipped => Self::Skipped,
            _ if event.noop && (event.changed || event.refreshed) => Self::Predicted,
            Some(values) => Self::Present(values, uses),
            None => Self::Unavailable("did not run"),
        }
    }

    fn for_templates(&self, resource: &ResourceRef) -> OutputsOfResource {
        match self {
            Self::Present(values, uses) => OutputsOfResource::Present {
                values: values.clone(),
                uses: *uses,
                absence: "the command did not run, or there is no such object".to_owned(),
            },
            Self::Skipped => OutputsOfResource::Present {
                values: Map::new(),
                uses: ValueUses::default(),
                absence: "its control skipped it".to_owned(),
            },
            Self::Predicted => OutputsOfResource::Unavailable(format!("{resource} has outputs only after a real run")),
            Self::Unavailable(why) => OutputsOfResource::Unavailable(format!("{resource} has no outputs: it {why}")),
        }
    }

    fn bytes(&self) -> usize {
        if let Self::Present(values, _) = self { values.values().map(|value| value.to_string().len()).sum() } else { 0 }
    }
}

impl RunOutputs {
    /// Returns the outputs of a run, which begins with those of earlier runs.
    pub(super) fn new(recorded: &OutputStore) -> Self {
        Self { recorded: recorded.clone(), ..Self::default() }
    }

    /// Returns the resources whose outputs are others than before, since the last call.
    pub(super) fn take_changed(&self) -> BTreeSet<ResourceRef> {
        std::mem::take(&mut lock(&self.changed))
    }

    /// Adds the uses of a manifest.
    pub(super) fn add_uses(&mut self, resources: &[PlannedResource]) {
        self.keeps_all |= resources.iter().any(|planned| planned.kind.nests());
        self.used.extend(resources.iter().flat_map(PlannedResource::senders).cloned());
    }

    /// Returns the names under which templates use the outputs of a resource.
    pub(super) fn used_names(&self, planned: &PlannedResource) -> Vec<ResourceRef> {
        if self.used.is_empty() && !self.keeps_all {
            return Vec::new();
        }
        planned.references().filter(|name| self.keeps_all || self.used.contains(name)).collect()
    }

    /// Records the outputs of a resource under one of its names. Beyond the limit, the resource has none.
    pub(super) fn record(&self, name: ResourceRef, outputs: &LastOutputs) {
        let mut recorded = lock(&self.recorded.0);
        let freed = recorded.last.get(&name).map_or(0, LastOutputs::bytes);
        let bytes = recorded.bytes - freed + outputs.bytes();
        let outputs = match bytes <= MAX_BYTES {
            true => outputs.clone(),
            false => LastOutputs::Unavailable("has more than the outputs of a run may have, which is 16 MiB"),
        };
        recorded.bytes = recorded.bytes - freed + outputs.bytes();
        let is_same = recorded.last.get(&name) == Some(&outputs);
        recorded.last.insert(name.clone(), outputs);
        if !is_same {
            lock(&self.changed).insert(name);
        }
    }

    /// Returns the outputs that the templates of a resource use.
    pub(super) fn table(&self, planned: &PlannedResource) -> OutputTable {
        let recorded = lock(&self.recorded.0);
        let outputs = |resource: &ResourceRef| match recorded.last.get(resource) {
            Some(last) => last.for_templates(resource),
            None => OutputsOfResource::Unavailable(format!("{resource} has no outputs: it did not run before, in this run")),
        };
        OutputTable::new(planned.senders().map(|resource| (resource.clone(), outputs(resource))))
    }

    /// Returns the resource that a property waits for, in a run that changes nothing.
    pub(super) fn predicted(&self, planned: &PlannedResource, property: &str) -> Option<ResourceRef> {
        let recorded = lock(&self.recorded.0);
        let senders = planned.received.iter().filter(|received| received.property == property);
        let mut senders = senders.map(|received| &received.reference.resource);
        senders.find(|sender| recorded.last.get(*sender) == Some(&LastOutputs::Predicted)).cloned()
    }
}
