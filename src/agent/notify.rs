//! What the service manager is told: ready, alive, stopping. Nothing happens without one.

use std::time::Duration;

use sd_notify::NotifyState;

/// Tells the service manager; without one this does nothing.
fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "could not tell the service manager");
    }
}

/// The agent takes commands.
pub(super) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The agent is about to end.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Keeps the watchdog quiet for as long as this runtime gets to it; returns at once without a watchdog.
pub(super) async fn watchdog() {
    let Some(limit) = sd_notify::watchdog_enabled().filter(|limit| !limit.is_zero()) else { return };
    // Twice within the limit, as sd_watchdog_enabled(3) advises.
    let mut tick = tokio::time::interval((limit / 2).max(Duration::from_millis(100)));
    loop {
        tick.tick().await;
        tell(&[NotifyState::Watchdog]);
    }
}
