//! Catching up: asks the stream of desired state for the latest of every channel, on every connection and from time to time.
//!
//! What the server passes on as it comes may get lost on the way; what is stored does not. Read by direct gets: no node
//! has a consumer. What is found goes the way of everything that comes in, through `intake.rs`.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use crate::diag::chain;
use crate::transport::{Bus, Link, Message, TransportError};

use super::{Node, jitter};

/// The shortest time between two looks while the connection lasts; the longest is three times that.
const LEAST: Duration = Duration::from_secs(300);
/// After a connection was made, a fleet looks within this time.
const SPREAD: Duration = Duration::from_secs(2);

/// Looks until `stop`.
pub(super) async fn run(node: Arc<Node>, bus: Bus, hall: mpsc::Sender<Message>, mut stop: watch::Receiver<bool>) {
    let (mut link, mut settings) = (bus.watch(), node.settings.watch());
    let mut attempt = 0;
    loop {
        let pause = match look(&node, &bus, &hall, &mut link).await {
            Ok(()) => {
                attempt = 0;
                LEAST + jitter::up_to(2 * LEAST)
            }
            Err(error) => {
                attempt += 1;
                tracing::debug!(error = %chain(&error), "the channels could not be asked for");
                jitter::backoff(attempt)
            }
        };
        // Cancel-safe: watches keep their last value, and a sleep that is dropped is only a look that comes earlier.
        let reconnected = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            _ = link.changed() => true,
            // Another group, another channel: what was not for this node may be now.
            _ = settings.changed() => false,
            () = tokio::time::sleep(pause) => false,
        };
        if reconnected {
            tokio::time::sleep(jitter::up_to(SPREAD)).await;
        }
    }
}

async fn look(
    node: &Node,
    bus: &Bus,
    hall: &mpsc::Sender<Message>,
    link: &mut watch::Receiver<Link>,
) -> Result<(), TransportError> {
    if link.wait_for(|link| link.connected).await.is_err() {
        return Err(TransportError::Disconnected);
    }
    link.mark_unchanged();
    let (stream, filter) = (node.subjects.stream("DESIRED"), node.subjects.all_desired());
    let mut after = 0;
    while let Some(message) = bus.stored_after(&stream, filter.as_str(), after).await? {
        after = message.seq.unwrap_or(u64::MAX);
        // The intake is gone only when the agent stops.
        if hall.send(message).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}
