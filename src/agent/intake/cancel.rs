//! The effect of a `cancel` on this node: on disk first, then on the run or on the queues.

use std::sync::Arc;

use uuid::Uuid;

use crate::agent::durable::cancelled_jobs::RecordCancelError;
use crate::agent::durable::state::DurableState;
use crate::agent::identity::AgentInstance;
use crate::agent::reconcile::desired_state::DesiredState;
use crate::agent::rollout::RolloutState;
use crate::agent::status::board::{AlarmKind, StatusBoard};
use crate::agent::status::messages;
use crate::diag::error_chain;
use crate::host::{Checkpoint, checkpoint};
use crate::trust::{RejectionCode, ReplayStore, Verified};
use crate::wire::command::Command;
use crate::wire::{CommandOutcome, CommandResult};

use super::fair_queue::FairQueue;

/// The handles by which a job is cancelled.
pub(super) struct JobCanceller<'a> {
    pub(super) identity: &'a AgentInstance,
    pub(super) durable: &'a DurableState,
    pub(super) status: &'a StatusBoard,
    pub(super) desired_state: &'a DesiredState,
    pub(super) rollouts: &'a RolloutState,
    /// The queue of the executor.
    pub(super) work: &'a Arc<FairQueue>,
    /// The queue beside it, where cancelled commands end while a run is on.
    pub(super) queries: &'a Arc<FairQueue>,
}

/// The reason why a cancel is not accepted.
pub(super) type CancelRejection = (CommandOutcome, RejectionCode, String);

impl JobCanceller<'_> {
    /// Cancels a job. Returns the result of the cancel, which names the effect on this node.
    ///
    /// # Errors
    /// When the job is an assignment, or there is no place for the record.
    pub(super) fn cancel(&self, verified: &Verified<Command>, job: Uuid) -> Result<CommandResult, CancelRejection> {
        let result = |outcome, message: String| CommandResult {
            message: Some(message),
            ..messages::result(self.identity, Some(verified.id), verified.digest(), outcome)
        };
        if self.desired_state.is_latest(job) {
            let why = "the job is an assignment; hint: `ensign fleet withdraw` ends the assignment of a channel";
            return Err((CommandOutcome::Refused, RejectionCode::NotCancellable, why.to_owned()));
        }
        if let Some(done) = self.durable.result(job) {
            return Ok(result(CommandOutcome::Stable, format!("the job has ended on this node: {}", done.outcome.as_str())));
        }
        let is_accepted = self.durable.accepted_digest(job).is_some();
        let is_running = self.status.read(|snapshot| snapshot.running) == Some(job);
        let recorded = self.durable.record_cancel(job, verified, self.identity.now());
        checkpoint(Checkpoint::CancelStored);
        let is_new = match recorded {
            Ok(is_new) => is_new,
            Err(RecordCancelError::Full(why)) => return Err((CommandOutcome::Busy, RejectionCode::Busy, why)),
            Err(RecordCancelError::Store(error)) => {
                let why = error_chain(&error);
                self.status.raise(AlarmKind::Disk, why.clone());
                self.wake(job);
                let message = format!("the job is cancelled only until the agent restarts: {why}");
                return Ok(CommandResult {
                    code: Some(RejectionCode::Storage.as_str().to_owned()),
                    ..result(CommandOutcome::Failed, message)
                });
            }
        };
        self.wake(job);
        let (outcome, message) = match (is_new, is_accepted, is_running) {
            (false, ..) => (CommandOutcome::Stable, "the job is cancelled already"),
            (true, true, true) => (CommandOutcome::Changed, "the job is running, and is stopped"),
            (true, true, false) => (CommandOutcome::Changed, "the job waits, and will not run"),
            (true, false, _) => (CommandOutcome::Stable, "the job is not on this node, and will not run when it arrives"),
        };
        Ok(result(outcome, message.to_owned()))
    }

    /// Lets a waiting job end. A running one ends by itself: the executor waits for the record.
    fn wake(&self, job: Uuid) {
        if let Some(waiting) = self.work.remove(job) {
            self.queries.push(waiting);
        }
        self.rollouts.overrides.wake();
    }
}
