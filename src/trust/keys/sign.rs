//! Signing: turns bytes and keys into an envelope. Runs at the operator's side; the keys stay there.

use std::fmt;

use crate::host::ssh_agent::SshAgentError;
use crate::wire::{Envelope, Signature};

use crate::trust::keys::key::{PublicKey, SigningKey};

/// No signature was made.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// The SSH agent that holds the key did not sign.
    #[error("could not sign")]
    Agent(#[from] SshAgentError),
    /// The SSH agent returned a signature that does not verify under its key.
    #[error("the ssh-agent gave a signature ({0}) that its key did not make over these bytes")]
    Wrong(String),
    /// The payload can't be written as JSON.
    #[error("could not write the payload to sign")]
    Json(#[from] serde_json::Error),
}

/// A signer: a private key in memory, or a key that another process holds.
pub trait Signer: fmt::Debug + Send + Sync {
    /// The public key of the signer.
    fn public(&self) -> PublicKey;

    /// Returns the 64 bytes of the signature over these bytes of this type.
    ///
    /// # Errors
    /// When the holder of the key does not sign.
    fn signature(&self, payload_type: &str, payload: &[u8]) -> Result<Vec<u8>, SignError>;
}

impl Signer for SigningKey {
    fn public(&self) -> PublicKey {
        Self::public(self)
    }

    fn signature(&self, payload_type: &str, payload: &[u8]) -> Result<Vec<u8>, SignError> {
        Ok(self.sign(payload_type, payload))
    }
}

/// Signs these bytes with each key. The id beside a key becomes the hint of its signature.
pub fn sign_envelope(payload_type: &str, payload: Vec<u8>, keys: &[(&str, &SigningKey)]) -> Envelope {
    let signatures =
        keys.iter().map(|(id, key)| Signature { keyid: (*id).to_owned(), sig: key.sign(payload_type, &payload) }).collect();
    Envelope { payload_type: payload_type.to_owned(), payload, signatures }
}

/// Acts as [`sign_envelope`], for keys that other processes may hold.
///
/// # Errors
/// When a signer does not sign.
pub fn sign_envelope_with(payload_type: &str, payload: Vec<u8>, keys: &[(&str, &dyn Signer)]) -> Result<Envelope, SignError> {
    let mut envelope = Envelope { payload_type: payload_type.to_owned(), payload, signatures: Vec::new() };
    countersign(&mut envelope, keys)?;
    Ok(envelope)
}

/// Adds the signature of each key to an envelope, and replaces earlier signatures of the same keys.
///
/// # Errors
/// When a signer does not sign; then the envelope is unchanged.
pub fn countersign(envelope: &mut Envelope, keys: &[(&str, &dyn Signer)]) -> Result<(), SignError> {
    let sign = |(id, key): &(&str, &dyn Signer)| {
        let sig = key.signature(&envelope.payload_type, &envelope.payload)?;
        Ok((key.public(), Signature { keyid: (*id).to_owned(), sig }))
    };
    let made = keys.iter().map(sign).collect::<Result<Vec<_>, SignError>>()?;
    for (key, signature) in made {
        let Envelope { payload_type, payload, signatures } = envelope;
        signatures.retain(|before| !key.verify(payload_type, payload, &before.sig));
        signatures.push(signature);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_signs_the_same_bytes() {
        let (a, b) = (SigningKey::from_seed(&[1; 32]), SigningKey::from_seed(&[2; 32]));
        let envelope = sign_envelope("t", b"x".to_vec(), &[("a", &a), ("b", &b)]);
        for (signature, (id, key)) in envelope.signatures.iter().zip([("a", &a), ("b", &b)]) {
            assert_eq!(signature.keyid, id);
            assert!(key.public().verify("t", b"x", &signature.sig));
        }
        assert_eq!(sign_envelope_with("t", b"x".to_vec(), &[("a", &a), ("b", &b)]).unwrap(), envelope);
        let mut later = sign_envelope("t", b"x".to_vec(), &[("a", &a)]);
        countersign(&mut later, &[("b", &b)]).unwrap();
        assert_eq!(later, envelope);
        countersign(&mut later, &[("again", &a)]).unwrap();
        assert_eq!(later.signatures.iter().map(|s| s.keyid.as_str()).collect::<Vec<_>>(), ["b", "again"]);
    }
}
