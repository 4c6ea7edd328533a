//! Ensign.
pub mod diag;
pub mod host;
pub mod model;
