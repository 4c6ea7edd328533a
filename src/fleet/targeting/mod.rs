//! Targets of commands: the nodes, their liveness, and their pinned keys.

pub mod admitted_keys;
pub mod key_discovery;
pub mod node_identity;
pub mod parallel;
pub mod pinned_keys;
pub mod removals;
pub mod states;
