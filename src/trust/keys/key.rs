//! Ed25519 keys: parsed, formatted, generated; signatures and their verification.
//!
//! Signatures cover DSSE's encoding of type and bytes. Verification is strict: it refuses the malleable and small-order cases
//! that RFC 8032 leaves open. Under a weak public key any process can sign. Parsing refuses such keys, so no list can contain
//! one.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use ed25519_dalek::Signer;
use sha2::{Digest, Sha256};
use ssh_key::private::{Ed25519Keypair, KeypairData};
use ssh_key::{Cipher, Kdf, LineEnding};
use zeroize::Zeroizing;

use crate::model::Secret;
use crate::wire::pae;

/// Rounds of bcrypt-pbkdf over the passphrase of a key file, the default of OpenSSH.
const ROUNDS: u32 = 16;
const SHORT_PREFIX: &str = "ed25519:";
/// The first byte of the public nkey of a NATS user, which gives the letter `U`.
const USER_NKEY: u8 = 20 << 3;

/// A key that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The text has neither form of a public key.
    #[error("not a public key: expected \"ssh-ed25519 AAAA...\" or \"ed25519:\" and the base64 of 32 bytes")]
    NotAKey,
    /// The key is an OpenSSH key of another algorithm.
    #[error("the key is {0}, only ssh-ed25519 can sign")]
    Algorithm(String),
    /// The key is in a FIDO device.
    #[error(
        "the key is in a FIDO device ({0}), whose signatures cover more than the bytes that nodes verify; only ssh-ed25519 can sign"
    )]
    Fido(String),
    /// The key is a point of small order: signatures under it prove nothing.
    #[error("the key is weak: signatures for it can be forged")]
    Weak,
    /// The text is no nkey of a NATS user.
    #[error("not the nkey of a NATS user")]
    NotAUserNkey,
    /// The text is no OpenSSH private key, or damaged.
    #[error("not an OpenSSH private key")]
    PrivateKey(#[source] ssh_key::Error),
    /// The private key is encrypted, and no passphrase was given.
    #[error("the key is encrypted: it needs its passphrase")]
    NeedsPassphrase,
    /// The passphrase is wrong.
    #[error("the passphrase is wrong")]
    WrongPassphrase,
    /// The private key could not be formatted.
    #[error("could not encode the key")]
    Encode(#[source] ssh_key::Error),
    /// The system has no random bytes.
    #[error("could not get random bytes")]
    Random(#[source] getrandom::Error),
}

impl KeyError {
    /// A key of an algorithm that can't sign here.
    fn unsupported(algorithm: &ssh_key::Algorithm) -> Self {
        match algorithm {
            ssh_key::Algorithm::SkEd25519 | ssh_key::Algorithm::SkEcdsaSha2NistP256 => Self::Fido(algorithm.to_string()),
            _ => Self::Algorithm(algorithm.to_string()),
        }
    }
}

/// A public key, never a weak one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey(ed25519_dalek::VerifyingKey);

impl PublicKey {
    /// Creates the key of these 32 bytes.
    ///
    /// # Errors
    /// When they are no point of the curve, or a weak key.
    pub fn from_bytes(bytes: &[u8; 32]) -> Result<Self, KeyError> {
        let key = ed25519_dalek::VerifyingKey::from_bytes(bytes).map_err(|_| KeyError::NotAKey)?;
        if key.is_weak() { Err(KeyError::Weak) } else { Ok(Self(key)) }
    }

    /// Parses the public nkey of a NATS user, `U...`, which is a key of the same algorithm.
    ///
    /// # Errors
    /// When the text is no public nkey of a user, or a weak key.
    pub fn from_user_nkey(text: &str) -> Result<Self, KeyError> {
        match nkeys::from_public_key(text) {
            Ok((USER_NKEY, bytes)) => Self::from_bytes(&bytes),
            _ => Err(KeyError::NotAUserNkey),
        }
    }

    /// Returns `ed25519:` and the base64 of the 32 bytes.
    pub fn to_short(&self) -> String {
        format!("{SHORT_PREFIX}{}", STANDARD.encode(self.0.as_bytes()))
    }

    /// Returns a line for `authorized_keys`: `ssh-ed25519 AAAA... comment`.
    pub fn to_openssh(&self, comment: &str) -> String {
        let line = format!("ssh-ed25519 {} {comment}", STANDARD.encode(self.blob()));
        line.trim_end().to_owned()
    }

    /// Returns the fingerprint, as `ssh-keygen -l` shows it: `SHA256:` and base64 without padding.
    pub fn fingerprint(&self) -> String {
        format!("SHA256:{}", STANDARD_NO_PAD.encode(Sha256::digest(self.blob())))
    }

    fn blob(&self) -> Vec<u8> {
        // RFC 8709: two strings, each with a length prefix of 4 bytes.
        let mut blob = Vec::with_capacity(51);
        blob.extend_from_slice(&[0, 0, 0, 11]);
        blob.extend_from_slice(b"ssh-ed25519");
        blob.extend_from_slice(&[0, 0, 0, 32]);
        blob.extend_from_slice(self.0.as_bytes());
        blob
    }

    /// True for a valid signature of this key over these bytes of this type.
    pub fn verify(&self, payload_type: &str, payload: &[u8], signature: &[u8]) -> bool {
        self.verify_encoded(&pae(payload_type, payload), signature)
    }

    /// Acts as [`Self::verify`], over the result of [`pae`], for several keys over the same bytes.
    pub(in crate::trust) fn verify_encoded(&self, encoded: &[u8], signature: &[u8]) -> bool {
        ed25519_dalek::Signature::from_slice(signature).is_ok_and(|signature| self.0.verify_strict(encoded, &signature).is_ok())
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let text = text.trim();
        if let Some(encoded) = text.strip_prefix(SHORT_PREFIX) {
            let bytes = STANDARD.decode(encoded).map_err(|_| KeyError::NotAKey)?;
            return Self::from_bytes(bytes.as_slice().try_into().map_err(|_| KeyError::NotAKey)?);
        }
        let key = ssh_key::PublicKey::from_openssh(text).map_err(|_| KeyError::NotAKey)?;
        match key.key_data().ed25519() {
            Some(key) => Self::from_bytes(&key.0),
            None => Err(KeyError::unsupported(&key.algorithm())),
        }
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_short())
    }
}

/// A private key: wiped from memory when dropped, never printed.
pub struct SigningKey(ed25519_dalek::SigningKey);

impl SigningKey {
    /// Generates a key from the system's random bytes.
    ///
    /// # Errors
    /// When the system has none.
    pub fn generate() -> Result<Self, KeyError> {
        let mut seed = Zeroizing::new([0; 32]);
        getrandom::fill(seed.as_mut()).map_err(KeyError::Random)?;
        Ok(Self::from_seed(&seed))
    }

    /// Creates the key of this seed (the 32 bytes that RFC 8032 calls the private key).
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(ed25519_dalek::SigningKey::from_bytes(seed))
    }

    /// Parses the seed of a NATS user, `SU...`.
    ///
    /// # Errors
    /// When the text is no seed of a user.
    pub fn from_user_nkey(seed: &Secret) -> Result<Self, KeyError> {
        match nkeys::decode_seed(seed.reveal().trim()) {
            Ok((USER_NKEY, bytes)) => Ok(Self::from_seed(&Zeroizing::new(bytes))),
            _ => Err(KeyError::NotAUserNkey),
        }
    }

    /// Parses an OpenSSH private key file.
    ///
    /// # Errors
    /// When it is no such file, of another algorithm, or encrypted and the passphrase is missing or wrong.
    pub fn from_openssh(text: &str, passphrase: Option<&Secret>) -> Result<Self, KeyError> {
        let mut key = ssh_key::PrivateKey::from_openssh(text).map_err(KeyError::PrivateKey)?;
        if key.algorithm() != ssh_key::Algorithm::Ed25519 {
            return Err(KeyError::unsupported(&key.algorithm()));
        }
        if key.is_encrypted() {
            let passphrase = passphrase.ok_or(KeyError::NeedsPassphrase)?;
            key = key.decrypt(passphrase.reveal()).map_err(|error| match error {
                ssh_key::Error::Crypto => KeyError::WrongPassphrase,
                error => KeyError::PrivateKey(error),
            })?;
        }
        match key.key_data() {
            KeypairData::Ed25519(pair) => Ok(Self::from_seed(&Zeroizing::new(pair.private.to_bytes()))),
            _ => Err(KeyError::unsupported(&key.algorithm())),
        }
    }

    /// Returns the text of an OpenSSH private key file, encrypted when a passphrase is given.
    ///
    /// # Errors
    /// When the system has no random bytes, or the library refuses.
    pub fn to_openssh(&self, comment: &str, passphrase: Option<&Secret>) -> Result<Zeroizing<String>, KeyError> {
        let pair = Ed25519Keypair::from_seed(self.0.as_bytes());
        let mut key = ssh_key::PrivateKey::new(KeypairData::Ed25519(pair), comment).map_err(KeyError::Encode)?;
        if let Some(passphrase) = passphrase {
            let (mut salt, mut check) = (vec![0; 16], [0; 4]);
            getrandom::fill(&mut salt).map_err(KeyError::Random)?;
            getrandom::fill(&mut check).map_err(KeyError::Random)?;
            let kdf = Kdf::Bcrypt { salt, rounds: ROUNDS };
            key = key
                .encrypt_with(Cipher::Aes256Ctr, kdf, u32::from_ne_bytes(check), passphrase.reveal())
                .map_err(KeyError::Encode)?;
        }
        key.to_openssh(LineEnding::LF).map_err(KeyError::Encode)
    }

    /// The public key.
    pub fn public(&self) -> PublicKey {
        // A key of a hashed and clamped seed is never of small order.
        PublicKey(self.0.verifying_key())
    }

    /// The seed of the key.
    pub(in crate::trust) fn seed(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }

    /// Returns the 64 bytes of the signature over these bytes of this type.
    pub fn sign(&self, payload_type: &str, payload: &[u8]) -> Vec<u8> {
        self.0.sign(&pae(payload_type, payload)).to_bytes().to_vec()
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.public())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Made with: ssh-keygen -t ed25519 -C alice@host -f plain -N '' (and -N 'correct horse', -Z aes256-ctr -a 4).
    const PLAIN: &str = include_str!("testdata/plain");
    const LOCKED: &str = include_str!("testdata/locked");
    const PLAIN_PUB: &str = include_str!("testdata/plain.pub");
    const LOCKED_PUB: &str = include_str!("testdata/locked.pub");

    #[test]
    fn keys_of_openssh_are_read() {
        let key = SigningKey::from_openssh(PLAIN, None).unwrap();
        assert_eq!(key.public(), PLAIN_PUB.parse().unwrap());
        assert_eq!(key.public().to_openssh("alice@host"), PLAIN_PUB.trim());
        // As `ssh-keygen -lf plain.pub` says.
        assert_eq!(key.public().fingerprint(), "SHA256:gv7PszOBb3Uoi6ocuXl48Trl4ABt7I6p+pq5OEYjIzI");
        let right = Secret::new("correct horse");
        let key = SigningKey::from_openssh(LOCKED, Some(&right)).unwrap();
        assert_eq!(key.public(), LOCKED_PUB.parse().unwrap());
        assert!(matches!(SigningKey::from_openssh(LOCKED, None), Err(KeyError::NeedsPassphrase)));
        let wrong = SigningKey::from_openssh(LOCKED, Some(&Secret::new("wrong")));
        assert!(matches!(wrong, Err(KeyError::WrongPassphrase)), "{wrong:?}");
        assert!(matches!(SigningKey::from_openssh("nonsense", None), Err(KeyError::PrivateKey(_))));
    }

    #[test]
    fn keys_survive_being_written() {
        let key = SigningKey::generate().unwrap();
        let text = key.to_openssh("c", None).unwrap();
        assert_eq!(SigningKey::from_openssh(&text, None).unwrap().public(), key.public());
        let secret = Secret::new("pass");
        let text = key.to_openssh("c", Some(&secret)).unwrap();
        assert!(matches!(SigningKey::from_openssh(&text, None), Err(KeyError::NeedsPassphrase)));
        assert_eq!(SigningKey::from_openssh(&text, Some(&secret)).unwrap().public(), key.public());
        assert!(!format!("{key:?}").contains(&STANDARD.encode(key.0.as_bytes())));
    }

    #[test]
    fn public_keys_have_two_forms() {
        let key = SigningKey::from_seed(&[7; 32]).public();
        assert_eq!(key.to_short().parse::<PublicKey>().unwrap(), key);
        assert_eq!(key.to_openssh("who @ where").parse::<PublicKey>().unwrap(), key);
        assert_eq!(key.to_openssh("").parse::<PublicKey>().unwrap(), key);
        for bad in ["", "ed25519:", "ed25519:AAAA", "ssh-ed25519 AAAA", "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAAQD=", "x"] {
            assert!(bad.parse::<PublicKey>().is_err(), "{bad}");
        }
    }

    #[test]
    fn nkeys_of_users_are_read() {
        let user = nkeys::KeyPair::new_user();
        let key = SigningKey::from_user_nkey(&Secret::new(user.seed().unwrap())).unwrap();
        assert_eq!(PublicKey::from_user_nkey(&user.public_key()).unwrap(), key.public());
        let account = nkeys::KeyPair::new_account();
        assert!(PublicKey::from_user_nkey(&account.public_key()).is_err());
        assert!(SigningKey::from_user_nkey(&Secret::new(account.seed().unwrap())).is_err());
        for wrong in ["", "U", &"\u{e9}".repeat(28), &user.public_key().replace('U', "u"), &user.seed().unwrap()] {
            assert!(PublicKey::from_user_nkey(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn weak_keys_are_refused() {
        // The eight points of small order, from the tables of "Taming the many EdDSAs", canonical forms.
        for hex in [
            "0100000000000000000000000000000000000000000000000000000000000000",
            "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
            "0000000000000000000000000000000000000000000000000000000000000000",
            "0000000000000000000000000000000000000000000000000000000000000080",
            "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
            "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        ] {
            let bytes: Vec<u8> = (0..32).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect();
            let text = format!("{SHORT_PREFIX}{}", STANDARD.encode(&bytes));
            assert!(matches!(text.parse::<PublicKey>(), Err(KeyError::Weak)), "{hex}");
        }
    }

    #[test]
    fn a_signature_is_of_its_key_type_and_bytes() {
        let key = SigningKey::from_seed(&[1; 32]);
        let signature = key.sign("t", b"payload");
        assert!(key.public().verify("t", b"payload", &signature));
        assert!(!key.public().verify("u", b"payload", &signature));
        assert!(!key.public().verify("t", b"payloae", &signature));
        assert!(!key.public().verify("t", b"payload", &signature[..63]));
        assert!(!SigningKey::from_seed(&[2; 32]).public().verify("t", b"payload", &signature));
    }

    #[test]
    fn verification_is_the_strict_one() {
        // Made with the private key: R is the neutral element, S the challenge times the secret. RFC 8032 accepts it.
        const NEUTRAL_R: &str = "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAABJvvtO3fUtROyqPR0M+FmYBMvwAqsm/1y/kOhcbQyLAw==";
        let signature = STANDARD.decode(NEUTRAL_R).unwrap();
        let key = SigningKey::from_seed(&[1; 32]).public();
        let lax = ed25519_dalek::Signature::from_slice(&signature).unwrap();
        assert!(ed25519_dalek::Verifier::verify(&key.0, &pae("t", b"payload"), &lax).is_ok());
        assert!(!key.verify("t", b"payload", &signature));
    }
}
