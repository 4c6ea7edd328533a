//! The clock of this host against the server's. What decides about the time of commands is the host's own clock, so one
//! that is wrong refuses everything, or takes what is over: better told before.
//!
//! The server writes the time on what it stores. The last state of this node is there with the time at which this host
//! said it, so the two can be compared without anybody asking for the time.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::agent::identity::Identity;
use crate::agent::status::board::StatusBoard;
use crate::transport::{Bus, Message};
use crate::wire::NodeState;

use crate::agent::jitter;
use crate::agent::status::board::AlarmKind;

/// How far apart they may be: half of what commands allow for. The way of a message counts into it.
const MAX_SKEW: SignedDuration = SignedDuration::from_secs(15);
/// Between two looks, and some more.
const EVERY: Duration = Duration::from_secs(600);
/// After a look that said that the clock is wrong: somebody is about to repair it.
const SOON: Duration = Duration::from_secs(30);

/// Looks from time to time, for ever. A server that does not let the node read its own state takes nothing else from it.
pub(in crate::agent) async fn run(identity: Arc<Identity>, status: Arc<StatusBoard>, bus: Bus) {
    let mut link = bus.watch();
    let (stream, subject) = (identity.subjects.stream("STATE"), identity.subjects.state(&identity.node));
    loop {
        // An error would mean that the connection was closed for good.
        if link.wait_for(|link| link.connected).await.is_err() {
            return;
        }
        let pause = match last(&identity, &bus, &stream, subject.as_str()).await {
            None => EVERY,
            Some(wrong) => {
                let pause = if wrong.is_some() { SOON } else { EVERY };
                status.set(AlarmKind::ServerClock, wrong);
                pause
            }
        };
        tokio::time::sleep(pause + jitter::random_delay(pause / 10)).await;
    }
}

/// What the last state of this agent says about the clock; none when it can't be had.
async fn last(identity: &Identity, bus: &Bus, stream: &str, subject: &str) -> Option<Option<String>> {
    // Said a moment ago, at the connection: it may not be stored yet, or be that of an agent before this one.
    for attempt in 1..=5 {
        tokio::time::sleep(Duration::from_millis(500) + jitter::backoff(attempt)).await;
        match bus.last_on(stream, subject).await {
            Ok(Message { payload, time: Some(stored), .. }) => match serde_json::from_slice::<NodeState>(&payload) {
                Ok(state) if state.boot == identity.boot => return Some(compare(state.at, stored)),
                _ => {}
            },
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(error = %crate::diag::chain(&error), "the clock is not compared with the server's");
                return None;
            }
        }
    }
    None
}

/// What is wrong when a message that this host made at `said` was stored at `stored`.
fn compare(said: Timestamp, stored: Timestamp) -> Option<String> {
    let ahead = said.duration_since(stored);
    if ahead.abs() < MAX_SKEW {
        return None;
    }
    let direction = if ahead.is_negative() { "behind" } else { "ahead of" };
    // Rounded, so that it is the same trouble at the next look.
    let seconds = ahead.abs().as_secs();
    let apart = match seconds {
        0..120 => format!("{} s", seconds / 5 * 5),
        120..7200 => format!("{} minutes", seconds / 60),
        7200..172_800 => format!("{} hours", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    };
    Some(format!("the clock of this host is about {apart} {direction} the server's"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_may_differ_a_little() {
        let server: Timestamp = "2026-11-20T10:00:00Z".parse().unwrap();
        for (host, wanted) in [
            ("2026-11-20T10:00:14Z", None),
            ("2026-11-20T09:59:46Z", None),
            ("2026-11-20T10:00:47Z", Some("about 45 s ahead of")),
            ("2026-11-20T09:58:59Z", Some("about 60 s behind")),
            ("2026-11-20T09:00:00Z", Some("about 60 minutes behind")),
            ("2026-11-20T13:00:00Z", Some("about 3 hours ahead of")),
            ("1970-01-01T00:00:00Z", Some("about 20777 days behind")),
        ] {
            let said = compare(host.parse().unwrap(), server);
            let wanted = wanted.map(|wanted| format!("the clock of this host is {wanted} the server's"));
            assert_eq!(said, wanted, "{host}");
        }
    }
}
