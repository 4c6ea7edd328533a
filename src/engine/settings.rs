//! The settings of a run, with the interfaces to the parts that differ between an agent and a local run.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;

use uuid::Uuid;

use crate::host::Host;
use crate::host::confine::Worker;
use crate::model::{DiscoveryClient, Effects, NodeId, RefreshEdge, ResourceRef, ReversalRecord};
use crate::resource::ParsedResource;

use super::run_outputs::OutputStore;

/// Decides about effects on this host. The run asks for every resource before its observation.
pub trait Authorizer: Send + Sync {
    /// Authorizes the effects of a resource of this type on `host`. Relative paths are in the directory of `host`.
    ///
    /// # Errors
    /// With the reason, for people.
    fn permit(&self, kind: &str, effects: &Effects, host: &Host) -> Result<(), String>;

    /// Returns true when the requester of the run may see the content of the files of these effects.
    fn may_show(&self, effects: &Effects, host: &Host) -> bool;
}

/// Pending refreshes. A run adds them before the change, and removes them when the subscriber succeeded.
pub trait RefreshStore: Send + Sync {
    /// True when the subscriber has not been refreshed since the other resource changed.
    fn is_pending(&self, edge: &RefreshEdge) -> bool;

    /// Adds pending refreshes, durably.
    ///
    /// # Errors
    /// With the reason, for people. The resource is not changed then.
    fn add(&self, edges: Vec<RefreshEdge>) -> Result<(), String>;

    /// Removes the pending refreshes of a subscriber that was refreshed.
    fn refreshed(&self, subscriber: &ResourceRef);
}

/// The records of resources that are reversed when they leave their manifest. A store is for one manifest, or one channel.
pub trait ReversalStore: Send + Sync {
    /// Returns the resources with a readable record.
    fn resources(&self) -> Vec<ResourceRef>;

    /// Returns the record of a resource.
    ///
    /// # Errors
    /// With the reason, for people: the record is damaged.
    fn get(&self, resource: &ResourceRef) -> Result<Option<ReversalRecord>, String>;

    /// Writes a record, durably.
    ///
    /// # Errors
    /// With the reason, for people.
    fn write(&self, record: ReversalRecord) -> Result<(), String>;

    /// Removes the record of a resource.
    ///
    /// # Errors
    /// With the reason, for people.
    fn remove(&self, resource: &ResourceRef) -> Result<(), String>;
}

/// The changes whose events have a diff of the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Diff {
    /// None.
    None,
    /// All, for a person at the host who may read the files anyway.
    All,
    /// Diffs of files that all users of the host may read and [`Authorizer::may_show`] allows: for readers elsewhere.
    Public,
}

impl Diff {
    /// Returns all diffs, or none.
    pub fn when(wanted: bool) -> Self {
        if wanted { Self::All } else { Self::None }
    }
}

/// The resources of a run that repairs drift. The other resources of the manifest are not run, and have no event.
///
/// The run adds the subscribers of every resource that changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunSelection {
    /// The resources to run, by their number in the plan, from 0.
    pub resources: BTreeSet<usize>,
    /// The resources that failed when they ran last, or whose requirements were not met. Their dependents are not run.
    pub failed: BTreeSet<ResourceRef>,
}

/// Most resources that run at the same time by default. Resources wait for disks and programs more than for processors.
const MAX_PARALLELISM: usize = 8;

/// Returns the number of resources that run at the same time by default: that of the processors, within bounds.
pub fn default_parallelism() -> NonZeroUsize {
    let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    NonZeroUsize::new(processors.clamp(2, MAX_PARALLELISM)).unwrap_or(NonZeroUsize::MIN)
}

/// The settings of a run.
#[derive(Clone)]
pub struct RunSettings {
    /// True for a noop run: observe, and report the changes without making them.
    pub noop: bool,
    /// True for a run of health checks only.
    pub health_check_only: bool,
    /// The resources to run; all without a selection.
    pub selection: Option<Arc<RunSelection>>,
    /// The outputs of earlier runs of the same manifest; empty for a single run.
    pub outputs: OutputStore,
    /// The number of resources that may run at the same time, for manifests with `ordering: graph`.
    pub parallelism: NonZeroUsize,
    /// The diffs of content that events of changes carry.
    pub diff: Diff,
    /// True when events have no `properties` and `status`, for a run whose events are not stored.
    pub omit_details: bool,
    /// The id of the run in events.
    pub run_id: Uuid,
    /// The node in events.
    pub node: Option<NodeId>,
    /// Decides about effects; none without limits.
    pub authorizer: Option<Arc<dyn Authorizer>>,
    /// Pending refreshes of earlier runs; without it a refresh is only known within the run.
    pub refreshes: Option<Arc<dyn RefreshStore>>,
    /// The records for `on_removal`; without them, resources that leave the manifest are kept.
    pub reversals: Option<Arc<dyn ReversalStore>>,
    /// Publishes registrations; without it they stay unpublished.
    pub registrar: Option<Arc<dyn DiscoveryClient>>,
    /// Returns a keyed digest for the SHA-256 of a content, for events that leave the host. Others cannot compute that
    /// digest.
    pub pseudonymize: Option<Pseudonymize>,
    /// The thread for resources that cannot be managed under the confinement; none for an unconfined run.
    pub unconfined_thread: Option<Arc<dyn UnconfinedThread>>,
}

/// See [`RunSettings::pseudonymize`]: lower-case hex in and out.
pub type Pseudonymize = Arc<dyn Fn(&str) -> String + Send + Sync>;

/// The thread outside of the confinement of a run, and the resources that need it.
pub trait UnconfinedThread: Send + Sync {
    /// Returns true for a resource that cannot be managed under the confinement.
    fn is_needed(&self, decoded: &dyn ParsedResource) -> bool;

    /// Rejects a resource that may not be managed outside.
    ///
    /// # Errors
    /// With the reason, for people.
    fn permit(&self, kind: &str, decoded: &dyn ParsedResource) -> Result<(), String>;

    /// Returns the handle of that thread.
    fn worker(&self) -> &Worker;
}
