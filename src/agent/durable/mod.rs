//! Durable state of an agent: the ledger, the outbox and its sender, the key of the node, cancelled jobs.

pub(super) mod cancelled_jobs;
pub(super) mod node_key;
pub(super) mod outbox_sender;
pub(super) mod publisher;
pub(super) mod stable_runs;
pub(super) mod state;
pub(super) mod state_loss;
pub(super) mod steady_clock;
