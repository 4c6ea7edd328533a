//! Decisions about signed messages: verification, policy, rights, limits.

pub mod data;
pub mod join;
pub mod limits;
pub(super) mod mounts;
pub(super) mod pattern;
pub mod policy;
pub mod rejection;
pub mod rights;
pub mod verify;
