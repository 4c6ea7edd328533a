//! What several tests need.

pub mod nats;
