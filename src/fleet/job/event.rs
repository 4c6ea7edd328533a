//! Events of a job that is followed: the library emits them, the command line renders them.

use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use crate::model::NodeId;

use super::tracker::NodeResult;

/// A change of a job.
#[derive(Debug, Clone, PartialEq)]
pub enum JobEvent {
    /// The command was sent, or its record was found. The follower reads its reports from now on.
    Started {
        /// The id of the job.
        id: Uuid,
        /// Number of nodes that must answer.
        nodes: usize,
    },
    /// A node acknowledged the command.
    Acknowledged(NodeId),
    /// A node reached its terminal state, offline nodes included.
    NodeDone(Box<NodeResult>),
    /// A message in the name of a node failed verification, and does not count.
    Unverified {
        /// The node in the subject of the message.
        node: NodeId,
        /// The kind of message, and the error.
        reason: String,
    },
    /// Every online node answered. The time since the start.
    AllAnswered(Duration),
    /// The number of nodes in a terminal state changed, or may have. Emitted every second, too.
    Progress(JobProgress),
    /// The liveness of the missing nodes was checked.
    Waiting {
        /// Nodes in a terminal state.
        progress: JobProgress,
        /// The nodes that the job waits for.
        missing: Vec<MissingNode>,
        /// The time of the check, by the clock of this machine.
        at: Timestamp,
    },
    /// The follower reads no more reports.
    Finished {
        /// False when the user stopped the waiting.
        complete: bool,
    },
}

/// Counts of nodes: those in a terminal state, all, and those that the job waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobProgress {
    /// Nodes in a terminal state.
    pub done: usize,
    /// All nodes of the job.
    pub total: usize,
    /// Online nodes that are not in a terminal state.
    pub missing: usize,
}

/// A node that a job waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingNode {
    /// The node.
    pub node: NodeId,
    /// Time of its last verified message; `None` when there is none.
    pub last_seen: Option<Timestamp>,
    /// True when the node has acknowledged the command.
    pub acknowledged: bool,
}
