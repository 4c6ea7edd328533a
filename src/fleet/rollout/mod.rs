//! Rollouts: requests in waves, and their progress.

pub mod request;
mod view;
