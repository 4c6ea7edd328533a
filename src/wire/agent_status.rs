//! How the agent of a host stands, told to whoever asks on that host: `ensign agent status`, `/metrics`, `/healthz`.
//!
//! More than the [state](super::NodeState) that goes over the bus, and there also when there is no bus.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::model::{ApplyState, NodeId};

use super::confinement::ConfinementState;
use super::report::ChannelPosition;

/// Protocol of an [`AgentStatus`].
pub const STATUS: &str = "io.ensign.v1.agent.status";

/// How an agent stands.
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
    /// Which start of the agent.
    pub boot: Uuid,
    /// When the agent started.
    #[schemars(with = "String")]
    pub started: Timestamp,
    /// When this was said.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// The connection to the bus.
    pub connection: ConnectionStatus,
    /// The trust bundle that is obeyed.
    pub trust: TrustStatus,
    /// What nobody can widen from outside.
    pub limits: LimitsStatus,
    /// What of them the kernel holds; absent when the agent does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confinement: Option<ConfinementState>,
    /// The latest serial of each channel.
    #[serde(default)]
    pub channels: BTreeMap<String, ChannelPosition>,
    /// The command that is running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<Uuid>,
    /// How many wait behind it.
    pub queued: u64,
    /// How many may wait.
    pub queue: u64,
    /// The last run since the agent started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run: Option<ApplyState>,
    /// Messages that wait on disk for the server.
    pub outbox: u64,
    /// Messages that had to be dropped because the outbox was full, ever.
    pub dropped: u64,
    /// What was counted since the agent started.
    pub counts: AgentCounters,
    /// What is wrong with the agent itself, in words, by what it is about.
    #[serde(default)]
    pub troubles: BTreeMap<String, String>,
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
    /// How often it was made.
    pub connects: u64,
    /// How often it was lost.
    pub disconnects: u64,
    /// How often messages were lost because they came faster than they were taken.
    pub slow_consumers: u64,
    /// How often the server did not accept who we are.
    pub auth_errors: u64,
    /// How often the server did not let us publish or subscribe.
    pub denied: u64,
}

/// The trust bundle that is obeyed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TrustStatus {
    /// Its version.
    pub version: u64,
    /// Until when anything new is accepted under it.
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
    /// Whether commands may be run.
    pub exec: bool,
    /// Whether manifests may be applied.
    pub apply: bool,
    /// Hosts that bundles and archives may come from; none is every host but this machine itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetch_hosts: Option<Vec<String>>,
}

/// What an agent counts from its start on.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct AgentCounters {
    /// Commands that were accepted.
    pub accepted: u64,
    /// Commands that were accepted before and came again.
    pub repeated: u64,
    /// Commands whose `where` does not hold here.
    pub not_selected: u64,
    /// Commands that were not taken, by the code of the refusal.
    pub refused: BTreeMap<String, u64>,
    /// The last refusal, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_refusal: Option<String>,
    /// Seconds spent on looking at commands.
    pub intake_seconds: f64,
    /// Accepted commands that ended, by their terminal state.
    pub ended: BTreeMap<String, u64>,
    /// Seconds spent on running them.
    pub run_seconds: f64,
    /// Messages that the server stored, by kind: `transaction`, `run`, `refused`, `life`, `done`.
    pub published: BTreeMap<String, u64>,
    /// How often the configuration was read again.
    pub reloads: u64,
}

impl AgentStatus {
    /// Everything that is wrong, the missing connection included: empty while the agent can do its work.
    pub fn active_alarms(&self) -> Vec<String> {
        let offline = (!self.connection.connected)
            .then(|| format!("not connected to a NATS server ({})", self.connection.servers.join(", ")));
        offline.into_iter().chain(self.troubles.values().cloned()).collect()
    }
}
