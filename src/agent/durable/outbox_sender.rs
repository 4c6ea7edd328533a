//! The outbox sender: sends the messages of the outbox to the streams, and removes each one that the server has stored.
//!
//! Each stream is a lane with its messages in order. A blocked lane blocks no other lane. All lanes share one send rate.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::agent::config::settings_handle::SettingsHandle;
use crate::agent::durable::publisher::Publisher;
use crate::agent::durable::state::DurableState;
use crate::agent::identity::Identity;
use crate::agent::status::board::StatusBoard;
use crate::agent::status::counters::Counters;
use crate::diag::chain;
use crate::host::{Checkpoint, checkpoint};
use crate::store::{Queued, StreamQueue};
use crate::transport::{Bus, Link, MESSAGE_ID, TransportError};
use crate::wire::receipt;

use crate::agent::jitter;
use crate::agent::status::board::AlarmKind;

/// Most messages of a lane in flight: enough to hide the round trip. The bound keeps a fleet that reconnects together
/// from overloading the server.
const TOGETHER: usize = 16;
/// Most bytes of a lane in flight, which bounds memory. A message of 1 MiB, the server's default limit, fits.
const BYTES: u64 = 4 << 20;

/// The time over which a fleet spreads its messages after a reconnect.
const SPREAD: Duration = Duration::from_secs(2);

/// The handles of the sender.
#[derive(Clone)]
pub(in crate::agent) struct SenderHandles {
    pub(in crate::agent) identity: Arc<Identity>,
    pub(in crate::agent) settings: SettingsHandle,
    pub(in crate::agent) durable: Arc<DurableState>,
    pub(in crate::agent) publisher: Publisher,
    pub(in crate::agent) status: Arc<StatusBoard>,
    pub(in crate::agent) counters: Arc<Counters>,
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
            Task { lane, handles, bus, pacer, ending, link, connects: 0, hurry: true, attempt: 0, ahead: BTreeSet::new() }.run()
        });
        let task = tokio::spawn(async {
            join_all(lanes).await;
        });
        Self { task, last }
    }

    /// Waits until the outbox is empty, or `patience` is over. Unsent messages stay on disk.
    pub(in crate::agent) async fn ended(mut self, patience: Duration) {
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
    /// Returns the most messages that a lane sends in one go, so that the rate is reached in ten or more steps a second.
    fn together(rate: u32) -> usize {
        ((rate / 10).max(1) as usize).min(TOGETHER)
    }

    /// Returns the time at which `count` messages may be sent: after those with an earlier promise.
    fn turn(&self, count: usize, rate: u32, now: Instant) -> Instant {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
    link: watch::Receiver<Link>,
    /// The number of the connection over which messages were sent before.
    connects: u64,
    /// False from a reconnect on, until the outbox is empty.
    hurry: bool,
    /// The failures since the last success.
    attempt: u32,
    /// The stored messages behind an unstored one: at most those in flight together.
    ahead: BTreeSet<u64>,
}

impl Task {
    async fn run(mut self) {
        loop {
            let rate = self.handles.settings.now().outbox_rate;
            let most = match (self.attempt, self.hurry) {
                (0, true) => TOGETHER,
                (0, false) => SendPacer::together(rate),
                // A lane that fails is probed with one message.
                _ => 1,
            };
            let Some(batch) = self.batch(most).await else { continue };
            if batch.is_empty() {
                self.handles.status.clear(topic(self.lane));
                (self.attempt, self.hurry) = (0, true);
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
                (self.connects, self.hurry) = (now, false);
                // The backlog of a time without a connection may be too large, or too old.
                continue;
            }
            if !self.hurry {
                tokio::time::sleep_until(self.pacer.turn(batch.len(), rate, Instant::now()).into()).await;
            }
            match self.send(batch).await {
                Ok(()) => {
                    if std::mem::take(&mut self.attempt) > 0 {
                        self.handles.status.clear(topic(self.lane));
                    }
                    // Reported in the stream of the dropped messages, once that stream accepts messages again.
                    if self.lane == StreamQueue::Events {
                        self.handles.publisher.post_dropped();
                    }
                }
                Err(error) => {
                    if !matches!(error, TransportError::Disconnected) {
                        self.handles.status.raise(topic(self.lane), self.stuck(&error));
                    }
                    self.attempt += 1;
                    tokio::time::sleep(jitter::backoff(self.attempt)).await;
                }
            }
        }
    }

    /// Returns the next messages to send; none, after a pause, when the outbox cannot be read.
    async fn batch(&self, most: usize) -> Option<Vec<Queued>> {
        let disk = &self.handles.durable;
        let fresh = match self.lane {
            StreamQueue::Events => disk.expire(self.handles.identity.now(), self.handles.settings.now().outbox_age.get()),
            StreamQueue::Jobs | StreamQueue::Rollouts => Ok(()),
        };
        let batch = fresh.and_then(|()| disk.batch(self.lane, most, BYTES));
        if batch.is_err() {
            tokio::time::sleep(jitter::backoff(6)).await;
        }
        self.handles.status.report_storage_error(batch)
    }

    /// Sends messages together. Removes the stored ones up to the first unstored one. Stored messages behind that one
    /// are not sent again.
    async fn send(&mut self, batch: Vec<Queued>) -> Result<(), TransportError> {
        let sent = batch.into_iter().map(|Queued { seq, message, receipt }| {
            let (is_there, handles, bus) = (self.ahead.contains(&seq), &self.handles, &self.bus);
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
                    self.ahead.insert(seq);
                    continue;
                }
                Err(_) if failed.is_err() => continue,
                Ok(()) => {}
                // The server will never accept the message, and the message would block all behind it.
                Err(error @ TransportError::TooLarge { .. }) => {
                    tracing::error!(error = %chain(&error), "dropped a message");
                    self.handles.durable.refused(seq);
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
            self.handles.status.report_storage_error(self.handles.durable.stored(self.lane, through));
            self.ahead = self.ahead.split_off(&through.saturating_add(1));
        }
        failed
    }

    /// Returns the text of the alarm for a blocked stream.
    fn stuck(&self, error: &TransportError) -> String {
        let what = match self.lane {
            StreamQueue::Rollouts => "rollout failures",
            StreamQueue::Jobs => "results",
            StreamQueue::Events => "events",
        };
        let stream = self.handles.identity.subjects.stream(self.lane.stream());
        format!("cannot publish {what} to stream {stream}: {}; kept on disk", chain(error))
    }
}

fn topic(lane: StreamQueue) -> AlarmKind {
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
        for (rate, together) in [(0, 1), (1, 1), (50, 5), (1000, TOGETHER)] {
            assert_eq!(SendPacer::together(rate), together, "{rate}");
        }
        let (pacer, now) = (SendPacer::default(), Instant::now());
        let turns = [(5, 50), (5, 50), (1, 50)].map(|(count, rate)| pacer.turn(count, rate, now) - now);
        assert_eq!(turns.map(|turn| turn.as_millis()), [0, 100, 200]);
        // Unused time does not add up.
        let later = now + Duration::from_secs(9);
        assert_eq!([pacer.turn(1, 1, later), pacer.turn(1, 1, later)], [later, later + Duration::from_secs(1)]);
    }
}
