//! Messages of nodes: acknowledgement, result, refusal, state.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::model::{ApplyState, HealthResult, NodeId, RunOutcome, TransactionEvent};

use super::ConfinementState;

/// Protocol of an [`Ack`].
pub const ACK: &str = "io.ensign.v1.job.ack";
/// Protocol of a [`CommandResult`].
pub const RESULT: &str = "io.ensign.v1.job.done";
/// Protocol of a [`RejectionEvent`].
pub const REJECTION: &str = "io.ensign.v1.event.refused";
/// Protocol of a [`RolloutResult`] that says that a node failed.
pub const ROLLOUT_FAILURE: &str = "io.ensign.v1.rollout.failed";
/// Protocol of a [`RolloutResult`] that says that it went well.
pub const ROLLOUT_SUCCESS: &str = "io.ensign.v1.rollout.ok";
/// Protocol of a [`LifecycleEvent`].
pub const LIFECYCLE: &str = "io.ensign.v1.event.lifecycle";
/// Protocol of a [`StableRuns`].
pub const STABLE: &str = "io.ensign.v1.event.stable";
/// Protocol of a [`NodeState`].
pub const STATE: &str = "io.ensign.v1.node.state";

/// Header of a command with a subject for answers.
pub const ANSWER: &str = "Ensign-Answer";
/// Value of [`ANSWER`] for a client that reads the stream of jobs. The client needs direct answers only where the stream may lack
/// them.
pub const NOT_TAKEN: &str = "not-taken";

/// The first answer to a command, within a second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ack {
    /// Always `io.ensign.v1.job.ack`.
    pub protocol: String,
    /// The command.
    pub id: Uuid,
    /// SHA-256 of the signed payload, lower-case hex.
    pub digest: String,
    /// The node that answers.
    pub node: NodeId,
    /// The time of the answer.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// The decision about the command.
    pub status: AckStatus,
    /// The number of commands that run before it.
    #[serde(default)]
    pub queued: u64,
    /// The wave that this node is in, from 1, while it waits for its turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wave: Option<u64>,
    /// The rule of the trust bundle that allows it, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<u64>,
    /// The ids of the signing keys that the rule counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signers: Vec<String>,
}

/// The decision of a node about a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AckStatus {
    /// The command is on disk and will run.
    Accepted,
    /// The node is not among those that the `where` of the command selects.
    NotSelected,
}

/// The last answer to a command: exactly one for every command that reached a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CommandResult {
    /// Always `io.ensign.v1.job.done`.
    pub protocol: String,
    /// The command; absent when it was refused before its id could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Uuid>,
    /// SHA-256 of the signed payload, lower-case hex.
    pub digest: String,
    /// The node that answers.
    pub node: NodeId,
    /// The time of the answer.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// The terminal state.
    pub outcome: CommandOutcome,
    /// For `refused`: the stable code of the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// For people: why it failed or was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// For an `ensure`: what happened to the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<TransactionEvent>,
    /// For an `apply`: the summary of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apply: Option<ApplyState>,
    /// For an `apply`: the errors of the resources that failed, by `type#name`, the first few.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failures: BTreeMap<String, String>,
    /// For a dry run: what would change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlannedChanges>,
    /// For `facts` and `status`: the facts, or the state of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Value>,
    /// The rule of the trust bundle that allowed it, from 1; none when nothing did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<u64>,
    /// The ids of the signing keys that the rule counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signers: Vec<String>,
}

/// The changes of a dry run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedChanges {
    /// SHA-256 over all changes, lower-case hex: the same on two nodes that would change the same (`docs/wire.md`).
    pub digest: String,
    /// SHA-256 over the resolved properties of the changed resources, lower-case hex. Other template values give another
    /// digest. Only the node that made it compares it.
    pub resolved_digest: String,
    /// SHA-256 of the action, lower-case hex: only the same action can be approved.
    pub action: String,
    /// The changes, in the order of the manifest: the first few.
    pub changes: Vec<PlannedChange>,
    /// The number of further changes.
    #[serde(default)]
    pub more: u64,
}

/// A resource that would change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedChange {
    /// `type#name`.
    pub resource: String,
    /// The change in words.
    pub what: String,
    /// A unified diff of the content, without secrets. Absent where there is none, or where it may not leave the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<String>,
}

/// The terminal states of a command on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CommandOutcome {
    /// Everything was as wanted.
    Stable,
    /// Something was changed, nothing failed.
    Changed,
    /// A dry run: something would be changed, nothing was.
    WouldChange,
    /// Something failed.
    Failed,
    /// The node refused the command: see `code`.
    Refused,
    /// The queue of the node is full.
    Busy,
    /// The command expired before it could run.
    Expired,
    /// The agent died or was stopped while it ran.
    Interrupted,
    /// Not begun: the job was halted, or too many nodes had failed before the turn of this node.
    Halted,
    /// The `where` of the command does not select this node.
    NotSelected,
}

impl CommandOutcome {
    /// Returns the name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::Changed => "changed",
            Self::WouldChange => "would_change",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::Busy => "busy",
            Self::Expired => "expired",
            Self::Interrupted => "interrupted",
            Self::Halted => "halted",
            Self::NotSelected => "not_selected",
        }
    }
}

/// A refusal, published for monitoring.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RejectionEvent {
    /// Always `io.ensign.v1.event.refused`.
    pub protocol: String,
    /// UUIDv7 of this record.
    pub event_id: Uuid,
    /// The node that refused.
    pub node: NodeId,
    /// The time of the refusal.
    #[schemars(with = "String")]
    pub timestamp: Timestamp,
    /// The stable code of the reason.
    pub code: String,
    /// For people.
    pub message: String,
    /// The subject of the refused message.
    pub subject: String,
    /// SHA-256 in lower-case hex: of the payload where there is one, else of the message.
    pub digest: String,
    /// The command, where its id could be read from verified bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Uuid>,
    /// The key ids that the envelope names: hints, not facts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keyids: Vec<String>,
}

/// The report of a node on a command in waves: a success or a failure. The next wave waits for successes, sent at the end of
/// the hold. Nodes of later waves count failures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutResult {
    /// `io.ensign.v1.rollout.ok` or `io.ensign.v1.rollout.failed`.
    pub protocol: String,
    /// The command.
    pub id: Uuid,
    /// The node.
    pub node: NodeId,
    /// The time from which the result counts.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// The end of the run: of a success `changed`, `would_change`, `stable` or `not_selected`.
    pub outcome: CommandOutcome,
    /// Of a failure: true when the node ran the assignment, and goes back to the one before. Only such failures make other nodes
    /// go back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reverts: bool,
}

/// The number of runs without a change: one message instead of a summary of each. The node is only in the subject and in the
/// receipt, because streams keep these messages for a month.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StableRuns {
    /// Always `io.ensign.v1.event.stable`.
    pub protocol: String,
    /// The time of this message, in whole seconds. The runs are those since the message before it.
    #[schemars(with = "String")]
    pub timestamp: Timestamp,
    /// The number of runs, by channel.
    pub runs: BTreeMap<String, u64>,
}

/// The start, stop or another report of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LifecycleEvent {
    /// Always `io.ensign.v1.event.lifecycle`.
    pub protocol: String,
    /// UUIDv7 of this record.
    pub event_id: Uuid,
    /// The node.
    pub node: NodeId,
    /// The time of the event.
    #[schemars(with = "String")]
    pub timestamp: Timestamp,
    /// `started`, `stopped`, `trust` (another trust bundle is active), or `dropped` (messages were lost on the node). Of a
    /// watched assignment: `flapping` (something else undoes the repairs of a resource), or `settled` (no longer flapping).
    /// Of a rollout: `reverted` (the node went back to the assignment before).
    pub what: String,
    /// For people: more about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The version of the program.
    pub version: String,
    /// The id of the start of the agent.
    pub boot: Uuid,
    /// For `dropped`: the lost messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<DroppedMessages>,
}

/// Messages that a node had to drop. Its outbox was full, the messages had become too old, or the server never accepts them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DroppedMessages {
    /// The number of events.
    pub events: u64,
    /// The number of results, summaries and the like.
    pub results: u64,
    /// The place in the chain of receipts of the first one.
    pub first: u64,
    /// The place of the last one. Not everything between them was dropped.
    pub last: u64,
}

impl DroppedMessages {
    /// Returns the sum of both.
    #[must_use]
    pub fn with(&self, other: &Self) -> Self {
        Self {
            events: self.events + other.events,
            results: self.results + other.results,
            first: self.first.min(other.first),
            last: self.last.max(other.last),
        }
    }
}

/// The part of a chain of receipts that a reader can't have yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OpenLinks {
    /// The lowest place of a message that waits on the node, or whose loss was not reported.
    pub first: u64,
    /// The number of such messages. Streams are counted apart, so not every later message is open.
    pub count: u64,
}

/// The latest state of a node: one message per subject, overwritten. Also its heartbeat.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeState {
    /// Always `io.ensign.v1.node.state`.
    pub protocol: String,
    /// The node.
    pub node: NodeId,
    /// The time of this state.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// The longest time until the next state, in seconds.
    pub interval: u64,
    /// False in the last state of an agent that was stopped in order.
    pub alive: bool,
    /// The host name.
    pub hostname: String,
    /// The id of this start of the agent. Two live ids for one node mean two hosts with one node id.
    pub boot: Uuid,
    /// The start time of the agent.
    #[schemars(with = "String")]
    pub started: Timestamp,
    /// The version of the program.
    pub version: String,
    /// The operating system, its version and the processor, as `debian 12.11 x86_64`; absent while it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// The groups of the node.
    pub groups: Vec<String>,
    /// The version of the active trust bundle.
    pub trust: u64,
    /// The latest serial of each channel.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub channels: BTreeMap<String, ChannelPosition>,
    /// The assignments of the node, by channel, in the order in which they are applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assignments: Vec<AssignmentStatus>,
    /// The command that is running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<Uuid>,
    /// A command that ended, and whose result can't be written to the disk of the node. No other command runs meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unwritten: Option<Uuid>,
    /// The number of commands that wait behind it.
    #[serde(default)]
    pub queued: u64,
    /// The last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run: Option<ApplyState>,
    /// The resources that failed in the last run of each channel and in the last command, the first few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failing: Vec<FailingResource>,
    /// Messages that wait on disk for the server.
    #[serde(default)]
    pub outbox: u64,
    /// Messages that had to be dropped because the outbox was full, or they were too old.
    #[serde(default)]
    pub dropped: u64,
    /// The part of them that were results, summaries and the like; the rest were events.
    #[serde(default)]
    pub dropped_results: u64,
    /// The public key of the node, which its receipts are signed with: `ed25519:...`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The length of the chain of receipts, including messages in the outbox.
    #[serde(default)]
    pub chain: u64,
    /// The part of that chain that the streams can't have yet; absent when they have all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<OpenLinks>,
    /// The limits of the owner that the kernel enforces; absent when the agent does not report them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confinement: Option<ConfinementState>,
    /// Alarms of the agent itself, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alarms: Vec<String>,
}

/// A resource that failed, or whose requirements failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailingResource {
    /// The resource, `type#name`.
    pub resource: String,
    /// The channel; absent for a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// The errors, without secrets.
    pub error: String,
    /// The time of its first failure without a success since.
    #[schemars(with = "String")]
    pub since: Timestamp,
}

/// State of an assignment on a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AssignmentStatus {
    /// The channel.
    pub channel: String,
    /// The command that assigned it.
    pub id: Uuid,
    /// SHA-256 of the active manifest, which is an earlier one while the newest can't be used. Absent when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_force: Option<String>,
    /// True when the `where` of the command holds here.
    pub selected: bool,
    /// False: the node reports drift and does not repair it.
    pub enforce: bool,
    /// The time by which the assignment must be signed again.
    #[schemars(with = "String")]
    pub expires: Timestamp,
    /// The end of the last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub ran: Option<Timestamp>,
    /// The outcome of the last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<RunOutcome>,
    /// The runs in a row, up to the last one, that found everything as wanted.
    #[serde(default)]
    pub stable_runs: u64,
    /// The worst result of the last health checks; absent when there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<String>,
    /// The watches, while drift is repaired when it happens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watch: Option<WatchStatus>,
    /// Present when its rollout failed, and the node went back to the assignment before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reverted: Option<RevertStatus>,
}

/// The return of a node to the assignment before the latest one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RevertStatus {
    /// The serial that is active again; absent when nothing was assigned before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
    /// The time of the return.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// The reason, for people.
    pub why: String,
}

/// State of the watches of an assignment on a node. Each count is a number of resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WatchStatus {
    /// All resources of the manifest.
    pub resources: u64,
    /// Those of them that are checked at intervals, because the host does not report their changes.
    pub polled: u64,
    /// Those of them that were as wanted at their last check.
    pub clean: u64,
    /// Those of them that failed, or whose requirements failed.
    pub failed: u64,
    /// Those of them that something else changes again and again.
    pub flapping: u64,
    /// True when all of them have been as wanted for a while.
    pub converged: bool,
    /// The time of the last change of `converged`.
    #[schemars(with = "String")]
    pub since: Timestamp,
}

/// Progress of a node in a channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChannelPosition {
    /// Epoch.
    pub epoch: u64,
    /// Serial.
    pub serial: u64,
    /// SHA-256 of the bundle; empty when the channel was withdrawn.
    pub digest: String,
}

/// A health check of an assignment. The answer to `healthcheck` is a list of these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HealthReport {
    /// The channel.
    pub channel: String,
    /// The resource, `type#name`.
    pub resource: String,
    /// The result of the check.
    #[serde(flatten)]
    pub result: HealthResult,
}
