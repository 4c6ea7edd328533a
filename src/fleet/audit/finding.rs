//! Findings of an audit.

use serde::Serialize;
use uuid::Uuid;

use crate::model::NodeId;

/// The kinds of findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// A message in the name of a node without its receipt.
    Forged,
    /// Messages of a chain are missing: withheld, or lost by the server.
    Gap,
    /// Two messages at the same position of a chain.
    Fork,
    /// A message that does not follow the message before it.
    Link,
    /// A record that should be a command, and is none.
    BadCommand,
    /// A command that no known key signed.
    Unsigned,
    /// An answer to a command without a record.
    NoCommand,
    /// An answer to another command with the same id.
    OtherCommand,
    /// A node reported two terminal states of a job.
    TwoEnds,
    /// A node accepted a command, and its result is missing.
    NoResult,
    /// A known node without any message in the export.
    Absent,
    /// A message on an unknown subject.
    Stranger,
    /// Note: messages that the node reports as dropped.
    Dropped,
    /// Note: messages that the node forgot in a power cut and the server has.
    Lost,
    /// Note: messages that the node may not have sent yet.
    Waiting,
    /// Note: a named node that never answered.
    NoAnswer,
}

impl FindingKind {
    /// True when the finding has a harmless explanation.
    pub fn is_note(self) -> bool {
        matches!(self, Self::Dropped | Self::Lost | Self::Waiting | Self::NoAnswer)
    }

    /// Returns its name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Forged => "forged",
            Self::Gap => "gap",
            Self::Fork => "fork",
            Self::Link => "link",
            Self::BadCommand => "bad_command",
            Self::Unsigned => "unsigned",
            Self::NoCommand => "no_command",
            Self::OtherCommand => "other_command",
            Self::TwoEnds => "two_ends",
            Self::NoResult => "no_result",
            Self::Absent => "absent",
            Self::Stranger => "stranger",
            Self::Dropped => "dropped",
            Self::Lost => "lost",
            Self::Waiting => "waiting",
            Self::NoAnswer => "no_answer",
        }
    }
}

/// A finding about a node, a job or the whole fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its kind.
    pub kind: FindingKind,
    /// The node it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// The job it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<Uuid>,
    /// The description for users.
    pub what: String,
}
