//! The configuration of an agent: `Settings`, and the connection that operators configure in the same form.
//!
//! Every error names its file, line and column.

mod connection;
pub mod context;
pub mod document;
mod limits;
mod log;
mod settings;
mod size;

pub use connection::{Login, NatsSettings, SecretFrom, Tls, check_domain};
pub use limits::{BusDataPolicy, ConfinePolicy, Limits};
pub use log::{LogError, LogLevel, LogSettings};
pub use settings::{
    AgentSettings, HostDefaults, HttpSettings, MAX_QUEUE, PublishEvents, PublishRegistrations, RegistrationSettings,
    TrustSettings, state_dir,
};
pub use size::parse_size;

#[cfg(test)]
mod tests;
