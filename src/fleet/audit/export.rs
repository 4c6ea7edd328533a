//! Reads what the streams of a fleet have.
//!
//! The states are read first: what they say was sent before must be in the streams that are read after them.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::transport::{Bus, StartAt, StreamReader, TransportError};
use crate::wire::Subjects;

use super::export_format::{ExportHeader, ExportRecord, FORMAT, StreamExtent};

/// How long to wait for the next message that must be there.
const STALLED: Duration = Duration::from_secs(10);

/// The streams with their subjects.
fn sources(subjects: &Subjects) -> [(&'static str, String); 4] {
    [
        ("JOBS", subjects.all_jobs().to_string()),
        ("EVENTS", subjects.events(None).to_string()),
        // Without what operators said there, which no node signs.
        ("ROLLOUTS", subjects.all_rollout_failures().to_string()),
        ("ROLLOUTS", subjects.all_rollout_successes().to_string()),
    ]
}

/// Reads states, jobs, events and marks of rollouts from a time on; hands the opening and then every message to `take`, whose error ends
/// it. Gives how many messages there were.
///
/// # Errors
/// When a stream can't be read, or `take` does not want any more.
pub async fn export<E>(
    bus: &Bus,
    subjects: &Subjects,
    fleet: &str,
    since: Option<Timestamp>,
    now: Timestamp,
    mut take: impl FnMut(Line<'_>) -> Result<(), E>,
) -> Result<Result<u64, E>, TransportError> {
    let states = bus.last_per_subject(&subjects.stream("STATE"), subjects.states().as_str()).await?;
    let mut streams = BTreeMap::new();
    for (name, _) in sources(subjects) {
        // What is replaced there by something later says nothing about how far back the rest goes.
        if name != "ROLLOUTS" {
            let (first, last, from) = bus.extent(&subjects.stream(name)).await?;
            streams.insert(name.to_owned(), StreamExtent { first, last, from });
        }
    }
    let opening = ExportHeader { protocol: FORMAT.to_owned(), fleet: fleet.to_owned(), at: now, since, streams };
    if let Err(error) = take(Line::Opening(&opening)) {
        return Ok(Err(error));
    }
    let mut count = 0;
    for state in states {
        count += 1;
        if let Err(error) = take(Line::Record(&ExportRecord::of("STATE", state))) {
            return Ok(Err(error));
        }
    }
    for (name, filter) in sources(subjects) {
        let from = since.map_or(StartAt::Beginning, StartAt::Since);
        let mut feed = bus.follow(&subjects.stream(name), &filter, from).await?;
        for _ in 0..feed.backlog() {
            let Some(message) = next(&mut feed).await? else { break };
            count += 1;
            if let Err(error) = take(Line::Record(&ExportRecord::of(name, message))) {
                return Ok(Err(error));
            }
        }
    }
    Ok(Ok(count))
}

/// What an export consists of.
#[derive(Debug)]
pub enum Line<'a> {
    /// What is in it.
    Opening(&'a ExportHeader),
    /// A message.
    Record(&'a ExportRecord),
}

/// The next message of what is there already; none when it was removed meanwhile.
///
/// # Errors
/// When the stream can't be read.
pub(in super::super) async fn next(feed: &mut StreamReader) -> Result<Option<crate::transport::Message>, TransportError> {
    match tokio::time::timeout(STALLED, feed.next()).await {
        Ok(Some(message)) => message.map(Some),
        Ok(None) => Err(TransportError::Disconnected),
        Err(_) => Ok(None),
    }
}
