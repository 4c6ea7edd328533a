//! Intake of signed commands: subscriptions, verification, rate limits, the desired state of the streams.

mod cancel;
pub(super) mod commands;
pub(super) mod desired_state_sync;
pub(super) mod divergence;
pub(super) mod fair_queue;
pub(super) mod filter_evaluation;
pub(super) mod forgery_guard;
pub(super) mod incoming;
pub(super) mod rate_limit;
mod subscriptions;
