//! The streams of a fleet and the bucket of its bundles.

use std::time::Duration;

use crate::transport::{Bus, Ensured, StreamLimits, StreamSpec, TransportError};
use crate::wire::Subjects;

const DAY: Duration = Duration::from_secs(86_400);
/// Longer than any outage after which a node repeats what it may have stored before.
const DEDUPE: Duration = Duration::from_secs(600);

/// Bytes in a stream of a count of stable runs: payload, receipt, headers and what the server adds. Measured by
/// `tests/it/stable.rs`, and rounded up for longer names.
pub const STABLE_MESSAGE: u64 = 800;
/// Counts of stable runs of a node in a day, with the `stable_interval` that agents have when nothing else is said.
const STABLE_A_DAY: u64 = 24;
/// Bytes of what else a node says in a day: two runs that change something, each a summary and two events.
const CHANGES_A_DAY: u64 = 2 * 3 * 2048;
/// Bytes of what becomes of commands on a node in a day: ten, each with an acknowledgement and a result.
const COMMANDS_A_DAY: u64 = 10 * (1024 + 3072);
/// Less holds little more than the results of one job on a few thousand nodes.
const LEAST: u64 = 64 << 20;

/// How much is kept, on how many servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Servers of a cluster that have a copy.
    pub replicas: usize,
    /// How long results of jobs are kept.
    pub jobs: Duration,
    /// How long events are kept.
    pub events: Duration,
    /// The most bytes of results; the oldest go first. The server sets them aside.
    pub jobs_size: u64,
    /// The same of events.
    pub events_size: u64,
}

impl Default for Retention {
    /// One server; results for a week, events for a month, at most 1 GiB of each.
    fn default() -> Self {
        Self { replicas: 1, jobs: 7 * DAY, events: 30 * DAY, jobs_size: 1 << 30, events_size: 1 << 30 }
    }
}

impl Retention {
    /// How many bytes the server sets aside for it, on each server that has a copy.
    pub fn reserved(&self) -> u64 {
        self.jobs_size.saturating_add(self.events_size).saturating_add(self.rollouts_size())
    }

    /// The sizes for so many nodes, with the times that are kept.
    #[must_use]
    pub fn for_nodes(self, nodes: u64) -> Self {
        let size = |kept: Duration, a_day: u64| {
            let days = kept.as_secs().div_ceil(DAY.as_secs());
            let bytes = nodes.saturating_mul(a_day).saturating_mul(days);
            (bytes.div_ceil(1 << 20) << 20).max(LEAST)
        };
        let events_a_day = STABLE_A_DAY * STABLE_MESSAGE + CHANGES_A_DAY;
        Self { events_size: size(self.events, events_a_day), jobs_size: size(self.jobs, COMMANDS_A_DAY), ..self }
    }

    /// Marks of rollouts are small, and few.
    fn rollouts_size(&self) -> u64 {
        self.jobs_size / 16
    }
}

/// What somebody says of it. What is not said stays as it is, or is as by default.
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
    /// The nodes that the sizes which are not said are computed for.
    pub nodes: Option<u64>,
}

impl RetentionRequest {
    /// How much is to be kept, where what is there already says the rest.
    ///
    /// # Errors
    /// When JetStream is not available.
    pub async fn retention(self, bus: &Bus, subjects: &Subjects) -> Result<Retention, TransportError> {
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

/// The streams, as they should be.
pub fn streams(subjects: &Subjects, retention: Retention) -> Vec<StreamSpec> {
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
        // One message a node, for as long as the fleet lives: what is offline must still be known.
        spec("STATE", subjects.states().to_string(), None, None, Some(1)),
        // What every node keeps to, told to those that are there as it comes, and asked for by those that were not.
        StreamSpec {
            deny_delete: true,
            republish: Some(subjects.desired_republish()),
            ..spec("DESIRED", subjects.all_desired().to_string(), None, None, Some(1))
        },
        spec("ROLLOUTS", subjects.rollouts().to_string(), Some(retention.events), Some(retention.rollouts_size()), Some(1)),
        trust(subjects, retention),
    ]
}

/// One message a version, for ever: a node that was away takes one after the other. What it stores it sends on.
fn trust(subjects: &Subjects, retention: Retention) -> StreamSpec {
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

/// Makes streams and bucket exist; tells `made` of each by name what it came to.
///
/// # Errors
/// When JetStream is not available or refuses; what was told before is there.
pub async fn init(
    bus: &Bus,
    subjects: &Subjects,
    retention: Retention,
    made: &mut dyn FnMut(&str, Ensured),
) -> Result<(), TransportError> {
    for spec in streams(subjects, retention) {
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
