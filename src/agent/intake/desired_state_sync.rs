//! Sync of the desired state: reads the last message of every channel, on every connection and from time to time.
//!
//! A live message may get lost, a stored one does not. The sync uses direct gets: no node has a consumer. Each message goes
//! through the intake as a live one. A difference from the assignments of this node raises an alarm (`divergence.rs`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};

use crate::agent::config::settings_handle::SettingsHandle;
use crate::agent::identity::AgentInstance;
use crate::agent::reconcile::desired_state::DesiredState;
use crate::agent::status::board::StatusBoard;
use crate::agent::trust::TrustHandle;
use crate::diag::error_chain;
use crate::transport::{Bus, ConnectionState, Message, TransportError};

use super::divergence::{self, ChannelHead};
use crate::agent::jitter;
use crate::agent::status::board::AlarmKind;

/// Shortest time between two syncs while the connection lasts; the longest is three times that.
const MIN_INTERVAL: Duration = Duration::from_secs(300);
/// The time over which a fleet spreads its syncs after a connection.
const SPREAD: Duration = Duration::from_secs(2);

/// Shortest time for which a difference must last before it counts: a stored message may still be on its way.
const CONFIRMATION_TIME: Duration = Duration::from_secs(5);
/// Shortest time between two syncs that messages cause: a publisher can send any number.
const MIN_REQUESTED_INTERVAL: Duration = Duration::from_secs(10);
/// Shortest time between two syncs while there is a difference; the longest is twice that.
const MIN_ALARMED_INTERVAL: Duration = Duration::from_secs(60);

/// The handles of the sync.
#[derive(Clone)]
pub(in crate::agent) struct SyncHandles {
    pub(in crate::agent) identity: Arc<AgentInstance>,
    pub(in crate::agent) settings: SettingsHandle,
    pub(in crate::agent) trust: TrustHandle,
    pub(in crate::agent) status: Arc<StatusBoard>,
    pub(in crate::agent) desired_state: Arc<DesiredState>,
}

/// Syncs until `stop`.
pub(in crate::agent) async fn run(node: SyncHandles, bus: Bus, hall: mpsc::Sender<Message>, mut stop: watch::Receiver<bool>) {
    let (mut link, mut settings) = (bus.watch(), node.settings.watch());
    let mut attempt = 0;
    // The time since which there is a difference.
    let mut differs: Option<Instant> = None;
    loop {
        let looked = Instant::now();
        let pause = match sync_once(&node, &bus, &hall, &mut link).await {
            Ok(found) => {
                attempt = 0;
                check_divergence(&node, &found, &mut differs)
            }
            Err(error) => {
                attempt += 1;
                tracing::debug!(error = %error_chain(&error), "cannot read the channels of the stream of desired state");
                jitter::backoff(attempt)
            }
        };
        // Cancel-safe: watches keep their last value, an unconsumed notification is kept, and a dropped sleep only
        // makes the next sync earlier.
        let reconnected = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            _ = link.changed() => true,
            // A changed group or channel: assignments for other nodes may now be for this one.
            _ = settings.changed() => false,
            () = sync_requested(&node, looked) => false,
            () = tokio::time::sleep(pause) => false,
        };
        if reconnected {
            tokio::time::sleep(jitter::random_delay(SPREAD)).await;
        }
    }
}

/// Returns when a message gave reason for a sync, and the last sync is long enough ago.
async fn sync_requested(node: &SyncHandles, looked: Instant) {
    tokio::time::sleep_until((looked + MIN_REQUESTED_INTERVAL).into()).await;
    node.desired_state.sync_requested().await;
}

/// Compares the assignments of this node with the stream. Returns the pause until the next sync.
fn check_divergence(node: &SyncHandles, found: &divergence::StreamHeads, differs: &mut Option<Instant>) -> Duration {
    let settings = node.settings.now();
    let held = node.desired_state.in_order(&settings).into_iter();
    let held = held.filter_map(|(name, channel)| Some((name, ChannelHead::from_assignment(&channel.latest)?))).collect();
    let alarm = divergence::alarm(&held, found, |to| to.includes(&settings.node, &settings.groups));
    let Some(alarm) = alarm else {
        *differs = None;
        node.status.clear(AlarmKind::Divergence);
        return MIN_INTERVAL + jitter::random_delay(2 * MIN_INTERVAL);
    };
    let since = *differs.get_or_insert_with(Instant::now);
    if since.elapsed() < CONFIRMATION_TIME {
        return CONFIRMATION_TIME;
    }
    node.status.raise(AlarmKind::Divergence, alarm);
    MIN_ALARMED_INTERVAL + jitter::random_delay(MIN_ALARMED_INTERVAL)
}

async fn sync_once(
    node: &SyncHandles,
    bus: &Bus,
    hall: &mpsc::Sender<Message>,
    link: &mut watch::Receiver<ConnectionState>,
) -> Result<divergence::StreamHeads, TransportError> {
    if link.wait_for(|link| link.connected).await.is_err() {
        return Err(TransportError::Disconnected);
    }
    link.mark_unchanged();
    // Without a trust bundle every message would be rejected. The first bundle requests a sync.
    if node.trust.current().is_before_first() {
        return Ok(divergence::StreamHeads::new());
    }
    let (stream, filter) = (node.identity.subjects.stream("DESIRED"), node.identity.subjects.all_desired());
    let mut found = divergence::StreamHeads::new();
    let mut after = 0;
    while let Some(message) = bus.stored_after(&stream, filter.as_str(), after).await? {
        after = message.seq.unwrap_or(u64::MAX);
        divergence::record(&mut found, &message, &node.identity.subjects);
        // The intake ends only when the agent stops.
        if hall.send(message).await.is_err() {
            break;
        }
    }
    Ok(found)
}
