//! The directory of a fleet, which `ensign fleet create` makes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::host::fs::{self, WriteSpec};

use super::claims::{self, JOIN_ROLE, NODE_ROLE};
use super::error::FleetAccountError;
use super::jwt::Claims;
use super::seed::read_seed;
use super::users::{JoinSigner, NodeSigner};

/// Credentials of the user that may change the account on the server.
pub const SYSTEM_CREDS: &str = "nats/system.creds";
/// JWT of the account of the fleet.
pub(super) const ACCOUNT_JWT: &str = "nats/account.jwt";
/// Seed of the operator, which signs the account.
pub(super) const OPERATOR_SEED: &str = "nats/operator.nk";
/// Seed of the account.
pub(super) const ACCOUNT_SEED: &str = "nats/account.nk";
/// Seed of the scoped key that signs the users of nodes.
pub(super) const NODE_SEED: &str = "nats/node-signer.nk";
/// Seed of the scoped key that signs the users of join tokens.
pub(super) const JOIN_SEED: &str = "nats/join-signer.nk";
/// Configuration of the server.
pub(super) const SERVER_CONFIG: &str = "nats-server.conf";
/// Largest JWT and largest server configuration that are read, in bytes.
const MAX_FILE: u64 = 4 << 20;

/// The account of a fleet, and the directory with its keys.
#[derive(Debug, Clone)]
pub struct AccountDirectory {
    directory: PathBuf,
    jwt: String,
    claims: Claims,
}

impl AccountDirectory {
    /// Opens the directory of a fleet. Reads no seed.
    ///
    /// # Errors
    /// When the JWT of the account is missing or invalid, or others could have changed it.
    pub fn open(directory: &Path) -> Result<Self, FleetAccountError> {
        let text = fs::read_trusted_text(&directory.join(ACCOUNT_JWT), MAX_FILE)?;
        let jwt = text.trim().to_owned();
        let claims = Claims::decode(&jwt)?;
        Ok(Self { directory: directory.to_owned(), jwt, claims })
    }

    /// Returns the JWT of the account.
    pub fn jwt(&self) -> &str {
        &self.jwt
    }

    /// Returns the public key of the account, `A...`.
    pub fn public_key(&self) -> &str {
        &self.claims.sub
    }

    /// Returns a path in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Reads the key that signs the users of nodes.
    ///
    /// # Errors
    /// When the seed is missing, or others can read it.
    pub fn node_signer(&self) -> Result<NodeSigner, FleetAccountError> {
        let key = read_seed(&self.path(NODE_SEED), self.scoped_key(NODE_ROLE)?)?;
        Ok(NodeSigner::new(key, self.public_key()))
    }

    /// Reads the key that signs the users of join tokens.
    ///
    /// # Errors
    /// When the seed is missing, or others can read it.
    pub fn join_signer(&self) -> Result<JoinSigner, FleetAccountError> {
        let key = read_seed(&self.path(JOIN_SEED), self.join_key()?)?;
        Ok(JoinSigner::new(key, self.public_key()))
    }

    /// Returns the public key that verifies the users of join tokens.
    ///
    /// # Errors
    /// When the account has no such key.
    pub fn join_key(&self) -> Result<&str, FleetAccountError> {
        self.scoped_key(JOIN_ROLE)
    }

    fn scoped_key(&self, role: &'static str) -> Result<&str, FleetAccountError> {
        claims::scoped_key(&self.claims, role).ok_or(FleetAccountError::NoRole(role))
    }

    /// Takes over the revocations of `current`, the JWT of this account on the server.
    ///
    /// # Errors
    /// When `current` is of another account, or another operator signed it.
    pub fn merge_revocations(&mut self, current: &str) -> Result<(), FleetAccountError> {
        let current = Claims::verify(current, &self.claims.iss)?;
        if current.sub != self.claims.sub {
            return Err(FleetAccountError::Claims(
                format!("it is of the account {}, not {}", current.sub, self.claims.sub).into(),
            ));
        }
        claims::revoke(&mut self.claims, claims::revocations(&current));
        Ok(())
    }

    /// Revokes users whose JWTs were signed until `now`, and stores the new JWT of the account in the directory.
    ///
    /// The configuration of the server in the directory gets the new JWT too: a server without data starts with it.
    ///
    /// # Errors
    /// When the seed of the operator is missing, or a file can't be written.
    pub fn revoke_users<'a>(
        &mut self,
        users: impl IntoIterator<Item = &'a str>,
        now: Timestamp,
    ) -> Result<(), FleetAccountError> {
        let operator = read_seed(&self.path(OPERATOR_SEED), &self.claims.iss)?;
        let until = now.as_second();
        claims::revoke(&mut self.claims, users.into_iter().map(|user| (user.to_owned(), until)).collect::<BTreeMap<_, _>>());
        let jwt = self.claims.sign(&operator)?;
        let write = |name: &str, text: String, mode| {
            fs::write_atomic(&self.path(name), &mut text.as_bytes(), WriteSpec { uid: None, gid: None, mode })
        };
        write(ACCOUNT_JWT, format!("{jwt}\n"), 0o600)?;
        match fs::read_trusted_text(&self.path(SERVER_CONFIG), MAX_FILE) {
            Ok(config) if config.contains(&self.jwt) => write(SERVER_CONFIG, config.replace(&self.jwt, &jwt), 0o644)?,
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => {}
        }
        self.jwt = jwt;
        Ok(())
    }
}
