//! What several tests need.

pub mod certificates;
pub mod fleet;
pub mod jwt;
pub mod nats;
pub mod node;
pub mod place;
#[cfg(feature = "simulator")]
pub mod sim;
pub mod solo;
pub mod web;
