//! The outbox sender: sends the messages of the outbox to the streams, and removes each stored message.
//!
//! Each stream is a lane with its messages in order. A blocked lane blocks no other lane. All lanes share one send rate.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::agent::config::settings_handle::SettingsHandle;
use crate::agent::durable::publisher::Publisher;
use crate::agent::durable::state::DurableState;
use crate::agent::identity::AgentInstance;
use crate::agent::status::board::StatusBoard;
use crate::agent::status::counters::SharedCounters;
use crate::diag::error_chain;
use crate::host::{Checkpoint, checkpoint};
use crate::model::lock;
use crate::store::{QueuedMessage, StreamQueue};
use crate::transport::{Bus, ConnectionState, MESSAGE_ID, TransportError};
use crate::wire::receipt;

use crate::agent::jitter;
use crate::agent::status::board::AlarmKind;

/// Most messages of a lane in flight: enough to hide the round trip. The bound keeps a fleet that reconnects together
/// from overloading the server.
const MAX_IN_FLIGHT: usize = 16;
/// Most bytes of a lane in flight, which bounds memory. A message of 1 MiB, the server's default limit, fits.
const MAX_BYTES_IN_FLIGHT: u64 = 4 << 20;

/// The time over which a fleet spreads its messages after a reconnect.
const SPREAD: Duration = Duration::from_secs(2);

/// The handles of the sender.
#[derive(Clone)]
pub(in crate::agent) struct SenderHandles {
    pub(in crate::agent) identity: Arc<AgentInstance>,
    pub(in crate::agent) settings: SettingsHandle,
    pub(in crate::agent) durable: Arc<DurableState>,
    pub(in crate::agent) publisher: Publisher,
    pub(in crate::agent) status: Arc<StatusBoard>,
    pub(in crate::agent) counters: Arc<SharedCounters>,
}

/// The running outbox sender.
pub(in crate::agent) struct Handle {
    task: JoinHandle<()>,
    last: watch::Sender<bool>,
}

impl Handle {
    /// Starts the sender.
    pub(in crate::agent) fn spawn(handles: &SenderHandles, bus: &Bus) -> Self {
        let (last, ending) = watch::channel(false);
        let pacer = Arc::new(SendPacer::default());
        let lanes = StreamQueue::ALL.map(|lane| {
            let (handles, bus, pacer, ending) = (handles.clone(), bus.clone(), Arc::clone(&pacer), ending.clone());
            let link = bus.watch();
            Task {
                lane,
                handles,
                bus,
                pacer,
                ending,
                link,
                connects: 0,
                is_unpaced: true,
                failures: 0,
                is_cut_off: false,
                stored_ahead: BTreeSet::new(),
            }
            .run()
        });
        let task = tokio::spawn(async {
            join_all(lanes).await;
        });
        Self { task, last }
    }

    /// Waits until the outbox is empty, or `patience` is over. Unsent messages stay on disk.
    pub(in crate::agent) async fn join(mut self, patience: Duration) {
        self.last.send_replace(true);
        if tokio::time::timeout(patience, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

/// The send rate after a reconnect, for all lanes together. Each message takes its share of a second. Once the outbox
/// is empty, new messages are sent at once.
#[derive(Debug, Default)]
struct SendPacer(Mutex<Option<Instant>>);

impl SendPacer {
    /// Returns the most messages that a lane sends in one go. The rate is reached in ten or more steps a second.
    fn batch_size(rate: u32) -> usize {
        ((rate / 10).max(1) as usize).min(MAX_IN_FLIGHT)
    }

    /// Returns the time at which `count` messages may be sent: after those with an earlier promise.
    fn reserve_slot(&self, count: usize, rate: u32, now: Instant) -> Instant {
        let mut free = lock(&self.0);
        let turn = free.map_or(now, |free| free.max(now));
        let takes = Duration::from_secs(1) * u32::try_from(count).unwrap_or(u32::MAX) / rate.max(1);
        *free = Some(turn + takes);
        turn
    }
}

struct Task {
    lane: StreamQueue,
    handles: SenderHandles,
    bus: Bus,
    pacer: Arc<SendPacer>,
    ending: watch::Receiver<bool>,
    link: watch::Receiver<ConnectionState>,
    /// The number of the connection over which messages were sent before.
    connects: u64,
    /// False from a reconnect on, until the outbox is empty.
    is_unpaced: bool,
    /// The failures since the last success.
    failures: u32,
    /// True after the streams did not answer on this connection: a leaf node may have lost its own.
    is_cut_off: bool,
    /// The stored messages behind an unstored one: at most those in flight together.
    stored_ahead: BTreeSet<u64>,
}

impl Task {
    async fn run(mut self) {
        loop {
            let rate = self.handles.settings.now().outbox_rate;
            let most = match (self.failures, self.is_unpaced) {
                (0, true) => MAX_IN_FLIGHT,
                (0, false) => SendPacer::batch_size(rate),
                // A lane that fails is probed with one message.
                _ => 1,
            };
            let Some(batch) = self.batch(most).await else { continue };
            if batch.is_empty() {
                self.handles.status.clear(alarm_kind(self.lane));
                (self.failures, self.is_unpaced) = (0, true);
                if *self.ending.borrow() {
                    return;
                }
                // Cancel-safe: both keep a permit or a value until it is taken.
                tokio::select! {
                    () = self.handles.durable.posted(self.lane) => {}
                    _ = self.ending.changed() => {}
                }
                continue;
            }
            // Without a connection there is nothing to try; an error means that it was closed for good.
            let Ok(now) = self.link.wait_for(|link| link.connected).await.map(|link| link.connects) else { return };
            if now != self.connects {
                if self.connects != 0 {
                    tokio::time::sleep(jitter::random_delay(SPREAD)).await;
                }
                (self.connects, self.is_unpaced, self.is_cut_off) = (now, false, false);
                // The backlog of a time without a connection may be too large, or too old.
                continue;
            }
            if !self.is_unpaced {
                tokio::time::sleep_until(self.pacer.reserve_slot(batch.len(), rate, Instant::now()).into()).await;
            }
            match self.send(batch).await {
                Ok(()) => {
                    if std::mem::take(&mut self.failures) > 0 {
                        self.handles.status.clear(alarm_kind(self.lane));
                    }
                    if std::mem::take(&mut self.is_cut_off) && self.link.borrow().connects == self.connects {
                        self.bus.announce_reconnect();
                    }
                    // Reported in the stream of the dropped messages, once that stream accepts messages again.
                    if self.lane == StreamQueue::Events {
                        self.handles.publisher.post_dropped();
                    }
                }
                Err(error) => {
                    if !matches!(error, TransportError::Disconnected) {
                        self.handles.status.raise(alarm_kind(self.lane), self.blocked_alarm(&error));
                        self.is_cut_off = true;
                    }
                    self.failures += 1;
                    tokio::time::sleep(jitter::backoff(self.failures)).await;
                }
            }
        }
    }

    /// Returns the next messages to send; none, after a pause, when the outbox cannot be read.
    async fn batch(&self, most: usize) -> Option<Vec<QueuedMessage>> {
        let disk = &self.handles.durable;
        let fresh = match self.lane {
            StreamQueue::Events => {
                disk.drop_expired(self.handles.identity.now(), self.handles.settings.now().outbox_age.as_std())
            }
            StreamQueue::Jobs | StreamQueue::Rollouts => Ok(()),
        };
        let batch = fresh.and_then(|()| disk.batch(self.lane, most, MAX_BYTES_IN_FLIGHT));
        if batch.is_err() {
            tokio::time::sleep(jitter::backoff(6)).await;
        }
        self.handles.status.report_storage_error(batch)
    }

    /// Sends messages together. Removes the stored ones up to the first unstored one. Stored messages behind that one
    /// are not sent again.
    async fn send(&mut self, batch: Vec<QueuedMessage>) -> Result<(), TransportError> {
        let sent = batch.into_iter().map(|QueuedMessage { seq, message, receipt }| {
            let (is_there, handles, bus) = (self.stored_ahead.contains(&seq), &self.handles, &self.bus);
            async move {
                if is_there {
                    return (seq, Ok(()));
                }
                let mut headers = vec![(MESSAGE_ID, message.msg_id.as_str())];
                headers.extend(receipt.iter().map(|receipt| (receipt::HEADER, receipt.as_str())));
                let sent = bus.publish_stored(&message.subject, &headers, message.payload).await;
                if sent.is_ok() {
                    handles.counters.published(&message.subject);
                }
                (seq, sent.map(|_| ()))
            }
        });
        let results = join_all(sent).await;
        let (mut failed, mut through) = (Ok(()), None);
        for (seq, result) in results {
            match result {
                Ok(()) if failed.is_err() => {
                    self.stored_ahead.insert(seq);
                    continue;
                }
                Err(_) if failed.is_err() => continue,
                Ok(()) => {}
                // The server will never accept the message, and the message would block all behind it.
                Err(error @ TransportError::TooLarge { .. }) => {
                    tracing::error!(error = %error_chain(&error), "dropped a message");
                    self.handles.durable.drop_refused(seq);
                }
                Err(error) => {
                    failed = Err(error);
                    continue;
                }
            }
            through = Some(seq);
        }
        if let Some(through) = through {
            checkpoint(Checkpoint::OutboxSent);
            self.handles.status.report_storage_error(self.handles.durable.remove_stored(self.lane, through));
            self.stored_ahead = self.stored_ahead.split_off(&through.saturating_add(1));
        }
        failed
    }

    /// Returns the text of the alarm for a blocked stream.
    fn blocked_alarm(&self, error: &TransportError) -> String {
        let what = match self.lane {
            StreamQueue::Rollouts => "rollout failures",
            StreamQueue::Jobs => "results",
            StreamQueue::Events => "events",
        };
        let stream = self.handles.identity.subjects.stream(self.lane.stream());
        format!("cannot publish {what} to stream {stream}: {}; kept on disk", error_chain(error))
    }
}

fn alarm_kind(lane: StreamQueue) -> AlarmKind {
    match lane {
        StreamQueue::Rollouts => AlarmKind::Rollouts,
        StreamQueue::Jobs => AlarmKind::Reports,
        StreamQueue::Events => AlarmKind::Events,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_is_the_rate_for_all_lanes_together() {
        for (rate, together) in [(0, 1), (1, 1), (50, 5), (1000, MAX_IN_FLIGHT)] {
            assert_eq!(SendPacer::batch_size(rate), together, "{rate}");
        }
        let (pacer, now) = (SendPacer::default(), Instant::now());
        let turns = [(5, 50), (5, 50), (1, 50)].map(|(count, rate)| pacer.reserve_slot(count, rate, now) - now);
        assert_eq!(turns.map(|turn| turn.as_millis()), [0, 100, 200]);
        // Unused time does not add up.
        let later = now + Duration::from_secs(9);
        assert_eq!([pacer.reserve_slot(1, 1, later), pacer.reserve_slot(1, 1, later)], [later, later + Duration::from_secs(1)]);
    }
}
