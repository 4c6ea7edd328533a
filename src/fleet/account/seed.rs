//! Keys of NATS in operator mode: of the operator, of accounts, and of users.

use std::path::Path;

use nkeys::{KeyPair, KeyPairType};

use crate::host::fs;
use crate::model::Secret;

use super::error::FleetAccountError;

/// Largest file with a seed, in bytes.
const MAX_SEED: u64 = 1024;

/// Creates a key.
pub(super) fn generate(kind: KeyPairType) -> Result<KeyPair, FleetAccountError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| FleetAccountError::Key(error.to_string().into()))?;
    KeyPair::new_from_raw(kind, bytes).map_err(|error| FleetAccountError::Key(error.into()))
}

/// Returns the seed of a key as the content of a file.
pub(super) fn seed_file(key: &KeyPair) -> Result<Secret, FleetAccountError> {
    let seed = Secret::new(key.seed().map_err(|error| FleetAccountError::Key(error.into()))?);
    Ok(Secret::new(format!("{}\n", seed.reveal())))
}

/// Reads the key of a seed file that only its owner can read. `public` is the expected public key.
pub(super) fn read_seed(path: &Path, public: &str) -> Result<KeyPair, FleetAccountError> {
    let text = Secret::new(fs::read_private_text(path, MAX_SEED)?);
    let wrong = |source| FleetAccountError::Seed { path: path.to_owned(), source };
    let key = KeyPair::from_seed(text.reveal().trim()).map_err(|error| wrong(error.into()))?;
    if key.public_key() != public {
        return Err(wrong(format!("the file holds the key {}, not {public}", key.public_key()).into()));
    }
    Ok(key)
}
