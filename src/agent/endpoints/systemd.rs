//! What the service manager is told: ready, alive, stopping. Nothing happens without one.

use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;

use crate::config::Settings;
use crate::transport::Bus;

/// How long the service manager waits for a server with us. It gives a start 90 seconds by default.
const CONNECTING: Duration = Duration::from_secs(10);
/// The pause after a connection that was lost at once.
const AGAIN: Duration = Duration::from_millis(500);

/// Tells the service manager; without one this does nothing.
fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "could not tell the service manager");
    }
}

/// Tells that the agent is ready as soon as it takes commands: the server has its subscriptions. A host must boot
/// without a server as well: after [`CONNECTING`] the agent is ready to wait for one.
pub(in crate::agent) async fn ready(settings: Arc<Settings>, bus: Bus) {
    let name = format!("node {} of fleet {}", settings.node, settings.fleet);
    let mut listening = std::pin::pin!(listening(&bus));
    if tokio::time::timeout(CONNECTING, &mut listening).await.is_err() {
        tell(&[NotifyState::Ready, NotifyState::Status(&format!("{name}, waiting for a NATS server"))]);
        listening.await;
    }
    // Being told twice is nothing to the service manager.
    tell(&[NotifyState::Ready, NotifyState::Status(&name)]);
}

/// Returns when the server has seen everything that was sent to it so far.
async fn listening(bus: &Bus) {
    let mut link = bus.watch();
    loop {
        // An error would mean that the connection was closed for good, at the end of this process.
        if link.wait_for(|link| link.connected).await.is_ok() && bus.flush_roundtrip().await.is_ok() {
            return;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// The configuration is being read again: `systemctl reload` waits for [`reloaded`].
pub(in crate::agent) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        // Without its time the service manager would not take it.
        Err(error) => tracing::warn!(%error, "could not tell the service manager"),
    }
}

/// It was read.
pub(in crate::agent) fn reloaded() {
    tell(&[NotifyState::Ready]);
}

/// The agent is about to end.
pub(in crate::agent) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Keeps the watchdog quiet for as long as this runtime gets to it; returns at once without a watchdog.
pub(in crate::agent) async fn watchdog() {
    let Some(limit) = sd_notify::watchdog_enabled().filter(|limit| !limit.is_zero()) else { return };
    // Twice within the limit, as sd_watchdog_enabled(3) advises.
    let mut tick = tokio::time::interval((limit / 2).max(Duration::from_millis(100)));
    loop {
        tick.tick().await;
        tell(&[NotifyState::Watchdog]);
    }
}
