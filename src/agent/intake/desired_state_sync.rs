//! Catching up: asks the stream of desired state for the latest of every channel, on every connection and from time to time.
//!
//! What the server passes on as it comes may get lost on the way; what is stored does not. Read by direct gets: no node
//! has a consumer. What is found goes the way of everything that comes in, through `intake.rs`; where it is something else
//! than this node keeps to, that is an alarm (`divergence.rs`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};

use crate::agent::config::settings_handle::SettingsHandle;
use crate::agent::identity::Identity;
use crate::agent::reconcile::desired_state::DesiredState;
use crate::agent::status::board::StatusBoard;
use crate::agent::trust::TrustHandle;
use crate::diag::chain;
use crate::transport::{Bus, Link, Message, TransportError};

use super::divergence::{self, ChannelHead};
use crate::agent::jitter;
use crate::agent::status::board::AlarmKind;

/// The shortest time between two looks while the connection lasts; the longest is three times that.
const LEAST: Duration = Duration::from_secs(300);
/// After a connection was made, a fleet looks within this time.
const SPREAD: Duration = Duration::from_secs(2);

/// A difference counts when it is still there after this: what was just stored may be on its way.
const CONFIRM: Duration = Duration::from_secs(5);
/// The shortest time between two looks that messages cause: a publisher can send any number.
const DOUBTED: Duration = Duration::from_secs(10);
/// The shortest time between two looks while something differs; the longest is twice that.
const ALARMED: Duration = Duration::from_secs(60);

/// The handles of the comparison.
#[derive(Clone)]
pub(in crate::agent) struct SyncHandles {
    pub(in crate::agent) identity: Arc<Identity>,
    pub(in crate::agent) settings: SettingsHandle,
    pub(in crate::agent) trust: TrustHandle,
    pub(in crate::agent) status: Arc<StatusBoard>,
    pub(in crate::agent) desired_state: Arc<DesiredState>,
}

/// Looks until `stop`.
pub(in crate::agent) async fn run(node: SyncHandles, bus: Bus, hall: mpsc::Sender<Message>, mut stop: watch::Receiver<bool>) {
    let (mut link, mut settings) = (bus.watch(), node.settings.watch());
    let mut attempt = 0;
    // Since when something differs.
    let mut differs: Option<Instant> = None;
    loop {
        let looked = Instant::now();
        let pause = match look(&node, &bus, &hall, &mut link).await {
            Ok(found) => {
                attempt = 0;
                compare(&node, &found, &mut differs)
            }
            Err(error) => {
                attempt += 1;
                tracing::debug!(error = %chain(&error), "the channels could not be asked for");
                jitter::backoff(attempt)
            }
        };
        // Cancel-safe: watches keep their last value, a notification that is not waited for is kept, and a sleep that is
        // dropped is only a look that comes earlier.
        let reconnected = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            _ = link.changed() => true,
            // Another group, another channel: what was not for this node may be now.
            _ = settings.changed() => false,
            () = sync_requested(&node, looked) => false,
            () = tokio::time::sleep(pause) => false,
        };
        if reconnected {
            tokio::time::sleep(jitter::random_delay(SPREAD)).await;
        }
    }
}

/// Returns when a message gave reason to look, and the last look is long enough ago.
async fn sync_requested(node: &SyncHandles, looked: Instant) {
    tokio::time::sleep_until((looked + DOUBTED).into()).await;
    node.desired_state.sync_requested().await;
}

/// Compares what is kept to with what the stream has; gives the pause until the next look.
fn compare(node: &SyncHandles, found: &divergence::Found, differs: &mut Option<Instant>) -> Duration {
    let settings = node.settings.now();
    let held = node.desired_state.in_order(&settings).into_iter();
    let held = held.filter_map(|(name, channel)| Some((name, ChannelHead::held(&channel.latest)?))).collect();
    let alarm = divergence::alarm(&held, found, |to| to.includes(&settings.node, &settings.groups));
    let Some(alarm) = alarm else {
        *differs = None;
        node.status.clear(AlarmKind::Divergence);
        return LEAST + jitter::random_delay(2 * LEAST);
    };
    let since = *differs.get_or_insert_with(Instant::now);
    if since.elapsed() < CONFIRM {
        return CONFIRM;
    }
    node.status.raise(AlarmKind::Divergence, alarm);
    ALARMED + jitter::random_delay(ALARMED)
}

async fn look(
    node: &SyncHandles,
    bus: &Bus,
    hall: &mpsc::Sender<Message>,
    link: &mut watch::Receiver<Link>,
) -> Result<divergence::Found, TransportError> {
    if link.wait_for(|link| link.connected).await.is_err() {
        return Err(TransportError::Disconnected);
    }
    link.mark_unchanged();
    // Nobody is obeyed yet: everything would be refused. The first bundle gives reason to look.
    if node.trust.current().is_before_first() {
        return Ok(divergence::Found::new());
    }
    let (stream, filter) = (node.identity.subjects.stream("DESIRED"), node.identity.subjects.all_desired());
    let mut found = divergence::Found::new();
    let mut after = 0;
    while let Some(message) = bus.stored_after(&stream, filter.as_str(), after).await? {
        after = message.seq.unwrap_or(u64::MAX);
        divergence::note(&mut found, &message, &node.identity.subjects);
        // The intake is gone only when the agent stops.
        if hall.send(message).await.is_err() {
            break;
        }
    }
    Ok(found)
}
