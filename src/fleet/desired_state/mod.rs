//! Desired state of a fleet: assignments of channels, and how far the nodes have them.

pub mod assign;
pub mod history;
pub mod view;
