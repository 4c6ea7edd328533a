//! The scope of a run: its runner of commands, with the run's cancel flag and deadline.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::cancel::{CANCEL_POLL, Cancel};
use super::command::{CommandError, Output, ProcessCommand, Runner};

/// Runs commands within one run. Its cancel flag and deadline apply to every command.
#[derive(Clone)]
pub struct RunScope {
    pub(super) runner: Arc<dyn Runner>,
    pub(super) cancel: Cancel,
    pub(super) deadline: Option<Instant>,
    /// True when the deadline is that of one attempt, which its policy sets.
    pub(super) has_attempt_timeout: bool,
}

impl RunScope {
    /// True when this run is cancelled or its deadline has passed.
    pub fn is_over(&self) -> bool {
        self.cancel.is_cancelled() || self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Sleeps for `time`, at most until this run is over.
    pub fn sleep(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.is_over() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(CANCEL_POLL));
        }
    }

    /// Runs a command to its end, within its own timeout and the deadline of this run.
    ///
    /// # Errors
    /// When the command can't be started, is killed by a signal, or exceeds its time.
    pub fn run(&self, command: &ProcessCommand) -> Result<Output, CommandError> {
        self.runner.run(command, &self.cancel, self.deadline)
    }
}
