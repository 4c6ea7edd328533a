//! Rollouts: requests in waves, overrides, and progress.

pub mod overrides;
pub mod request;
pub mod view;
