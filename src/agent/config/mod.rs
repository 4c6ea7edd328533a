//! Settings of a running agent: the current settings, reload, limits, connection.

pub mod connection;
pub mod external_types;
pub(super) mod limits;
pub mod reload;
pub(super) mod settings_handle;
