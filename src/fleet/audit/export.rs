//! Reads the streams of a fleet for an export.
//!
//! The states are read first. Messages that they count as sent must be in the streams, which are read after them.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::transport::{Bus, StartAt, StreamReader, TransportError};
use crate::wire::Subjects;

use super::export_format::{ExportHeader, ExportRecord, FORMAT, StreamExtent};

/// Longest wait for the next message that the stream already has.
const STALLED: Duration = Duration::from_secs(10);

/// Returns the streams with their subjects.
fn sources(subjects: &Subjects) -> [(&'static str, String); 4] {
    [
        ("JOBS", subjects.all_jobs().to_string()),
        ("EVENTS", subjects.events(None).to_string()),
        // Without the overrides of operators, which no node signs.
        ("ROLLOUTS", subjects.all_rollout_failures().to_string()),
        ("ROLLOUTS", subjects.all_rollout_successes().to_string()),
    ]
}

/// Exports states, jobs, events and rollout marks since a time, and returns the number of messages.
///
/// Passes the header and then every message to `take`. An error of `take` ends the export.
///
/// # Errors
/// When a stream can't be read. The inner error is the error of `take`.
pub async fn export<E>(
    bus: &Bus,
    subjects: &Subjects,
    fleet: &str,
    since: Option<Timestamp>,
    now: Timestamp,
    mut take: impl FnMut(ExportLine<'_>) -> Result<(), E>,
) -> Result<Result<u64, E>, TransportError> {
    let states = bus.last_per_subject(&subjects.stream("STATE"), subjects.states().as_str()).await?;
    let mut streams = BTreeMap::new();
    for (name, _) in sources(subjects) {
        // A later message replaces an earlier one there, so its first message does not tell how far back it goes.
        if name != "ROLLOUTS" {
            let (first, last, from) = bus.stream_extent(&subjects.stream(name)).await?;
            streams.insert(name.to_owned(), StreamExtent { first, last, from });
        }
    }
    let opening = ExportHeader { protocol: FORMAT.to_owned(), fleet: fleet.to_owned(), at: now, since, streams };
    if let Err(error) = take(ExportLine::Header(&opening)) {
        return Ok(Err(error));
    }
    let mut count = 0;
    for state in states {
        count += 1;
        if let Err(error) = take(ExportLine::Record(&ExportRecord::new("STATE", state))) {
            return Ok(Err(error));
        }
    }
    for (name, filter) in sources(subjects) {
        let from = since.map_or(StartAt::Beginning, StartAt::Since);
        let mut feed = bus.follow(&subjects.stream(name), &filter, from).await?;
        for _ in 0..feed.backlog() {
            let Some(message) = next_message(&mut feed).await? else { break };
            count += 1;
            if let Err(error) = take(ExportLine::Record(&ExportRecord::new(name, message))) {
                return Ok(Err(error));
            }
        }
    }
    Ok(Ok(count))
}

/// A line of an export.
#[derive(Debug)]
pub enum ExportLine<'a> {
    /// The header.
    Header(&'a ExportHeader),
    /// A message.
    Record(&'a ExportRecord),
}

/// Returns the next message that the stream already has; `None` when the stream removed it meanwhile.
///
/// # Errors
/// When the stream can't be read.
pub(in super::super) async fn next_message(feed: &mut StreamReader) -> Result<Option<crate::transport::Message>, TransportError> {
    match tokio::time::timeout(STALLED, feed.next()).await {
        Ok(Some(message)) => message.map(Some),
        Ok(None) => Err(TransportError::Disconnected),
        Err(_) => Ok(None),
    }
}
