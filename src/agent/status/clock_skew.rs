//! Clock skew: the difference between the clocks of this host and of the server. The host's own clock decides about the
//! time of commands. A wrong clock rejects every command, or accepts expired ones, so that the skew is an alarm.
//!
//! The server stores each message with its own time. The last state of this node in the stream has both times. The first is the
//! time of the host at its publication, the second the time of the server. No message asks for the time.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::agent::identity::AgentInstance;
use crate::agent::status::board::StatusBoard;
use crate::transport::{Bus, Message};
use crate::wire::NodeState;

use crate::agent::jitter;
use crate::agent::status::board::AlarmKind;

/// Largest skew without an alarm: half of the skew that commands allow for. The way of a message counts into it.
const MAX_SKEW: SignedDuration = SignedDuration::from_secs(15);
/// Shortest pause between two checks.
const INTERVAL: Duration = Duration::from_secs(600);
/// Pause after a check that found a wrong clock: an operator may be repairing it.
const ALARMED_INTERVAL: Duration = Duration::from_secs(30);

/// Checks from time to time, until the agent ends. A server that denies reading the own state affects nothing else.
pub(in crate::agent) async fn run(identity: Arc<AgentInstance>, status: Arc<StatusBoard>, bus: Bus) {
    let mut link = bus.watch();
    let (stream, subject) = (identity.subjects.stream("STATE"), identity.subjects.state(&identity.node));
    loop {
        // An error would mean that the connection was closed for good.
        if link.wait_for(|link| link.connected).await.is_err() {
            return;
        }
        let pause = match compare_last_state(&identity, &bus, &stream, subject.as_str()).await {
            None => INTERVAL,
            Some(wrong) => {
                let pause = if wrong.is_some() { ALARMED_INTERVAL } else { INTERVAL };
                status.set(AlarmKind::ServerClock, wrong);
                pause
            }
        };
        tokio::time::sleep(pause + jitter::random_delay(pause / 10)).await;
    }
}

/// Returns the result of comparing the last state of this agent; none without a usable state.
async fn compare_last_state(identity: &AgentInstance, bus: &Bus, stream: &str, subject: &str) -> Option<Option<String>> {
    // The last state was published a moment ago: it may not be stored yet, or may come from an earlier agent.
    for attempt in 1..=5 {
        tokio::time::sleep(Duration::from_millis(500) + jitter::backoff(attempt)).await;
        match bus.last_on(stream, subject).await {
            Ok(Message { payload, time: Some(stored), .. }) => match serde_json::from_slice::<NodeState>(&payload) {
                Ok(state) if state.boot == identity.boot => return Some(alarm(state.at, stored)),
                _ => {}
            },
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(error = %crate::diag::error_chain(&error), "cannot compare the clock with the server's");
                return None;
            }
        }
    }
    None
}

/// Returns the text of the alarm for a message made here at `said` and stored by the server at `stored`.
fn alarm(said: Timestamp, stored: Timestamp) -> Option<String> {
    let ahead = said.duration_since(stored);
    if ahead.abs() < MAX_SKEW {
        return None;
    }
    let direction = if ahead.is_negative() { "behind" } else { "ahead of" };
    // Rounded, so that the next check finds the same text.
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
            let said = alarm(host.parse().unwrap(), server);
            let wanted = wanted.map(|wanted| format!("the clock of this host is {wanted} the server's"));
            assert_eq!(said, wanted, "{host}");
        }
    }
}
