//! JWTs of NATS: JSON claims that an nkey of the issuer signs (NATS ADR-14).

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::host::Host;
use crate::host::fs::sha256;
use crate::wire::json;

use super::error::FleetAccountError;

/// The only header that is written and accepted.
const HEADER: &str = r#"{"typ":"JWT","alg":"ed25519-nkey"}"#;

/// The header of a JWT.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    typ: String,
    alg: String,
}

/// Claims about a subject.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Claims {
    /// The id, unique for the content: the server keeps the newer of two JWTs with different ids.
    #[serde(default)]
    jti: String,
    /// Time of the signature, in seconds.
    iat: i64,
    /// The public key of the issuer.
    pub(super) iss: String,
    /// The name of the subject.
    #[serde(default)]
    pub(super) name: String,
    /// The public key of the subject.
    pub(super) sub: String,
    /// The end, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) exp: Option<i64>,
    /// The claims of the type: operator, account or user.
    pub(super) nats: Value,
}

impl Claims {
    /// Returns claims that are not signed yet.
    pub(super) fn new(name: &str, subject: &str, nats: Value) -> Self {
        let (jti, iss) = (String::new(), String::new());
        Self { jti, iat: 0, iss, name: name.to_owned(), sub: subject.to_owned(), exp: None, nats }
    }

    /// Signs the claims, from now on.
    pub(super) fn sign(&self, issuer: &KeyPair) -> Result<String, FleetAccountError> {
        let iat = Host::system(None).now().as_second();
        let mut claims = Self { jti: String::new(), iat, iss: issuer.public_key(), ..self.clone() };
        let text = |claims: &Self| serde_json::to_string(claims).map_err(|error| FleetAccountError::Key(error.into()));
        claims.jti = sha256(text(&claims)?.as_bytes());
        let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(HEADER), URL_SAFE_NO_PAD.encode(text(&claims)?));
        let signature = issuer.sign(signed.as_bytes()).map_err(|error| FleetAccountError::Key(error.into()))?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// Decodes a JWT, and verifies the signature of the issuer that it names. The caller checks the issuer.
    pub(super) fn decode(jwt: &str) -> Result<Self, FleetAccountError> {
        let malformed = || FleetAccountError::Claims("it has not three parts".into());
        let (signed, signature) = jwt.rsplit_once('.').ok_or_else(malformed)?;
        let (header, claims) = signed.split_once('.').ok_or_else(malformed)?;
        let bytes = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|error| FleetAccountError::Claims(error.into()));
        let header: Header = json::read(&bytes(header)?).map_err(|error| FleetAccountError::Claims(error.into()))?;
        if header.typ != "JWT" || header.alg != "ed25519-nkey" {
            return Err(FleetAccountError::Claims(format!("it has the algorithm {}, not ed25519-nkey", header.alg).into()));
        }
        let claims: Self = json::read(&bytes(claims)?).map_err(|error| FleetAccountError::Claims(error.into()))?;
        let issuer = KeyPair::from_public_key(&claims.iss).map_err(|error| FleetAccountError::Claims(error.into()))?;
        issuer.verify(signed.as_bytes(), &bytes(signature)?).map_err(|error| FleetAccountError::Claims(error.into()))?;
        Ok(claims)
    }

    /// Decodes a JWT that `issuer` signed.
    pub(super) fn verify(jwt: &str, issuer: &str) -> Result<Self, FleetAccountError> {
        let claims = Self::decode(jwt)?;
        if claims.iss != issuer {
            return Err(FleetAccountError::Claims(format!("{} signed it, not {issuer}", claims.iss).into()));
        }
        Ok(claims)
    }
}
