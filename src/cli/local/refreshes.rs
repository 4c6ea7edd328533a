//! The pending refreshes of local runs, kept beside the history of runs.

use std::sync::{Arc, Mutex};

use crate::cli::error::{CliError, Exit};
use crate::diag::{Diagnostic, error_chain};
use crate::engine::RefreshStore;
use crate::model::{RefreshEdge, ResourceRef, lock};
use crate::store::{PendingRefreshes, StoreError};

use super::inputs;

struct LocalRefreshes(Mutex<PendingRefreshes>);

/// Reads the pending refreshes of this host (for root), or of this user; none without a history.
///
/// # Errors
/// When they can't be read.
pub fn pending_refreshes() -> Result<Option<Arc<dyn RefreshStore>>, CliError> {
    let Some(history) = inputs::history() else { return Ok(None) };
    let unread = |error: StoreError| {
        let diagnostic = Diagnostic::new(format!("cannot read the pending refreshes of earlier runs: {}", error_chain(&error)));
        CliError::new(Exit::Failed, diagnostic)
            .hint("remove the file; restart the services whose configuration changed in a failed run")
    };
    let pending = PendingRefreshes::read(history.directory()).map_err(unread)?;
    Ok(Some(Arc::new(LocalRefreshes(Mutex::new(pending)))))
}

impl RefreshStore for LocalRefreshes {
    fn is_pending(&self, edge: &RefreshEdge) -> bool {
        lock(&self.0).is_pending(edge)
    }

    fn add(&self, edges: Vec<RefreshEdge>) -> Result<(), String> {
        lock(&self.0).add(&edges, "").map_err(|error| error_chain(&error))
    }

    fn refreshed(&self, subscriber: &ResourceRef) {
        if let Err(error) = lock(&self.0).refreshed(subscriber) {
            tracing::warn!(%subscriber, error = %error_chain(&error), "cannot remove a pending refresh, so that the next run refreshes again");
        }
    }
}
