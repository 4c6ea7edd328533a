//! The session of a run, with the events that have ended but are not recorded yet.

use jiff::Timestamp;
use uuid::Uuid;

use crate::model::{ResourceRef, TransactionEvent};
use crate::store::{LastResourceEvent, MemorySession, Session, StoreError};

/// A session, and the events that come ahead of their turn in the order of events.
pub(super) struct SessionView<'a> {
    recorded: &'a mut dyn Session,
    /// None until the first such event: most runs have none.
    ahead: Option<MemorySession>,
}

impl<'a> SessionView<'a> {
    pub(super) fn new(recorded: &'a mut dyn Session) -> Self {
        Self { recorded, ahead: None }
    }

    /// Adds an event that is not recorded yet. Later resources find it.
    pub(super) fn add_ahead(&mut self, event: &TransactionEvent) {
        // The session itself reports an event without a name.
        let _added = self.ahead.get_or_insert_default().record(event);
    }
}

impl Session for SessionView<'_> {
    fn record(&mut self, event: &TransactionEvent) -> Result<(), StoreError> {
        self.recorded.record(event)
    }

    fn last(&self, of: &ResourceRef) -> Option<LastResourceEvent> {
        self.ahead.as_ref().and_then(|ahead| ahead.last(of)).or_else(|| self.recorded.last(of))
    }

    fn start(&mut self, at: Timestamp, id: Uuid) -> Result<(), StoreError> {
        self.recorded.start(at, id)
    }
}
