//! Settings of a running agent: the settings in force, reload, limits, connection.

pub mod connection;
pub(super) mod limits;
pub mod reload;
pub(super) mod settings_handle;
