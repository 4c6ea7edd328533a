//! Reconciliation of the node with its assignments, channel by channel.

pub(super) mod desired_state;
pub(super) mod reconciler;
pub(super) mod restore;
pub(super) mod rollout_wait;
