//! Users of nodes and of join tokens.

use jiff::Timestamp;
use nkeys::KeyPair;
use serde::Deserialize;

use crate::model::{NodeId, Secret, check_name};
use crate::transport::nkey;

use super::claims;
use super::error::FleetAccountError;
use super::jwt::Claims;

/// Longest JWT of a join token, in bytes.
const MAX_JWT: usize = 4096;
/// Most groups of a join token.
const MAX_GROUPS: usize = 64;

/// The key that signs the users of nodes. The server derives their permissions from name and groups.
#[derive(Debug, Clone)]
pub struct NodeSigner {
    key: KeyPair,
    account: String,
}

impl NodeSigner {
    pub(super) fn new(key: KeyPair, account: &str) -> Self {
        Self { key, account: account.to_owned() }
    }

    /// Returns the JWT of a node for its own public user key, `U...`.
    ///
    /// # Errors
    /// When the key is not that of a user, or a group has no valid name.
    pub fn node_user(&self, node: &NodeId, groups: &[String], user: &str) -> Result<String, FleetAccountError> {
        check_user_key(user)?;
        claims::scoped_user(node.as_str(), user, &self.account, &group_tags(groups)?).sign(&self.key)
    }
}

/// The key that signs the users of join tokens. These users may only ask to join.
#[derive(Debug, Clone)]
pub struct JoinSigner {
    key: KeyPair,
    account: String,
}

/// The terms of a join token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenTerms {
    /// The name of the token, unique in the fleet.
    pub name: String,
    /// The groups of the nodes that join with the token.
    pub groups: Vec<String>,
    /// The number of nodes that may join.
    pub uses: u32,
    /// The end of the token, in whole seconds.
    pub expires: Timestamp,
}

/// The claims of the user of a join token, exactly as [`JoinSigner::join_user`] writes them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JoinUser {
    #[serde(rename = "pub")]
    _publish: NoPermissions,
    #[serde(rename = "sub")]
    _subscribe: NoPermissions,
    issuer_account: String,
    tags: Vec<String>,
    #[serde(rename = "type")]
    kind: String,
    #[serde(rename = "version")]
    _version: u32,
}

/// Permissions of a user that has only those of its scoped key.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NoPermissions {}

/// A token that is no valid join token of the fleet.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// Another key signed it, or it is no JWT.
    #[error("the join token is not signed by this fleet")]
    Signature(#[source] Option<FleetAccountError>),
    /// The token has expired.
    #[error("the join token \"{name}\" expired at {expires}")]
    Expired {
        /// The name of the token.
        name: String,
        /// The end of the token.
        expires: Timestamp,
    },
    /// A signed token with unexpected terms.
    #[error("the join token has no valid {0}")]
    Terms(&'static str),
}

impl JoinSigner {
    pub(super) fn new(key: KeyPair, account: &str) -> Self {
        Self { key, account: account.to_owned() }
    }

    /// Returns the JWT of a join token for its public user key, `U...`.
    ///
    /// # Errors
    /// When the key is not that of a user, or a name is invalid.
    pub fn join_user(&self, terms: &TokenTerms, user: &str) -> Result<String, FleetAccountError> {
        check_user_key(user)?;
        check_name("join token", &terms.name).map_err(|error| FleetAccountError::Claims(error.into()))?;
        let mut tags = group_tags(&terms.groups)?;
        tags.push(format!("uses:{}", terms.uses));
        let mut claims = claims::scoped_user(&terms.name, user, &self.account, &tags);
        claims.exp = Some(terms.expires.as_second());
        let jwt = claims.sign(&self.key)?;
        if jwt.len() > MAX_JWT || terms.groups.len() > MAX_GROUPS {
            return Err(FleetAccountError::Claims("the join token has too many groups".into()));
        }
        Ok(jwt)
    }

    /// Verifies the JWT of a join token that this key signed, and returns the public user key and the terms.
    ///
    /// # Errors
    /// When another key signed the JWT, the token has expired, or its terms are invalid.
    pub fn verify(&self, jwt: &str, now: Timestamp) -> Result<(String, TokenTerms), TokenError> {
        verify_join_user(jwt, &self.key.public_key(), &self.account, now)
    }
}

/// Verifies the JWT of a join token by the public keys of signer and account.
fn verify_join_user(jwt: &str, signer: &str, account: &str, now: Timestamp) -> Result<(String, TokenTerms), TokenError> {
    if jwt.len() > MAX_JWT {
        return Err(TokenError::Signature(None));
    }
    let claims = Claims::verify(jwt, signer).map_err(|error| TokenError::Signature(Some(error)))?;
    let user: JoinUser = serde_json::from_value(claims.nats).map_err(|_| TokenError::Terms("claims"))?;
    if user.kind != "user" || user.issuer_account != account {
        return Err(TokenError::Terms("account"));
    }
    if !nkey::is_public(&claims.sub) {
        return Err(TokenError::Terms("user key"));
    }
    let name = Some(claims.name).filter(|name| check_name("join token", name).is_ok()).ok_or(TokenError::Terms("name"))?;
    let expires = claims.exp.and_then(|exp| Timestamp::from_second(exp).ok()).ok_or(TokenError::Terms("expiry"))?;
    let (mut groups, mut uses) = (Vec::new(), None);
    for tag in &user.tags {
        match tag.split_once(':') {
            Some(("group", group)) if check_name("group", group).is_ok() && groups.len() < MAX_GROUPS => {
                groups.push(group.to_owned());
            }
            Some(("uses", count)) if uses.is_none() => uses = Some(count.parse().map_err(|_| TokenError::Terms("uses"))?),
            _ => return Err(TokenError::Terms("tags")),
        }
    }
    let uses = uses.ok_or(TokenError::Terms("uses"))?;
    if now >= expires {
        return Err(TokenError::Expired { name, expires });
    }
    Ok((claims.sub, TokenTerms { name, groups, uses, expires }))
}

fn check_user_key(user: &str) -> Result<(), FleetAccountError> {
    if nkey::is_public(user) {
        return Ok(());
    }
    Err(FleetAccountError::Claims(format!("\"{user}\" is not the public key of a NATS user, U...").into()))
}

fn group_tags(groups: &[String]) -> Result<Vec<String>, FleetAccountError> {
    let tag = |group: &String| {
        check_name("group", group).map_err(|error| FleetAccountError::Claims(error.into()))?;
        Ok(format!("group:{group}"))
    };
    groups.iter().map(tag).collect()
}

/// Returns the content of a `.creds` file, as the tools of NATS write it.
pub fn creds(jwt: &str, seed: &Secret) -> Secret {
    Secret::new(format!(
        "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
        seed.reveal().trim()
    ))
}
