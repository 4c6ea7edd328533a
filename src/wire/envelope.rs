//! The DSSE envelope: bytes of a named type, and signatures over exactly these bytes.
//!
//! Source: DSSE protocol v1.0.0 (secure-systems-lab/dsse). The signed bytes are never decoded and encoded again: a node parses
//! the bytes that it verified. The module `trust` decides which keys may sign.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::json::{self, JsonError};

/// The largest envelope, in bytes as it travels.
pub const MAX_ENVELOPE: usize = 64 * 1024;
/// The most signatures in one envelope.
const MAX_SIGNATURES: usize = 16;

/// The reason for which bytes are not an envelope.
#[derive(Debug, thiserror::Error)]
pub enum EnvelopeError {
    /// More bytes than an envelope may have; nothing was read.
    #[error("the envelope has {0} bytes, more than {MAX_ENVELOPE}")]
    TooLarge(usize),
    /// The bytes are not the JSON of an envelope.
    #[error("the envelope can't be read")]
    Json(#[from] JsonError),
    /// A field that is not standard base64 with padding.
    #[error("{0} is not base64")]
    Base64(&'static str, #[source] base64::DecodeError),
    /// More signatures than allowed.
    #[error("the envelope has {0} signatures, more than {MAX_SIGNATURES}")]
    TooManySignatures(usize),
}

/// A signature with the hint which key made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// The id of the key: a hint without effect on decisions.
    pub keyid: String,
    /// The signature over [`pae`] of type and payload.
    pub sig: Vec<u8>,
}

/// A payload with its type and its unverified signatures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// The type of the payload, as `application/vnd.ensign.command.v1+json`.
    pub payload_type: String,
    /// The signed bytes.
    pub payload: Vec<u8>,
    /// The signatures.
    pub signatures: Vec<Signature>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireEnvelope {
    #[serde(rename = "payloadType")]
    payload_type: String,
    payload: String,
    signatures: Vec<WireSignature>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireSignature {
    #[serde(default)]
    keyid: String,
    sig: String,
}

impl Envelope {
    /// Parses an envelope, after a check of its size.
    ///
    /// # Errors
    /// When the envelope is too large, not strict JSON, has unknown keys, bad base64 or too many signatures.
    pub fn parse(bytes: &[u8]) -> Result<Self, EnvelopeError> {
        if bytes.len() > MAX_ENVELOPE {
            return Err(EnvelopeError::TooLarge(bytes.len()));
        }
        let wire: WireEnvelope = json::read(bytes)?;
        if wire.signatures.len() > MAX_SIGNATURES {
            return Err(EnvelopeError::TooManySignatures(wire.signatures.len()));
        }
        let decode = |field, text: &str| STANDARD.decode(text).map_err(|error| EnvelopeError::Base64(field, error));
        Ok(Self {
            payload: decode("the payload", &wire.payload)?,
            signatures: wire
                .signatures
                .into_iter()
                .map(|s| Ok(Signature { sig: decode("a signature", &s.sig)?, keyid: s.keyid }))
                .collect::<Result<_, EnvelopeError>>()?,
            payload_type: wire.payload_type,
        })
    }

    /// Encodes the envelope for the wire: JSON on one line.
    pub fn encode(&self) -> Vec<u8> {
        let wire = WireEnvelope {
            payload_type: self.payload_type.clone(),
            payload: STANDARD.encode(&self.payload),
            signatures: self
                .signatures
                .iter()
                .map(|s| WireSignature { keyid: s.keyid.clone(), sig: STANDARD.encode(&s.sig) })
                .collect(),
        };
        // Texts and lists only: encoding cannot fail.
        serde_json::to_vec(&wire).unwrap_or_default()
    }

    /// Returns the SHA-256 of the payload, in lower-case hex. Answers, results and the audit trail name the envelope by this
    /// digest.
    pub fn digest(&self) -> String {
        digest(&self.payload)
    }
}

/// Returns the SHA-256 of some bytes, in lower-case hex.
pub fn digest(bytes: &[u8]) -> String {
    let half = |byte: u8| char::from_digit(u32::from(byte), 16);
    Sha256::digest(bytes).iter().flat_map(|byte| [half(byte >> 4), half(byte & 15)]).flatten().collect()
}

/// Returns DSSE's pre-authentication encoding: the bytes under a signature.
pub fn pae(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    bytes.extend_from_slice(payload);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diag::error_chain;

    fn sample() -> Envelope {
        Envelope {
            payload_type: "http://example.com/HelloWorld".into(),
            payload: b"hello world".to_vec(),
            signatures: vec![Signature { keyid: "ops-alice".into(), sig: vec![1, 2, 3] }],
        }
    }

    #[test]
    fn pae_is_that_of_the_protocol() {
        // The example of DSSE's protocol.md.
        assert_eq!(
            pae("http://example.com/HelloWorld", b"hello world"),
            b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
        );
        assert_eq!(pae("é", b""), "DSSEv1 2 é 0 ".as_bytes());
    }

    #[test]
    fn envelopes_round_trip() {
        let encoded = sample().encode();
        assert_eq!(
            String::from_utf8(encoded.clone()).unwrap(),
            r#"{"payloadType":"http://example.com/HelloWorld","payload":"aGVsbG8gd29ybGQ=","signatures":[{"keyid":"ops-alice","sig":"AQID"}]}"#
        );
        assert_eq!(Envelope::parse(&encoded).unwrap(), sample());
        assert_eq!(sample().digest(), "b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9");
    }

    #[test]
    fn malformed_envelopes_are_refused() {
        let many = vec![r#"{"sig":""}"#; 17].join(",");
        for (text, wanted) in [
            ("{}", "missing field `payloadType`"),
            (r#"{"payloadType":"t","payload":"aGk","signatures":[]}"#, "the payload is not base64"),
            (r#"{"payloadType":"t","payload":"aGl=","signatures":[]}"#, "the payload is not base64"),
            (r#"{"payloadType":"t","payload":"","signatures":[{"sig":"_-8="}]}"#, "a signature is not base64"),
            (r#"{"payloadType":"t","payload":"","signatures":[],"x":1}"#, "unknown field `x`"),
            (r#"{"payloadType":"t","payload":"","signatures":[{"sig":"","alg":"none"}]}"#, "unknown field `alg`"),
            (r#"{"payloadType":"t","payload":"","payload":"","signatures":[]}"#, "duplicate key \"payload\""),
            (r#"{"payloadType":"t","payload":"","signatures":[]} {}"#, "trailing characters"),
            (&format!(r#"{{"payloadType":"t","payload":"","signatures":[{many}]}}"#), "17 signatures, more than 16"),
            (&" ".repeat(MAX_ENVELOPE + 1), "65537 bytes, more than 65536"),
        ] {
            let error = error_chain(&Envelope::parse(text.as_bytes()).unwrap_err());
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
