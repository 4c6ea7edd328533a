//! Progress of a run, for a listener: messages, and the state of slow steps.

use std::sync::Arc;

/// The progress of a slow step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The step, as "downloading app.tar.gz".
    pub what: &'a str,
    /// Finished bytes.
    pub done: u64,
    /// Bytes in all, when known.
    pub total: Option<u64>,
}

/// An event for the listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressEvent<'a> {
    /// A message for the user, as about a wait.
    Message(&'a str),
    /// The progress of a slow step.
    Progress(Progress<'a>),
    /// The step of [`ProgressEvent::Progress`] has ended.
    ProgressEnded,
    /// The run begins to handle a resource.
    ResourceStarted {
        /// The type of the resource.
        kind: &'a str,
        /// The name of the resource.
        name: &'a str,
        /// The number of other resources in the same transaction.
        others: usize,
    },
    /// The handling of the resource has ended.
    ResourceEnded,
}

/// Receives the events.
pub type ProgressListener = Arc<dyn Fn(ProgressEvent<'_>) + Send + Sync>;
