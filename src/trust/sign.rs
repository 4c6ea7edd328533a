//! Signing: bytes and keys in, an envelope out. Runs where the operator is; the keys stay there.

use crate::wire::{Envelope, Signature};

use super::keys::SigningKey;

/// Signs these bytes with each key; the id beside a key is the hint that goes with its signature.
pub fn seal(payload_type: &str, payload: Vec<u8>, keys: &[(&str, &SigningKey)]) -> Envelope {
    let signatures =
        keys.iter().map(|(id, key)| Signature { keyid: (*id).to_owned(), sig: key.sign(payload_type, &payload) }).collect();
    Envelope { payload_type: payload_type.to_owned(), payload, signatures }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_signs_the_same_bytes() {
        let (a, b) = (SigningKey::from_seed(&[1; 32]), SigningKey::from_seed(&[2; 32]));
        let envelope = seal("t", b"x".to_vec(), &[("a", &a), ("b", &b)]);
        for (signature, (id, key)) in envelope.signatures.iter().zip([("a", a), ("b", b)]) {
            assert_eq!(signature.keyid, id);
            assert!(key.public().verify("t", b"x", &signature.sig));
        }
    }
}
