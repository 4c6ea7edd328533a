//! Status of an agent for users of its own host: `ensign agent status`, `/metrics`, `/healthz`.
//!
//! Has more than the [state](super::NodeState) on the bus, and is available without a bus.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::model::{ApplyState, NodeId};

use super::confinement::ConfinementState;
use super::report::{ChannelPosition, WatchStatus};

/// Protocol of an [`AgentStatus`].
pub const STATUS: &str = "io.ensign.v1.agent.status";

/// Status of an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AgentStatus {
    /// Always `io.ensign.v1.agent.status`.
    pub protocol: String,
    /// The node.
    pub node: NodeId,
    /// Its fleet.
    pub fleet: String,
    /// The host name.
    pub hostname: String,
    /// The groups of the node.
    pub groups: Vec<String>,
    /// The version of the program.
    pub version: String,
    /// The id of this start of the agent.
    pub boot: Uuid,
    /// The start time of the agent.
    #[schemars(with = "String")]
    pub started: Timestamp,
    /// The time of this status.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// The connection to the bus.
    pub connection: ConnectionStatus,
    /// The active trust bundle.
    pub trust: TrustStatus,
    /// Restrictions that no command can widen.
    pub limits: LimitsStatus,
    /// The part of them that the kernel enforces; absent when the agent does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confinement: Option<ConfinementState>,
    /// The latest serial of each channel.
    #[serde(default)]
    pub channels: BTreeMap<String, ChannelPosition>,
    /// The watches of each channel whose drift is repaired when it happens.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub watches: BTreeMap<String, WatchStatus>,
    /// The command that is running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<Uuid>,
    /// Refreshes that subscribers have not received yet.
    #[serde(default)]
    pub pending_refreshes: u64,
    /// The number of commands that wait behind it.
    pub queued: u64,
    /// The number of commands that may wait.
    pub queue: u64,
    /// The last run since the agent started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run: Option<ApplyState>,
    /// Messages that wait on disk for the server.
    pub outbox: u64,
    /// Messages that had to be dropped because the outbox was full, ever.
    pub dropped: u64,
    /// Counters since the start of the agent.
    pub counts: AgentCounters,
    /// Alarms of the agent itself: text by topic.
    #[serde(default)]
    pub alarms: BTreeMap<String, String>,
    /// Keys of the configuration that were changed and wait for a restart.
    #[serde(default)]
    pub pending: Vec<String>,
}

/// The connection to the bus.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ConnectionStatus {
    /// True while there is one.
    pub connected: bool,
    /// The servers that are tried.
    pub servers: Vec<String>,
    /// The version of the server; none before the first connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_version: Option<String>,
    /// Connections made.
    pub connects: u64,
    /// Connections lost.
    pub disconnects: u64,
    /// Times that messages were lost because they arrived faster than the agent read them.
    pub slow_consumers: u64,
    /// Times that the server did not accept the credentials.
    pub auth_errors: u64,
    /// Times that the server denied a publish or a subscription.
    pub denied: u64,
}

/// The active trust bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TrustStatus {
    /// Its version.
    pub version: u64,
    /// The time until which the node accepts new work under the bundle.
    #[schemars(with = "String")]
    pub expires: Timestamp,
}

/// The limits of the host, in short.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct LimitsStatus {
    /// Resource types that may be managed; none is all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub types: Option<Vec<String>>,
    /// Path prefixes below which files may be managed; none is all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paths: Option<Vec<String>>,
    /// True when commands may be run.
    pub exec: bool,
    /// True when manifests may be applied.
    pub apply: bool,
    /// Hosts that bundles and archives may come from; none is every host but this machine itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetch_hosts: Option<Vec<String>>,
}

/// Counters of an agent since its start.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct AgentCounters {
    /// Commands that were accepted.
    pub accepted: u64,
    /// Repeated deliveries of accepted commands.
    pub repeated: u64,
    /// Commands whose filter (`where`) does not select this node.
    pub not_selected: u64,
    /// Rejected commands, by rejection code.
    pub refused: BTreeMap<String, u64>,
    /// The message of the last rejection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_refusal: Option<String>,
    /// Seconds spent on verifying commands.
    pub intake_seconds: f64,
    /// Accepted commands that ended, by their terminal state.
    pub ended: BTreeMap<String, u64>,
    /// Seconds spent on running them.
    pub run_seconds: f64,
    /// Messages that the server stored, by kind: `transaction`, `run`, `refused`, `lifecycle`, `done`.
    pub published: BTreeMap<String, u64>,
    /// Reloads of the configuration.
    pub reloads: u64,
    /// The checks of watched resources.
    #[serde(default)]
    pub repairs: RepairCounters,
}

/// Counters of the checks that follow from changes of the host.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct RepairCounters {
    /// Checks of resources.
    pub checks: u64,
    /// Checks that changed something.
    pub changes: u64,
    /// Failures that are tried again by themselves.
    pub failures_retried: u64,
    /// Failures after which the tries were used up.
    pub failures_final: u64,
    /// Repairs of drift within each time of [`REPAIR_LATENCY_BOUNDS`], and slower ones at the end.
    pub latency: [u64; REPAIR_LATENCY_BOUNDS.len() + 1],
    /// Seconds from the first report of a change to the end of its repair, in total.
    pub latency_seconds: f64,
}

/// The upper bounds of the repair latency, in seconds.
pub const REPAIR_LATENCY_BOUNDS: [f64; 9] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];

impl AgentStatus {
    /// Returns all alarms, including a missing connection: empty while the agent can do its work.
    pub fn active_alarms(&self) -> Vec<String> {
        let offline = (!self.connection.connected)
            .then(|| format!("not connected to a NATS server ({})", self.connection.servers.join(", ")));
        offline.into_iter().chain(self.alarms.values().cloned()).collect()
    }
}
