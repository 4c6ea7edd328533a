//! The reporter: brings what waits in the outbox to the streams, and forgets it when it is stored there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::diag::chain;
use crate::host::{Checkpoint, checkpoint};
use crate::store::Queued;
use crate::transport::{Bus, MESSAGE_ID, TransportError};
use crate::wire::receipt;

use super::board::Topic;
use super::{Node, jitter};

/// How many are on their way at once: enough to hide the way there and back, few enough that a fleet
/// that comes back together does not bury the server. At 1 MiB each at most, also a bound for memory.
const TOGETHER: usize = 16;

/// After a reconnect, the fleet spreads over this time.
const SPREAD: Duration = Duration::from_secs(2);

/// The running reporter.
pub(super) struct Handle {
    task: JoinHandle<()>,
    last: watch::Sender<bool>,
}

impl Handle {
    /// Starts it.
    pub(super) fn spawn(node: Arc<Node>, bus: Bus) -> Self {
        let (last, ending) = watch::channel(false);
        Self { task: tokio::spawn(Task { node, bus, ending }.run()), last }
    }

    /// Waits until nothing waits any more, or `patience` is over. What is left stays on disk.
    pub(super) async fn ended(mut self, patience: Duration) {
        self.last.send_replace(true);
        if tokio::time::timeout(patience, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

/// How fast the outbox is emptied after a reconnect: so many at once, and then not before the interval is over.
/// What happens afterwards is sent at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pace {
    together: usize,
    interval: Duration,
}

impl Pace {
    /// At most so many a second, in ten steps or more.
    fn of(rate: u32) -> Self {
        let rate = rate.max(1);
        let together = (rate / 10).clamp(1, 16);
        Self { together: together as usize, interval: Duration::from_secs(1) * together / rate }
    }
}

struct Task {
    node: Arc<Node>,
    bus: Bus,
    ending: watch::Receiver<bool>,
}

impl Task {
    async fn run(mut self) {
        let mut link = self.bus.watch();
        let (mut attempt, mut connects) = (0, 0);
        // False from a reconnect on, until nothing waits any more.
        let mut hurry = true;
        loop {
            let pace = Pace::of(self.node.settings().outbox_rate);
            let Some(batch) = self.batch(if hurry { TOGETHER } else { pace.together }).await else { continue };
            if batch.is_empty() {
                self.node.board.fine(Topic::Reports);
                (attempt, hurry) = (0, true);
                if *self.ending.borrow() {
                    return;
                }
                // Cancel-safe: both keep a permit or a value until it is taken.
                tokio::select! {
                    () = self.node.disk.posted() => {}
                    _ = self.ending.changed() => {}
                }
                continue;
            }
            // Without a connection there is nothing to try; an error means that it was closed for good.
            let Ok(now) = link.wait_for(|link| link.connected).await.map(|link| link.connects) else { return };
            if now != connects {
                if connects != 0 {
                    tokio::time::sleep(jitter::up_to(SPREAD)).await;
                }
                (connects, hurry) = (now, false);
                // What was read while there was no connection may be too much, or too old.
                continue;
            }
            let began = Instant::now();
            match self.send(batch).await {
                Ok(()) => {
                    attempt = 0;
                    self.node.post_dropped();
                    if !hurry {
                        tokio::time::sleep_until((began + pace.interval).into()).await;
                    }
                }
                Err(error) => {
                    if !matches!(error, TransportError::Disconnected) {
                        self.node.board.trouble(Topic::Reports, format!("results wait on this node: {}", chain(&error)));
                    }
                    attempt += 1;
                    tokio::time::sleep(jitter::backoff(attempt)).await;
                }
            }
        }
    }

    /// What is to be sent next; nothing, after a pause, when it can't be read.
    async fn batch(&self, most: usize) -> Option<Vec<Queued>> {
        let batch = self.node.disk.batch(most, self.node.now(), self.node.settings().outbox_age);
        if batch.is_err() {
            tokio::time::sleep(jitter::backoff(6)).await;
        }
        self.node.noted(batch)
    }

    /// Sends together, and forgets what was stored up to the first that was not.
    /// Those after it are sent once more; the server knows them by their id.
    async fn send(&self, batch: Vec<Queued>) -> Result<(), TransportError> {
        let sent = batch.into_iter().map(|Queued { seq, message, receipt }| async move {
            let mut headers = vec![(MESSAGE_ID, message.msg_id.as_str())];
            headers.extend(receipt.iter().map(|receipt| (receipt::HEADER, receipt.as_str())));
            let sent = self.bus.publish_stored(&message.subject, &headers, message.payload).await;
            if sent.is_ok() {
                self.node.count.published(&message.subject);
            }
            (seq, sent)
        });
        let mut failed = Ok(());
        let mut through = None;
        for (seq, result) in join_all(sent).await {
            match result {
                Ok(_) => {}
                // It would never pass, and hold up all that come after it.
                Err(error @ TransportError::TooLarge { .. }) => {
                    tracing::error!(error = %chain(&error), "dropped a message");
                    self.node.disk.refused(seq);
                }
                Err(error) => {
                    failed = Err(error);
                    break;
                }
            }
            through = Some(seq);
        }
        if let Some(through) = through {
            checkpoint(Checkpoint::OutboxSent);
            self.node.noted(self.node.disk.stored(through));
        }
        failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_is_the_rate() {
        for (rate, together, millis) in [(0, 1, 1000), (1, 1, 1000), (50, 5, 100), (1000, TOGETHER, 16)] {
            assert_eq!(Pace::of(rate), Pace { together, interval: Duration::from_millis(millis) }, "{rate}");
        }
    }
}
