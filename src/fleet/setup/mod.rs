//! Setup of a fleet: streams, permissions, the configuration of an operator.

pub mod init;
pub mod operator_config;
pub mod permissions;
