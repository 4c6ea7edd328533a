//! Targets of commands: the nodes, their liveness, and the keys by which they are known.

pub mod key_discovery;
pub mod node_identity;
pub mod parallel;
pub mod pinned_keys;
pub mod states;
