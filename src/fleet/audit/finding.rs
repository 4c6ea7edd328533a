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
    /// Two messages in one place of a chain.
    Fork,
    /// A message that does not follow what is before it.
    Link,
    /// Something on record as a command that is none.
    BadCommand,
    /// A command that no known key signed.
    Unsigned,
    /// An answer to a command that is not on record.
    NoCommand,
    /// An answer to another command of the same id.
    OtherCommand,
    /// A node ended a job in two ways.
    TwoEnds,
    /// A node accepted a command, and its result is missing.
    NoResult,
    /// A known node of which nothing is on record.
    Absent,
    /// A message on a subject that means nothing.
    Stranger,
    /// Only noted: messages that the node itself says it had to drop.
    Dropped,
    /// Only noted: messages that the node forgot in a power cut and the server has.
    Lost,
    /// Only noted: messages that the node may not have sent yet.
    Waiting,
    /// Only noted: a named node that never answered.
    NoAnswer,
}

impl FindingKind {
    /// Whether it is explained without anybody having done wrong.
    pub fn is_note(self) -> bool {
        matches!(self, Self::Dropped | Self::Lost | Self::Waiting | Self::NoAnswer)
    }

    /// The one word for it, as in JSON.
    pub fn word(self) -> &'static str {
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

/// Something that was found.
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
    /// What, in words.
    pub what: String,
}
