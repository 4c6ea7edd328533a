//! Status of an agent: the board with its alarms, the state of the node and its heartbeat, counters, messages.

pub(super) mod board;
pub(super) mod clock_skew;
pub(super) mod counters;
pub(super) mod disk_space;
pub(super) mod facts_cache;
pub(super) mod heartbeat;
pub(super) mod messages;
pub(super) mod node_state;
pub mod status_view;

pub(super) use node_state::NodeStateSource;
