//! The results of rollouts: this node publishes that it succeeded or failed, for the nodes of later waves.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use uuid::Uuid;

use crate::agent::durable::publisher::Publisher;
use crate::agent::identity::AgentInstance;
use crate::agent::status::messages;
use crate::model::lock;
use crate::store::{OutboxMessage, Priority};
use crate::trust::{RejectionCode, Verified};
use crate::wire::command::Command;
use crate::wire::report::{ROLLOUT_FAILURE, ROLLOUT_SUCCESS, RolloutResult};
use crate::wire::rollout_plan::RolloutPosition;
use crate::wire::subject::Subject;
use crate::wire::{CommandOutcome, CommandResult, Envelope, json};

/// Most results that are remembered as published.
const MAX_PUBLISHED: usize = 256;

/// Publishes the results of rollouts. Clones share which were published.
#[derive(Clone)]
pub(in crate::agent) struct RolloutResults {
    identity: Arc<AgentInstance>,
    publisher: Publisher,
    /// The last published results, by job and protocol. The stream keeps only one of each.
    published: Arc<Mutex<VecDeque<(Uuid, &'static str)>>>,
}

impl RolloutResults {
    pub(super) fn new(identity: &Arc<AgentInstance>, publisher: &Publisher) -> Self {
        Self { identity: Arc::clone(identity), publisher: publisher.clone(), published: Arc::default() }
    }

    /// Returns the wave of this node, from 1; `None` for a command without waves.
    pub(in crate::agent) fn wave(&self, command: &Command) -> Option<u64> {
        let plan = command.options.waves.as_ref()?;
        u64::try_from(plan.wave_number(RolloutPosition::for_node(command.id, &self.identity.node))).ok()
    }

    /// Returns true when the next wave waits for a success of this node.
    pub(in crate::agent) fn is_witness(&self, command: &Command) -> bool {
        command.options.waves.as_ref().is_some_and(|plan| plan.is_witness(&self.identity.node))
    }

    /// Publishes a success, if the next wave waits for one.
    pub(in crate::agent) fn publish_success(&self, command: &Verified<Command>, outcome: CommandOutcome) {
        if self.is_witness(command) {
            let subject = self.identity.subjects.rollout_ok(command.id, &self.identity.node);
            self.publish(command.id, command.digest(), ROLLOUT_SUCCESS, &subject, (self.identity.now(), outcome, false));
        }
    }

    /// Publishes a failure, unless the command has no waves or its end does not count as a failure.
    ///
    /// Called before the result is persisted: after a crash in between, the failure is published or the result is not.
    pub(in crate::agent) fn publish_failure(&self, command: &Command, result: &CommandResult) {
        let rejected = |code: RejectionCode| result.code.as_deref() == Some(code.as_str());
        let counts = match result.outcome {
            CommandOutcome::Failed | CommandOutcome::Interrupted => true,
            // A command outside of the limits of the host would have been rejected from the beginning.
            CommandOutcome::Refused => {
                rejected(RejectionCode::BadArtifact) || rejected(RejectionCode::Storage) || rejected(RejectionCode::PlanChanged)
            }
            _ => false,
        };
        if counts && command.options.waves.is_some() {
            let subject = self.identity.subjects.rollout_failed(command.id, &self.identity.node);
            self.publish(command.id, &result.digest, ROLLOUT_FAILURE, &subject, (result.at, result.outcome, false));
        }
    }

    /// Publishes the failure of an assignment that this node ran, and goes back from.
    ///
    /// Called before the return is on disk: after a crash in between, the next start decides again.
    pub(in crate::agent) fn publish_return(&self, command: &Verified<Command>) {
        let subject = self.identity.subjects.rollout_failed(command.id, &self.identity.node);
        let failed = (self.identity.now(), CommandOutcome::Failed, true);
        self.publish(command.id, command.digest(), ROLLOUT_FAILURE, &subject, failed);
    }

    /// Publishes the failure of a command of which only the envelope in the ledger is known.
    pub(in crate::agent) fn publish_failure_of_envelope(&self, envelope: &[u8], result: &CommandResult) {
        let payload = Envelope::parse(envelope).map(|envelope| envelope.payload);
        if let Some(command) = payload.ok().and_then(|payload| json::read::<Command>(&payload).ok()) {
            self.publish_failure(&command, result);
        }
    }

    /// Publishes a result once: no ledger has an unselected command, and a server may repeat it any number of times.
    fn publish(
        &self,
        id: Uuid,
        digest: &str,
        protocol: &'static str,
        subject: &Subject,
        (at, outcome, reverts): (Timestamp, CommandOutcome, bool),
    ) {
        if !self.is_first(id, protocol) {
            return;
        }
        let result = RolloutResult { protocol: protocol.to_owned(), id, node: self.identity.node.clone(), at, outcome, reverts };
        let (payload, msg_id) = (messages::json(&result), format!("{id}.{}.{protocol}", result.node));
        let (subject, command) = (subject.as_str().to_owned(), Some(digest.to_owned()));
        self.publisher.post(&OutboxMessage { subject, msg_id, payload, priority: Priority::Result, command });
    }

    fn is_first(&self, job: Uuid, protocol: &'static str) -> bool {
        let (mut published, result) = (lock(&self.published), (job, protocol));
        let is_first = !published.contains(&result);
        if is_first {
            published.push_back(result);
        }
        if published.len() > MAX_PUBLISHED {
            published.pop_front();
        }
        is_first
    }
}
