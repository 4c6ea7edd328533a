//! Helpers of several tests.

pub mod certificates;
pub mod clock;
pub mod fleet;
pub mod jwt;
pub mod known;
pub mod nats;
pub mod netns;
pub mod node;
pub mod paths;
pub mod place;
pub mod port;
pub mod processes;
pub mod proxy;
#[cfg(feature = "simulator")]
pub mod sim;
pub mod skip;
pub mod solo;
pub mod source;
pub mod tmpfs;
pub mod web;
