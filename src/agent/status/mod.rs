//! Status of an agent: the board with its alarms, the heartbeat, counters, messages.

pub(super) mod board;
pub(super) mod clock_skew;
pub(super) mod counters;
pub(super) mod disk_space;
pub(super) mod facts_cache;
pub(super) mod heartbeat;
pub(super) mod messages;
pub mod view;
