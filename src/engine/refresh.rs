//! Refreshes: a resource acts on a change of a resource that it subscribes to.
//!
//! A refresh is pending from before the change until the subscriber succeeded. [`RefreshStore`] keeps it between runs. A dry run
//! neither adds nor removes pending refreshes.

use std::sync::Arc;

use crate::model::{RefreshEdge, ResourceRef, TransactionEvent};

use super::converge::{Abort, ResourceRun, unknown_reference};
use super::settings::RefreshStore;
use super::subscribers::PendingRecord;

impl ResourceRun<'_> {
    fn refresh_store(&self) -> Option<&Arc<dyn RefreshStore>> {
        self.settings.refreshes.as_ref().filter(|_| !self.is_noop() && !self.settings.health_check_only)
    }

    /// Returns the record to make before a change of this resource; none without subscribers.
    pub(super) fn pending_record(&self) -> Option<PendingRecord> {
        let store = self.refresh_store()?;
        let edges = self.subscribers.edges(self.planned);
        (!edges.is_empty()).then(|| PendingRecord::new(store, edges))
    }

    /// Returns true when a resource that this one subscribes to has changed since the last refresh.
    ///
    /// While that resource fails, a refresh of an earlier run stays pending.
    pub(super) fn is_refresh_due(&self) -> Result<bool, Abort> {
        let mut is_due = false;
        for changed in &self.planned.subscribes {
            let has_failed = match (self.session.last(changed), &self.settings.selection) {
                // In a real run, a resource that was only observed notifies no subscriber.
                (Some(last), _) if last.changed && (self.settings.noop || !last.noop) => return Ok(true),
                (Some(last), _) => last.failed,
                (None, Some(selection)) => selection.failed.contains(changed),
                (None, None) => return Err(unknown_reference("subscribe", changed)),
            };
            is_due |= !has_failed && self.is_pending(changed);
        }
        Ok(is_due)
    }

    /// Returns the resources whose changes still need a refresh of this one.
    pub(super) fn pending_refreshes(&self) -> Vec<String> {
        self.planned.subscribes.iter().filter(|changed| self.is_pending(changed)).map(ToString::to_string).collect()
    }

    fn is_pending(&self, changed: &ResourceRef) -> bool {
        let edge = || RefreshEdge { changed: changed.clone(), subscriber: self.planned.reference() };
        self.settings.refreshes.as_ref().is_some_and(|store| store.is_pending(&edge()))
    }

    /// Updates the pending refreshes after the resource: those of its subscribers, and its own.
    ///
    /// # Errors
    /// With the reason, for people.
    pub(super) fn settle_refreshes(&self, event: &TransactionEvent) -> Result<(), String> {
        let Some(store) = self.refresh_store() else { return Ok(()) };
        // A nested manifest is known to have changed only now.
        if event.changed
            && let Some(record) = self.pending_record()
        {
            record.record()?;
        }
        if self.planned.subscribes.is_empty() {
            return Ok(());
        }
        if !event.failed && !event.skipped {
            store.refreshed(&self.planned.reference());
            return Ok(());
        }
        let has_changed = |reference: &&ResourceRef| self.session.last(reference).is_some_and(|last| last.changed && !last.noop);
        let missed = self.planned.subscribes.iter().filter(has_changed).map(|changed| {
            let changed = changed.clone();
            RefreshEdge { changed, subscriber: self.planned.reference() }
        });
        store.add(missed.collect())
    }
}
