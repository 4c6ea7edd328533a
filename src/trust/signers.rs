//! Who signed an envelope, for whoever looks at it later: nothing is allowed because of it.

use crate::wire::{Envelope, pae};

use super::bundle::{TrustedBundle, TrustedKey};

impl TrustedBundle {
    /// The distinct keys of the bundle whose signature over the envelope verifies: revoked ones and those out of their
    /// time among them, as they may have been good when it was signed.
    pub fn signers(&self, envelope: &Envelope) -> Vec<&TrustedKey> {
        let encoded = pae(&envelope.payload_type, &envelope.payload);
        let signed =
            |key: &&TrustedKey| envelope.signatures.iter().any(|signature| key.key.verify_encoded(&encoded, &signature.sig));
        self.keys().iter().filter(signed).collect()
    }
}
