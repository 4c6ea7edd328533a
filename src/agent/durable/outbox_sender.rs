//! The reporter: brings what waits in the outbox to the streams, and forgets it when it is stored there.
//!
//! Each stream is a lane: its messages go in order, and one that takes nothing holds up only what is for it. All lanes
//! share one pace, turn by turn.

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

/// How many of a lane are on their way at once: enough to hide the way there and back, few enough that a fleet
/// that comes back together does not bury the server.
const TOGETHER: usize = 16;
/// How much of a lane is on its way at once, as a bound for memory; a message of 1 MiB, the most that servers take, fits.
const BYTES: u64 = 4 << 20;

/// After a reconnect, the fleet spreads over this time.
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

/// The running reporter.
pub(in crate::agent) struct Handle {
    task: JoinHandle<()>,
    last: watch::Sender<bool>,
}

impl Handle {
    /// Starts it.
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

    /// Waits until nothing waits any more, or `patience` is over. What is left stays on disk.
    pub(in crate::agent) async fn ended(mut self, patience: Duration) {
        self.last.send_replace(true);
        if tokio::time::timeout(patience, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

/// How fast the outbox is emptied after a reconnect: a message takes the time that the rate gives it, whatever its lane.
/// What happens afterwards is sent at once.
#[derive(Debug, Default)]
struct SendPacer(Mutex<Option<Instant>>);

impl SendPacer {
    /// How many of a lane go at once: ten steps a second or more.
    fn together(rate: u32) -> usize {
        ((rate / 10).max(1) as usize).min(TOGETHER)
    }

    /// When so many messages may be sent: after those that were promised their time before.
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
    /// The connection over which was sent before.
    connects: u64,
    /// False from a reconnect on, until nothing waits any more.
    hurry: bool,
    /// How often it failed since it went well.
    attempt: u32,
    /// What is stored though something before it is not: at most what was on its way together.
    ahead: BTreeSet<u64>,
}

impl Task {
    async fn run(mut self) {
        loop {
            let rate = self.handles.settings.now().outbox_rate;
            let most = match (self.attempt, self.hurry) {
                (0, true) => TOGETHER,
                (0, false) => SendPacer::together(rate),
                // What takes nothing is asked with one.
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
                // What was read while there was no connection may be too much, or too old.
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
                    // Told in the stream that what was dropped was for, once that takes something.
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

    /// What is to be sent next; nothing, after a pause, when it can't be read.
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

    /// Sends together, and forgets what was stored up to the first that was not.
    /// Of those after it, what was stored is not sent once more.
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
                // It would never pass, and hold up all that come after it.
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

    /// What is wrong with a stream, by its name.
    fn stuck(&self, error: &TransportError) -> String {
        let what = match self.lane {
            StreamQueue::Rollouts => "what this node failed in rollouts waits",
            StreamQueue::Jobs => "results wait",
            StreamQueue::Events => "events wait",
        };
        let stream = self.handles.identity.subjects.stream(self.lane.stream());
        format!("{what} on this node, as the stream {stream} takes nothing: {}", chain(error))
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
        // Nobody saves up what he did not use.
        let later = now + Duration::from_secs(9);
        assert_eq!([pacer.turn(1, 1, later), pacer.turn(1, 1, later)], [later, later + Duration::from_secs(1)]);
    }
}
