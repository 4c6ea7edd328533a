//! Evaluation of the `where` of commands, away from the agent's own thread.
//!
//! The intake hands over what it has verified but for that, and gets it back once the answer is known. Then it verifies all
//! of it again, so that nothing is taken on what was true before.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::incoming::Incoming;
use crate::agent::status::facts_cache::FactsCache;

/// Commands that wait for an answer. Each takes at most about a second, so that the last waits a few seconds; what is
/// more is told `busy`.
const WAITING: usize = 8;

/// A command whose `where` is evaluated.
pub(in crate::agent) struct FilterRequest {
    /// Its `where`.
    pub(in crate::agent) expression: String,
    /// The command as it came.
    pub(in crate::agent) incoming: Incoming,
}

/// Starts the task that evaluates, one after the other: it takes what was asked, and gives back what was evaluated. It ends
/// with the intake.
pub(in crate::agent) fn spawn(facts: Arc<FactsCache>) -> (mpsc::Sender<FilterRequest>, mpsc::Receiver<Incoming>) {
    let (asked, mut questions) = mpsc::channel::<FilterRequest>(WAITING);
    // One: the next is evaluated while the intake verifies this one.
    let (back, evaluated) = mpsc::channel(1);
    tokio::spawn(async move {
        while let Some(FilterRequest { expression, incoming }) = questions.recv().await {
            // An answer that cannot be had is an answer too, and kept as one.
            let _kept = facts.evaluate_in_background(&expression).await;
            if back.send(incoming).await.is_err() {
                return;
            }
        }
    });
    (asked, evaluated)
}
