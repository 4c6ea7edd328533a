//! Publication of messages: kept in the outbox until the server has stored them, or sent once and perhaps lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use uuid::Uuid;

use crate::agent::durable::stable_runs::{RunNotice, StableRunCounter};
use crate::agent::durable::state::DurableState;
use crate::agent::identity::AgentInstance;
use crate::agent::jitter;
use crate::agent::status::board::StatusBoard;
use crate::agent::status::messages;
use crate::model::{RunOutcome, lock};
use crate::store::{OutboxMessage, Priority, StoreError};
use crate::transport::Bus;
use crate::trust::{ReplayStore, TrustedBundle, Verified};
use crate::wire::command::Command;
use crate::wire::receipt;
use crate::wire::report::LifecycleEvent;
use crate::wire::subject::{EventKind, ReportStage};
use crate::wire::{CommandOutcome, CommandResult};

/// Longest pause before another attempt to write a result. An attempt costs only this host something.
pub(in crate::agent) const MAX_WRITE_PAUSE: Duration = Duration::from_secs(5);

/// Youngest age, in seconds, at which the ledger may have forgotten a command: half of its hour of memory.
const FORGOTTEN_AFTER: i64 = 1800;

/// Publishes what happens on this node. Clones share the outbox.
#[derive(Clone)]
pub(in crate::agent) struct Publisher {
    identity: Arc<AgentInstance>,
    durable: Arc<DurableState>,
    status: Arc<StatusBoard>,
    stable: Arc<Mutex<StableRunCounter>>,
}

impl Publisher {
    pub(in crate::agent) fn new(identity: &Arc<AgentInstance>, durable: &Arc<DurableState>, status: &Arc<StatusBoard>) -> Self {
        Self { identity: Arc::clone(identity), durable: Arc::clone(durable), status: Arc::clone(status), stable: Arc::default() }
    }

    /// Puts a message into the outbox.
    pub(in crate::agent) fn post(&self, message: &OutboxMessage) {
        self.status.report_storage_error(self.durable.post(message, self.identity.now()));
    }

    /// Returns an event of this node as a message.
    pub(in crate::agent) fn event(&self, kind: EventKind, id: Uuid, payload: Vec<u8>, class: Priority) -> OutboxMessage {
        let subject = self.identity.subjects.event(&self.identity.node, kind).as_str().to_owned();
        OutboxMessage { subject, msg_id: id.to_string(), payload, priority: class, command: None }
    }

    /// Writes the result of a command to disk and into the outbox. Returns false when another attempt is needed.
    /// See [`DurableState::finish`].
    pub(in crate::agent) fn finish(&self, result: &CommandResult, posted: &mut bool) -> bool {
        let Some(id) = result.id else { return true };
        let finished = self.durable.finish(id, result, &self.result(id, result, self.result_id(id)), posted);
        let again = matches!(finished, Err(StoreError::Fs(_)));
        self.status.report_storage_error(finished);
        !again
    }

    /// Returns true when the result of a command is on disk, and false when the agent stops before.
    ///
    /// While the disk takes no result nothing else runs: another result would fare no better.
    pub(in crate::agent) async fn persist_result(
        &self,
        result: &CommandResult,
        mut posted: bool,
        stop: &mut watch::Receiver<bool>,
    ) -> bool {
        let mut attempt = 0;
        while !self.finish(result, &mut posted) {
            attempt += 1;
            // Senders stop waiting for a result that only free space can bring.
            self.status.change(|snapshot| snapshot.unwritten = result.id);
            // Cancel-safe: a watch keeps its last value, and a dropped sleep loses nothing. The value decides, as the
            // change itself may have been seen before.
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return false,
                () = tokio::time::sleep(jitter::backoff(attempt).min(MAX_WRITE_PAUSE)) => {}
            }
        }
        self.status.change(|snapshot| snapshot.unwritten = None);
        true
    }

    /// Closes a command that is for other nodes in the ledger, so that a repetition is recognised.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub(in crate::agent) fn close_unselected(&self, command: &Command, digest: &str) -> Result<(), StoreError> {
        let result = messages::result(&self.identity, Some(command.id), digest, CommandOutcome::NotSelected);
        self.durable.record_end(command.id, &result)
    }

    /// Returns the message id of the result of a command. A repetition has the same id, so that the server drops it.
    pub(in crate::agent) fn result_id(&self, id: Uuid) -> String {
        format!("{id}.{}.done", self.identity.node)
    }

    fn result(&self, id: Uuid, result: &CommandResult, msg_id: String) -> OutboxMessage {
        let subject = self.identity.subjects.job(id, &self.identity.node, ReportStage::Done).as_str().to_owned();
        OutboxMessage {
            subject,
            msg_id,
            payload: messages::json(result),
            priority: Priority::Result,
            command: Some(result.digest.clone()),
        }
    }

    /// Publishes the result of a rejected command, unless the command has or will have another result.
    ///
    /// A repetition must not change how the first attempt ended.
    pub(in crate::agent) fn post_result_of_rejected(&self, result: &CommandResult) {
        let Some(id) = result.id.filter(|id| self.durable.accepted_digest(*id).is_none()) else { return };
        // An older command may have run before the ledger forgot it.
        let made = id.get_timestamp().and_then(|time| i64::try_from(time.to_unix().0).ok()).unwrap_or_default();
        if self.identity.now().as_second() - made < FORGOTTEN_AFTER {
            self.post(&self.result(id, result, self.identity.host.new_id().to_string()));
        }
    }

    /// Publishes a rejection for monitoring.
    pub(in crate::agent) fn post_rejection(&self, result: &CommandResult, subject: &str, keyids: Vec<String>) {
        let rejection = messages::rejection(&self.identity, result, subject, keyids);
        let event = self.event(EventKind::Refused, rejection.event_id, messages::json(&rejection), Priority::Event);
        self.post(&OutboxMessage { command: Some(result.digest.clone()), ..event });
    }

    /// Publishes the start of the agent, with the trust bundle in force.
    pub(in crate::agent) fn post_started(&self, trust: &TrustedBundle) {
        let message = if trust.is_before_first() {
            "has the root keys only, and accepts no command yet".to_owned()
        } else {
            format!("uses version {} of the trust bundle", trust.version())
        };
        self.post_lifecycle(&LifecycleEvent { message: Some(message), ..messages::lifecycle(&self.identity, "started") });
    }

    /// Publishes the end of the agent.
    pub(in crate::agent) fn post_stopped(&self) {
        self.post_lifecycle(&messages::lifecycle(&self.identity, "stopped"));
    }

    /// Publishes a lifecycle event of the agent.
    pub(in crate::agent) fn post_lifecycle(&self, event: &LifecycleEvent) {
        self.post(&self.event(EventKind::Lifecycle, event.event_id, messages::json(event), Priority::Result));
    }

    /// Counts a run of a channel. Returns the message that the run leads to.
    pub(in crate::agent) fn count_run(&self, channel: &str, outcome: RunOutcome, interval: Duration) -> RunNotice {
        let mut runs = lock(&self.stable);
        runs.count(channel, outcome, interval, Instant::now())
    }

    /// Publishes the counts of stable runs that were not published yet.
    pub(in crate::agent) fn post_counted_runs(&self) {
        let counted = lock(&self.stable).take();
        if let Some(runs) = counted {
            self.post_stable_runs(runs);
        }
    }

    /// Publishes counts of stable runs, by channel.
    pub(in crate::agent) fn post_stable_runs(&self, runs: BTreeMap<String, u64>) {
        let stable = messages::stable_runs(&self.identity, runs);
        let event = self.event(EventKind::Stable, Uuid::nil(), messages::json(&stable), Priority::Result);
        // Short, and unique: counts are published at most once a second.
        let msg_id = format!("{}.{:x}", self.identity.node, stable.timestamp.as_second());
        self.post(&OutboxMessage { msg_id, ..event });
    }

    /// Publishes the number of dropped messages, once the outbox has room for the message.
    pub(in crate::agent) fn post_dropped(&self) {
        let reported = self.durable.report_dropped(self.identity.now(), |dropped| {
            tracing::warn!(events = dropped.events, results = dropped.results, "messages were dropped");
            let event = LifecycleEvent { dropped: Some(dropped.clone()), ..messages::lifecycle(&self.identity, "dropped") };
            self.event(EventKind::Lifecycle, event.event_id, messages::json(&event), Priority::Result)
        });
        self.status.report_storage_error(reported);
    }

    /// Sends a message that may get lost. `command` is the digest of the command that the message answers.
    pub(in crate::agent) async fn publish_best_effort(&self, bus: &Bus, subject: &str, payload: Vec<u8>, command: Option<&str>) {
        // Without a connection the client would keep the message, and send it much later.
        if !bus.is_connected() {
            return;
        }
        let receipt = self.durable.receipt_signer().receipt(subject, &payload, command, self.identity.now(), None).encode();
        if let Err(error) = bus.publish(subject, &[(receipt::HEADER, &receipt)], payload).await {
            tracing::debug!(subject, error = %crate::diag::error_chain(&error), "not sent");
        }
    }

    /// Records an accepted command in the ledger.
    ///
    /// A command by file is published first: an audit needs the signed bytes, and no stream has them.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub(in crate::agent) fn record_accepted(
        &self,
        verified: &Verified<Command>,
        subject: Option<&str>,
    ) -> Result<(), StoreError> {
        if subject.is_none() {
            let id = verified.get().id;
            let event = self.event(EventKind::Command, id, verified.envelope().to_vec(), Priority::Result);
            let msg_id = format!("{id}.{}.command", self.identity.node);
            self.post(&OutboxMessage { msg_id, command: Some(verified.digest().to_owned()), ..event });
        }
        self.durable.record_accepted(verified, subject)
    }
}
