//! Claims of an operator, an account and users, as in version 2 of the JWTs of NATS.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::fleet::setup::permissions::{Permissions, join_template, node_template};
use crate::wire::Subjects;

use super::jwt::Claims;

/// Role of the signing key of nodes in the account.
pub(super) const NODE_ROLE: &str = "node";
/// Role of the signing key of join tokens in the account.
pub(super) const JOIN_ROLE: &str = "join";
/// Largest message of a user that asks to join, in bytes.
const MAX_JOIN_REQUEST: i64 = 8 << 10;
/// Answers that a node may send to the reply subject of one message, as in `permissions.rs`.
const MAX_RESPONSES: u32 = 8;
/// Time for these answers in nanoseconds: 15 minutes.
const RESPONSE_TIME: u64 = 900_000_000_000;
/// A limit of NATS that allows everything.
const UNLIMITED: i64 = -1;

/// Returns the claims of an operator with this system account.
pub(super) fn operator(fleet: &str, public: &str, system_account: &str) -> Claims {
    Claims::new(fleet, public, json!({"system_account": system_account, "type": "operator", "version": 2}))
}

/// Returns the claims of the system account.
pub(super) fn system_account(public: &str) -> Claims {
    Claims::new("SYS", public, json!({"limits": account_limits(), "type": "account", "version": 2}))
}

/// Returns the claims of the account of a fleet, with JetStream and the scoped keys for nodes and join tokens.
pub(super) fn account(subjects: &Subjects, public: &str, node_key: &str, join_key: &str) -> Claims {
    let mut limits = account_limits();
    for limit in ["mem_storage", "disk_storage", "streams", "consumer"] {
        insert(&mut limits, limit, UNLIMITED.into());
    }
    insert(&mut limits, "disallow_bearer", true.into());
    let nats = json!({
        "limits": limits,
        "signing_keys": [
            scope(NODE_ROLE, node_key, &node_template(subjects, None), UNLIMITED),
            scope(JOIN_ROLE, join_key, &join_template(subjects, None), MAX_JOIN_REQUEST),
        ],
        "default_permissions": {"pub": {}, "sub": {}},
        "type": "account",
        "version": 2,
    });
    Claims::new(subjects.fleet(), public, nats)
}

fn account_limits() -> Value {
    json!({
        "subs": UNLIMITED, "data": UNLIMITED, "payload": UNLIMITED, "imports": UNLIMITED, "exports": UNLIMITED,
        "wildcards": true, "conn": UNLIMITED, "leaf": UNLIMITED,
    })
}

fn scope(role: &str, key: &str, template: &Permissions, payload: i64) -> Value {
    json!({"kind": "user_scope", "key": key, "role": role, "template": user_permissions(template, payload)})
}

fn user_permissions(permissions: &Permissions, payload: i64) -> Value {
    let mut claims = json!({
        "pub": {"allow": permissions.publish}, "sub": {"allow": permissions.subscribe},
        "subs": UNLIMITED, "data": UNLIMITED, "payload": payload,
    });
    if permissions.responses {
        insert(&mut claims, "resp", json!({"max": MAX_RESPONSES, "ttl": RESPONSE_TIME}));
    }
    claims
}

/// Returns the claims of a user with permissions of its own, which the key of its account signs.
pub(super) fn user(name: &str, public: &str, permissions: &Permissions) -> Claims {
    let mut claims = user_permissions(permissions, UNLIMITED);
    insert(&mut claims, "type", "user".into());
    insert(&mut claims, "version", 2.into());
    Claims::new(name, public, claims)
}

/// Returns the claims of a user of an account, with the permissions of the scoped key that signs the claims.
///
/// The server refuses a user of a scoped key that has permissions or limits of its own.
pub(super) fn scoped_user(name: &str, public: &str, account: &str, tags: &[String]) -> Claims {
    let claims = json!({
        "pub": {}, "sub": {}, "issuer_account": account, "tags": tags, "type": "user", "version": 2,
    });
    Claims::new(name, public, claims)
}

/// Returns the public key of the account's scoped key with this role.
pub(super) fn scoped_key<'a>(account: &'a Claims, role: &str) -> Option<&'a str> {
    let keys = account.nats.get("signing_keys")?.as_array()?;
    keys.iter().find(|key| key.get("role").and_then(Value::as_str) == Some(role))?.get("key")?.as_str()
}

/// Returns the revoked users of an account, each with the time until which its JWTs are invalid, in seconds.
pub(super) fn revocations(account: &Claims) -> BTreeMap<String, i64> {
    let revoked = account.nats.get("revocations").and_then(Value::as_object);
    revoked.into_iter().flatten().filter_map(|(user, until)| Some((user.clone(), until.as_i64()?))).collect()
}

/// Adds revocations of users: the latest time for each counts. A user signed later is valid again.
pub(super) fn revoke(account: &mut Claims, revoked: BTreeMap<String, i64>) {
    let mut all = revocations(account);
    for (user, until) in revoked {
        let entry = all.entry(user).or_default();
        *entry = until.max(*entry);
    }
    insert(&mut account.nats, "revocations", json!(all));
}

fn insert(claims: &mut Value, name: &str, value: Value) {
    if let Some(claims) = claims.as_object_mut() {
        claims.insert(name.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_revocation_of_a_user_counts() {
        let mut account = account(&Subjects::new("prod"), "A", "AN", "AJ");
        assert_eq!((scoped_key(&account, NODE_ROLE), scoped_key(&account, "x")), (Some("AN"), None));
        for (user, until) in [("UA", 5), ("UB", 7), ("UA", 3), ("UB", 9)] {
            revoke(&mut account, BTreeMap::from([(user.to_owned(), until)]));
        }
        assert_eq!(revocations(&account), BTreeMap::from([("UA".to_owned(), 5), ("UB".to_owned(), 9)]));
    }
}
