//! Enrolment: the join token, the join request of a host, and the admission of an operator.
//!
//! Request and admission travel in envelopes. Their subjects are in `subject.rs`, the decisions about them in `trust` and
//! `fleet`.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::{NodeId, Secret, check_name};

use super::json::{self, JsonError};

/// Payload type of a signed join request.
pub const JOIN_TYPE: &str = "application/vnd.ensign.join.v1+json";
/// Payload type of a signed admission.
pub const ADMISSION_TYPE: &str = "application/vnd.ensign.admission.v1+json";
/// The name of the action in rules of the trust bundle.
pub const ADMIT_ACTION: &str = "admit";
/// The start of a join token, with the version of its form.
const TOKEN_PREFIX: &str = "ensign-join-1.";
/// The longest join token in bytes: some servers, a certificate chain and a JWT.
pub const MAX_TOKEN: usize = 48 * 1024;
/// The largest join request in bytes as it travels. The server holds join users to the same limit.
pub const MAX_REQUEST: usize = 8 * 1024;
/// Most trust bundles in an answer: a rotation of the root keys takes one or two.
pub const MAX_BUNDLES: usize = 8;
/// The largest answer in bytes. The stream holds operators to the same limit.
pub const MAX_ANSWER: usize = 128 * 1024;
/// The longest host name or description of an operating system in a request, in bytes.
const MAX_TEXT: usize = 255;

/// The trust that a host pins before its first contact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PinnedTrust {
    /// SHA-256 of threshold and root keys of the fleet, lower-case hex.
    pub roots: String,
    /// The lowest version of the trust bundle that the host accepts.
    pub version: u64,
}

/// A join token: everything that a host needs to ask for its admission. Secret until its user expires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// The fleet.
    pub fleet: String,
    /// Addresses of the servers.
    pub servers: Vec<String>,
    /// Certificates of the trusted authorities of the servers, as PEM; those of the system when none.
    pub ca: Option<String>,
    /// The JetStream domain of the streams of the fleet.
    pub domain: Option<String>,
    /// The trust that the host pins.
    pub trust: PinnedTrust,
    /// The JWT of the join user, with the terms of the token.
    pub jwt: Secret,
    /// The seed of the join user, `SU...`.
    pub seed: Secret,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireToken {
    fleet: String,
    servers: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ca: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    domain: Option<String>,
    trust: PinnedTrust,
    jwt: String,
    seed: String,
}

/// A text that is no join token. The message never repeats the text.
#[derive(Debug, thiserror::Error)]
pub enum MalformedToken {
    /// The text does not begin as a token of this version.
    #[error("a join token begins with \"{TOKEN_PREFIX}\"")]
    Prefix,
    /// The text is longer than a token may be.
    #[error("the join token has more than {MAX_TOKEN} bytes")]
    TooLarge,
    /// The rest of the token is not base64.
    #[error("the join token was changed or cut off: its content is not base64")]
    Base64,
    /// The content is not that of a token.
    #[error("the join token was changed or cut off")]
    Content,
    /// The token has no usable fleet or servers.
    #[error("the join token has no valid fleet or no server")]
    Incomplete,
}

impl JoinToken {
    /// Reads a token, with or without white space around.
    ///
    /// # Errors
    /// When the text is no token of this version.
    pub fn parse(text: &str) -> Result<Self, MalformedToken> {
        let encoded = text.trim().strip_prefix(TOKEN_PREFIX).ok_or(MalformedToken::Prefix)?;
        if encoded.len() > MAX_TOKEN {
            return Err(MalformedToken::TooLarge);
        }
        let content = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| MalformedToken::Base64)?;
        // The cause would quote the content.
        let wire: WireToken = json::read(&content).map_err(|_| MalformedToken::Content)?;
        if check_name("fleet", &wire.fleet).is_err() || wire.servers.is_empty() {
            return Err(MalformedToken::Incomplete);
        }
        let WireToken { fleet, servers, ca, domain, trust, jwt, seed } = wire;
        Ok(Self { fleet, servers, ca, domain, trust, jwt: Secret::new(jwt), seed: Secret::new(seed) })
    }

    /// Returns the token as one line of text.
    pub fn encode(&self) -> Secret {
        let wire = WireToken {
            fleet: self.fleet.clone(),
            servers: self.servers.clone(),
            ca: self.ca.clone(),
            domain: self.domain.clone(),
            trust: self.trust.clone(),
            jwt: self.jwt.reveal().to_owned(),
            seed: self.seed.reveal().to_owned(),
        };
        // Texts and lists only: encoding cannot fail.
        let content = serde_json::to_vec(&wire).unwrap_or_default();
        Secret::new(format!("{TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode(content)))
    }
}

/// The request of a host to become a node. Its envelope has the signatures of the node key, the token and the user key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// The fleet.
    pub fleet: String,
    /// The wanted id.
    pub node: NodeId,
    /// The public node key, as `ed25519:<base64>`.
    pub node_key: String,
    /// The public nkey of the user that the node will be on the server, `U...`.
    pub user_key: String,
    /// The JWT of the join user, with the terms of the token.
    pub token: String,
    /// The trust that the host pinned from the token.
    pub trust: PinnedTrust,
    /// 32 random bytes as base64: no two requests have the same digest.
    pub nonce: String,
    /// The time of the request, by the clock of the host.
    #[schemars(with = "String")]
    pub issued: Timestamp,
    /// The host name, for the operator to read.
    pub hostname: String,
    /// The operating system, for the operator to read.
    pub os: String,
}

impl JoinRequest {
    /// Reads the signed bytes of a request.
    ///
    /// # Errors
    /// When the bytes are no strict JSON of a request, or a text of the request is too long.
    pub fn parse(payload: &[u8]) -> Result<Self, MalformedJoin> {
        let request: Self = json::read(payload)?;
        let is_long = [&request.hostname, &request.os].iter().any(|text| text.len() > MAX_TEXT);
        if is_long || STANDARD.decode(&request.nonce).map_or(0, |nonce| nonce.len()) != 32 {
            return Err(MalformedJoin::Field);
        }
        Ok(request)
    }

    /// Shortens a text to the longest that a request may have.
    pub fn shorten(text: &str) -> String {
        let end = (0..=MAX_TEXT.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.get(..end).unwrap_or_default().to_owned()
    }
}

/// Bytes that are no join request, admission or answer.
#[derive(Debug, thiserror::Error)]
pub enum MalformedJoin {
    /// More bytes than the message may have; nothing was read.
    #[error("the message has {0} bytes, more than {1}")]
    TooLarge(usize, usize),
    /// Not the strict JSON of the message.
    #[error("the message can't be read")]
    Json(#[from] JsonError),
    /// A field has a wrong size.
    #[error("a field of the message has a wrong size")]
    Field,
    /// A part of the answer is not base64.
    #[error("a part of the answer is not base64")]
    Base64(#[from] base64::DecodeError),
}

/// The decision of an operator about one join request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdmissionStatement {
    /// The fleet.
    pub fleet: String,
    /// The id of the node.
    pub node: NodeId,
    /// The public node key of the request.
    pub node_key: String,
    /// The public nkey of the request.
    pub user_key: String,
    /// SHA-256 of the signed bytes of the request, lower-case hex.
    pub request: String,
    /// The version of the trust bundle that the operator decided under.
    pub trust: u64,
    /// The groups of the node, from the token or the operator, never from the request.
    pub groups: Vec<String>,
    /// The decision.
    pub decision: AdmissionDecision,
    /// The time of the decision.
    #[schemars(with = "String")]
    pub issued: Timestamp,
    /// The time from which a host does not accept the decision.
    #[schemars(with = "String")]
    pub expires: Timestamp,
}

/// The outcome of a join request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum AdmissionDecision {
    /// The host is a node of the fleet.
    Admitted {
        /// The JWT of the node's own user on the server.
        jwt: String,
    },
    /// The host stays outside.
    Refused {
        /// The reason, for people.
        reason: String,
    },
}

/// The message on the answer subject: a signed admission, and the trust bundles to verify the admission with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinAnswer {
    /// The envelope of the admission.
    pub admission: Vec<u8>,
    /// Envelopes of consecutive trust bundles, oldest first.
    pub bundles: Vec<Vec<u8>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireAnswer {
    admission: String,
    bundles: Vec<String>,
}

impl JoinAnswer {
    /// Reads an answer, after a check of its size.
    ///
    /// # Errors
    /// When the bytes are too many, or no answer.
    pub fn parse(bytes: &[u8]) -> Result<Self, MalformedJoin> {
        if bytes.len() > MAX_ANSWER {
            return Err(MalformedJoin::TooLarge(bytes.len(), MAX_ANSWER));
        }
        let wire: WireAnswer = json::read(bytes)?;
        if wire.bundles.len() > MAX_BUNDLES {
            return Err(MalformedJoin::Field);
        }
        let bundles = wire.bundles.iter().map(|bundle| STANDARD.decode(bundle)).collect::<Result<_, _>>()?;
        Ok(Self { admission: STANDARD.decode(&wire.admission)?, bundles })
    }

    /// Encodes the answer for the wire.
    pub fn encode(&self) -> Vec<u8> {
        let bundles = self.bundles.iter().map(|bundle| STANDARD.encode(bundle)).collect();
        // Texts and lists only: encoding cannot fail.
        serde_json::to_vec(&WireAnswer { admission: STANDARD.encode(&self.admission), bundles }).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> JoinToken {
        JoinToken {
            fleet: "prod".into(),
            servers: vec!["nats://127.0.0.1:4222".into()],
            ca: None,
            domain: None,
            trust: PinnedTrust { roots: "ab".into(), version: 3 },
            jwt: Secret::new("ey.a.b"),
            seed: Secret::new("SUAXY"),
        }
    }

    #[test]
    fn tokens_round_trip_and_show_no_secret() {
        let text = token().encode();
        assert!(text.reveal().starts_with("ensign-join-1.ey"), "{}", text.reveal());
        assert_eq!(JoinToken::parse(&format!(" {}\n", text.reveal())).unwrap(), token());
        let shown = format!("{:?}", token());
        assert!(!shown.contains("SUAXY") && !shown.contains("ey.a.b"), "{shown}");
    }

    #[test]
    fn other_texts_are_no_tokens() {
        let text = token().encode().reveal().to_owned();
        let of = |json: &str| format!("{TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode(json));
        for wrong in [
            String::new(),
            "ensign-join-2.e30".to_owned(),
            of("{}"),
            of(r#"{"fleet":"prod","fleet":"prod"}"#),
            text.replace("ensign-join-1.", "ensign-join-1.!"),
            text[..text.len() - 9].to_owned(),
            format!("{text}AAAA"),
            format!("{TOKEN_PREFIX}{}", "A".repeat(MAX_TOKEN + 1)),
            JoinToken { servers: vec![], ..token() }.encode().reveal().to_owned(),
            JoinToken { fleet: "a.b".into(), ..token() }.encode().reveal().to_owned(),
        ] {
            let error = JoinToken::parse(&wrong).unwrap_err().to_string();
            assert!(!error.contains("SUAXY"), "{error}");
        }
    }

    #[test]
    fn answers_round_trip_and_are_bounded() {
        let answer = JoinAnswer { admission: b"a".to_vec(), bundles: vec![b"b".to_vec(), vec![]] };
        assert_eq!(JoinAnswer::parse(&answer.encode()).unwrap(), answer);
        let many = JoinAnswer { admission: vec![], bundles: vec![vec![]; MAX_BUNDLES + 1] };
        assert!(matches!(JoinAnswer::parse(&many.encode()), Err(MalformedJoin::Field)));
        assert!(matches!(JoinAnswer::parse(&vec![b' '; MAX_ANSWER + 1]), Err(MalformedJoin::TooLarge(..))));
        assert!(JoinAnswer::parse(br#"{"admission":"!","bundles":[]}"#).is_err());
    }

    #[test]
    fn texts_of_a_request_are_bounded() {
        assert_eq!(JoinRequest::shorten("web1"), "web1");
        assert_eq!(JoinRequest::shorten(&"é".repeat(200)).len(), 254);
    }
}
