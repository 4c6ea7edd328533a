//! The state of a command on a node, with its names in tables and JSON. [`JobTracker`](super::JobTracker) decides the state.

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use crate::model::NodeId;
use crate::wire::{CommandOutcome, CommandResult};

/// The state of a command on a node. All but the first three are terminal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeOutcome {
    /// No answer yet.
    Pending,
    /// The node accepted it.
    Accepted,
    /// The node accepted it in this wave, and waits for the wave or runs the command.
    Waiting(u64),
    /// Every resource was in its desired state.
    Stable,
    /// A resource was changed, none failed.
    Changed,
    /// A dry run: a resource would be changed.
    WouldChange,
    /// The filter of the command does not select the node.
    NotSelected,
    /// A resource or the run failed.
    Failed,
    /// The node refused it, with this rejection code.
    Refused(String),
    /// The queue of the node is full.
    Busy,
    /// The command expired before it could run.
    Expired,
    /// The agent died or was stopped during the run.
    Interrupted,
    /// The job was halted, or its error budget used up, before the run began.
    Halted,
    /// The node is offline, since its last heartbeat at this time.
    Offline(Option<Timestamp>),
    /// The node is online or unknown, and did not answer in time.
    NoAnswer,
    /// The node accepted the command, and sent no result in time.
    Unfinished,
    /// The node accepted the command, and its full or broken disk takes no result: the node sends the result later.
    Unwritten,
    /// Messages in its name failed verification, and no verified message came.
    Unverified,
}

/// The weight of an outcome for the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// Success.
    Success,
    /// Unknown, or not done.
    Incomplete,
    /// The node refused.
    Refused,
    /// The node failed.
    Failed,
}

impl NodeOutcome {
    /// Returns its name in JSON and on the terminal.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Accepted => "accepted",
            Self::Waiting(_) => "waiting",
            Self::Stable => "stable",
            Self::Changed => "changed",
            Self::WouldChange => "would_change",
            Self::NotSelected => "not_selected",
            Self::Failed => "failed",
            Self::Refused(_) => "refused",
            Self::Busy => "busy",
            Self::Expired => "expired",
            Self::Interrupted => "interrupted",
            Self::Halted => "halted",
            Self::Offline(_) => "offline",
            Self::NoAnswer => "no_answer",
            Self::Unfinished => "unfinished",
            Self::Unwritten => "unwritten",
            Self::Unverified => "unverified",
        }
    }

    /// Returns its weight for the exit code.
    pub fn grade(&self) -> Grade {
        match self {
            Self::Stable | Self::Changed | Self::WouldChange | Self::NotSelected => Grade::Success,
            Self::Failed => Grade::Failed,
            Self::Refused(_) => Grade::Refused,
            _ => Grade::Incomplete,
        }
    }

    /// True for the outcomes of a command that a node did not accept.
    pub(super) fn is_not_accepted(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Busy | Self::Expired)
    }

    pub(super) fn is_terminal(&self) -> bool {
        !matches!(self, Self::Pending | Self::Accepted | Self::Waiting(_))
    }

    /// True when no later message counts.
    pub(super) fn is_final(&self) -> bool {
        self.is_terminal() && *self != Self::Unverified
    }

    pub(super) fn from_result(done: &CommandResult) -> Self {
        match done.outcome {
            CommandOutcome::Stable => Self::Stable,
            CommandOutcome::Changed => Self::Changed,
            CommandOutcome::WouldChange => Self::WouldChange,
            CommandOutcome::Failed => Self::Failed,
            CommandOutcome::Refused => Self::Refused(done.code.clone().unwrap_or_default()),
            CommandOutcome::Busy => Self::Busy,
            CommandOutcome::Expired => Self::Expired,
            CommandOutcome::Interrupted => Self::Interrupted,
            CommandOutcome::Halted => Self::Halted,
            CommandOutcome::NotSelected => Self::NotSelected,
        }
    }
}

impl Serialize for NodeOutcome {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// The result of a command on one node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeResult {
    /// The node.
    pub node: NodeId,
    /// The state.
    pub outcome: NodeOutcome,
    /// For `refused`: the rejection code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// For `offline`: the time of its last heartbeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// For `waiting`: its wave, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wave: Option<u64>,
    /// The result that the node reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done: Option<CommandResult>,
    /// True when the outcome has a receipt by the pinned key of the node.
    pub verified: bool,
    /// The verification error of a message in the name of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub doubt: Option<String>,
}

impl NodeResult {
    /// Builds the result of a command on a node.
    pub fn new(node: NodeId, outcome: NodeOutcome, done: Option<CommandResult>) -> Self {
        let code = if let NodeOutcome::Refused(code) = &outcome { Some(code.clone()) } else { None };
        let since = if let NodeOutcome::Offline(since) = outcome { since } else { None };
        let wave = if let NodeOutcome::Waiting(wave) = outcome { Some(wave) } else { None };
        let said = matches!(
            outcome,
            NodeOutcome::NotSelected | NodeOutcome::Unfinished | NodeOutcome::Unwritten | NodeOutcome::Waiting(_)
        );
        let verified = done.is_some() || said;
        Self { node, outcome, code, since, wave, done, verified, doubt: None }
    }
}
