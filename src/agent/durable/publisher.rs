//! Messages that the node publishes: kept in the outbox until the server has them, or sent once and perhaps lost.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use tokio::sync::watch;
use uuid::Uuid;

use crate::store::{Message, Priority, StoreError};
use crate::transport::Bus;
use crate::trust::{ReplayStore, Verified};
use crate::wire::command::Command;
use crate::wire::receipt;
use crate::wire::report::LifecycleEvent;
use crate::wire::subject::{EventKind, ReportStage};
use crate::wire::{CommandOutcome, CommandResult};

use crate::agent::status::board::AlarmKind;
use crate::agent::status::messages;
use crate::agent::{FAREWELL, Node, SOON, jitter};

impl Node {
    /// Puts a message into the outbox.
    pub(in crate::agent) fn post(&self, message: &Message) {
        self.report_storage_error(self.disk.post(message, self.now()));
    }

    /// Shows on the board that the disk does not take what must survive. That it does again is the heartbeat's
    /// to find out: a small record may still fit where the next one does not.
    pub(in crate::agent) fn report_storage_error<T>(&self, written: Result<T, StoreError>) -> Option<T> {
        written.inspect_err(|error| self.board.raise(AlarmKind::Disk, crate::diag::chain(error))).ok()
    }

    pub(in crate::agent) fn event(&self, kind: EventKind, id: Uuid, payload: Vec<u8>, class: Priority) -> Message {
        let subject = self.subjects.event(&self.settings().node, kind).as_str().to_owned();
        Message { subject, msg_id: id.to_string(), payload, class, command: None }
    }

    /// The end of a command: on disk, in the outbox. False when it must be tried again; see [`finish`](crate::agent::disk::Disk::finish).
    pub(in crate::agent) fn finish(&self, done: &CommandResult, posted: &mut bool) -> bool {
        let Some(id) = done.id else { return true };
        let finished = self.disk.finish(id, done, &self.result(id, done, self.result_id(id)), posted);
        let again = matches!(finished, Err(StoreError::Fs(_)));
        self.report_storage_error(finished);
        !again
    }

    /// Returns when the end of a command is written down (true), or the agent stops. While the disk takes no result nothing
    /// else is run either: its result would fare no better.
    pub(in crate::agent) async fn persist_result(
        &self,
        done: &CommandResult,
        mut posted: bool,
        stop: &mut watch::Receiver<bool>,
    ) -> bool {
        let mut attempt = 0;
        while !self.finish(done, &mut posted) {
            attempt += 1;
            // Cancel-safe: a watch keeps its last value, and a sleep that is dropped is nothing. The value is looked
            // at, as the change itself may have been taken before.
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return false,
                () = tokio::time::sleep(jitter::backoff(attempt).min(SOON)) => {}
            }
        }
        true
    }

    /// The end of a command that nobody asked this node about: in the ledger, so that it is known when it comes again.
    pub(in crate::agent) fn close_unselected(&self, command: &Command, digest: &str) -> Result<(), StoreError> {
        self.disk.close(command.id, &messages::done(self, Some(command.id), digest, CommandOutcome::NotSelected))
    }

    /// What the server knows the result of a command by: the same, however often it is sent.
    pub(in crate::agent) fn result_id(&self, id: Uuid) -> String {
        format!("{id}.{}.done", self.settings().node)
    }

    pub(in crate::agent) fn result(&self, id: Uuid, done: &CommandResult, msg_id: String) -> Message {
        let subject = self.subjects.job(id, &self.settings().node, ReportStage::Done).as_str().to_owned();
        Message { subject, msg_id, payload: messages::json(done), class: Priority::Result, command: Some(done.digest.clone()) }
    }

    /// Publishes the result of a command that was not taken, unless it has or will have another one:
    /// what is sent a second time must not change how the first time ended.
    pub(in crate::agent) fn post_result_of_rejected(&self, done: &CommandResult) {
        let Some(id) = done.id.filter(|id| self.disk.accepted_digest(*id).is_none()) else { return };
        // The ledger forgets an hour after a command's time; what is older may have run long ago.
        let made = id.get_timestamp().and_then(|time| i64::try_from(time.to_unix().0).ok()).unwrap_or_default();
        if self.now().as_second() - made < 1800 {
            self.post(&self.result(id, done, self.host.new_id().to_string()));
        }
    }

    pub(in crate::agent) fn post_rejection(&self, done: &CommandResult, subject: &str, keyids: Vec<String>) {
        let refused = messages::refused(self, done, subject, keyids);
        let event = self.event(EventKind::Refused, refused.event_id, messages::json(&refused), Priority::Event);
        self.post(&Message { command: Some(done.digest.clone()), ..event });
    }

    pub(in crate::agent) fn post_lifecycle(&self, what: &str) {
        self.post_lifecycle_event(&messages::life(self, what));
    }

    /// Says also whom it obeys: a succession of which nobody could be told any more is in it.
    pub(in crate::agent) fn post_started(&self) {
        let trust = self.trust();
        let obeys = if trust.is_before_first() {
            "has the root keys only, and accepts no command yet".to_owned()
        } else {
            format!("obeys version {} of the trust bundle", trust.version())
        };
        self.post_lifecycle_event(&LifecycleEvent { message: Some(obeys), ..messages::life(self, "started") });
    }

    pub(in crate::agent) fn post_lifecycle_event(&self, life: &LifecycleEvent) {
        self.post(&self.event(EventKind::Lifecycle, life.event_id, messages::json(life), Priority::Result));
    }

    /// Publishes how many runs were only counted so far.
    pub(in crate::agent) fn post_stable_runs(&self) {
        let counted = self.stable.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(runs) = counted {
            self.post_stable(runs);
        }
    }

    pub(in crate::agent) fn post_stable(&self, runs: BTreeMap<String, u64>) {
        let stable = messages::stable(self, runs);
        let event = self.event(EventKind::Stable, Uuid::nil(), messages::json(&stable), Priority::Result);
        // Short, and never the same: it is said at most once a second.
        let msg_id = format!("{}.{:x}", self.settings().node, stable.timestamp.as_second());
        self.post(&Message { msg_id, ..event });
    }

    /// Says what had to be dropped, once there is room for it.
    pub(in crate::agent) fn post_dropped(&self) {
        let told = self.disk.report_dropped(self.now(), |dropped| {
            tracing::warn!(events = dropped.events, results = dropped.results, "messages were dropped");
            let life = LifecycleEvent { dropped: Some(dropped.clone()), ..messages::life(self, "dropped") };
            self.event(EventKind::Lifecycle, life.event_id, messages::json(&life), Priority::Result)
        });
        self.report_storage_error(told);
    }

    /// Sends the last state of this agent, and waits for the server to have it: whoever looks next sees that it stopped.
    pub(in crate::agent) async fn publish_final_state(&self, bus: &Bus) {
        let (subject, payload) = (self.subjects.state(&self.settings().node), messages::json(&messages::state(self, false)));
        let receipt = self.disk.notary().receipt(subject.as_str(), &payload, None, self.now(), None).encode();
        let headers = [(receipt::HEADER, receipt.as_str())];
        match tokio::time::timeout(FAREWELL, bus.publish_stored(subject.as_str(), &headers, payload)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!(error = %crate::diag::chain(&error), "the last state is not stored"),
            Err(_) => tracing::debug!("the last state is not stored: no answer from the server"),
        }
    }

    /// Sends something that may get lost; `command` is the digest of the command that it answers.
    pub(in crate::agent) async fn publish_best_effort(&self, bus: &Bus, subject: &str, payload: Vec<u8>, command: Option<&str>) {
        // Without a connection the client would keep it, and send it to nobody much later.
        if !bus.is_connected() {
            return;
        }
        let receipt = self.disk.notary().receipt(subject, &payload, command, self.now(), None).encode();
        if let Err(error) = bus.publish(subject, &[(receipt::HEADER, &receipt)], payload).await {
            tracing::debug!(subject, error = %crate::diag::chain(&error), "not sent");
        }
    }

    /// Writes down that a command is accepted. One that was carried here is published before: an audit needs what was signed,
    /// and no stream of the fleet has it.
    pub(in crate::agent) fn record_accepted(
        &self,
        verified: &Verified<Command>,
        subject: Option<&str>,
    ) -> Result<(), StoreError> {
        if subject.is_none() {
            let id = verified.get().id;
            let event = self.event(EventKind::Command, id, verified.envelope().to_vec(), Priority::Result);
            let msg_id = format!("{id}.{}.command", self.settings().node);
            self.post(&Message { msg_id, command: Some(verified.digest().to_owned()), ..event });
        }
        self.disk.accept(verified, subject)
    }
}
