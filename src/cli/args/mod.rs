//! Arguments that several commands share.

pub mod connection;
pub mod external_type;
pub(super) mod nats_context;
pub mod new_passphrase;
pub mod properties;
pub mod shape;
pub mod signer;
pub mod types;
