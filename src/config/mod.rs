//! The configuration of an agent: [`Settings`], and the connection that operators configure in the same form.
//!
//! Every error names its file, line and column.

mod connection;
pub mod context;
pub mod document;
mod limits;
mod log;
mod settings;
mod size;

pub use connection::{Login, Nats, SecretFrom, Tls};
pub use limits::{BusData, Confine, Limits};
pub use log::{Level, Log, LogError};
pub use settings::{Http, MAX_QUEUE, Publish, PublishRegistrations, Registration, Settings, Surroundings, Trust, state_dir};
pub use size::parse_size;

#[cfg(test)]
mod tests;
