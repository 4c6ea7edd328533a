//! Counts over a run, and `ApplyState`, the summary of a run for the fleet.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::event::{HealthStatus, ManifestId, TransactionEvent};
use super::id::NodeId;

/// Protocol of an [`ApplyState`].
pub const APPLY_STATE: &str = "io.ensign.v1.apply.state";

/// Counts over the events of a session. Field names are the Go system's.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// The start of the session.
    #[schemars(with = "Option<String>")]
    pub start_time: Option<Timestamp>,
    /// The end of the last resource.
    #[schemars(with = "Option<String>")]
    pub end_time: Option<Timestamp>,
    /// Nanoseconds from start to end.
    pub total_duration: u64,
    /// Events counted.
    pub total_resources: u64,
    /// Distinct `type#name`.
    pub unique_resources: u64,
    /// Changed, or would be.
    pub changed_resources: u64,
    /// Failed.
    pub failed_resources: u64,
    /// Not run: `control`, or unmet requirements.
    pub skipped_resources: u64,
    /// Number of converged resources.
    pub stable_resources: u64,
    /// Acted on a subscription (also counted as changed).
    pub refreshed_count: u64,
    /// Requirements that were not met.
    pub requirements_unmet_count: u64,
    /// Health checks that ran.
    pub health_checked_count: u64,
    /// Health checks with status OK.
    pub health_check_ok_count: u64,
    /// Health checks with status WARNING.
    pub health_check_warning_count: u64,
    /// Health checks with status CRITICAL.
    pub health_check_critical_count: u64,
    /// Health checks with status UNKNOWN.
    pub health_check_unknown_count: u64,
    /// Resources with errors.
    pub total_errors: u64,
}

/// Builds a [`Summary`] from events.
#[derive(Debug, Default)]
pub struct SummaryBuilder {
    summary: Summary,
    /// The names seen, by type.
    seen: HashMap<String, HashSet<String>>,
    durations: u64,
}

impl SummaryBuilder {
    /// Sets the start; without a start, the total duration is the sum of the events' durations.
    pub fn start(&mut self, at: Timestamp) {
        self.summary.start_time = Some(at);
    }

    /// Counts an event. The first matching category counts: failed, skipped, changed, stable.
    pub fn add(&mut self, event: &TransactionEvent) {
        let s = &mut self.summary;
        s.total_resources += 1;
        let names = match self.seen.get_mut(&event.kind) {
            Some(names) => names,
            None => self.seen.entry(event.kind.clone()).or_default(),
        };
        s.unique_resources += u64::from(names.insert(event.name.clone()));
        if event.failed {
            s.failed_resources += 1;
            s.total_errors += 1;
        } else if event.skipped {
            s.skipped_resources += 1;
        } else if event.changed {
            s.changed_resources += 1;
        } else {
            s.stable_resources += 1;
        }
        s.requirements_unmet_count += event.unmet_requirements.len() as u64;
        s.refreshed_count += u64::from(event.refreshed);
        for check in &event.health_check {
            s.health_checked_count += 1;
            match check.status {
                HealthStatus::Ok => s.health_check_ok_count += 1,
                HealthStatus::Warning => s.health_check_warning_count += 1,
                HealthStatus::Critical => s.health_check_critical_count += 1,
                HealthStatus::Unknown => s.health_check_unknown_count += 1,
            }
        }
        self.durations += event.duration;
        let nanos = i64::try_from(event.duration).unwrap_or(i64::MAX);
        let end = event.timestamp.saturating_add(jiff::SignedDuration::from_nanos(nanos)).unwrap_or(event.timestamp);
        if s.end_time.is_none_or(|seen| seen < end) {
            s.end_time = Some(end);
        }
    }

    /// Returns the counts so far.
    pub fn summary(&self) -> Summary {
        let mut summary = self.summary.clone();
        summary.total_duration = match (summary.start_time, summary.end_time) {
            (Some(start), Some(end)) => u64::try_from(end.duration_since(start).as_nanos()).unwrap_or(0),
            _ => self.durations,
        };
        summary
    }
}

/// The outcome of a whole run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunOutcome {
    /// Every resource was as wanted.
    Stable,
    /// Something was changed (or would be), nothing failed.
    Changed,
    /// At least one resource failed, or its requirements did.
    Failed,
    /// The run was cancelled or its process died.
    Interrupted,
}

impl RunOutcome {
    /// Returns the outcome of a completed run with these counts.
    pub fn from_summary(summary: &Summary) -> Self {
        if summary.failed_resources > 0 || summary.requirements_unmet_count > 0 {
            Self::Failed
        } else if summary.changed_resources > 0 {
            Self::Changed
        } else {
            Self::Stable
        }
    }

    /// Returns the name of the outcome, as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::Changed => "changed",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
        }
    }
}

/// The summary of one run on one node, published per run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ApplyState {
    /// Always `io.ensign.v1.apply.state`.
    pub protocol: String,
    /// UUIDv7 of this record; its `Nats-Msg-Id` on the wire.
    pub event_id: Uuid,
    /// The node that ran.
    pub node: NodeId,
    /// The run: the id of the command.
    pub run_id: Uuid,
    /// The end of the run.
    #[schemars(with = "String")]
    pub timestamp: Timestamp,
    /// The outcome.
    pub outcome: RunOutcome,
    /// True for a dry run.
    pub noop: bool,
    /// The manifest; absent for a single ensure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<ManifestId>,
    /// The error that kept the run from happening, as a manifest that could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The counts.
    pub summary: Summary,
    /// The changed resources that were drift, which the run corrected or, in a dry run, would have.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub corrective: u64,
    /// The runs before this one that found everything as wanted, and were not published (see `stable_interval`).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stable_runs: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}
