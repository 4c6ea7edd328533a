//! The trust bundles in the stream of a fleet: verified as nodes do, published, and followed until nodes accept them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use crate::model::NodeId;
use crate::transport::{Bus, EXPECTED_LAST, Message, TransportError};
use crate::trust::{BundleAuthority, BundleError, TrustedBundle, open_bundle};
use crate::wire::{NodeState, Subjects};

use crate::fleet::targeting::states::{Liveness, liveness};

/// The trust bundles in the stream of a fleet.
#[derive(Debug, Default)]
pub struct Published {
    /// The versions that nodes accept one after the other, oldest first.
    pub chain: Vec<TrustedBundle>,
    /// The first version that nodes reject, and the error.
    pub broken: Option<(u64, BundleError)>,
    /// Every version in the stream, accepted or not: its sequence number and its bytes.
    stored: BTreeMap<u64, (u64, Vec<u8>)>,
}

impl Published {
    /// Returns the latest bundle that nodes accept.
    pub fn latest(&self) -> Option<&TrustedBundle> {
        self.chain.last()
    }

    /// Returns the bundle of a version, when nodes accept it.
    pub fn version(&self, version: u64) -> Option<&TrustedBundle> {
        self.chain.iter().find(|bundle| bundle.version() == version)
    }

    /// True when the stream has a message for this version, accepted or not.
    pub fn has(&self, version: u64) -> bool {
        self.stored.contains_key(&version)
    }

    /// True when the stream has no message.
    pub fn is_empty(&self) -> bool {
        self.stored.is_empty()
    }

    /// Verifies the versions in the stream in order, as a node with the oldest version does.
    fn verify_chain(mut messages: Vec<(u64, Message)>) -> Self {
        messages.sort_by_key(|(version, _)| *version);
        let there = messages.iter().filter_map(|(version, message)| Some((*version, (message.seq?, message.payload.clone()))));
        let mut found = Self { stored: there.collect(), ..Self::default() };
        for (version, message) in messages {
            let pin = found.chain.last().map_or(BundleAuthority::Stored, BundleAuthority::Current);
            match open_bundle(&message.payload, pin) {
                Ok(bundle) => found.chain.push(bundle),
                Err(error) => {
                    found.broken = Some((version, error));
                    break;
                }
            }
        }
        found
    }
}

/// Reads the trust bundles in the stream.
///
/// # Errors
/// When the stream is missing, or can't be read.
pub async fn read_published(bus: &Bus, subjects: &Subjects) -> Result<Published, TransportError> {
    let messages = bus.last_per_subject(&subjects.stream("TRUST"), subjects.trust_versions().as_str()).await?;
    let versions = messages.into_iter().filter_map(|message| Some((subjects.trust_version(&message.subject)?, message)));
    Ok(Published::verify_chain(versions.collect()))
}

/// The bundles of a publication, and those that the stream does not have yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishPlan {
    /// Consecutive bundles, oldest first: from the oldest given or published bundle to the latest given bundle.
    pub bundles: Vec<TrustedBundle>,
    /// The versions of them that the stream does not have.
    pub missing: Vec<u64>,
}

/// Errors of checking bundles before their publication.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// Nodes would reject a bundle.
    #[error("nodes would reject version {version} of the trust bundle")]
    Bundle {
        /// The version.
        version: u64,
        /// The cause.
        #[source]
        source: BundleError,
    },
    /// The stream has another bundle under the same version.
    #[error("another trust bundle is published as version {0}")]
    DifferentBundle(u64),
    /// A version in between is neither published nor given.
    #[error("version {missing} of the trust bundle is neither published nor given, and nodes accept {found} only after it")]
    Gap {
        /// The first missing version.
        missing: u64,
        /// The version that nodes can't accept.
        found: u64,
    },
}

/// Checks given bundles together with the published bundles, as nodes do that accept one version after the other.
///
/// Published bundles stay: a given bundle with the same version must be equal.
///
/// # Errors
/// When nodes would not accept all of them.
pub fn plan_publication(published: &Published, at_hand: &BTreeMap<u64, Vec<u8>>) -> Result<PublishPlan, ChainError> {
    let bytes = |version: u64| at_hand.get(&version).or_else(|| published.stored.get(&version).map(|(_, bytes)| bytes));
    let Some(latest) = at_hand.keys().next_back().copied() else {
        return Ok(PublishPlan { bundles: Vec::new(), missing: Vec::new() });
    };
    let mut first = latest;
    while let Some(before) = first.checked_sub(1).filter(|before| bytes(*before).is_some()) {
        first = before;
    }
    let others = at_hand.keys().chain(published.stored.keys());
    if let Some(missing) = others.filter(|version| **version < first).max().map(|version| version + 1) {
        return Err(ChainError::Gap { missing, found: first });
    }
    let mut bundles: Vec<TrustedBundle> = Vec::new();
    let mut missing = Vec::new();
    for version in first.. {
        let is_beyond = version > latest;
        let Some(bytes) = bytes(version) else {
            // Later published versions must follow without a gap too.
            match published.stored.keys().find(|there| **there > version) {
                Some(found) => return Err(ChainError::Gap { missing: version, found: *found }),
                None => break,
            }
        };
        let pin = bundles.last().map_or(BundleAuthority::Stored, BundleAuthority::Current);
        let bundle = open_bundle(bytes, pin).map_err(|source| ChainError::Bundle { version, source })?;
        if bundle.version() != version {
            let source = BundleError::Version { current: version.saturating_sub(1), found: bundle.version() };
            return Err(ChainError::Bundle { version, source });
        }
        match published.stored.get(&version).map(|(_, there)| open_bundle(there, BundleAuthority::Stored)) {
            None => missing.push(version),
            Some(Ok(there)) if there.digest() == bundle.digest() => {}
            Some(_) => return Err(ChainError::DifferentBundle(version)),
        }
        bundles.push(bundle);
        if is_beyond && published.stored.keys().all(|there| *there <= version) {
            break;
        }
    }
    bundles.retain(|bundle| bundle.version() <= latest);
    Ok(PublishPlan { bundles, missing })
}

/// Stores a bundle under its version, unless another operator stored this version meanwhile. The caller has checked that
/// nodes accept the bundle.
///
/// # Errors
/// When the stream does not store it.
pub async fn publish(
    bus: &Bus,
    subjects: &Subjects,
    published: &Published,
    bundle: &TrustedBundle,
) -> Result<(), TransportError> {
    let before = published.stored.get(&bundle.version()).map_or(0, |(place, _)| *place).to_string();
    let subject = subjects.trust(bundle.version());
    bus.publish_stored(subject.as_str(), &[(EXPECTED_LAST, &before)], bundle.envelope().to_vec()).await?;
    Ok(())
}

/// A node with an earlier version of the trust bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OutdatedNode {
    /// The node.
    pub node: NodeId,
    /// The version that the node has.
    pub version: u64,
    /// Time of its last heartbeat.
    pub heard: Timestamp,
    /// The reason that the node reported for rejecting the next version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// The adoption of a version of the trust bundle by nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct TrustAdoption {
    /// The version.
    pub version: u64,
    /// Number of nodes.
    pub nodes: usize,
    /// Number of nodes with this version or a later version.
    pub obeying: usize,
    /// Online nodes with an earlier version.
    pub behind: Vec<OutdatedNode>,
    /// Offline nodes that had an earlier version at their last heartbeat.
    pub offline: Vec<OutdatedNode>,
}

/// Computes the adoption of a version from the states of nodes. `refusals` has the reported reasons of nodes.
pub fn trust_adoption(
    version: u64,
    states: &BTreeMap<NodeId, NodeState>,
    refusals: &BTreeMap<NodeId, String>,
    now: Timestamp,
) -> TrustAdoption {
    let mut all = TrustAdoption { version, nodes: states.len(), ..TrustAdoption::default() };
    for state in states.values() {
        if state.trust >= version {
            all.obeying += 1;
            continue;
        }
        let why = refusals.get(&state.node).cloned();
        let behind = OutdatedNode { node: state.node.clone(), version: state.trust, heard: state.at, why };
        if liveness(state, now) == Liveness::Alive { all.behind.push(behind) } else { all.offline.push(behind) }
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fleet::targeting::states::tests::state;
    use crate::trust::{SigningKey, sign_envelope};
    use crate::wire::TRUST_TYPE;

    fn bundle(version: u64, root: u8, revoked: &[&str]) -> Value {
        let short = |seed: u8| SigningKey::from_seed(&[seed; 32]).public().to_short();
        json!({
            "fleet": "prod", "version": version, "expires": "2027-01-01T00:00:00Z",
            "root": {"threshold": 1, "keys": [short(root)]},
            "keys": [{"id": "ops", "key": short(50)}], "revoked": revoked, "rules": [{"keys": ["ops"]}],
        })
    }

    fn signed(bundle: &Value, by: &[u8]) -> Vec<u8> {
        let keys: Vec<SigningKey> = by.iter().map(|seed| SigningKey::from_seed(&[*seed; 32])).collect();
        let keys: Vec<(&str, &SigningKey)> = keys.iter().map(|key| ("root", key)).collect();
        sign_envelope(TRUST_TYPE, bundle.to_string().into_bytes(), &keys).encode()
    }

    fn stream(bundles: &[(u64, Vec<u8>)]) -> Published {
        let message = |payload: &Vec<u8>, seq| Message { payload: payload.clone(), seq: Some(seq), ..Message::default() };
        let numbered = (1..).zip(bundles).map(|(seq, (version, bytes))| (*version, message(bytes, seq)));
        Published::verify_chain(numbered.collect())
    }

    #[test]
    fn a_chain_ends_where_nodes_stop() {
        let (one, two, three) =
            (signed(&bundle(1, 1, &[]), &[1]), signed(&bundle(2, 2, &[]), &[1, 2]), signed(&bundle(3, 2, &[]), &[2]));
        let versions = |all: &Published| all.chain.iter().map(TrustedBundle::version).collect::<Vec<_>>();
        let good = stream(&[(3, three.clone()), (1, one.clone()), (2, two.clone())]);
        assert_eq!((versions(&good), good.broken.is_none()), (vec![1, 2, 3], true));
        // The old root key no longer counts.
        let broken = stream(&[(1, one.clone()), (2, two.clone()), (3, signed(&bundle(3, 1, &[]), &[1]))]);
        assert_eq!((versions(&broken), broken.broken.as_ref().map(|(version, _)| *version)), (vec![1, 2], Some(3)));
        assert_eq!(versions(&stream(&[(1, one), (3, three)])), [1]);
        assert_eq!(versions(&stream(&[])), Vec::<u64>::new());
    }

    #[test]
    fn a_chain_is_put_together_from_the_stream_and_from_files() {
        let of = |version: u64| (version, signed(&bundle(version, 1, &[]), &[1]));
        let other = (2, signed(&bundle(2, 1, &["ops"]), &[1]));
        let all: Vec<(u64, Vec<u8>)> = (1..=5).map(of).collect();
        let some = |versions: &[u64]| all.iter().filter(|(version, _)| versions.contains(version)).cloned().collect::<Vec<_>>();
        let chained = |stream_has: &[(u64, Vec<u8>)], files: Vec<(u64, Vec<u8>)>| {
            let result = plan_publication(&stream(stream_has), &files.into_iter().collect());
            result.map(|chain| chain.missing).map_err(|error| error.to_string())
        };
        for (there, files, wanted) in [
            (vec![], vec![1], Ok(vec![1])),
            (vec![1, 2], vec![3], Ok(vec![3])),
            (vec![1, 2], vec![2], Ok(vec![])),
            // The stream was lost, in part or as a whole.
            (vec![], vec![1, 2, 3, 4], Ok(vec![1, 2, 3, 4])),
            (vec![], vec![3, 4], Ok(vec![3, 4])),
            (vec![5], vec![1, 2, 3, 4], Ok(vec![1, 2, 3, 4])),
            (vec![1, 2, 5], vec![1, 3, 4, 5], Ok(vec![3, 4])),
            (vec![1, 2, 5], vec![3, 4], Ok(vec![3, 4])),
            // No bundle is stored that nodes can't reach.
            (vec![1, 2], vec![4], Err("version 3 of the trust bundle is neither")),
            (vec![], vec![1, 3], Err("version 2 of the trust bundle is neither")),
            (vec![5], vec![3], Err("version 4 of the trust bundle is neither")),
        ] {
            let found = chained(&some(&there), some(&files));
            match wanted {
                Ok(missing) => assert_eq!(found, Ok(missing), "{there:?} {files:?}"),
                Err(part) => assert!(found.as_ref().is_err_and(|error| error.contains(part)), "{there:?} {files:?}: {found:?}"),
            }
        }
        assert!(
            chained(&some(&[1, 2]), vec![other.clone()])
                .is_err_and(|error| error.contains("another trust bundle is published as version 2"))
        );
        let foreign = (3, signed(&bundle(3, 9, &[]), &[9]));
        assert!(
            chained(&some(&[1, 2]), vec![foreign])
                .is_err_and(|error| error.contains("nodes would reject version 3 of the trust bundle"))
        );
        // A bundle on the subject of another version.
        assert!(chained(&[], vec![(2, of(1).1)]).is_err());
        // Later published versions must follow.
        assert!(chained(&[other, of(3)], vec![of(1)]).is_ok());
        let others = [(3, signed(&bundle(3, 9, &[]), &[9]))];
        assert!(chained(&others, some(&[1, 2])).is_err());
    }

    #[test]
    fn nodes_are_counted_by_what_they_obey() {
        let now: Timestamp = "2026-01-02T10:01:00Z".parse().unwrap();
        let with = |node: &str, at: &str, trust| {
            let state = NodeState { trust, ..state(node, &[], at, true) };
            (state.node.clone(), state)
        };
        let states = BTreeMap::from([
            with("a", "2026-01-02T10:00:59Z", 8),
            with("b", "2026-01-02T10:00:59Z", 7),
            with("c", "2026-01-02T08:00:00Z", 7),
            with("d", "2026-01-02T08:00:00Z", 9),
        ]);
        let refusals = BTreeMap::from([("b".parse().unwrap(), "trust_quorum: no".to_owned())]);
        let found = trust_adoption(8, &states, &refusals, now);
        assert_eq!((found.nodes, found.obeying, found.behind.len(), found.offline.len()), (4, 2, 1, 1));
        assert_eq!(found.behind[0].why.as_deref(), Some("trust_quorum: no"));
    }
}
