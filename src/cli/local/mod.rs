//! Commands that work on this host alone.

pub mod apply;
pub mod data;
pub(super) mod dotenv;
pub mod ensure;
pub mod facts;
pub mod graph;
pub mod inputs;
pub mod manifest_source;
mod prepare;
pub mod refreshes;
mod reload_timer;
pub mod reversals;
pub mod session;
pub mod status;
mod value_watch;
mod watch;
