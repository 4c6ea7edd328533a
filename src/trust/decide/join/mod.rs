//! Enrolment: verification of join requests and of admissions.
//!
//! A request proves three keys: the node key, the user key on the server, and the token. An admission is verified with the trust
//! bundles beside it, whose first root keys the host pinned from its token. A broker can only withhold an answer.

use jiff::Timestamp;

use crate::wire::bundle::Rule;
use crate::wire::join::{
    ADMISSION_TYPE, ADMIT_ACTION, AdmissionStatement, JOIN_TYPE, JoinAnswer, JoinRequest, MAX_REQUEST, MalformedJoin, PinnedTrust,
};
use crate::wire::{Envelope, EnvelopeError, json};

use crate::trust::bundle::{BundleAuthority, BundleError, TrustedBundle, open_bundle};
use crate::trust::keys::key::{KeyError, PublicKey, SigningKey};
use crate::trust::keys::sign::sign_envelope;
use crate::trust::keys::signers::SignatureBudget;

use super::pattern;
use super::policy::names;

/// A join request that proves nothing.
#[derive(Debug, thiserror::Error)]
pub enum JoinRequestError {
    /// The request can't be read.
    #[error("the join request can't be read")]
    Malformed(#[from] MalformedJoin),
    /// The bytes are no envelope.
    #[error("the join request can't be read")]
    Envelope(#[from] EnvelopeError),
    /// The signed payload has another type.
    #[error("the payload type is \"{0}\", not that of a join request")]
    Type(String),
    /// A key of the request can't be used.
    #[error("the {0} of the join request can't be used")]
    Key(&'static str, #[source] KeyError),
    /// A key of the request did not sign.
    #[error("the {0} did not sign the join request")]
    Signature(&'static str),
}

/// A join request with the verified signatures of its node key and its user key.
#[derive(Debug, Clone)]
pub struct OpenedJoinRequest {
    /// The request.
    pub request: JoinRequest,
    /// The node key.
    pub node_key: PublicKey,
    /// SHA-256 of the signed bytes, lower-case hex.
    pub digest: String,
    envelope: Envelope,
}

impl OpenedJoinRequest {
    /// Opens a request: size, form, and the signatures of both keys of the host.
    ///
    /// # Errors
    /// When the request can't be read, or a signature is missing.
    pub fn open(bytes: &[u8]) -> Result<Self, JoinRequestError> {
        if bytes.len() > MAX_REQUEST {
            return Err(MalformedJoin::TooLarge(bytes.len(), MAX_REQUEST).into());
        }
        let envelope = Envelope::parse(bytes)?;
        if envelope.payload_type != JOIN_TYPE {
            return Err(JoinRequestError::Type(envelope.payload_type));
        }
        let request = JoinRequest::parse(&envelope.payload)?;
        let node_key: PublicKey = request.node_key.parse().map_err(|error| JoinRequestError::Key("node key", error))?;
        let opened = Self { node_key, digest: envelope.digest(), request, envelope };
        if !opened.is_signed_by(&opened.node_key) {
            return Err(JoinRequestError::Signature("node key"));
        }
        opened.check_user("user key", &opened.request.user_key)?;
        Ok(opened)
    }

    /// Checks that the holder of the token signed. `token_user` is the public nkey in the JWT of the token.
    ///
    /// # Errors
    /// When the key can't be used, or did not sign.
    pub fn check_token(&self, token_user: &str) -> Result<(), JoinRequestError> {
        self.check_user("token", token_user)
    }

    fn check_user(&self, what: &'static str, nkey: &str) -> Result<(), JoinRequestError> {
        let key = PublicKey::from_user_nkey(nkey).map_err(|error| JoinRequestError::Key(what, error))?;
        if self.is_signed_by(&key) { Ok(()) } else { Err(JoinRequestError::Signature(what)) }
    }

    fn is_signed_by(&self, key: &PublicKey) -> bool {
        let Envelope { payload_type, payload, signatures } = &self.envelope;
        signatures.iter().any(|signature| key.verify(payload_type, payload, &signature.sig))
    }
}

/// Signs a request with the node key, the token and the user key.
pub fn sign_join_request(request: &JoinRequest, node: &SigningKey, token: &SigningKey, user: &SigningKey) -> Envelope {
    // Texts and numbers only: serialisation cannot fail.
    let payload = serde_json::to_vec(request).unwrap_or_default();
    sign_envelope(JOIN_TYPE, payload, &[("node", node), ("token", token), ("user", user)])
}

/// The properties that an admission must have for one host.
#[derive(Debug, Clone, Copy)]
pub struct AdmissionContext<'a> {
    /// The request of the host.
    pub request: &'a JoinRequest,
    /// SHA-256 of the signed bytes of the request, lower-case hex.
    pub digest: &'a str,
    /// The trust that the host pinned from its token.
    pub trust: &'a PinnedTrust,
    /// The time of the host.
    pub now: Timestamp,
}

/// An answer that a host does not accept.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    /// The answer can't be read.
    #[error("the answer can't be read")]
    Malformed(#[from] MalformedJoin),
    /// The admission is no envelope.
    #[error("the admission can't be read")]
    Envelope(#[from] EnvelopeError),
    /// The content of the admission is not that of an admission.
    #[error("the admission can't be read")]
    Json(#[from] json::JsonError),
    /// The answer has no trust bundle.
    #[error("the answer has no trust bundle")]
    NoBundle,
    /// A trust bundle is not valid.
    #[error("a trust bundle of the answer is not valid")]
    Bundle(#[from] BundleError),
    /// The root keys are not those of the token.
    #[error("the root keys of the answer are not those of the token")]
    Roots,
    /// The trust bundle is older than the token or the admission.
    #[error("the answer has version {found} of the trust bundle, older than version {wanted}")]
    OldBundle {
        /// The version in the answer.
        found: u64,
        /// The lowest acceptable version.
        wanted: u64,
    },
    /// The trust bundle has expired.
    #[error("the trust bundle of the answer expired at {0}")]
    BundleExpired(Timestamp),
    /// The signed payload has another type.
    #[error("the payload type is \"{0}\", not that of an admission")]
    Type(String),
    /// No rule allows the admission to its signers.
    #[error("the signers of the admission may not admit this node: {0}")]
    Denied(String),
    /// The admission is for another request.
    #[error("the admission is for another request: its {0} differs")]
    Other(&'static str),
    /// The admission has expired.
    #[error("the admission expired at {0}")]
    Expired(Timestamp),
}

/// A verified decision about the request of a host, and the trust bundle in force.
#[derive(Debug, Clone)]
pub struct VerifiedAdmission {
    /// The decision of the operator.
    pub admission: AdmissionStatement,
    /// The latest trust bundle of the answer.
    pub bundle: TrustedBundle,
}

/// Verifies an answer as the host that sent the request.
///
/// # Errors
/// When any of the host's conditions does not hold: the answer then counts as none.
pub fn open_answer(bytes: &[u8], context: &AdmissionContext<'_>) -> Result<VerifiedAdmission, AdmissionError> {
    let answer = JoinAnswer::parse(bytes)?;
    let bundle = open_chain(&answer.bundles, context)?;
    let admission = open_admission(&answer.admission, &bundle, context.now)?;
    check_request(&admission, context)?;
    Ok(VerifiedAdmission { admission, bundle })
}

/// Opens consecutive trust bundles. The first must have the pinned root keys, the last must be new enough.
fn open_chain(bundles: &[Vec<u8>], context: &AdmissionContext<'_>) -> Result<TrustedBundle, AdmissionError> {
    let (first, later) = bundles.split_first().ok_or(AdmissionError::NoBundle)?;
    // The digest of the token replaces a pin: a bundle is signed by its own roots.
    let mut current = open_bundle(first, BundleAuthority::Stored)?;
    if current.roots_digest() != context.trust.roots {
        return Err(AdmissionError::Roots);
    }
    for bytes in later {
        current = open_bundle(bytes, BundleAuthority::Current(&current))?;
    }
    if current.fleet() != context.request.fleet {
        return Err(AdmissionError::Other("fleet"));
    }
    if current.version() < context.trust.version {
        return Err(AdmissionError::OldBundle { found: current.version(), wanted: context.trust.version });
    }
    if current.is_expired(context.now) {
        return Err(AdmissionError::BundleExpired(current.expires()));
    }
    Ok(current)
}

/// Opens an admission under a trust bundle: signatures, rule, version and time.
///
/// # Errors
/// When the signers may not admit the node, or the admission has expired.
pub fn open_admission(bytes: &[u8], bundle: &TrustedBundle, now: Timestamp) -> Result<AdmissionStatement, AdmissionError> {
    let envelope = Envelope::parse(bytes)?;
    if envelope.payload_type != ADMISSION_TYPE {
        return Err(AdmissionError::Type(envelope.payload_type));
    }
    let places = bundle.find_signers(&envelope, &mut SignatureBudget::default()).keys;
    let keys = places.into_iter().filter_map(|place| bundle.keys().get(place));
    let signers: Vec<String> = keys.filter(|key| key.is_valid_at(now) && !key.revoked).map(|key| key.id.clone()).collect();
    let admission: AdmissionStatement = json::read(&envelope.payload)?;
    admission_rule(bundle.rules(), &signers, admission.node.as_str(), &admission.groups).map_err(AdmissionError::Denied)?;
    if bundle.version() < admission.trust {
        return Err(AdmissionError::OldBundle { found: bundle.version(), wanted: admission.trust });
    }
    if now > admission.expires {
        return Err(AdmissionError::Expired(admission.expires));
    }
    Ok(admission)
}

fn check_request(admission: &AdmissionStatement, context: &AdmissionContext<'_>) -> Result<(), AdmissionError> {
    let request = context.request;
    let pairs = [
        ("fleet", admission.fleet == request.fleet),
        ("node", admission.node == request.node),
        ("node key", admission.node_key == request.node_key),
        ("user key", admission.user_key == request.user_key),
        ("digest", admission.request == context.digest),
    ];
    pairs.into_iter().find(|(_, is_same)| !is_same).map_or(Ok(()), |(what, _)| Err(AdmissionError::Other(what)))
}

/// Finds the first rule that lets these signers (ids of valid keys) admit a node with these groups. Returns its number, from 1.
///
/// A rule with groups allows only nodes with some of these groups. A rule with nodes and no groups allows no groups. Rules of
/// single resources, channels or dry runs admit no node.
///
/// # Errors
/// The mismatch of the last rule that names a signer.
pub fn admission_rule(rules: &[Rule], signers: &[String], node: &str, groups: &[String]) -> Result<usize, String> {
    let mut why = "no rule names the keys that signed it".to_owned();
    for (number, rule) in (1..).zip(rules) {
        let keys = signers.iter().filter(|id| names(rule, id)).count();
        if keys == 0 {
            continue;
        }
        match rule_mismatch(rule, keys, node, groups) {
            None => return Ok(number),
            Some(mismatch) => why = format!("no rule allows it; rule {number} {mismatch}"),
        }
    }
    Err(why)
}

fn rule_mismatch(rule: &Rule, keys: usize, node: &str, groups: &[String]) -> Option<String> {
    if rule.actions.as_deref().is_some_and(|actions| !pattern::matches_any(actions, ADMIT_ACTION)) {
        return Some(format!("does not allow the action {ADMIT_ACTION}"));
    }
    if rule.types.is_some() || rule.names.is_some() || rule.channels.is_some() || rule.noop_only {
        return Some("is for single resources, channels or dry runs".to_owned());
    }
    if rule.nodes.as_deref().is_some_and(|nodes| !pattern::matches_any(nodes, node)) {
        return Some(format!("does not allow the node {node}"));
    }
    let allowed = match (&rule.groups, &rule.nodes) {
        (Some(allowed), _) if groups.is_empty() && rule.nodes.is_none() => {
            return Some(format!("allows only nodes of the groups {}", allowed.join(", ")));
        }
        (Some(allowed), _) => allowed.as_slice(),
        (None, Some(_)) => &[],
        (None, None) => return quorum_mismatch(rule, keys),
    };
    match groups.iter().find(|group| !pattern::matches_any(allowed, group)) {
        Some(other) => Some(format!("does not allow the group {other}")),
        None => quorum_mismatch(rule, keys),
    }
}

fn quorum_mismatch(rule: &Rule, keys: usize) -> Option<String> {
    (keys < rule.quorum as usize).then(|| format!("requires {} signatures by its own keys, and has {keys}", rule.quorum))
}

#[cfg(test)]
mod tests;
