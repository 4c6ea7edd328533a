//! The account of a fleet on a NATS server in operator mode, and the keys that sign its users.
//!
//! - `create.rs` makes the keys, the JWTs and the server configuration (`server_config.rs`) of a new fleet.
//! - `directory.rs` opens the directory of a fleet. `users.rs` signs the users of nodes and of join tokens.
//! - `revoke.rs` revokes users, and gives the account to the server.
//! - `admitted.rs` is the record of admitted nodes.
//! - `jwt.rs` signs and verifies JWTs, `claims.rs` has their contents, `seed.rs` the keys, and `error.rs` their errors.
//!
//! The public keys and JWTs are no secrets. The seeds are files that only their owner can read.

mod admitted;
mod claims;
mod create;
mod directory;
mod error;
mod jwt;
mod revoke;
mod seed;
mod server_config;
mod users;

pub use admitted::{Admission, AdmissionsError, append_admission, read_admissions};
pub use create::{FleetFile, NewAccount, new_account};
pub use directory::{AccountDirectory, SYSTEM_CREDS};
pub use error::FleetAccountError;
pub use revoke::{PushError, fetch_account, push_account};
pub use server_config::{ServerAddress, ServerAddressError, ServerTls};
pub use users::{JoinSigner, NodeSigner, TokenError, TokenTerms, creds};
