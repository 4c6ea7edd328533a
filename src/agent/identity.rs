//! The identity of a running agent.

use jiff::Timestamp;
use uuid::Uuid;

use crate::host::Host;
use crate::model::NodeId;
use crate::wire::Subjects;

/// The identity of a running agent: its node, its subjects, its start, its clock.
pub(in crate::agent) struct AgentInstance {
    /// The node. Only a restart changes it.
    pub(in crate::agent) node: NodeId,
    /// The subjects of the fleet.
    pub(in crate::agent) subjects: Subjects,
    /// The host, for the clock and for new ids. Runs have a host of their own.
    pub(in crate::agent) host: Host,
    /// The id of this start of the agent.
    pub(in crate::agent) boot: Uuid,
    /// The time of this start.
    pub(in crate::agent) started: Timestamp,
    /// The operating system, as states name it.
    pub(in crate::agent) platform: Option<String>,
}

impl AgentInstance {
    /// Returns the time of the host's clock.
    pub(in crate::agent) fn now(&self) -> Timestamp {
        self.host.now()
    }
}
