//! Contents of the JWTs of an operator, an account and users.

use std::collections::BTreeMap;
use std::time::Duration;

use nats_jwt_rs::account::{Account, AccountLimits, JetStreamLimits, OperatorLimits};
use nats_jwt_rs::operator::Operator;
use nats_jwt_rs::types::{
    Limits, NatsLimits, Permission, Permissions as JwtPermissions, ResponsePermission, SigningKey, UserScope,
};
use nats_jwt_rs::user::{User, UserPermissionLimits};
use nats_jwt_rs::{Claim, Claims};
use nkeys::KeyPair;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::fleet::setup::permissions::{Permissions, join_template, node_template};
use crate::wire::Subjects;

use super::error::FleetAccountError;

/// Role of the signing key of nodes in the account.
pub(super) const NODE_ROLE: &str = "node";
/// Role of the signing key of join tokens in the account.
pub(super) const JOIN_ROLE: &str = "join";
/// Largest message of a user that asks to join, in bytes.
const MAX_JOIN_REQUEST: i64 = 8 << 10;
/// Answers that a node may send to the reply subject of one message, and the time for them. As in `permissions.rs`.
const RESPONSES: ResponsePermission = ResponsePermission { max_messages: 8, ttl: Duration::from_secs(900) };

/// Signs claims.
pub(super) fn sign<T>(claims: &Claims<T>, issuer: &KeyPair) -> Result<String, FleetAccountError>
where
    T: Claim + DeserializeOwned + Serialize + Clone,
{
    claims.encode(issuer).map_err(|error| FleetAccountError::Key(error.into()))
}

/// Decodes claims that `issuer` signed.
pub(super) fn verify<T>(jwt: &str, issuer: &str) -> Result<Claims<T>, FleetAccountError>
where
    T: Claim + DeserializeOwned + Serialize + Clone,
{
    let claims = Claims::<T>::decode(jwt).map_err(|error| FleetAccountError::Claims(error.into()))?;
    if claims.iss != issuer {
        return Err(FleetAccountError::Claims(format!("{} signed it, not {issuer}", claims.iss).into()));
    }
    Ok(claims)
}

/// Returns the claims of an operator with this system account.
pub(super) fn operator(fleet: &str, key: &KeyPair, system_account: &str) -> Claims<Operator> {
    let mut claims = Operator::new_claims(fleet.to_owned(), key.public_key());
    claims.nats.system_account = Some(system_account.to_owned());
    claims
}

/// Returns the claims of the system account.
pub(super) fn system_account(public: &str) -> Claims<Account> {
    Account::new_claims("SYS".to_owned(), public.to_owned())
}

/// Returns the claims of the account of a fleet, with JetStream and the scoped keys for nodes and join tokens.
pub(super) fn account(subjects: &Subjects, public: &str, node_key: &str, join_key: &str) -> Claims<Account> {
    let mut claims = Account::new_claims(subjects.fleet().to_owned(), public.to_owned());
    let unlimited = Some(-1);
    claims.nats.limits = Some(OperatorLimits {
        account: Some(AccountLimits { disallow_bearer: Some(true), ..AccountLimits::default() }),
        jetstream: Some(JetStreamLimits {
            memory_storage: unlimited,
            disk_storage: unlimited,
            streams: unlimited,
            consumer: unlimited,
            ..JetStreamLimits::default()
        }),
        ..OperatorLimits::default()
    });
    let join_limits = NatsLimits { payload: Some(MAX_JOIN_REQUEST), ..NatsLimits::default() };
    claims.nats.signing_keys = Some(
        [
            scope(NODE_ROLE, node_key, &node_template(subjects, None), NatsLimits::default()),
            scope(JOIN_ROLE, join_key, &join_template(subjects, None), join_limits),
        ]
        .into_iter()
        .collect(),
    );
    claims
}

fn scope(role: &str, key: &str, template: &Permissions, limits: NatsLimits) -> SigningKey {
    let limits = Limits { user_limits: None, nats_limits: Some(limits) };
    let template = UserPermissionLimits { limits: Some(limits), ..user_permissions(template) };
    let scope = UserScope { key: key.to_owned(), role: Some(role.to_owned()), template: Some(template), ..UserScope::default() };
    SigningKey { key: key.to_owned(), scope: Some(scope) }
}

fn user_permissions(permissions: &Permissions) -> UserPermissionLimits {
    let allow = |subjects: &[String]| Permission { allow: subjects.to_vec(), deny: Vec::new() };
    UserPermissionLimits {
        permissions: JwtPermissions {
            publish: allow(&permissions.publish),
            subscribe: allow(&permissions.subscribe),
            resp: permissions.responses.then_some(RESPONSES),
        },
        ..UserPermissionLimits::default()
    }
}

/// Returns the claims of a user with permissions of its own, which the key of its account signs.
pub(super) fn user(name: &str, public: &str, permissions: &Permissions) -> Claims<User> {
    let mut claims = User::new_claims(name.to_owned(), public.to_owned());
    claims.nats.permissions = user_permissions(permissions);
    claims
}

/// Returns the claims of a user of an account, with the permissions of the scoped key that signs the claims.
pub(super) fn scoped_user(name: &str, public: &str, account: &str, tags: Vec<String>) -> Claims<User> {
    let mut claims = User::new_claims(name.to_owned(), public.to_owned());
    // The server refuses a user of a scoped key that has limits of its own.
    claims.nats.permissions.limits = None;
    claims.nats.issuer_account = Some(account.to_owned());
    claims.nats.generic_fields.tags = Some(tags).filter(|tags| !tags.is_empty());
    claims
}

/// Returns the public key of the account's scoped key with this role.
pub(super) fn scoped_key<'a>(account: &'a Account, role: &str) -> Option<&'a str> {
    let mut keys = account.signing_keys.iter().flatten();
    let key = keys.find(|key| key.scope.as_ref().is_some_and(|scope| scope.role.as_deref() == Some(role)))?;
    Some(&key.key)
}

/// Adds revocations of users: the latest time for each counts. A user signed later is valid again.
pub(super) fn revoke(account: &mut Account, revoked: BTreeMap<String, u64>) {
    let revocations = account.revocations.get_or_insert_default();
    for (user, until) in revoked {
        let entry = revocations.entry(user).or_default();
        *entry = until.max(*entry);
    }
}
