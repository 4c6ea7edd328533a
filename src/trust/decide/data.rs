//! Signed data on the bus: the keys that may sign a bucket's values, and the checks of a node.
//!
//! A value without an envelope is plain: any writer of the bucket may have made it. The node uses it as unsigned. A value in an
//! envelope is accepted or rejected as a whole.

use jiff::Timestamp;

use crate::diag::error_chain;
use crate::model::NodeId;
use crate::wire::bundle::Rule;
use crate::wire::data::{DATA_TYPE, SignedData, is_signed_data};
use crate::wire::{Envelope, json};

use super::pattern;
use super::verify::MAX_CLOCK_SKEW;
use crate::trust::bundle::TrustedBundle;
use crate::trust::keys::signers::SignatureBudget;

/// The name of the action by which rules allow signing data.
pub const DATA: &str = "data";

/// A value that is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("kv://{bucket}/{key}: {why}")]
pub struct DataError {
    bucket: String,
    key: String,
    why: String,
}

/// The newest signed value of a key that a reader accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewestSigned {
    /// The time of the signature.
    pub issued: Timestamp,
    /// SHA-256 of the signed bytes, in lower-case hex.
    pub digest: String,
}

/// A value of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenedValue {
    /// A value without signature.
    Plain(Vec<u8>),
    /// A value with an accepted signature.
    Signed {
        /// The value.
        value: Vec<u8>,
        /// The position to remember, against replay.
        newest: NewestSigned,
        /// The ids of the signers.
        signers: Vec<String>,
    },
}

/// A reader of a value, and the key of the value.
#[derive(Debug, Clone, Copy)]
pub struct DataReader<'a> {
    /// The active trust bundle.
    pub trust: &'a TrustedBundle,
    /// The node and its groups; none for other readers. Rules for some nodes only allow such readers nothing.
    pub node: Option<(&'a NodeId, &'a [String])>,
    /// The current time.
    pub now: Timestamp,
    /// The bucket that the value was read from.
    pub bucket: &'a str,
    /// The key of the value in the bucket.
    pub key: &'a str,
    /// The newest signed value of this key that the reader accepted.
    pub newest: Option<&'a NewestSigned>,
}

impl DataReader<'_> {
    /// Opens a value.
    ///
    /// # Errors
    /// For a value in an envelope: no signature by keys that may sign it, or another key. The value may also be too old, or older
    /// than the last one. For a plain value: the last value was signed.
    pub fn open(&self, bytes: Vec<u8>) -> Result<OpenedValue, DataError> {
        let wrong = |why: String| DataError { bucket: self.bucket.to_owned(), key: self.key.to_owned(), why };
        if !is_signed_data(&bytes) {
            return match self.newest {
                Some(newest) => Err(wrong(format!("it is not signed, and was at {}", newest.issued))),
                None => Ok(OpenedValue::Plain(bytes)),
            };
        }
        self.signed(&bytes).map_err(wrong)
    }

    fn signed(&self, bytes: &[u8]) -> Result<OpenedValue, String> {
        let envelope = Envelope::parse(bytes).map_err(|error| error_chain(&error))?;
        if envelope.payload_type != DATA_TYPE {
            return Err(format!("the payload type is \"{}\", not that of data", envelope.payload_type));
        }
        let found = self.trust.find_signers(&envelope, &mut SignatureBudget::default()).keys;
        let known: Vec<_> = found.iter().filter_map(|index| self.trust.keys().get(*index)).collect();
        let valid: Vec<String> =
            known.iter().filter(|key| !key.revoked && key.is_valid_at(self.now)).map(|key| key.id.clone()).collect();
        if valid.is_empty() {
            return Err(match known.first() {
                Some(key) if key.revoked => format!("the key {} that signed it is revoked", key.id),
                Some(key) => format!("the key {} that signed it is not valid at this time", key.id),
                None => "it is not signed by a key of the trust bundle".to_owned(),
            });
        }
        let data: SignedData = json::read(&envelope.payload).map_err(|error| error_chain(&error))?;
        let value = data.value().map_err(|error| error.to_string())?;
        let newest = NewestSigned { issued: data.issued, digest: envelope.digest() };
        self.check_content(&data, &newest)?;
        let rules = self.trust.rules();
        let Some(signers) = rules.iter().find_map(|rule| self.allows(rule, &valid)) else {
            return Err(format!("no rule allows {} to sign it", valid.join(", ")));
        };
        Ok(OpenedValue::Signed { value, newest, signers })
    }

    fn check_content(&self, data: &SignedData, newest: &NewestSigned) -> Result<(), String> {
        if data.fleet != self.trust.fleet() {
            return Err(format!("it is for the fleet {}", data.fleet));
        }
        if (data.bucket.as_str(), data.key.as_str()) != (self.bucket, self.key) {
            return Err(format!("it was signed for kv://{}/{}", data.bucket, data.key));
        }
        if data.issued.duration_since(self.now) > MAX_CLOCK_SKEW {
            return Err(format!("it was signed at {}, and here it is {}", data.issued, self.now));
        }
        if data.expires.is_some_and(|time| self.now.duration_since(time) > MAX_CLOCK_SKEW) {
            return Err(format!("it expired, and here it is {}", self.now));
        }
        match self.newest {
            Some(known) if known == newest => Ok(()),
            Some(known) if known.issued >= newest.issued => {
                Err(format!("it was signed at {}, and one of {} was read before", newest.issued, known.issued))
            }
            _ if self.trust.is_expired(self.now) => {
                Err(format!("the trust bundle of this node expired at {}", self.trust.expires()))
            }
            _ => Ok(()),
        }
    }

    /// The signers that a rule counts, when the rule allows them this key. A condition about other subjects (types, channels, a
    /// number of nodes, dry runs) allows no data.
    fn allows(&self, rule: &Rule, signers: &[String]) -> Option<Vec<String>> {
        let counted: Vec<String> = signers.iter().filter(|id| pattern::matches_any(&rule.keys, id)).cloned().collect();
        let name = format!("{}/{}", self.bucket, self.key);
        let is_named = match (&rule.actions, &rule.names) {
            (None, None) => true,
            (Some(actions), None) => pattern::matches_any(actions, DATA),
            // Names mean resources unless the rule names the action `data`.
            (actions, Some(names)) => {
                actions.as_ref().is_some_and(|actions| actions.iter().any(|action| action == DATA))
                    && pattern::matches_any(names, &name)
            }
        };
        let is_here = match (&rule.nodes, &rule.groups, self.node) {
            (None, None, _) => true,
            (nodes, groups, Some((node, own))) => {
                nodes.as_ref().is_some_and(|nodes| pattern::matches_any(nodes, node.as_str()))
                    || groups.as_ref().is_some_and(|groups| own.iter().any(|group| pattern::matches_any(groups, group)))
            }
            (_, _, None) => false,
        };
        let is_other = rule.types.is_some() || rule.channels.is_some() || rule.max_nodes.is_some() || rule.noop_only;
        let fits = is_named && is_here && !is_other && counted.len() >= (rule.quorum as usize).max(1);
        fits.then_some(counted)
    }
}

/// Takes a value out of its envelope without a trust bundle, so without verification. No node uses it as signed.
///
/// # Errors
/// When an envelope can't be read.
pub fn open_unverified(bytes: Vec<u8>) -> Result<Vec<u8>, String> {
    if !is_signed_data(&bytes) {
        return Ok(bytes);
    }
    let envelope = Envelope::parse(&bytes).map_err(|error| error_chain(&error))?;
    let data: SignedData = json::read(&envelope.payload).map_err(|error| error_chain(&error))?;
    data.value().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::trust::{BundleAuthority, SigningKey, open_bundle, sign_envelope};
    use crate::wire::{COMMAND_TYPE, TRUST_TYPE};

    const NOW: &str = "2026-11-20T10:01:00Z";

    fn key(seed: u8) -> SigningKey {
        SigningKey::from_seed(&[seed; 32])
    }

    fn trust(rules: &Value, expires: &str) -> TrustedBundle {
        let public = |seed| key(seed).public().to_short();
        let bundle = json!({
            "fleet": "prod", "version": 1, "expires": expires, "root": {"threshold": 1, "keys": [public(1)]},
            "keys": [
                {"id": "alice", "key": public(2)}, {"id": "bob", "key": public(3)}, {"id": "gone", "key": public(4)},
                {"id": "past", "key": public(5), "not_after": "2026-11-20T10:00:00Z"},
            ],
            "revoked": ["gone"], "rules": rules,
        });
        open_bundle(&sign_envelope(TRUST_TYPE, bundle.to_string().into(), &[("root", &key(1))]).encode(), BundleAuthority::Stored)
            .unwrap()
    }

    fn data(over: &Value) -> Value {
        let mut value = json!({
            "fleet": "prod", "bucket": "conf", "key": "web/motd", "issued": "2026-11-20T10:00:00Z", "text": "hello"
        });
        for (key, item) in over.as_object().unwrap() {
            value[key] = item.clone();
        }
        value
    }

    fn signed(value: &Value, by: &[(&str, u8)]) -> Vec<u8> {
        let keys: Vec<(&str, SigningKey)> = by.iter().map(|(id, seed)| (*id, key(*seed))).collect();
        let keys: Vec<(&str, &SigningKey)> = keys.iter().map(|(id, key)| (*id, key)).collect();
        sign_envelope(DATA_TYPE, value.to_string().into(), &keys).encode()
    }

    fn open(trust: &TrustedBundle, bytes: Vec<u8>, newest: Option<&NewestSigned>) -> Result<Option<Vec<String>>, String> {
        let (node, groups) = ("web1".parse().unwrap(), ["web".to_owned()]);
        let reader = DataReader {
            trust,
            node: Some((&node, &groups)),
            now: NOW.parse().unwrap(),
            bucket: "conf",
            key: "web/motd",
            newest,
        };
        match reader.open(bytes) {
            Ok(OpenedValue::Plain(_)) => Ok(None),
            Ok(OpenedValue::Signed { signers, .. }) => Ok(Some(signers)),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn a_rule_allows_data_only_when_it_says_so() {
        for (rule, wanted) in [
            (json!({}), true),
            (json!({"actions": ["data"]}), true),
            (json!({"actions": ["ensure", "data"]}), true),
            (json!({"actions": ["*"]}), true),
            (json!({"actions": ["ensure", "apply"]}), false),
            (json!({"actions": ["data"], "names": ["conf/web/*"]}), true),
            (json!({"actions": ["data"], "names": ["conf/*"]}), false),
            (json!({"actions": ["data"], "names": ["conf/**"]}), true),
            (json!({"actions": ["data"], "names": ["other/**"]}), false),
            // Names and types of resources allow no data.
            (json!({"names": ["**"]}), false),
            (json!({"actions": ["*"], "names": ["**"]}), false),
            (json!({"types": ["file"]}), false),
            (json!({"actions": ["data"], "types": ["file"]}), false),
            (json!({"noop_only": true}), false),
            (json!({"channels": ["base"]}), false),
            (json!({"max_nodes": 5}), false),
            (json!({"quorum": 2}), false),
            (json!({"nodes": ["web*"]}), true),
            (json!({"groups": ["web"]}), true),
            (json!({"nodes": ["db*"], "groups": ["db"]}), false),
        ] {
            let mut rule = rule;
            rule["keys"] = json!(["alice"]);
            let trust = trust(&json!([rule]), "2027-01-01T00:00:00Z");
            let opened = open(&trust, signed(&data(&json!({})), &[("alice", 2)]), None);
            assert_eq!(opened.is_ok_and(|signers| signers.is_some()), wanted, "{rule}");
        }
        let two = trust(&json!([{"keys": ["*"], "quorum": 2}]), "2027-01-01T00:00:00Z");
        let by = |by: &[(&str, u8)]| open(&two, signed(&data(&json!({})), by), None);
        assert_eq!(by(&[("alice", 2), ("bob", 3)]), Ok(Some(vec!["alice".into(), "bob".into()])));
        assert!(by(&[("alice", 2), ("gone", 4)]).is_err() && by(&[("alice", 2), ("bob", 2)]).is_err());
    }

    #[test]
    fn an_invalid_envelope_is_an_error_and_never_a_plain_value() {
        let trust = trust(&json!([{"keys": ["alice", "gone", "past"]}]), "2027-01-01T00:00:00Z");
        let alice = |over: Value| signed(&data(&over), &[("alice", 2)]);
        let good = alice(json!({}));
        let mut broken: Value = serde_json::from_slice(&good).unwrap();
        broken["signatures"] = json!([]);
        let mut extra: Value = serde_json::from_slice(&good).unwrap();
        extra["x"] = json!(1);
        let command = sign_envelope(COMMAND_TYPE, data(&json!({})).to_string().into(), &[("alice", &key(2))]);
        let retyped = Envelope { payload_type: DATA_TYPE.to_owned(), ..command };
        for (bytes, why) in [
            (broken.to_string().into_bytes(), "not signed by a key"),
            (extra.to_string().into_bytes(), "unknown field `x`"),
            (retyped.encode(), "not signed by a key"),
            (signed(&data(&json!({})), &[("alice", 9)]), "not signed by a key"),
            (signed(&data(&json!({})), &[("bob", 3)]), "no rule allows bob"),
            (signed(&data(&json!({})), &[("gone", 4)]), "gone that signed it is revoked"),
            (signed(&data(&json!({})), &[("past", 5)]), "past that signed it is not valid"),
            (alice(json!({"fleet": "test"})), "for the fleet test"),
            (alice(json!({"key": "web/other"})), "signed for kv://conf/web/other"),
            (alice(json!({"bucket": "conf2"})), "signed for kv://conf2/"),
            (alice(json!({"issued": "2026-11-20T10:02:00Z"})), "and here it is"),
            (alice(json!({"expires": "2026-11-20T10:00:20Z"})), "it expired"),
            (alice(json!({"text": null})), "exactly one"),
            (alice(json!({"x": 1})), "unexpected JSON"),
        ] {
            let error = open(&trust, bytes, None).unwrap_err();
            assert!(error.starts_with("kv://conf/web/motd: ") && error.contains(why), "{error}, wanted {why}");
        }
        assert_eq!(open(&trust, b"plain".to_vec(), None), Ok(None));
    }

    #[test]
    fn an_older_or_plain_value_never_replaces_a_signed_one() {
        let rules = json!([{"keys": ["alice"]}]);
        let (trust, expired) = (trust(&rules, "2027-01-01T00:00:00Z"), trust(&rules, "2026-11-20T09:00:00Z"));
        let at = |issued: &str, text: &str| signed(&data(&json!({"issued": issued, "text": text})), &[("alice", 2)]);
        let digest = |bytes: &[u8]| Envelope::parse(bytes).unwrap().digest();
        let known = at("2026-11-20T09:30:00Z", "known");
        let newest = NewestSigned { issued: "2026-11-20T09:30:00Z".parse().unwrap(), digest: digest(&known) };
        for (bytes, wanted) in [
            (known.clone(), true),
            (at("2026-11-20T09:30:01Z", "later"), true),
            (at("2026-11-20T09:29:59Z", "earlier"), false),
            (at("2026-11-20T09:30:00Z", "other"), false),
            (b"plain".to_vec(), false),
        ] {
            assert_eq!(open(&trust, bytes, Some(&newest)).is_ok(), wanted);
        }
        // Under an expired bundle no new value is accepted.
        assert!(open(&expired, known, Some(&newest)).is_ok());
        assert!(open(&expired, at("2026-11-20T09:30:01Z", "later"), Some(&newest)).is_err());
        assert!(open(&expired, at("2026-11-20T09:30:01Z", "first"), None).is_err());
    }

    #[test]
    fn without_a_bundle_a_value_is_only_unwrapped() {
        assert_eq!(open_unverified(signed(&data(&json!({})), &[("x", 9)])), Ok(b"hello".to_vec()));
        assert_eq!(open_unverified(b"plain".to_vec()), Ok(b"plain".to_vec()));
        let broken = json!({"payloadType": DATA_TYPE}).to_string().into_bytes();
        assert!(open_unverified(broken).is_err());
    }
}
