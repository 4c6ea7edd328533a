//! Helpers of several tests.

pub mod certificates;
pub mod clock;
pub mod fleet;
pub mod jwt;
pub mod nats;
pub mod netns;
pub mod node;
pub mod node_dir;
pub mod paths;
pub mod port;
pub mod processes;
pub mod proxy;
pub mod relay;
#[cfg(feature = "simulator")]
pub mod sim;
pub mod single_node;
pub mod skip;
pub mod source;
pub mod terminal;
pub mod tmpfs;
pub mod violations;
pub mod web;
