//! The decision about a join request, as a pure function.

use std::collections::{HashMap, HashSet};

use jiff::{SignedDuration, Timestamp};

use crate::fleet::account::{Admission, TokenTerms};
use crate::model::NodeId;
use crate::trust::PublicKey;
use crate::wire::join::JoinRequest;

/// Most by which the clock of a host may be ahead of the end of its token.
const MAX_SKEW: SignedDuration = SignedDuration::from_mins(5);

/// The recorded admissions, by node, by user key and by token.
#[derive(Debug, Default)]
pub struct AdmissionIndex {
    /// The latest record of each name.
    nodes: HashMap<NodeId, Admission>,
    users: HashMap<String, NodeId>,
    uses: HashMap<String, HashSet<(NodeId, String, String)>>,
}

impl AdmissionIndex {
    /// Indexes the records of the file `admitted`.
    pub fn new(records: &[Admission]) -> Self {
        let mut index = Self::default();
        records.iter().for_each(|record| index.add(record));
        index
    }

    /// Adds a record.
    pub fn add(&mut self, record: &Admission) {
        self.nodes.insert(record.node.clone(), record.clone());
        self.users.entry(record.user.clone()).or_insert_with(|| record.node.clone());
        if let Some(token) = &record.token {
            let host = (record.node.clone(), record.key.clone(), record.user.clone());
            self.uses.entry(token.clone()).or_default().insert(host);
        }
    }

    /// Returns the number of hosts that were admitted with a token, by its public user key.
    pub fn uses(&self, token_user: &str) -> usize {
        self.uses.get(token_user).map_or(0, HashSet::len)
    }

    /// True when the same host was the latest to be admitted under this name.
    fn is_current(&self, request: &JoinRequest) -> bool {
        self.latest(&request.node).is_some_and(|record| record.key == request.node_key && record.user == request.user_key)
    }

    /// Returns the latest record of a name.
    pub fn latest(&self, node: &NodeId) -> Option<&Admission> {
        self.nodes.get(node)
    }
}

/// A decision about a join request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinVerdict {
    /// The token covers the host.
    Admit,
    /// The same host was admitted before: the same answer again, without another use.
    Repeat,
    /// No operator may admit the host with this token.
    Refuse(RefusalReason),
    /// Only an operator who compares the fingerprint may admit the host.
    Ask(AskReason),
}

/// The reason of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RefusalReason {
    /// All uses of the token are gone.
    #[error("the join token has no uses left")]
    UsedUp,
    /// The request is from after the end of the token.
    #[error("the request is from after the end of its join token")]
    OutsideLife,
    /// Another host has the name.
    #[error("another host has this name")]
    NameTaken,
    /// The user key belongs to another node.
    #[error("another node has the user key of this request")]
    UserTaken,
}

/// The reason for which an operator must decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AskReason {
    /// A node with this name was admitted before, and its key was forgotten or revoked since.
    #[error("a node with this name was admitted before, and its key is not pinned now")]
    NameUsedBefore,
    /// An operator removed the node from the fleet.
    #[error("a node with this name was removed: `ensign fleet node removed`")]
    Removed,
}

/// The circumstances of a join request, whose three signatures and token are verified.
#[derive(Debug, Clone, Copy)]
pub struct JoinCircumstances<'a> {
    /// The request.
    pub request: &'a JoinRequest,
    /// The public user key of the token.
    pub token_user: &'a str,
    /// The terms of the token.
    pub terms: &'a TokenTerms,
    /// The recorded admissions.
    pub admitted: &'a AdmissionIndex,
    /// The pinned key of the name, if any.
    pub pinned: Option<PublicKey>,
    /// True when an operator removed the node, and its key was not pinned since.
    pub is_removed: bool,
}

/// Decides about a join request.
pub fn decide(circumstances: &JoinCircumstances<'_>) -> JoinVerdict {
    let JoinCircumstances { request, token_user, terms, admitted, pinned, is_removed } = *circumstances;
    if pinned.is_some_and(|pinned| pinned.to_short() != request.node_key) {
        return JoinVerdict::Refuse(RefusalReason::NameTaken);
    }
    // Without a pinned key, the node may have been revoked since.
    if pinned.is_some() && admitted.is_current(request) {
        return JoinVerdict::Repeat;
    }
    if admitted.users.get(&request.user_key).is_some_and(|node| *node != request.node) {
        return JoinVerdict::Refuse(RefusalReason::UserTaken);
    }
    if is_after(request.issued, terms.expires) {
        return JoinVerdict::Refuse(RefusalReason::OutsideLife);
    }
    if admitted.uses(token_user) >= terms.uses as usize {
        return JoinVerdict::Refuse(RefusalReason::UsedUp);
    }
    if is_removed {
        return JoinVerdict::Ask(AskReason::Removed);
    }
    // A pinned key was admitted or compared by an operator: the name belongs to this key.
    if pinned.is_none() && admitted.nodes.contains_key(&request.node) {
        return JoinVerdict::Ask(AskReason::NameUsedBefore);
    }
    JoinVerdict::Admit
}

fn is_after(issued: Timestamp, expires: Timestamp) -> bool {
    expires.checked_add(MAX_SKEW).is_ok_and(|end| issued > end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::SigningKey;
    use crate::wire::join::PinnedTrust;

    fn key(seed: u8) -> PublicKey {
        SigningKey::from_seed(&[seed; 32]).public()
    }

    fn request(node: &str, seed: u8, user: &str) -> JoinRequest {
        JoinRequest {
            fleet: "prod".into(),
            node: node.parse().unwrap(),
            node_key: key(seed).to_short(),
            user_key: user.into(),
            token: String::new(),
            trust: PinnedTrust { roots: String::new(), version: 1 },
            nonce: String::new(),
            issued: "2026-01-02T10:00:00Z".parse().unwrap(),
            hostname: String::new(),
            os: String::new(),
        }
    }

    fn admitted(node: &str, seed: u8, user: &str, token: &str) -> Admission {
        Admission {
            node: node.parse().unwrap(),
            groups: vec![],
            user: user.into(),
            key: key(seed).to_short(),
            token: Some(token.into()),
            at: "2026-01-02T09:00:00Z".parse().unwrap(),
        }
    }

    #[test]
    fn a_token_covers_free_names_until_it_is_used_up() {
        let refuse = JoinVerdict::Refuse;
        let ask = JoinVerdict::Ask(AskReason::NameUsedBefore);
        for (records, pinned, uses, wanted, why) in [
            (vec![], None, 1, JoinVerdict::Admit, "a new host"),
            (vec![], None, 0, refuse(RefusalReason::UsedUp), "a token without uses"),
            (vec![], Some(1), 1, JoinVerdict::Admit, "a key that an operator had pinned"),
            (vec![], Some(2), 1, refuse(RefusalReason::NameTaken), "the name of a pinned node"),
            (vec![("web1", 1, "UA", "T")], Some(1), 1, JoinVerdict::Repeat, "the same host again"),
            (vec![("web1", 1, "UA", "T")], None, 2, ask, "the same host, revoked or forgotten since"),
            (vec![("web1", 1, "UA", "T")], Some(2), 1, refuse(RefusalReason::NameTaken), "pinned to another host since"),
            (vec![("web2", 2, "UB", "T")], None, 1, refuse(RefusalReason::UsedUp), "the last use is gone"),
            (vec![("web2", 2, "UB", "T")], None, 2, JoinVerdict::Admit, "one use is left"),
            (vec![("web2", 2, "UB", "T"), ("web2", 2, "UB", "T")], None, 2, JoinVerdict::Admit, "a record twice is one use"),
            (vec![("web2", 2, "UB", "other")], None, 1, JoinVerdict::Admit, "uses of other tokens"),
            (vec![("web1", 1, "UB", "T")], Some(1), 1, refuse(RefusalReason::UsedUp), "a new user key needs a use"),
            (vec![("web1", 1, "UB", "T")], Some(1), 2, JoinVerdict::Admit, "a new user key of the same host"),
            (vec![("web1", 2, "UB", "T")], None, 2, ask, "another host had the name"),
            (vec![("web1", 2, "UB", "T")], Some(1), 2, JoinVerdict::Admit, "another host had the name, and this key is pinned"),
            (vec![("web1", 1, "UA", "T"), ("web1", 2, "UB", "T")], None, 9, ask, "the name went to another host"),
            (vec![("web2", 1, "UA", "T")], None, 9, refuse(RefusalReason::UserTaken), "a second name for one user"),
        ] {
            let records: Vec<Admission> =
                records.into_iter().map(|(node, seed, user, token)| admitted(node, seed, user, token)).collect();
            let terms = TokenTerms { name: "t".into(), groups: vec![], uses, expires: "2026-01-02T11:00:00Z".parse().unwrap() };
            let found = decide(&JoinCircumstances {
                request: &request("web1", 1, "UA"),
                token_user: "T",
                terms: &terms,
                admitted: &AdmissionIndex::new(&records),
                pinned: pinned.map(key),
                is_removed: false,
            });
            assert_eq!(found, wanted, "{why}");
            // The key of a removed node is not pinned. No token admits it again, whatever the record says.
            if pinned.is_none() && matches!(wanted, JoinVerdict::Admit | JoinVerdict::Ask(_)) {
                let found = decide(&JoinCircumstances {
                    request: &request("web1", 1, "UA"),
                    token_user: "T",
                    terms: &terms,
                    admitted: &AdmissionIndex::new(&records),
                    pinned: None,
                    is_removed: true,
                });
                assert_eq!(found, JoinVerdict::Ask(AskReason::Removed), "{why}");
            }
        }
    }

    #[test]
    fn a_request_is_from_within_the_life_of_its_token() {
        let terms = |expires: &str| TokenTerms { name: "t".into(), groups: vec![], uses: 1, expires: expires.parse().unwrap() };
        let verdict = |expires: &str| {
            decide(&JoinCircumstances {
                request: &request("web1", 1, "UA"),
                token_user: "T",
                terms: &terms(expires),
                admitted: &AdmissionIndex::default(),
                pinned: None,
                is_removed: false,
            })
        };
        assert_eq!(verdict("2026-01-02T10:00:00Z"), JoinVerdict::Admit);
        assert_eq!(verdict("2026-01-02T09:55:00Z"), JoinVerdict::Admit);
        assert_eq!(verdict("2026-01-02T09:54:59Z"), JoinVerdict::Refuse(RefusalReason::OutsideLife));
    }
}
