//! The trust bundle: from signed bytes to trusted keys and rules.
//!
//! The rules of succession are those of TUF for its root role. Only version N+1 replaces version N, and needs the threshold of
//! the root keys of both versions.

use std::collections::HashSet;

use jiff::Timestamp;

use crate::model::check_name;
use crate::wire::bundle::{OperatorKey, Roots, Rule};
use crate::wire::json::{self, JsonError};
use crate::wire::{Envelope, EnvelopeError, TRUST_TYPE, TrustBundle};

use crate::trust::decide::rejection::RejectionCode;
use crate::trust::keys::key::{KeyError, PublicKey};

/// A trust bundle that is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The bytes are no envelope.
    #[error("the trust bundle can't be read")]
    Envelope(#[from] EnvelopeError),
    /// Too few root keys signed the bundle.
    #[error("the trust bundle has signatures of {found} of {whose}, and needs {needed}")]
    Quorum {
        /// The set of root keys that must sign, for the message.
        whose: &'static str,
        /// The threshold.
        needed: u32,
        /// The number of distinct root keys that signed.
        found: usize,
    },
    /// The signed payload has another type.
    #[error("the payload type is \"{0}\", not that of a trust bundle")]
    Type(String),
    /// The payload is no trust bundle.
    #[error("the trust bundle is malformed")]
    Json(#[from] JsonError),
    /// The bundle contradicts itself.
    #[error("the trust bundle is invalid: {0}")]
    Invalid(String),
    /// A key of the bundle can't be used.
    #[error("the {0} of the trust bundle can't be used")]
    Key(String, #[source] KeyError),
    /// The bundle is of another fleet.
    #[error("the trust bundle is of the fleet \"{found}\", not of \"{wanted}\"")]
    Fleet {
        /// The fleet of this node.
        wanted: String,
        /// The fleet of the bundle.
        found: String,
    },
    /// The bundle is not the next version.
    #[error("the trust bundle has version {found}; after {current} only {} is accepted", current.saturating_add(1))]
    Version {
        /// The version of the active bundle.
        current: u64,
        /// The version of the new bundle.
        found: u64,
    },
}

impl BundleError {
    /// The stable code of the reason.
    pub fn code(&self) -> RejectionCode {
        match self {
            Self::Envelope(EnvelopeError::TooLarge(_)) => RejectionCode::TooLarge,
            Self::Envelope(_) => RejectionCode::BadEnvelope,
            Self::Quorum { .. } => RejectionCode::TrustQuorum,
            Self::Type(_) => RejectionCode::WrongType,
            Self::Json(_) => RejectionCode::Malformed,
            Self::Invalid(_) => RejectionCode::BadTrust,
            Self::Key(_, KeyError::Weak) => RejectionCode::WeakKey,
            Self::Key(..) => RejectionCode::BadTrust,
            Self::Fleet { .. } => RejectionCode::WrongFleet,
            Self::Version { .. } => RejectionCode::TrustVersion,
        }
    }
}

/// The keys that a new bundle must be signed with.
#[derive(Debug, Clone, Copy)]
pub enum BundleAuthority<'a> {
    /// The first bundle, signed by root keys from the configuration of the node.
    Roots {
        /// The fleet of the node.
        fleet: &'a str,
        /// The root keys.
        keys: &'a [PublicKey],
        /// The number of distinct keys that must sign.
        threshold: u32,
    },
    /// The successor of the active bundle.
    Current(&'a TrustedBundle),
    /// A bundle that this node accepted before, from its own disk. Its own root keys protect against damage.
    Stored,
}

/// The key of an operator, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedKey {
    /// The name of the key in rules.
    pub id: String,
    /// The key.
    pub key: PublicKey,
    /// Start of the validity; unlimited when none.
    pub not_before: Option<Timestamp>,
    /// End of the validity; unlimited when none.
    pub not_after: Option<Timestamp>,
    /// True for a revoked key, even within its validity.
    pub revoked: bool,
}

impl TrustedKey {
    /// True within the validity of the key. Revocation is not considered.
    pub fn is_valid_at(&self, now: Timestamp) -> bool {
        self.not_before.is_none_or(|time| time <= now) && self.not_after.is_none_or(|time| now <= time)
    }
}

/// A trust bundle with verified signatures and content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedBundle {
    bundle: TrustBundle,
    roots: Vec<PublicKey>,
    keys: Vec<TrustedKey>,
    digest: String,
    envelope: Vec<u8>,
}

impl TrustedBundle {
    /// Returns the bundle before version 1: root keys, no operator, no rule. Version 1 succeeds this bundle by the usual rules,
    /// so the chain of a fleet is rooted in these keys.
    pub fn before_first(fleet: &str, keys: Vec<PublicKey>, threshold: u32) -> Self {
        let root = Roots { threshold, keys: keys.iter().map(PublicKey::to_short).collect() };
        let bundle = TrustBundle {
            fleet: fleet.to_owned(),
            version: 0,
            expires: Timestamp::MAX,
            root,
            keys: Vec::new(),
            revoked: Vec::new(),
            rules: Vec::new(),
        };
        Self { bundle, roots: keys, keys: Vec::new(), digest: String::new(), envelope: Vec::new() }
    }

    /// True before version 1, when no operator key is trusted.
    pub fn is_before_first(&self) -> bool {
        self.bundle.version == 0
    }

    /// The fleet.
    pub fn fleet(&self) -> &str {
        &self.bundle.fleet
    }

    /// The version.
    pub fn version(&self) -> u64 {
        self.bundle.version
    }

    /// Returns the time from which nodes accept no new work under the bundle.
    pub fn expires(&self) -> Timestamp {
        self.bundle.expires
    }

    /// True when the node must not accept new work under the bundle.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        now > self.bundle.expires
    }

    /// The root keys.
    pub fn roots(&self) -> &[PublicKey] {
        &self.roots
    }

    /// Returns the SHA-256 of threshold and root keys, lower-case hex. The order of the keys has no effect.
    pub fn roots_digest(&self) -> String {
        let mut keys: Vec<String> = self.roots.iter().map(PublicKey::to_short).collect();
        keys.sort();
        crate::wire::digest(format!("{}\n{}\n", self.bundle.root.threshold, keys.join("\n")).as_bytes())
    }

    /// The keys of the operators, including revoked keys.
    pub fn keys(&self) -> &[TrustedKey] {
        &self.keys
    }

    /// The rules.
    pub fn rules(&self) -> &[Rule] {
        &self.bundle.rules
    }

    /// The signed bundle.
    pub fn bundle(&self) -> &TrustBundle {
        &self.bundle
    }

    /// SHA-256 of the signed bytes, in lower-case hex.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The received envelope, for storage.
    pub fn envelope(&self) -> &[u8] {
        &self.envelope
    }
}

/// Opens a signed trust bundle. An expired bundle opens too: see [`TrustedBundle::is_expired`].
///
/// # Errors
/// When required signatures are missing, it is not the successor of the current bundle, or it is invalid.
pub fn open_bundle(bytes: &[u8], pin: BundleAuthority<'_>) -> Result<TrustedBundle, BundleError> {
    let envelope = Envelope::parse(bytes)?;
    match pin {
        BundleAuthority::Roots { keys, threshold, .. } => check_quorum(&envelope, "the pinned roots", keys, threshold)?,
        BundleAuthority::Current(current) => {
            check_quorum(&envelope, "the current roots", &current.roots, current.bundle.root.threshold)?;
        }
        BundleAuthority::Stored => {}
    }
    if envelope.payload_type != TRUST_TYPE {
        return Err(BundleError::Type(envelope.payload_type));
    }
    let bundle: TrustBundle = json::read(&envelope.payload)?;
    let (roots, keys) = check(&bundle)?;
    check_quorum(&envelope, "its own roots", &roots, bundle.root.threshold)?;
    check_succession(&bundle, pin)?;
    Ok(TrustedBundle { digest: envelope.digest(), envelope: bytes.to_vec(), bundle, roots, keys })
}

/// Checks a bundle before its signature, with the checks of every node.
///
/// # Errors
/// When it is invalid.
pub fn check_bundle(bundle: &TrustBundle) -> Result<(), BundleError> {
    check(bundle).map(|_| ())
}

fn check_succession(bundle: &TrustBundle, pin: BundleAuthority<'_>) -> Result<(), BundleError> {
    let wanted = match pin {
        BundleAuthority::Roots { fleet, .. } => fleet,
        BundleAuthority::Current(current) => current.fleet(),
        BundleAuthority::Stored => &bundle.fleet,
    };
    if bundle.fleet != wanted {
        return Err(BundleError::Fleet { wanted: wanted.to_owned(), found: bundle.fleet.clone() });
    }
    match pin {
        BundleAuthority::Current(current) if Some(bundle.version) != current.version().checked_add(1) => {
            Err(BundleError::Version { current: current.version(), found: bundle.version })
        }
        _ => Ok(()),
    }
}

/// The distinct keys that signed an envelope.
pub fn signing_keys<'a>(envelope: &Envelope, keys: &'a [PublicKey]) -> HashSet<&'a PublicKey> {
    let encoded = crate::wire::pae(&envelope.payload_type, &envelope.payload);
    let signed = |key: &&PublicKey| envelope.signatures.iter().any(|s| key.verify_encoded(&encoded, &s.sig));
    keys.iter().filter(signed).collect()
}

/// Checks the number of distinct keys that signed, never the number of signatures.
fn check_quorum(envelope: &Envelope, whose: &'static str, keys: &[PublicKey], needed: u32) -> Result<(), BundleError> {
    let found = signing_keys(envelope, keys).len();
    // A threshold of 0 would accept every bundle.
    if needed == 0 || found < needed as usize { Err(BundleError::Quorum { whose, needed, found }) } else { Ok(()) }
}

fn invalid(message: impl Into<String>) -> BundleError {
    BundleError::Invalid(message.into())
}

fn check(bundle: &TrustBundle) -> Result<(Vec<PublicKey>, Vec<TrustedKey>), BundleError> {
    check_name("fleet", &bundle.fleet).map_err(|error| invalid(error.to_string()))?;
    if bundle.version == 0 {
        return Err(invalid("versions begin with 1"));
    }
    let roots = check_roots(bundle)?;
    let mut ids = HashSet::new();
    let mut known = HashSet::new();
    let mut keys = Vec::with_capacity(bundle.keys.len());
    for key in &bundle.keys {
        let trusted = check_key(key, &bundle.revoked)?;
        if !ids.insert(key.id.as_str()) {
            return Err(invalid(format!("the key id \"{}\" is listed twice", key.id)));
        }
        // One key under two names would count as two signers.
        if !known.insert(trusted.key) {
            return Err(invalid(format!("the key of \"{}\" is also listed under another id", key.id)));
        }
        keys.push(trusted);
    }
    for (number, rule) in (1..).zip(&bundle.rules) {
        check_rule(rule).map_err(|why| invalid(format!("rule {number} {why}")))?;
    }
    Ok((roots, keys))
}

fn check_roots(bundle: &TrustBundle) -> Result<Vec<PublicKey>, BundleError> {
    let mut roots = Vec::with_capacity(bundle.root.keys.len());
    for (number, text) in (1..).zip(&bundle.root.keys) {
        let key: PublicKey = text.parse().map_err(|error| BundleError::Key(format!("root key {number}"), error))?;
        if roots.contains(&key) {
            return Err(invalid(format!("root key {number} is listed twice")));
        }
        roots.push(key);
    }
    let threshold = bundle.root.threshold;
    if threshold == 0 || threshold as usize > roots.len() {
        return Err(invalid(format!("the threshold {threshold} does not fit its {} root keys", roots.len())));
    }
    Ok(roots)
}

fn check_key(key: &OperatorKey, revoked: &[String]) -> Result<TrustedKey, BundleError> {
    let good = |b: u8| b.is_ascii_alphanumeric() || b"@._-+".contains(&b);
    if key.id.is_empty() || key.id.len() > 64 || !key.id.bytes().all(good) {
        return Err(invalid(format!("the key id \"{}\" is not 1 to 64 letters, digits and @ . _ - +", key.id.escape_debug())));
    }
    if key.not_before.zip(key.not_after).is_some_and(|(from, to)| from >= to) {
        return Err(invalid(format!("the key \"{}\" is never valid", key.id)));
    }
    Ok(TrustedKey {
        key: key.key.parse().map_err(|error| BundleError::Key(format!("key \"{}\"", key.id), error))?,
        id: key.id.clone(),
        not_before: key.not_before,
        not_after: key.not_after,
        revoked: revoked.contains(&key.id),
    })
}

/// The prefixes of entries of `reads`.
const READ_PREFIXES: [&str; 5] = ["/", "env:", "credential:", "secret:", "kv:"];

fn check_rule(rule: &Rule) -> Result<(), &'static str> {
    let lists = [&rule.actions, &rule.types, &rule.names, &rule.reads, &rule.nodes, &rule.groups, &rule.channels];
    if rule.keys.is_empty() {
        return Err("names no keys");
    }
    // An empty list could mean nothing or everything, so it is refused.
    if lists.into_iter().flatten().any(Vec::is_empty) {
        return Err("has an empty list");
    }
    if rule.quorum == 0 {
        return Err("has the quorum 0");
    }
    let is_read = |read: &String| read == "registrations" || READ_PREFIXES.iter().any(|kind| read.starts_with(kind));
    if !rule.reads.iter().flatten().all(is_read) {
        return Err("has a read that is no path and none of env:NAME, credential:NAME, kv:BUCKET/KEY and registrations");
    }
    if rule.max_nodes == Some(0) {
        return Err("allows no nodes");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::trust::{SigningKey, sign_envelope};

    fn key(seed: u8) -> SigningKey {
        SigningKey::from_seed(&[seed; 32])
    }

    fn short(seed: u8) -> String {
        key(seed).public().to_short()
    }

    fn bundle(version: u64, roots: &[u8], threshold: u32) -> Value {
        json!({
            "fleet": "prod", "version": version, "expires": "2027-01-01T00:00:00Z",
            "root": {"threshold": threshold, "keys": roots.iter().map(|seed| short(*seed)).collect::<Vec<_>>()},
            "keys": [{"id": "ops-alice", "key": short(50)}, {"id": "ops-bob", "key": short(51)}],
            "revoked": ["ops-bob"],
            "rules": [{"keys": ["ops-*"]}],
        })
    }

    fn signed(bundle: &Value, by: &[u8]) -> Vec<u8> {
        let keys: Vec<SigningKey> = by.iter().map(|seed| key(*seed)).collect();
        let keys: Vec<(&str, &SigningKey)> = keys.iter().map(|key| ("root", key)).collect();
        sign_envelope(TRUST_TYPE, bundle.to_string().into_bytes(), &keys).encode()
    }

    fn code(result: Result<TrustedBundle, BundleError>) -> Result<u64, &'static str> {
        result.map(|bundle| bundle.version()).map_err(|error| error.code().as_str())
    }

    #[test]
    fn the_first_bundle_needs_the_pinned_roots() {
        let pinned = [key(1).public(), key(2).public(), key(3).public()];
        let pin = BundleAuthority::Roots { fleet: "prod", keys: &pinned, threshold: 2 };
        let two = bundle(7, &[1, 2, 3], 2);
        for (bytes, wanted) in [
            (signed(&two, &[1, 3]), Ok(7)),
            (signed(&two, &[1]), Err("trust_quorum")),
            (signed(&two, &[1, 1, 1]), Err("trust_quorum")),
            (signed(&two, &[1, 9]), Err("trust_quorum")),
            (signed(&two, &[]), Err("trust_quorum")),
            // The pinned roots signed, but the bundle names other root keys.
            (signed(&bundle(7, &[8, 9], 1), &[1, 2]), Err("trust_quorum")),
            (sign_envelope("x", two.to_string().into(), &[("", &key(1)), ("", &key(2))]).encode(), Err("wrong_type")),
            (signed(&json!({}), &[1, 2]), Err("malformed")),
        ] {
            assert_eq!(code(open_bundle(&bytes, pin)), wanted);
        }
        let other = BundleAuthority::Roots { fleet: "test", keys: &pinned, threshold: 2 };
        assert_eq!(code(open_bundle(&signed(&two, &[1, 2]), other)), Err("wrong_fleet"));
        let nobody = BundleAuthority::Roots { fleet: "prod", keys: &pinned, threshold: 0 };
        assert_eq!(code(open_bundle(&signed(&two, &[1, 2]), nobody)), Err("trust_quorum"));
        let doubled = [key(1).public(), key(1).public()];
        let doubled = BundleAuthority::Roots { fleet: "prod", keys: &doubled, threshold: 2 };
        assert_eq!(code(open_bundle(&signed(&bundle(1, &[1], 1), &[1]), doubled)), Err("trust_quorum"));
    }

    #[test]
    fn a_successor_needs_the_roots_of_both_versions() {
        let current = open_bundle(&signed(&bundle(7, &[1, 2], 2), &[1, 2]), BundleAuthority::Stored).unwrap();
        for (version, roots, by, wanted) in [
            (8, vec![1, 2], vec![1, 2], Ok(8)),
            (8, vec![3, 4], vec![1, 2, 3, 4], Ok(8)),
            (8, vec![3, 4], vec![3, 4], Err("trust_quorum")),
            (8, vec![3, 4], vec![1, 2], Err("trust_quorum")),
            (8, vec![3, 4], vec![1, 2, 3], Err("trust_quorum")),
            (7, vec![1, 2], vec![1, 2], Err("trust_version")),
            (6, vec![1, 2], vec![1, 2], Err("trust_version")),
            (9, vec![1, 2], vec![1, 2], Err("trust_version")),
        ] {
            let next = open_bundle(&signed(&bundle(version, &roots, 2), &by), BundleAuthority::Current(&current));
            assert_eq!(code(next), wanted, "{version} {roots:?} {by:?}");
        }
        let mut other = bundle(8, &[1, 2], 2);
        other["fleet"] = json!("test");
        assert_eq!(code(open_bundle(&signed(&other, &[1, 2]), BundleAuthority::Current(&current))), Err("wrong_fleet"));
    }

    #[test]
    fn keys_know_their_window_and_whether_they_are_revoked() {
        let mut value = bundle(1, &[1], 1);
        value["keys"][0]["not_before"] = json!("2026-01-01T00:00:00Z");
        value["keys"][0]["not_after"] = json!("2026-02-01T00:00:00Z");
        let trusted = open_bundle(&signed(&value, &[1]), BundleAuthority::Stored).unwrap();
        let (alice, bob) = (&trusted.keys()[0], &trusted.keys()[1]);
        assert!(!alice.revoked && bob.revoked);
        for (time, wanted) in [
            ("2025-12-31T23:59:59Z", false),
            ("2026-01-01T00:00:00Z", true),
            ("2026-02-01T00:00:00Z", true),
            ("2026-02-01T00:00:01Z", false),
        ] {
            assert_eq!(alice.is_valid_at(time.parse().unwrap()), wanted, "{time}");
        }
        assert!(!trusted.is_expired("2027-01-01T00:00:00Z".parse().unwrap()));
        assert!(trusted.is_expired("2027-01-01T00:00:01Z".parse().unwrap()));
    }

    #[test]
    fn an_invalid_bundle_is_refused_whoever_signed_it() {
        let weak = "ed25519:AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
        for (pointer, change, wanted) in [
            ("/fleet", json!("a.b"), "bad_trust"),
            ("/version", json!(0), "bad_trust"),
            ("/root/threshold", json!(0), "bad_trust"),
            ("/root/threshold", json!(2), "bad_trust"),
            ("/root/keys", json!([short(1), short(1)]), "bad_trust"),
            ("/root/keys", json!([short(1), key(1).public().to_openssh("again")]), "bad_trust"),
            ("/root/keys", json!([short(1), weak]), "weak_key"),
            ("/root/keys", json!([]), "bad_trust"),
            ("/root/x", json!(1), "malformed"),
            ("/keys/0/id", json!("ops-bob"), "bad_trust"),
            ("/keys/0/id", json!("ops*"), "bad_trust"),
            ("/keys/0/id", json!(""), "bad_trust"),
            ("/keys/0/key", json!(short(51)), "bad_trust"),
            ("/keys/0/key", json!(weak), "weak_key"),
            ("/keys/0/key", json!("x"), "bad_trust"),
            ("/keys/0/x", json!(1), "malformed"),
            ("/rules/0/keys", json!([]), "bad_trust"),
            ("/rules/0/types", json!([]), "bad_trust"),
            ("/rules/0/reads", json!([]), "bad_trust"),
            ("/rules/0/reads", json!(["**"]), "bad_trust"),
            ("/rules/0/quorum", json!(0), "bad_trust"),
            ("/rules/0/max_nodes", json!(0), "bad_trust"),
            ("/rules/0/x", json!(1), "malformed"),
            ("/x", json!(1), "malformed"),
        ] {
            let mut value = bundle(1, &[1], 1);
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            value.pointer_mut(parent).unwrap()[key] = change.clone();
            assert_eq!(code(open_bundle(&signed(&value, &[1]), BundleAuthority::Stored)), Err(wanted), "{pointer} = {change}");
        }
        let mut value = bundle(1, &[1], 1);
        value["keys"][0]["not_before"] = json!("2026-01-01T00:00:00Z");
        value["keys"][0]["not_after"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(code(open_bundle(&signed(&value, &[1]), BundleAuthority::Stored)), Err("bad_trust"));
    }
}
