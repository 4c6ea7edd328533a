//! The signers of an envelope. Policy decides about their rights.

use crate::wire::{Envelope, Signature, pae};

use crate::trust::bundle::{TrustedBundle, TrustedKey};

/// Most signatures that are computed for a message: 16 under the key of their `keyid`, 16 under other keys. Without the limit a
/// forged message costs 16 times the number of keys.
const MAX_SIGNATURE_CHECKS: usize = 32;

/// The limit on the work for one message.
#[derive(Debug, Clone)]
pub struct SignatureBudget {
    /// The number of signatures that may still be computed.
    left: usize,
    /// True when only signatures under their named keys count, up to the first that does not verify.
    named_only: bool,
    /// The number of computed signatures.
    computed: usize,
}

impl Default for SignatureBudget {
    fn default() -> Self {
        Self { left: MAX_SIGNATURE_CHECKS, named_only: false, computed: 0 }
    }
}

impl SignatureBudget {
    /// Returns the limit for a flood of forged messages: one wrong signature ends the work. A signature whose `keyid` names its
    /// key is verified as usual.
    pub fn under_pressure() -> Self {
        Self { named_only: true, ..Self::default() }
    }

    /// Returns the number of computed signatures.
    pub fn computed(&self) -> usize {
        self.computed
    }

    fn take(&mut self) -> bool {
        let some = self.left > 0;
        self.left = self.left.saturating_sub(1);
        self.computed += usize::from(some);
        some
    }
}

/// A signature that matches no key so far, and the key of its `keyid`.
type UnmatchedSignature<'a> = (&'a Signature, Option<usize>);

/// The result of a search for signers.
pub(in crate::trust) struct SignerSearch {
    /// The distinct keys, by their places in the bundle, in their order; valid or not.
    pub(in crate::trust) keys: Vec<usize>,
    /// True when the envelope names a known key.
    pub(in crate::trust) named: bool,
    /// True when a larger budget would have tried further keys.
    pub(in crate::trust) cut_short: bool,
}

impl TrustedBundle {
    /// Returns the distinct keys of the bundle that signed the envelope. Revoked and expired keys are included, as they may have
    /// been valid at the time of the signature.
    pub fn signers(&self, envelope: &Envelope) -> Vec<&TrustedKey> {
        let encoded = pae(&envelope.payload_type, &envelope.payload);
        let signed =
            |key: &&TrustedKey| envelope.signatures.iter().any(|signature| key.key.verify_encoded(&encoded, &signature.sig));
        self.keys().iter().filter(signed).collect()
    }

    /// Acts as [`Self::signers`], within a budget.
    ///
    /// First tries each signature under the key of its `keyid`, the hint that finds the key of an honest message. Then tries the
    /// remaining signatures under the other keys, in the order of the bundle, with revoked keys last. The budget limits both.
    pub(in crate::trust) fn find_signers(&self, envelope: &Envelope, effort: &mut SignatureBudget) -> SignerSearch {
        let encoded = pae(&envelope.payload_type, &envelope.payload);
        let mut found = SignerSearch { keys: Vec::new(), named: false, cut_short: false };
        let mut unnamed = Vec::new();
        let mut asked = Vec::new();
        for signature in &envelope.signatures {
            let named = self.keys().iter().position(|key| key.id == signature.keyid);
            found.named |= named.is_some();
            // An honest envelope has one signature of a key.
            let Some(index) = named.filter(|index| !asked.contains(index)) else {
                unnamed.push((signature, named));
                continue;
            };
            asked.push(index);
            if effort.take() && self.is_signed_by(index, &encoded, &signature.sig) {
                found.keys.push(index);
            } else {
                unnamed.push((signature, named));
                if effort.named_only {
                    break;
                }
            }
        }
        if effort.named_only {
            found.cut_short = !unnamed.is_empty();
        } else {
            self.try_others(unnamed, &encoded, &mut found, effort);
        }
        found.keys.sort_unstable();
        found
    }

    fn try_others(
        &self,
        mut open: Vec<UnmatchedSignature<'_>>,
        encoded: &[u8],
        found: &mut SignerSearch,
        effort: &mut SignatureBudget,
    ) {
        let (revoked, good): (Vec<usize>, Vec<usize>) =
            (0..self.keys().len()).partition(|index| self.keys().get(*index).is_some_and(|key| key.revoked));
        // All signatures under one key before the next key: forged signatures do not use up the budget of an honest one.
        for index in good.into_iter().chain(revoked) {
            if found.keys.contains(&index) {
                continue;
            }
            let tried = open.iter().position(|(signature, named)| {
                *named != Some(index) && effort.take() && self.is_signed_by(index, encoded, &signature.sig)
            });
            if let Some(place) = tried {
                open.remove(place);
                found.keys.push(index);
            }
            if open.is_empty() || effort.left == 0 {
                return;
            }
        }
    }

    fn is_signed_by(&self, index: usize, encoded: &[u8], signature: &[u8]) -> bool {
        self.keys().get(index).is_some_and(|key| key.key.verify_encoded(encoded, signature))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::trust::{BundleAuthority, SigningKey, open_bundle, sign_envelope};
    use crate::wire::{COMMAND_TYPE, TRUST_TYPE};

    fn key(seed: u8) -> SigningKey {
        SigningKey::from_seed(&[seed; 32])
    }

    /// Returns a bundle of a hundred keys, `op1` to `op100`, of which `op1` is revoked.
    fn hundred() -> TrustedBundle {
        let keys: Vec<Value> = (1..=100).map(|n| json!({"id": format!("op{n}"), "key": key(n).public().to_short()})).collect();
        let bundle = json!({
            "fleet": "prod", "version": 1, "expires": "2027-01-01T00:00:00Z",
            "root": {"threshold": 1, "keys": [key(200).public().to_short()]},
            "keys": keys, "revoked": ["op1"], "rules": [{"keys": ["*"]}],
        });
        open_bundle(
            &sign_envelope(TRUST_TYPE, bundle.to_string().into(), &[("root", &key(200))]).encode(),
            BundleAuthority::Stored,
        )
        .unwrap()
    }

    #[test]
    fn the_work_for_a_message_is_bounded_however_many_keys_there_are() {
        let bundle = hundred();
        let sixteen = |id: &dyn Fn(u8) -> String| -> Vec<(String, u8)> { (0..16).map(|n| (id(n), 150 + n)).collect() };
        let some =
            |list: &[(&str, u8)]| -> Vec<(String, u8)> { list.iter().map(|(id, seed)| ((*id).to_owned(), *seed)).collect() };
        for (by, keys, spent, pressed) in [
            (some(&[("op7", 7)]), vec![6], 1, 1),
            (some(&[("op100", 100)]), vec![99], 1, 1),
            (some(&[("op7", 7), ("op90", 90)]), vec![6, 89], 2, 2),
            // Without a correct keyid all keys are tried: revoked keys come last.
            (some(&[("", 2)]), vec![1], 1, 0),
            (some(&[("", 30)]), vec![29], 29, 0),
            (some(&[("op9", 8)]), vec![7], 8, 1),
            // The key is too far down in the bundle for a signature without a keyid.
            (some(&[("", 90)]), vec![], MAX_SIGNATURE_CHECKS, 0),
            (some(&[("op7", 7), ("", 9)]), vec![6, 8], 8, 1),
            // Forged: sixteen signatures, of one key, of no key, of sixteen keys.
            (sixteen(&|_| "op5".to_owned()), vec![], MAX_SIGNATURE_CHECKS, 1),
            (sixteen(&|_| "x".to_owned()), vec![], MAX_SIGNATURE_CHECKS, 0),
            (sixteen(&|n| format!("op{}", n + 2)), vec![], MAX_SIGNATURE_CHECKS, 1),
        ] {
            let signing: Vec<(&str, SigningKey)> = by.iter().map(|(id, seed)| (id.as_str(), key(*seed))).collect();
            let signing: Vec<(&str, &SigningKey)> = signing.iter().map(|(id, key)| (*id, key)).collect();
            let envelope = sign_envelope(COMMAND_TYPE, b"{}".to_vec(), &signing);
            let mut effort = SignatureBudget::default();
            assert_eq!(bundle.find_signers(&envelope, &mut effort).keys, keys, "{by:?}");
            assert_eq!(effort.computed(), spent, "{by:?}");
            let mut effort = SignatureBudget::under_pressure();
            let found = bundle.find_signers(&envelope, &mut effort);
            assert_eq!(effort.computed(), pressed, "{by:?}");
            assert!(found.keys == keys || found.cut_short, "{by:?}");
        }
    }
}
