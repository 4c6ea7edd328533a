//! Evaluation of the filters (`where`) of commands on a background thread.
//!
//! The intake hands over a command whose other checks passed, and gets it back with the evaluated filter. Then the intake
//! verifies the whole command again, as its checks may have changed meanwhile.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::incoming::Incoming;
use crate::agent::status::facts_cache::FactsCache;

/// Most waiting commands. Each takes about a second at most, so that the last one waits a few seconds. Further commands
/// get `busy`.
const MAX_WAITING: usize = 8;

/// A command whose filter is evaluated.
pub(in crate::agent) struct FilterRequest {
    /// The filter.
    pub(in crate::agent) expression: String,
    /// The command as received.
    pub(in crate::agent) incoming: Incoming,
}

/// Starts the task that evaluates filters, one after the other. The task ends with the intake.
pub(in crate::agent) fn spawn(facts: Arc<FactsCache>) -> (mpsc::Sender<FilterRequest>, mpsc::Receiver<Incoming>) {
    let (asked, mut questions) = mpsc::channel::<FilterRequest>(MAX_WAITING);
    // One place: the task evaluates the next filter while the intake verifies this command.
    let (back, evaluated) = mpsc::channel(1);
    tokio::spawn(async move {
        while let Some(FilterRequest { expression, incoming }) = questions.recv().await {
            // A failed evaluation is an answer too, and is cached as one.
            let _kept = facts.evaluate_in_background(&expression).await;
            if back.send(incoming).await.is_err() {
                return;
            }
        }
    });
    (asked, evaluated)
}
