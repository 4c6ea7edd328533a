//! The trust bundles of a fleet, as its stream has them: checked as nodes check them, added to, and followed until the
//! nodes obey.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use crate::model::NodeId;
use crate::transport::{Bus, Message, TransportError};
use crate::trust::{BundleError, Pin, TrustedBundle, open_bundle};
use crate::wire::{NodeState, Subjects};

use super::select::{Presence, presence};

/// Header that lets a message in only when the last one of its subject has this place in the stream; 0 for none.
const EXPECTED: &str = "Nats-Expected-Last-Subject-Sequence";

/// What the stream has.
#[derive(Debug, Default)]
pub struct Published {
    /// The versions that nodes can take one after the other, oldest first.
    pub chain: Vec<TrustedBundle>,
    /// The first version that nodes do not take, and why.
    pub broken: Option<(u64, BundleError)>,
    /// The place in the stream of every version that is there, taken or not.
    places: BTreeMap<u64, u64>,
}

impl Published {
    /// The bundle that nodes should obey.
    pub fn latest(&self) -> Option<&TrustedBundle> {
        self.chain.last()
    }

    /// The bundle of a version, when nodes take it.
    pub fn version(&self, version: u64) -> Option<&TrustedBundle> {
        self.chain.iter().find(|bundle| bundle.version() == version)
    }

    /// Walks what the stream has, as a node does that obeys the oldest of it.
    fn walk(mut messages: Vec<(u64, Message)>) -> Self {
        messages.sort_by_key(|(version, _)| *version);
        let places = messages.iter().filter_map(|(version, message)| Some((*version, message.seq?))).collect();
        let mut found = Self { places, ..Self::default() };
        for (version, message) in messages {
            let pin = found.chain.last().map_or(Pin::Kept, Pin::Current);
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

/// What the stream has.
///
/// # Errors
/// When it is not there, or can't be read.
pub async fn published(bus: &Bus, subjects: &Subjects) -> Result<Published, TransportError> {
    let messages = bus.last_per_subject(&subjects.stream("TRUST"), subjects.trusts().as_str()).await?;
    let versions = messages.into_iter().filter_map(|message| Some((subjects.trust_version(&message.subject)?, message)));
    Ok(Published::walk(versions.collect()))
}

/// Where a bundle belongs in what is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Nothing was published before: only its own roots speak for it here.
    First,
    /// It is the next one.
    Next,
    /// It is published already.
    There,
}

/// Checks a bundle as a node would that obeys the latest of what is published.
///
/// # Errors
/// When nodes would not take it.
pub fn place(published: &Published, bytes: &[u8]) -> Result<(TrustedBundle, Place), BundleError> {
    let Some(latest) = published.latest() else { return Ok((open_bundle(bytes, Pin::Kept)?, Place::First)) };
    match open_bundle(bytes, Pin::Current(latest)) {
        Ok(bundle) => Ok((bundle, Place::Next)),
        Err(error) => match open_bundle(bytes, Pin::Kept) {
            Ok(bundle) if published.chain.iter().any(|there| there.digest() == bundle.digest()) => Ok((bundle, Place::There)),
            _ => Err(error),
        },
    }
}

/// Stores a bundle under its version, unless somebody else stored one meanwhile. Whether nodes take it is for
/// [`place`] to say.
///
/// # Errors
/// When it is not stored.
pub async fn publish(
    bus: &Bus,
    subjects: &Subjects,
    published: &Published,
    bundle: &TrustedBundle,
) -> Result<(), TransportError> {
    let before = published.places.get(&bundle.version()).copied().unwrap_or(0).to_string();
    let subject = subjects.trust(bundle.version());
    bus.publish_stored(subject.as_str(), &[(EXPECTED, &before)], bundle.envelope().to_vec()).await?;
    Ok(())
}

/// A node that does not obey a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Behind {
    /// The node.
    pub node: NodeId,
    /// The version that it obeys.
    pub version: u64,
    /// When it was last heard.
    pub heard: Timestamp,
    /// Why it does not take the next one, as far as it said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Which nodes obey a version.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Obedience {
    /// The version.
    pub version: u64,
    /// How many nodes there are.
    pub nodes: usize,
    /// How many obey this version or a later one.
    pub obeying: usize,
    /// Those that are there and obey an earlier one.
    pub behind: Vec<Behind>,
    /// Those that are not there, and obeyed an earlier one when they were last heard.
    pub offline: Vec<Behind>,
}

/// Which nodes obey a version, as their states tell it; `refusals` is what nodes said against it.
pub fn obedience(
    version: u64,
    states: &BTreeMap<NodeId, NodeState>,
    refusals: &BTreeMap<NodeId, String>,
    now: Timestamp,
) -> Obedience {
    let mut all = Obedience { version, nodes: states.len(), ..Obedience::default() };
    for state in states.values() {
        if state.trust >= version {
            all.obeying += 1;
            continue;
        }
        let why = refusals.get(&state.node).cloned();
        let behind = Behind { node: state.node.clone(), version: state.trust, heard: state.at, why };
        if presence(state, now) == Presence::Alive { all.behind.push(behind) } else { all.offline.push(behind) }
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::select::tests::state;
    use super::*;
    use crate::trust::{SigningKey, seal};
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
        seal(TRUST_TYPE, bundle.to_string().into_bytes(), &keys).encode()
    }

    fn stream(bundles: &[(u64, Vec<u8>)]) -> Published {
        let message = |payload: &Vec<u8>, seq| Message { payload: payload.clone(), seq: Some(seq), ..Message::default() };
        let numbered = (1..).zip(bundles).map(|(seq, (version, bytes))| (*version, message(bytes, seq)));
        Published::walk(numbered.collect())
    }

    #[test]
    fn a_chain_ends_where_nodes_stop() {
        let (one, two, three) =
            (signed(&bundle(1, 1, &[]), &[1]), signed(&bundle(2, 2, &[]), &[1, 2]), signed(&bundle(3, 2, &[]), &[2]));
        let versions = |all: &Published| all.chain.iter().map(TrustedBundle::version).collect::<Vec<_>>();
        let good = stream(&[(3, three.clone()), (1, one.clone()), (2, two.clone())]);
        assert_eq!((versions(&good), good.broken.is_none()), (vec![1, 2, 3], true));
        // The old root has no say any more.
        let broken = stream(&[(1, one.clone()), (2, two.clone()), (3, signed(&bundle(3, 1, &[]), &[1]))]);
        assert_eq!((versions(&broken), broken.broken.as_ref().map(|(version, _)| *version)), (vec![1, 2], Some(3)));
        assert_eq!(versions(&stream(&[(1, one), (3, three)])), [1]);
        assert_eq!(versions(&stream(&[])), Vec::<u64>::new());
    }

    #[test]
    fn a_bundle_has_its_place() {
        let (one, two) = (signed(&bundle(1, 1, &[]), &[1]), signed(&bundle(2, 1, &[]), &[1]));
        let all = stream(&[(1, one.clone()), (2, two.clone())]);
        let of = |bytes: &[u8]| place(&all, bytes).map(|(_, place)| place).map_err(|error| error.code().as_str());
        assert_eq!(of(&signed(&bundle(3, 1, &[]), &[1])), Ok(Place::Next));
        assert_eq!(of(&one), Ok(Place::There));
        assert_eq!(of(&two), Ok(Place::There));
        assert_eq!(of(&signed(&bundle(2, 1, &["ops"]), &[1])), Err("trust_version"));
        assert_eq!(of(&signed(&bundle(4, 1, &[]), &[1])), Err("trust_version"));
        assert_eq!(of(&signed(&bundle(3, 9, &[]), &[9])), Err("trust_quorum"));
        assert_eq!(place(&stream(&[]), &one).unwrap().1, Place::First);
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
        let found = obedience(8, &states, &refusals, now);
        assert_eq!((found.nodes, found.obeying, found.behind.len(), found.offline.len()), (4, 2, 1, 1));
        assert_eq!(found.behind[0].why.as_deref(), Some("trust_quorum: no"));
    }
}
