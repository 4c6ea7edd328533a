//! How a command stands on a node, in the words of the tables and of JSON. [`Gather`](super::Gather) decides it.

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use crate::model::NodeId;
use crate::wire::{CommandOutcome, CommandResult};

/// The state of a command on a node. All but the first three are terminal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Nothing was heard.
    Pending,
    /// The node has it, and works on it or will.
    Accepted,
    /// The node has it, and waits for its turn in this wave; or has begun since.
    Waiting(u64),
    /// Everything was as wanted.
    Stable,
    /// Something was changed, nothing failed.
    Changed,
    /// A dry run: something would be changed, nothing was.
    WouldChange,
    /// The `where` of the command does not select it.
    NotSelected,
    /// Something failed.
    Failed,
    /// It would not do it, for the reason of this code.
    Refused(String),
    /// Its queue is full.
    Busy,
    /// The command's time was over before it could run.
    Expired,
    /// The agent died or was stopped while it ran.
    Interrupted,
    /// The job was halted, or its error budget used up, before it began.
    Halted,
    /// It is not there, and said its last word at this time.
    Offline(Option<Timestamp>),
    /// It did not answer in time, though nothing says that it is not there.
    NoAnswer,
    /// It has the command, but did not end in time.
    Unfinished,
    /// Something came in its name that it did not sign, and nothing that it did.
    Unverified,
}

/// How outcomes count for the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// As wanted.
    Good,
    /// Nobody knows, or not done.
    Incomplete,
    /// The node would not.
    Refused,
    /// It went wrong.
    Failed,
}

impl Outcome {
    /// The one word for it, as in JSON and on the terminal.
    pub fn word(&self) -> &'static str {
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
            Self::Unverified => "unverified",
        }
    }

    /// How it counts.
    pub fn grade(&self) -> Grade {
        match self {
            Self::Stable | Self::Changed | Self::WouldChange | Self::NotSelected => Grade::Good,
            Self::Failed => Grade::Failed,
            Self::Refused(_) => Grade::Refused,
            _ => Grade::Incomplete,
        }
    }

    /// True for what a node may say of a command that it did not take.
    pub(super) fn is_not_taken(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Busy | Self::Expired)
    }

    pub(super) fn is_terminal(&self) -> bool {
        !matches!(self, Self::Pending | Self::Accepted | Self::Waiting(_))
    }

    /// Nothing that comes later counts.
    pub(super) fn is_final(&self) -> bool {
        self.is_terminal() && *self != Self::Unverified
    }

    pub(super) fn of(done: &CommandResult) -> Self {
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

impl Serialize for Outcome {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

/// What became of a command on one node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeResult {
    /// The node.
    pub node: NodeId,
    /// The state.
    pub outcome: Outcome,
    /// For `refused`: the code of the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// For `offline`: when it was last heard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// For `waiting`: its wave, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wave: Option<u64>,
    /// What the node said at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done: Option<CommandResult>,
    /// True when the outcome is the node's own word: it has a receipt by the key that is known of it.
    pub verified: bool,
    /// What came in the name of the node and is not its word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub doubt: Option<String>,
}

impl NodeResult {
    /// What became of a command on a node.
    pub fn new(node: NodeId, outcome: Outcome, done: Option<CommandResult>) -> Self {
        let code = if let Outcome::Refused(code) = &outcome { Some(code.clone()) } else { None };
        let since = if let Outcome::Offline(since) = outcome { since } else { None };
        let wave = if let Outcome::Waiting(wave) = outcome { Some(wave) } else { None };
        let said = matches!(outcome, Outcome::NotSelected | Outcome::Unfinished | Outcome::Waiting(_));
        let verified = done.is_some() || said;
        Self { node, outcome, code, since, wave, done, verified, doubt: None }
    }
}
