//! Pseudonyms: digests that only one node can make. The digests are HMAC-SHA256 (RFC 2104) with a key derived from the node key.
//!
//! The content behind the SHA-256 of a short text can be found by trial. Behind a pseudonym it can't, without the key. Equal
//! contents of one node are still visible.

use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::trust::keys::key::SigningKey;

/// The purpose of the derived key. Another purpose has another key.
const PURPOSE: &[u8] = b"ensign.v1.digest-of-content";
/// The block size of SHA-256, in bytes.
const BLOCK: usize = 64;

impl SigningKey {
    /// Returns the pseudonym of the SHA-256 of a content, in lower-case hex. The length is the same, and the value depends on
    /// this key.
    pub fn pseudonymize(&self, sha256: &str) -> String {
        let key = Zeroizing::new(hmac(self.seed(), PURPOSE));
        crate::host::fs::hex(&hmac(key.as_ref(), sha256.as_bytes()))
    }
}

/// Computes HMAC-SHA256 (RFC 2104) for keys of at most a block.
fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let padded = |with: u8| {
        let mut block = Zeroizing::new([with; BLOCK]);
        block.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
        block
    };
    let inner = Sha256::new().chain_update(padded(0x36).as_ref()).chain_update(message).finalize();
    Sha256::new().chain_update(padded(0x5c).as_ref()).chain_update(inner).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fs::hex;

    #[test]
    fn the_code_is_that_of_the_standard() {
        // RFC 4231, test cases 1 and 2.
        assert_eq!(hex(&hmac(&[0x0b; 20], b"Hi There")), "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
        assert_eq!(
            hex(&hmac(b"Jefe", b"what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
    }

    #[test]
    fn pseudonyms_depend_on_the_key() {
        let key = |seed: u8| SigningKey::from_seed(&[seed; 32]);
        let concealed = key(1).pseudonymize("ab");
        assert_eq!((concealed.len(), key(1).pseudonymize("ab") == concealed), (64, true));
        assert!(concealed != key(2).pseudonymize("ab") && concealed != key(1).pseudonymize("ac"));
    }
}
