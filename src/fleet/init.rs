//! The streams of a fleet and the bucket of its bundles.

use std::time::Duration;

use crate::transport::{Bus, Ensured, StreamSpec, TransportError};
use crate::wire::Subjects;

const DAY: Duration = Duration::from_secs(86_400);
/// Longer than any outage after which a node repeats what it may have stored before.
const DEDUPE: Duration = Duration::from_secs(600);

/// How much is kept, on how many servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Servers of a cluster that have a copy.
    pub replicas: usize,
    /// How long results of jobs are kept.
    pub jobs: Duration,
    /// How long events are kept.
    pub events: Duration,
    /// The most bytes of each of both; the oldest go first.
    pub max_bytes: u64,
}

impl Default for Retention {
    /// One server; results for a week, events for a month, at most 1 GiB of each.
    fn default() -> Self {
        Self { replicas: 1, jobs: 7 * DAY, events: 30 * DAY, max_bytes: 1 << 30 }
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
        spec("JOBS", subjects.all_jobs().to_string(), Some(retention.jobs), Some(retention.max_bytes), None),
        spec("EVENTS", subjects.events(None).to_string(), Some(retention.events), Some(retention.max_bytes), None),
        // One message a node, for as long as the fleet lives: what is offline must still be known.
        spec("STATE", subjects.states().to_string(), None, None, Some(1)),
        // What every node keeps to, told to those that are there as it comes, and asked for by those that were not.
        StreamSpec {
            deny_delete: true,
            republish: Some(subjects.desired_passed_on()),
            ..spec("DESIRED", subjects.all_desired().to_string(), None, None, Some(1))
        },
        // Small marks, and few: the server sets this room aside.
        spec("ROLLOUTS", subjects.rollouts().to_string(), Some(retention.events), Some(retention.max_bytes / 16), Some(1)),
        trust(subjects, retention),
    ]
}

/// One message a version, for ever: a node that was away takes one after the other. What it stores it sends on.
fn trust(subjects: &Subjects, retention: Retention) -> StreamSpec {
    let subject = subjects.trusts().to_string();
    StreamSpec {
        name: subjects.stream("TRUST"),
        subjects: vec![subject.clone()],
        max_per_subject: Some(1),
        allow_direct: true,
        dedupe_window: DEDUPE,
        replicas: retention.replicas,
        deny_delete: true,
        republish: Some((subject, subjects.live_trusts().to_string())),
        ..StreamSpec::default()
    }
}

/// Makes streams and bucket exist; says of each by name what it came to.
///
/// # Errors
/// When JetStream is not available or refuses.
pub async fn init(bus: &Bus, subjects: &Subjects, retention: Retention) -> Result<Vec<(String, Ensured)>, TransportError> {
    let mut all = Vec::new();
    for spec in streams(subjects, retention) {
        let ensured = bus.ensure_stream(&spec).await?;
        all.push((spec.name, ensured));
    }
    let bucket = subjects.bucket();
    let ensured = bus.ensure_bucket(&bucket, retention.replicas).await?;
    all.push((bucket, ensured));
    Ok(all)
}
