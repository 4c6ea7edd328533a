//! The pending refreshes of the runs of an agent, in the state directory. Confined threads may not write there, so the unconfined
//! thread of the run does.

use std::sync::Arc;

use crate::agent::exec::context::RunContext;
use crate::diag::error_chain;
use crate::engine::RefreshStore;
use crate::host::confine::Worker;
use crate::model::{RefreshEdge, ResourceRef, lock};

/// The pending refreshes, for one run.
pub(in crate::agent) struct AgentRefreshes {
    pub(in crate::agent) context: Arc<RunContext>,
    pub(in crate::agent) worker: Worker,
    /// The key whose command runs. With several, the first by name counts.
    pub(in crate::agent) origin: String,
}

impl RefreshStore for AgentRefreshes {
    fn is_pending(&self, edge: &RefreshEdge) -> bool {
        lock(&self.context.refreshes).is_pending(edge)
    }

    fn add(&self, edges: Vec<RefreshEdge>) -> Result<(), String> {
        let (context, origin) = (Arc::clone(&self.context), self.origin.clone());
        let added = self.worker.run(move || lock(&context.refreshes).add(&edges, &origin).map_err(|error| error_chain(&error)));
        added.unwrap_or_else(|gone| Err(gone.to_string()))
    }

    fn refreshed(&self, subscriber: &ResourceRef) {
        let (context, subscriber) = (Arc::clone(&self.context), subscriber.clone());
        // Without the thread the run has failed, and the next one refreshes again.
        let _written = self.worker.run(move || {
            let written = lock(&context.refreshes).refreshed(&subscriber);
            context.status.report_storage_error(written);
        });
    }
}
