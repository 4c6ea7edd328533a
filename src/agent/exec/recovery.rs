//! Recovery after a crash: every command that an earlier agent accepted gets its one end.
//!
//! Started and not ended → `interrupted`: a repetition may do harm. `orphaned_runs.rs` has ended its processes.
//! Cancelled and not started → `interrupted`, too.
//! Accepted and not started → verified again, and then run, rejected or `expired`.

use std::collections::VecDeque;
use std::sync::Arc;

use uuid::Uuid;

use crate::agent::durable::publisher::Publisher;
use crate::agent::durable::state::DurableState;
use crate::agent::identity::AgentInstance;
use crate::agent::reconcile::desired_state::DesiredState;
use crate::agent::rollout::{RolloutState, health_gate};
use crate::agent::status::messages;
use crate::agent::trust::command_verifier::CommandVerifier;
use crate::store::UnfinishedCommand;
use crate::trust::RejectionCode;
use crate::wire::{CommandOutcome, CommandResult};

use super::job::Job;

/// The work that an earlier agent left.
#[derive(Default)]
pub(in crate::agent) struct Recovered {
    /// The ends that are not persisted yet.
    pub(in crate::agent) ended: Vec<RecoveredEnd>,
    /// The commands to run, in the order in which they were accepted.
    pub(in crate::agent) jobs: VecDeque<Job>,
}

/// The end of a command that an earlier agent accepted.
pub(in crate::agent) struct RecoveredEnd {
    /// The result.
    pub(in crate::agent) result: CommandResult,
    /// True when the outbox has the result already.
    pub(in crate::agent) posted: bool,
}

/// The handles of the recovery.
pub(in crate::agent) struct Recovery<'a> {
    pub(in crate::agent) identity: &'a Arc<AgentInstance>,
    pub(in crate::agent) verifier: &'a CommandVerifier,
    pub(in crate::agent) durable: &'a DurableState,
    pub(in crate::agent) publisher: &'a Publisher,
    pub(in crate::agent) desired_state: &'a DesiredState,
    pub(in crate::agent) rollouts: &'a RolloutState,
    /// The report about the processes that the earlier agent left running.
    pub(in crate::agent) orphans: Option<&'a str>,
}

impl Recovery<'_> {
    /// Finds the commands without an end in the ledger.
    pub(in crate::agent) fn recover(&self) -> Recovered {
        let mut found = Recovered::default();
        for left in self.durable.unfinished() {
            // The command may have ended without its end in the ledger.
            if let Some(result) = self.durable.queued_result(&self.publisher.result_id(left.id)) {
                found.ended.push(RecoveredEnd { result, posted: true });
            } else if left.started {
                found.ended.push(self.interrupted(&left));
            } else if let Some(ended) = self.assignment(&left) {
                found.ended.extend(ended);
            } else if let Some(why) = self.durable.cancelled().find(left.id) {
                found.ended.push(self.ended(&left, Some(RejectionCode::Cancelled), why));
            } else {
                self.reverify(&left, &mut found);
            }
        }
        found
    }

    fn interrupted(&self, left: &UnfinishedCommand) -> RecoveredEnd {
        let cancelled = self.durable.cancelled().find(left.id);
        let code = cancelled.as_ref().map(|_| RejectionCode::Cancelled);
        let what = cancelled.unwrap_or_else(|| "the agent ended during the run".to_owned());
        self.ended(left, code, self.orphans.iter().fold(what, |what, report| format!("{what}; {report}")))
    }

    /// Returns the end of a command that was interrupted or cancelled.
    fn ended(&self, left: &UnfinishedCommand, code: Option<RejectionCode>, why: String) -> RecoveredEnd {
        tracing::warn!(id = %left.id, why, "was interrupted");
        let result = CommandResult {
            code: code.map(|code| code.as_str().to_owned()),
            message: Some(why),
            ..messages::result(self.identity, Some(left.id), &left.digest, CommandOutcome::Interrupted)
        };
        self.rollouts.results.publish_failure_of_envelope(&left.envelope, &result);
        RecoveredEnd { result, posted: false }
    }

    fn not_run(&self, left: &UnfinishedCommand, why: (RejectionCode, String)) -> RecoveredEnd {
        let result = messages::not_run(self.identity, Some(left.id), &left.digest, CommandOutcome::Refused, why);
        RecoveredEnd { result, posted: false }
    }

    /// Returns `None` for a command that is no assignment. The reconciler runs the latest assignment of a channel; an
    /// earlier one ends here.
    fn assignment(&self, left: &UnfinishedCommand) -> Option<Option<RecoveredEnd>> {
        let verified = self.verifier.verify(|verifier| verifier.reverify_assignment(&left.envelope)).ok()?;
        if !verified.get().action.is_desired_state() {
            return None;
        }
        if self.desired_state.mark_result_pending(verified.get()) {
            return Some(None);
        }
        let why = (RejectionCode::StaleSerial, "a later assignment of the channel arrived before the run".to_owned());
        Some(Some(self.not_run(left, why)))
    }

    fn reverify(&self, left: &UnfinishedCommand, found: &mut Recovered) {
        match self.verifier.verify(|verifier| verifier.reverify_queued(&left.envelope)) {
            // The executor checks the time of the command, as for every waiting command.
            Ok(verified) => {
                tracing::info!(id = %left.id, "requeued");
                found.jobs.push_back(Job::command(Arc::new(verified), None));
            }
            Err(rejection) => {
                let ended = self.not_run(left, (rejection.code, rejection.message));
                self.publisher.post_rejection(&ended.result, left.subject.as_deref().unwrap_or_default(), rejection.keyids);
                found.ended.push(ended);
            }
        }
    }

    /// Returns the commands whose health gates an earlier agent left pending, with their results. Completes the gates
    /// that are obsolete. The reconciler completes those of assignments.
    pub(in crate::agent) fn pending_health_gates(&self, recovered: &Recovered) -> Vec<(Job, CommandResult)> {
        let mut jobs = Vec::new();
        for (id, envelope) in self.rollouts.health_gates.pending() {
            match self.pending_gate(recovered, id, &envelope) {
                PendingGate::Command(job) => jobs.push(*job),
                PendingGate::Assignment => {}
                PendingGate::Obsolete => self.rollouts.health_gates.complete(id),
            }
        }
        jobs
    }

    fn pending_gate(&self, recovered: &Recovered, id: Uuid, envelope: &[u8]) -> PendingGate {
        // The gate may have been scheduled just before the crash, and the command count as interrupted now.
        let ended = recovered.ended.iter().map(|ended| &ended.result).find(|result| result.id == Some(id)).cloned();
        let result = ended.or_else(|| self.durable.result(id));
        if result.as_ref().is_some_and(|result| !health_gate::is_success(result)) {
            return PendingGate::Obsolete;
        }
        if self.desired_state.is_latest(id) {
            return PendingGate::Assignment;
        }
        let Ok(verified) = self.verifier.verify(|verifier| verifier.reverify_queued(envelope)) else {
            return PendingGate::Obsolete;
        };
        let command = verified.get();
        let is_on = self.identity.now() < command.latest_start() && !command.action.is_desired_state();
        match result.filter(|_| is_on) {
            Some(result) => {
                tracing::info!(%id, "its health gate is still pending");
                PendingGate::Command(Box::new((Job::command(Arc::new(verified), None).health_check(), result)))
            }
            None => PendingGate::Obsolete,
        }
    }
}

/// A health gate that an earlier agent left pending.
enum PendingGate {
    /// The gate of a command, with its result.
    Command(Box<(Job, CommandResult)>),
    /// The gate of an assignment.
    Assignment,
    /// The gate is obsolete.
    Obsolete,
}
