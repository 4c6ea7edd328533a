//! Rollouts: requests in waves, and their progress.

pub mod overrides;
pub mod request;
pub mod view;
