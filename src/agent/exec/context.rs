//! The context of runs: the parts of the agent that a run needs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::agent::config::settings_handle::SettingsHandle;
use crate::agent::durable::publisher::Publisher;
use crate::agent::durable::state::DurableState;
use crate::agent::identity::AgentInstance;
use crate::agent::status::board::StatusBoard;
use crate::agent::status::counters::SharedCounters;
use crate::agent::status::facts_cache::FactsCache;
use crate::agent::trust::TrustHandle;
use crate::store::{PendingRefreshes, ValueStore};

use super::assignment_outputs::AssignmentOutputs;
use super::backend::RunBackend;
use super::orphaned_runs::OrphanedRuns;

/// The parts of the agent that a run needs.
pub(in crate::agent) struct RunContext {
    pub(in crate::agent) identity: Arc<AgentInstance>,
    pub(in crate::agent) settings: SettingsHandle,
    pub(in crate::agent) trust: TrustHandle,
    pub(in crate::agent) durable: Arc<DurableState>,
    pub(in crate::agent) publisher: Publisher,
    pub(in crate::agent) status: Arc<StatusBoard>,
    pub(in crate::agent) counters: Arc<SharedCounters>,
    pub(in crate::agent) facts: Arc<FactsCache>,
    /// The environment, as `Environ` in templates.
    pub(in crate::agent) environ: BTreeMap<String, String>,
    /// The directories in which bare command names are looked up.
    pub(in crate::agent) search_path: Option<String>,
    /// The engine, or a simulation.
    pub(in crate::agent) backend: RunBackend,
    /// The journal of the commands that runs start.
    pub(in crate::agent) orphans: OrphanedRuns,
    /// The refreshes that subscribers have not received yet.
    pub(in crate::agent) refreshes: Mutex<PendingRefreshes>,
    /// The outputs of resources between the runs of watched assignments.
    pub(in crate::agent) outputs: AssignmentOutputs,
    /// The newest signed values that this node read.
    pub(in crate::agent) values: Arc<Mutex<ValueStore>>,
}
