//! Manifests: where they come from, how they are read.

pub mod bundle;
pub mod fetch;
