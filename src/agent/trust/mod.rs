//! Trust of an agent: the trust anchor at the start, and the bundles that succeed it.

pub mod anchor;
pub(super) mod updates;
