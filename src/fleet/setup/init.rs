//! Creates the streams of a fleet and the bucket of its bundles.

use std::time::Duration;

use crate::transport::{Bus, Ensured, StreamLimits, StreamSpec, TransportError};
use crate::wire::Subjects;

const DAY: Duration = Duration::from_secs(86_400);
/// Time for which the server drops repeated messages. Longer than any outage after which a node sends a message again.
const DEDUPE: Duration = Duration::from_secs(600);

/// Size in a stream of a count of stable runs, in bytes: payload, receipt, headers and overhead of the server.
/// `tests/it/stable.rs` measures the size; rounded up for longer names.
pub const STABLE_MESSAGE: u64 = 800;
/// Counts of stable runs that a node sends in a day, with the default `stable_interval` of agents.
const STABLE_A_DAY: u64 = 24;
/// Size of the other events of a node in a day, in bytes: two runs with changes. Each run has a summary and two events.
const CHANGES_A_DAY: u64 = 2 * 3 * 2048;
/// Size of the reports of a node in a day, in bytes: ten commands. Each command has an acknowledgement and a result.
const COMMANDS_A_DAY: u64 = 10 * (1024 + 3072);
/// Smallest size of a stream in bytes. A smaller stream holds little more than the results of one job on a few thousand
/// nodes.
const MIN_STREAM_SIZE: u64 = 64 << 20;

/// Retention time of requests to join and their answers. A host asks again after it.
const JOIN_AGE: Duration = DAY;
/// Size of the stream of requests to join in bytes: some thousand hosts that ask at the same time.
const JOIN_SIZE: u64 = 16 << 20;
/// Largest request to join, or answer, in bytes.
const MAX_JOIN_MESSAGE: i32 = 128 << 10;

/// Retention of the streams: time, size and replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Number of servers of a cluster that have a copy.
    pub replicas: usize,
    /// Retention time of results.
    pub jobs: Duration,
    /// Retention time of events.
    pub events: Duration,
    /// Largest size of all results in bytes: the server reserves the space, and removes the oldest results first.
    pub jobs_size: u64,
    /// Largest size of all events in bytes, as for results.
    pub events_size: u64,
}

impl Default for Retention {
    /// Returns one server; results for a week, events for a month, at most 1 GiB of each.
    fn default() -> Self {
        Self { replicas: 1, jobs: 7 * DAY, events: 30 * DAY, jobs_size: 1 << 30, events_size: 1 << 30 }
    }
}

impl Retention {
    /// Returns the number of bytes that each server with a copy reserves.
    pub fn reserved(&self) -> u64 {
        self.jobs_size.saturating_add(self.events_size).saturating_add(self.rollouts_size()).saturating_add(JOIN_SIZE)
    }

    /// Computes the sizes for a number of nodes, with the same retention times.
    #[must_use]
    pub fn for_nodes(self, nodes: u64) -> Self {
        let size = |kept: Duration, a_day: u64| {
            let days = kept.as_secs().div_ceil(DAY.as_secs());
            let bytes = nodes.saturating_mul(a_day).saturating_mul(days);
            (bytes.div_ceil(1 << 20) << 20).max(MIN_STREAM_SIZE)
        };
        let events_a_day = STABLE_A_DAY * STABLE_MESSAGE + CHANGES_A_DAY;
        Self { events_size: size(self.events, events_a_day), jobs_size: size(self.jobs, COMMANDS_A_DAY), ..self }
    }

    /// Returns the size of the stream of rollouts. Rollout marks are small and few.
    fn rollouts_size(&self) -> u64 {
        self.jobs_size / 16
    }
}

/// The retention that an operator requests. A missing value stays unchanged, or gets its default in a new stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RetentionRequest {
    /// See [`Retention::replicas`].
    pub replicas: Option<usize>,
    /// See [`Retention::jobs`].
    pub jobs: Option<Duration>,
    /// See [`Retention::events`].
    pub events: Option<Duration>,
    /// See [`Retention::jobs_size`].
    pub jobs_size: Option<u64>,
    /// See [`Retention::events_size`].
    pub events_size: Option<u64>,
    /// Number of nodes from which missing sizes are computed.
    pub nodes: Option<u64>,
}

impl RetentionRequest {
    /// Completes the request with the values of existing streams, then with defaults.
    ///
    /// # Errors
    /// When JetStream is not available.
    pub async fn complete(self, bus: &Bus, subjects: &Subjects) -> Result<Retention, TransportError> {
        let (jobs, events) =
            (bus.stream_limits(&subjects.stream("JOBS")).await?, bus.stream_limits(&subjects.stream("EVENTS")).await?);
        let default = Retention::default();
        let age = |wanted: Option<Duration>, kept: Option<StreamLimits>, default| {
            wanted.or(kept.and_then(|kept| kept.max_age)).unwrap_or(default)
        };
        let size = |wanted: Option<u64>, kept: Option<StreamLimits>, default| {
            wanted.or(kept.and_then(|kept| kept.max_bytes)).unwrap_or(default)
        };
        let retention = Retention {
            replicas: self.replicas.or(jobs.map(|kept| kept.replicas)).unwrap_or(default.replicas),
            jobs: age(self.jobs, jobs, default.jobs),
            events: age(self.events, events, default.events),
            jobs_size: size(self.jobs_size, jobs, default.jobs_size),
            events_size: size(self.events_size, events, default.events_size),
        };
        let Some(nodes) = self.nodes else { return Ok(retention) };
        let computed = retention.for_nodes(nodes);
        Ok(Retention {
            jobs_size: self.jobs_size.unwrap_or(computed.jobs_size),
            events_size: self.events_size.unwrap_or(computed.events_size),
            ..retention
        })
    }
}

/// Returns the specifications of the streams.
pub fn stream_specs(subjects: &Subjects, retention: Retention) -> Vec<StreamSpec> {
    let spec = |name: &str, subject: String, max_age, max_bytes, max_per_subject| StreamSpec {
        name: subjects.stream(name),
        subjects: vec![subject],
        max_age,
        max_bytes,
        max_per_subject,
        allow_direct: true,
        dedupe_window: DEDUPE,
        replicas: retention.replicas,
        ..StreamSpec::default()
    };
    vec![
        spec("JOBS", subjects.all_jobs().to_string(), Some(retention.jobs), Some(retention.jobs_size), None),
        spec("EVENTS", subjects.events(None).to_string(), Some(retention.events), Some(retention.events_size), None),
        // One message a node, without expiry: the state of an offline node must stay known.
        StreamSpec {
            subjects: [subjects.states(), subjects.removals(), subjects.all_admitted()].map(|subject| subject.to_string()).into(),
            ..spec("STATE", String::new(), None, None, Some(1))
        },
        // The assignments of every node: published to online nodes at once, and read later by nodes that were offline.
        StreamSpec {
            deny_delete: true,
            republish: Some(subjects.desired_republish()),
            ..spec("DESIRED", subjects.all_desired().to_string(), None, None, Some(1))
        },
        spec("ROLLOUTS", subjects.rollouts().to_string(), Some(retention.events), Some(retention.rollouts_size()), Some(1)),
        trust_stream_spec(subjects, retention),
        StreamSpec {
            max_message_size: Some(MAX_JOIN_MESSAGE),
            ..spec("JOIN", subjects.joins().to_string(), Some(JOIN_AGE), Some(JOIN_SIZE), Some(1))
        },
    ]
}

/// Returns the specification of the stream of trust bundles: one message a version, without expiry.
///
/// A node that was offline takes one version after the other. The server republishes each stored version.
fn trust_stream_spec(subjects: &Subjects, retention: Retention) -> StreamSpec {
    let subject = subjects.trust_versions().to_string();
    StreamSpec {
        name: subjects.stream("TRUST"),
        subjects: vec![subject.clone()],
        max_per_subject: Some(1),
        allow_direct: true,
        dedupe_window: DEDUPE,
        replicas: retention.replicas,
        deny_delete: true,
        republish: Some((subject, subjects.live_trust_versions().to_string())),
        ..StreamSpec::default()
    }
}

/// Creates or updates the streams and the bucket, and calls `made` with the name and the result of each.
///
/// # Errors
/// When JetStream is not available or refuses. The streams that `made` got before exist.
pub async fn create_streams(
    bus: &Bus,
    subjects: &Subjects,
    retention: Retention,
    made: &mut dyn FnMut(&str, Ensured),
) -> Result<(), TransportError> {
    for spec in stream_specs(subjects, retention) {
        made(&spec.name, bus.ensure_stream(&spec).await?);
    }
    let bucket = subjects.bucket();
    made(&bucket, bus.ensure_bucket(&bucket, retention.replicas).await?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_from_the_number_of_nodes() {
        let of = |nodes| {
            let sizes = Retention::default().for_nodes(nodes);
            (sizes.events_size >> 20, sizes.jobs_size >> 20)
        };
        assert_eq!([of(1), of(100), of(2000), of(10_000)], [(64, 64), (91, 64), (1802, 547), (9009, 2735)]);
        let longer = Retention { events: 90 * DAY, ..Retention::default() };
        assert_eq!(longer.for_nodes(2000).events_size >> 20, 5406);
    }
}
