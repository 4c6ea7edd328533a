//! What several tests need.

pub mod fleet;
pub mod nats;
pub mod solo;
