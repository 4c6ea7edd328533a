//! NATS user keys (nkeys): the identity of a node or operator for the server. An nkey signs only the nonce of the server.
//! Commands are signed with the keys of `trust`.

use nkeys::{KeyPair, KeyPairType};

use crate::model::Secret;

use super::TransportError;

/// A user key of NATS.
#[derive(Debug, Clone)]
pub struct UserKey {
    /// The public key, `U...`, for the configuration of the server.
    pub public: String,
    /// The seed, `SU...`, for a file that only its owner can read.
    pub seed: Secret,
}

impl UserKey {
    /// Creates a key.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn generate() -> Result<Self, TransportError> {
        let failed = |error| TransportError::failed("could not make an nkey", error);
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|error| failed(super::TransportCause::from(error.to_string())))?;
        let pair = KeyPair::new_from_raw(KeyPairType::User, bytes).map_err(|error| failed(error.into()))?;
        let seed = pair.seed().map_err(|error| failed(error.into()))?;
        Ok(Self { public: pair.public_key(), seed: Secret::new(seed) })
    }

    /// Returns the key of a seed.
    ///
    /// # Errors
    /// When the seed is not that of a user.
    pub fn from_seed(seed: &Secret) -> Result<Self, TransportError> {
        let pair = KeyPair::from_seed(seed.reveal().trim())
            .map_err(|error| TransportError::failed("could not read the nkey seed", error))?;
        if pair.key_pair_type() != KeyPairType::User {
            return Err(TransportError::failed("could not read the nkey seed", "it is not the seed of a user, SU..."));
        }
        Ok(Self { public: pair.public_key(), seed: seed.clone() })
    }
}

/// True for the public key of a user: `U...` with its checksum.
pub fn is_public(text: &str) -> bool {
    text.starts_with('U') && KeyPair::from_public_key(text).is_ok()
}

/// Returns the content of a `.creds` file, as the tools of NATS write it.
pub fn creds(jwt: &str, seed: &Secret) -> Secret {
    Secret::new(format!(
        "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
        seed.reveal().trim()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_being_written() {
        let key = UserKey::generate().unwrap();
        assert!(key.public.starts_with('U') && key.seed.reveal().starts_with("SU"));
        assert!(is_public(&key.public) && !is_public(key.seed.reveal()) && !is_public("UWEB1"));
        assert_eq!(UserKey::from_seed(&key.seed).unwrap().public, key.public);
        assert!(UserKey::from_seed(&Secret::new("SUNONE")).is_err());
        assert_ne!(UserKey::generate().unwrap().public, key.public);
    }
}
