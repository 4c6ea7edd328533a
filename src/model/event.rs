//! `TransactionEvent`: the result of one resource, shared by engine, session, command line, metrics and wire.
//!
//! Field names and protocol strings are those of the Go system, so that readers of its events can read these. `node`,
//! `run_id`, `seq`, `manifest`, `changes` and `diff` are additions.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::id::ResourceRef;

/// Protocol of a [`TransactionEvent`].
pub const TRANSACTION: &str = "io.choria.ccm.v1.transaction.event";
/// Protocol of a [`SessionStart`].
pub const SESSION_START: &str = "io.choria.ccm.v1.session.start";

/// Returns the protocol of `status` in events of this resource type.
pub fn state_protocol(kind: &str) -> String {
    format!("io.choria.ccm.v1.resource.{kind}.state")
}

/// The outcome of one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResourceOutcome {
    /// Converged before the run.
    Stable,
    /// Changed, or to be changed in a dry run.
    Changed,
    /// Refreshed, because a resource that this one subscribes to changed.
    Refreshed,
    /// Failed to converge, or failed a health check.
    Failed,
    /// Skipped, because its `control` is false.
    Skipped,
    /// Not run, because a requirement failed.
    Unmet,
}

/// Result of a health check, in the integers of the Nagios plugin convention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum HealthStatus {
    /// 0
    Ok = 0,
    /// 1
    Warning = 1,
    /// 2
    Critical = 2,
    /// 3
    Unknown = 3,
}

impl HealthStatus {
    /// Returns the status of an exit code.
    pub fn from_exit(code: i32) -> Self {
        match code {
            0 => Self::Ok,
            1 => Self::Warning,
            2 => Self::Critical,
            _ => Self::Unknown,
        }
    }

    /// Returns the severity; the highest is the worst. An unknown status is worse than a warning.
    pub fn severity(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Warning => 1,
            Self::Unknown => 2,
            Self::Critical => 3,
        }
    }

    /// Returns the name for people: `OK`, `WARNING`, `CRITICAL`, `UNKNOWN`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Warning => "WARNING",
            Self::Critical => "CRITICAL",
            Self::Unknown => "UNKNOWN",
        }
    }
}

impl Serialize for HealthStatus {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(*self as u8)
    }
}

impl<'de> Deserialize<'de> for HealthStatus {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u8::deserialize(deserializer).map(|code| Self::from_exit(i32::from(code)))
    }
}

impl JsonSchema for HealthStatus {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "HealthStatus".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "integer", "enum": [0, 1, 2, 3], "description": "0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN."})
    }
}

/// The result of one health check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HealthResult {
    /// The status of the last attempt.
    pub status: HealthStatus,
    /// Number of attempts.
    pub tries: u32,
    /// The output of the check, trimmed. The capital is the Go system's.
    #[serde(rename = "Output", alias = "output")]
    pub output: String,
    /// The name of the check.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// The manifest of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ManifestId {
    /// The source, without credentials.
    pub source: String,
    /// SHA-256 of its bytes (of the bundle, when it came in one), in hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// The result of one resource in one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TransactionEvent {
    /// Always `io.choria.ccm.v1.transaction.event`.
    pub protocol: String,
    /// UUIDv7; also the `Nats-Msg-Id` of the event on the wire.
    pub event_id: Uuid,
    /// The start of the resource's run.
    #[schemars(with = "String")]
    pub timestamp: Timestamp,
    /// The resource type.
    #[serde(rename = "type")]
    pub kind: String,
    /// The provider that was chosen; empty when none was reached.
    pub provider: String,
    /// The name of the resource.
    pub name: String,
    /// The second name, when the resource has one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub alias: String,
    /// The `ensure` that was asked for.
    pub requested_ensure: String,
    /// The `ensure` that the host has now; empty when the resource failed or did not run.
    pub final_ensure: String,
    /// The duration, in nanoseconds.
    pub duration: u64,
    /// The resolved properties, without secrets.
    pub properties: Value,
    /// The state object of the type; null when the resource failed or did not run.
    pub status: Option<Value>,
    /// The changes that were not made, as the resource was only observed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub noop_message: String,
    /// The results of the health checks, in the order they are written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub health_check: Vec<HealthResult>,
    /// True when only health checks ran.
    #[serde(default, skip_serializing_if = "is_false")]
    pub health_check_only: bool,
    /// The errors. The key is singular on the wire.
    #[serde(rename = "error")]
    pub errors: Vec<String>,
    /// The resource was changed, or would be in a dry run.
    pub changed: bool,
    /// Refreshed, because a resource that this one subscribes to changed.
    pub refreshed: bool,
    /// Failed to converge, or failed a health check.
    pub failed: bool,
    /// Skipped: nothing ran.
    pub skipped: bool,
    /// The resource was only observed: in a dry run, or by its policy.
    pub noop: bool,
    /// Number of attempts, when the first one failed and the policy allows retries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// The requirements that failed, as `type#name`.
    pub unmet_requirements: Vec<String>,
    /// The resources whose changes still need a refresh of this one, as `type#name`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pending_refreshes: Vec<String>,
    /// The node, when an agent ran it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The run; for work that came over the wire, the id of the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<Uuid>,
    /// Position in the run, from 1.
    #[serde(default)]
    pub seq: u64,
    /// The manifest that was applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<ManifestId>,
    /// The steps that were taken, or would be. Of a failed resource: the steps that something else undid before the verification.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
    /// A unified diff of the content, when one was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<String>,
    /// The reason for a change; absent where nothing was changed and in runs without an agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change_cause: Option<ChangeCause>,
    /// Reversed, because the resource is no longer in the manifest.
    #[serde(default, skip_serializing_if = "is_false")]
    pub reverted: bool,
}

/// The reason for a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeCause {
    /// A request: a command, or an assignment whose properties for the resource are new.
    Intentional,
    /// Drift: an earlier run of the channel left the resource with the same properties, and something else changed it.
    Corrective,
}

fn is_false(value: &bool) -> bool {
    !*value
}

impl TransactionEvent {
    /// Returns the outcome, by the precedence of the Go system's log lines.
    pub fn outcome(&self) -> ResourceOutcome {
        if self.failed {
            ResourceOutcome::Failed
        } else if !self.unmet_requirements.is_empty() {
            ResourceOutcome::Unmet
        } else if self.skipped {
            ResourceOutcome::Skipped
        } else if self.refreshed {
            ResourceOutcome::Refreshed
        } else if self.changed {
            ResourceOutcome::Changed
        } else {
            ResourceOutcome::Stable
        }
    }

    /// True when `reference` names this resource, by name or alias.
    pub fn matches(&self, reference: &ResourceRef) -> bool {
        self.kind == reference.kind && (self.name == reference.name || (!self.alias.is_empty() && self.alias == reference.name))
    }

    /// Returns `type#name`, or `type#alias` when the resource has an alias.
    pub fn label(&self) -> String {
        let name = if self.alias.is_empty() { &self.name } else { &self.alias };
        [&self.kind, "#", name].concat()
    }
}

/// The first record of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionStart {
    /// Always `io.choria.ccm.v1.session.start`.
    pub protocol: String,
    /// UUIDv7.
    pub event_id: Uuid,
    /// The start of the session.
    #[schemars(with = "String")]
    pub timestamp: Timestamp,
}
