//! Notifications to the service manager: ready, alive, stopping. Without a service manager nothing happens.

use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;

use crate::config::AgentSettings;
use crate::transport::Bus;

/// Longest time for which the start waits for a server. The service manager allows a start 90 seconds by default.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a connection that was lost at once.
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

/// Notifies the service manager, if there is one.
fn notify_manager(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}

/// Reports the agent as ready once the server has its subscriptions. A host must boot without a server as well: after
/// [`READY_TIMEOUT`] the agent is ready in any case.
pub(in crate::agent) async fn ready(settings: Arc<AgentSettings>, bus: Bus) {
    let name = format!("node {} of fleet {}", settings.node, settings.fleet);
    let mut listening = std::pin::pin!(wait_for_subscriptions(&bus));
    if tokio::time::timeout(READY_TIMEOUT, &mut listening).await.is_err() {
        notify_manager(&[NotifyState::Ready, NotifyState::Status(&format!("{name}, waiting for a NATS server"))]);
        listening.await;
    }
    // A second notification does no harm.
    notify_manager(&[NotifyState::Ready, NotifyState::Status(&name)]);
}

/// Returns when the server has processed everything that was sent to it so far.
async fn wait_for_subscriptions(bus: &Bus) {
    let mut link = bus.watch();
    loop {
        // An error would mean that the connection was closed for good, at the end of this process.
        if link.wait_for(|link| link.connected).await.is_ok() && bus.flush_roundtrip().await.is_ok() {
            return;
        }
        tokio::time::sleep(RECONNECT_PAUSE).await;
    }
}

/// Reports the begin of a reload: `systemctl reload` waits for [`reloaded`].
pub(in crate::agent) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify_manager(&[NotifyState::Reloading, now]),
        // Without a time the service manager ignores the notification.
        Err(error) => tracing::warn!(%error, "cannot notify the service manager"),
    }
}

/// Reports the end of a reload.
pub(in crate::agent) fn reloaded() {
    notify_manager(&[NotifyState::Ready]);
}

/// Reports that the agent is about to end.
pub(in crate::agent) fn stopping() {
    notify_manager(&[NotifyState::Stopping]);
}

/// Notifies the watchdog as long as this runtime makes progress. Returns at once without a watchdog.
pub(in crate::agent) async fn watchdog() {
    let Some(limit) = sd_notify::watchdog_enabled().filter(|limit| !limit.is_zero()) else { return };
    // Twice within the limit, as sd_watchdog_enabled(3) advises.
    let mut tick = tokio::time::interval((limit / 2).max(Duration::from_millis(100)));
    loop {
        tick.tick().await;
        notify_manager(&[NotifyState::Watchdog]);
    }
}
