//! Monitoring of the connection: logs and counts its events, and chooses the pause before each reconnect.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_nats::{ClientError, Event, ServerError};
use tokio::sync::watch;

use super::super::{ConnectionCounters, ConnectionState};
use super::reason::{hide_password, reason};
use crate::model::lock;

/// The spread of the first pauses: ten thousand nodes are five thousand connections a second, which one server can accept.
const MIN_SPREAD: Duration = Duration::from_secs(2);
/// The longest pause between two attempts: ten thousand nodes are then some seven hundred connections a second. All are back
/// within this time, however long the server was away.
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(15);
/// The longest attempt when there is another server to try next. The client has the same default.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest attempt when there is no other server. A server to which a whole fleet comes back answers late. A client that
/// gives up then makes the server do the same work again. With a timeout below its queue, the server never reaches the end of
/// the queue.
const SINGLE_SERVER_TIMEOUT: Duration = Duration::from_secs(20);
/// The shortest pause after rejected credentials, which need an operator.
const AUTH_RETRY_DELAY: Duration = Duration::from_secs(15);

/// Records the events of a connection. Clones share the record.
#[derive(Debug, Clone)]
pub(super) struct ConnectionMonitor(Arc<MonitorState>);

#[derive(Debug)]
struct MonitorState {
    servers: usize,
    link: watch::Sender<ConnectionState>,
    /// The time of the loss, while there is no connection.
    lost: Mutex<Instant>,
    refused: AtomicBool,
    disconnects: AtomicU64,
    slow_consumers: AtomicU64,
    auth_errors: AtomicU64,
    denied: AtomicU64,
    /// The subjects that the server denied on this connection.
    denied_subscriptions: Mutex<BTreeSet<String>>,
}

/// The most remembered subjects.
const MAX_DENIED_SUBSCRIPTIONS: usize = 256;

impl ConnectionMonitor {
    pub(super) fn new(servers: usize) -> Self {
        Self(Arc::new(MonitorState {
            servers,
            link: watch::Sender::new(ConnectionState::default()),
            lost: Mutex::new(Instant::now()),
            refused: AtomicBool::new(false),
            disconnects: AtomicU64::new(0),
            slow_consumers: AtomicU64::new(0),
            auth_errors: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            denied_subscriptions: Mutex::default(),
        }))
    }

    pub(super) fn link(&self) -> watch::Receiver<ConnectionState> {
        self.0.link.subscribe()
    }

    pub(super) fn counters(&self) -> ConnectionCounters {
        let heard = &self.0;
        ConnectionCounters {
            disconnects: heard.disconnects.load(Ordering::Relaxed),
            slow_consumers: heard.slow_consumers.load(Ordering::Relaxed),
            auth_errors: heard.auth_errors.load(Ordering::Relaxed),
            denied: heard.denied.load(Ordering::Relaxed),
        }
    }

    /// Counts a reconnect of a server behind the connected one.
    pub(super) fn announce_reconnect(&self) {
        self.0.link.send_modify(|link| link.connects += 1);
    }

    /// Returns the subjects that the server denied on this connection.
    pub(super) fn denied_subscriptions(&self) -> BTreeSet<String> {
        lock(&self.0.denied_subscriptions).clone()
    }

    pub(super) fn record_event(&self, event: &Event) {
        let heard = &self.0;
        let count = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
        match event {
            Event::Connected => {
                heard.refused.store(false, Ordering::Relaxed);
                // The client subscribes again, so the server denies the same subjects again.
                lock(&heard.denied_subscriptions).clear();
                heard.link.send_modify(|link| {
                    link.connected = true;
                    link.connects += 1;
                });
                tracing::info!("connected to NATS");
            }
            Event::Disconnected => {
                count(&heard.disconnects);
                heard.link.send_modify(|link| link.connected = false);
                tracing::warn!("lost the connection to NATS");
            }
            Event::SlowConsumer(_) | Event::ServerError(ServerError::SlowConsumer(_)) => {
                count(&heard.slow_consumers);
                tracing::warn!("dropped messages: they arrived faster than the program read them");
            }
            Event::LameDuckMode => tracing::info!("the NATS server is about to stop"),
            Event::Draining => tracing::debug!("closing the connection to NATS"),
            Event::Closed => {
                heard.link.send_modify(|link| (link.connected, link.closed) = (false, true));
                tracing::debug!("closed the connection to NATS");
            }
            Event::ServerError(ServerError::AuthorizationViolation) => self.record_auth_error(&"authorization violation"),
            Event::ServerError(ServerError::Other(error)) if error.to_lowercase().contains("permissions violation") => {
                count(&heard.denied);
                if let Some(subject) = denied_subscription(error) {
                    let mut unheard = lock(&heard.denied_subscriptions);
                    if unheard.len() < MAX_DENIED_SUBSCRIPTIONS {
                        unheard.insert(subject.to_owned());
                    }
                }
                tracing::warn!(%error, "NATS permissions");
            }
            // The client has no other form for this error while it connects.
            Event::ClientError(ClientError::Other(error)) if error.contains("authorization violation") => {
                self.record_auth_error(error);
            }
            Event::ServerError(error) => tracing::warn!(%error, "NATS server"),
            // The reason is logged by [`ConnectionMonitor::failed`].
            Event::ClientError(error) => tracing::debug!(%error, "NATS client"),
        }
    }

    /// Logs the servers that could not be connected to, with the reasons.
    pub(super) fn log_failed_attempts<'a>(&self, attempts: impl Iterator<Item = (String, &'a str)>) {
        // Rejected credentials are logged already.
        for (server, error) in attempts.filter(|(_, error)| !error.contains("authorization violation")) {
            tracing::warn!(server = hide_password(&server), error = reason(error), "could not connect to NATS");
        }
    }

    fn record_auth_error(&self, error: &dyn std::fmt::Display) {
        self.0.refused.store(true, Ordering::Relaxed);
        self.0.auth_errors.fetch_add(1, Ordering::Relaxed);
        tracing::error!(%error, "the NATS server does not accept the credentials");
    }

    /// Returns the pause before attempt number `attempts` (from 1). The first has none, the others have a random part of the
    /// outage so far. So a fleet reconnects over a time as long as the outage. On average each pause is longer than the one
    /// before.
    pub(super) fn reconnect_delay(&self, attempts: usize) -> Duration {
        let first = self.0.link.borrow().connects == 0 && attempts <= self.0.servers;
        if first {
            return Duration::ZERO;
        }
        let mut lost = lock(&self.0.lost);
        // Counted from 1 at every loss; the event of the loss may arrive later than this call.
        if attempts <= 1 {
            *lost = Instant::now();
        }
        let jittered = max_delay(lost.elapsed()).mul_f64(random_fraction());
        if self.0.refused.load(Ordering::Relaxed) { AUTH_RETRY_DELAY + jittered } else { jittered }
    }
}

/// Returns the longest time of an attempt to connect, for a daemon with this number of servers.
pub(super) fn connect_timeout(servers: usize) -> Duration {
    if servers > 1 { ATTEMPT_TIMEOUT } else { SINGLE_SERVER_TIMEOUT }
}

/// Returns the subject of `Permissions Violation for Subscription to "SUBJECT"`.
fn denied_subscription(error: &str) -> Option<&str> {
    let at = error.to_ascii_lowercase().find("for subscription to \"")?;
    error.get(at..)?.split('"').nth(1)
}

/// Returns the upper bound of a pause after an outage of this length.
fn max_delay(away: Duration) -> Duration {
    away.clamp(MIN_SPREAD, MAX_RECONNECT_DELAY)
}

/// Returns a random number from 0 up to 1.
fn random_fraction() -> f64 {
    // Without randomness the middle is as good as any value.
    let bits = getrandom::u32().unwrap_or(u32::MAX / 2);
    f64::from(bits) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_subscription_is_remembered_until_the_next_connection() {
        let watcher = ConnectionMonitor::new(1);
        let refused = |text: &str| watcher.record_event(&Event::ServerError(ServerError::Other(text.to_owned())));
        refused("Permissions Violation for Subscription to \"ensign.v1.f.cmd.*.group.web\"");
        refused("Permissions Violation for Subscription to \"q\" using queue \"r\"");
        refused("Permissions Violation for Publish to \"p\"");
        assert_eq!(watcher.denied_subscriptions().into_iter().collect::<Vec<_>>(), ["ensign.v1.f.cmd.*.group.web", "q"]);
        assert_eq!(watcher.counters().denied, 3);
        watcher.record_event(&Event::Connected);
        assert!(watcher.denied_subscriptions().is_empty());
    }

    #[test]
    fn pauses_grow_with_the_outage_up_to_a_bound() {
        let bounds: Vec<u64> = [0, 1, 3, 10, 90].map(|away| max_delay(Duration::from_secs(away)).as_secs()).into();
        assert_eq!(bounds, [2, 2, 3, 10, 15]);
        assert_eq!(max_delay(Duration::MAX), MAX_RECONNECT_DELAY);
    }

    /// Ten thousand nodes lose a server for three seconds: they are back soon after, and not all at once.
    #[test]
    fn a_fleet_simulate_reconnect_in_about_the_time_that_the_server_was_away() {
        let back: Vec<f64> = (0..10_000)
            .map(|_| {
                let mut at = 0.0;
                loop {
                    at += max_delay(Duration::from_secs_f64(at)).mul_f64(random_fraction()).as_secs_f64();
                    if at >= 3.0 {
                        return at - 3.0;
                    }
                }
            })
            .collect();
        assert!(back.iter().all(|after| *after < 3.0));
        let first = back.iter().filter(|after| **after < 0.5).count();
        assert!((500..5000).contains(&first), "{first} of them within half a second");
    }

    /// Returns the time at which the last of a fleet is back, and the number of attempts that were given up. The server was
    /// away for three seconds. Then it accepts this number of connections a second, one after the other, also of clients that
    /// gave up.
    fn simulate_reconnect(timeout: Duration, a_second: f64) -> (f64, usize) {
        const AWAY: f64 = 3.0;
        let after = |at: f64| at + max_delay(Duration::from_secs_f64(at)).mul_f64(random_fraction()).as_secs_f64();
        let mut attempts: BTreeSet<(u64, usize)> = BTreeSet::new();
        let micros = |at: f64| u64::try_from(Duration::from_secs_f64(at).as_micros()).unwrap();
        attempts.extend((0..10_000).map(|node| (micros(after(0.0)), node)));
        let (mut free, mut given_up) = (AWAY, 0);
        while let Some((at, node)) = attempts.pop_first() {
            let at = Duration::from_micros(at).as_secs_f64();
            if at < AWAY {
                attempts.insert((micros(after(at)), node));
                continue;
            }
            free = free.max(at) + 1.0 / a_second;
            if free - at > timeout.as_secs_f64() {
                given_up += 1;
                assert!(given_up < 100_000, "they never come back");
                attempts.insert((micros(after(at + timeout.as_secs_f64())), node));
            }
        }
        (free - AWAY, given_up)
    }

    #[test]
    fn a_slow_server_is_not_asked_again_before_it_has_answered() {
        let (last, given_up) = simulate_reconnect(connect_timeout(1), 1000.0);
        assert!(last < 12.0 && given_up == 0, "{last} {given_up}");
        // Otherwise the server does work for clients that have given up.
        let (last, given_up) = simulate_reconnect(ATTEMPT_TIMEOUT, 1000.0);
        assert!(last > 12.0 && given_up > 1000, "{last} {given_up}");
    }

    #[test]
    fn the_first_attempt_is_at_once_and_reconnects_are_spread() {
        let watcher = ConnectionMonitor::new(2);
        assert_eq!((watcher.reconnect_delay(1), watcher.reconnect_delay(2)), (Duration::ZERO, Duration::ZERO));
        watcher.record_event(&Event::Connected);
        watcher.record_event(&Event::Disconnected);
        let delays: Vec<Duration> = (0..50).map(|_| watcher.reconnect_delay(4)).collect();
        assert!(delays.iter().all(|delay| *delay < MIN_SPREAD));
        assert!(delays.iter().max() > delays.iter().min());
    }

    #[test]
    fn a_refusal_makes_pauses_long_until_it_is_over() {
        let watcher = ConnectionMonitor::new(1);
        watcher.record_event(&Event::ClientError(ClientError::Other("authorization violation".into())));
        assert!(watcher.reconnect_delay(2) >= AUTH_RETRY_DELAY);
        watcher.record_event(&Event::Connected);
        assert!(watcher.reconnect_delay(1) < AUTH_RETRY_DELAY);
        assert_eq!(watcher.counters().auth_errors, 1);
        assert_eq!(*watcher.link().borrow(), ConnectionState { connected: true, connects: 1, closed: false });
    }
}
