//! Keys and signatures.

pub mod key;
pub mod pinned_key_line;
pub(super) mod pseudonym;
pub mod receipt;
pub mod sign;
pub(super) mod signers;
pub mod ssh_agent;
