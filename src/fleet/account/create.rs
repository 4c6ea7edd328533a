//! The keys, JWTs and credentials of a new fleet.

use std::path::Path;

use nkeys::{KeyPair, KeyPairType};

use crate::fleet::setup::permissions::{Permissions, Role, permissions};
use crate::model::Secret;
use crate::wire::Subjects;

use super::claims;
use super::directory::{ACCOUNT_JWT, ACCOUNT_SEED, JOIN_SEED, NODE_SEED, OPERATOR_SEED, SERVER_CONFIG, SYSTEM_CREDS};
use super::error::FleetAccountError;
use super::seed::{generate, seed_file};
use super::server_config::{ServerAddress, ServerConfig, ServerTls};
use super::users::creds;

/// Mode of files that only their owner may read.
const PRIVATE: u32 = 0o600;

/// The settings of a new account.
#[derive(Debug)]
pub struct NewAccount<'a> {
    /// The subjects of the fleet.
    pub subjects: &'a Subjects,
    /// The address of the server.
    pub server: &'a ServerAddress,
    /// The certificate of the server, if any.
    pub tls: Option<&'a ServerTls>,
    /// The directory on the host of the server for streams and accounts.
    pub data: &'a Path,
}

/// A file of a new fleet.
#[derive(Debug, Clone)]
pub struct FleetFile {
    /// The path in the directory of the fleet.
    pub name: &'static str,
    /// The content.
    pub content: Secret,
    /// The permission bits.
    pub mode: u32,
}

/// Makes an operator, a system account, the account of the fleet, and their users. Returns the files with keys, credentials
/// and the configuration of the server.
///
/// # Errors
/// When a key can't be made.
pub fn new_account(new: &NewAccount<'_>) -> Result<Vec<FleetFile>, FleetAccountError> {
    let fleet = new.subjects.fleet();
    let operator = generate(KeyPairType::Operator)?;
    let [system, account, node_signer, join_signer] = [(); 4].map(|()| generate(KeyPairType::Account));
    let (system, account, node_signer, join_signer) = (system?, account?, node_signer?, join_signer?);
    let operator_jwt = claims::operator(fleet, &operator.public_key(), &system.public_key()).sign(&operator)?;
    let system_jwt = claims::system_account(&system.public_key()).sign(&operator)?;
    let own = claims::account(new.subjects, &account.public_key(), &node_signer.public_key(), &join_signer.public_key());
    let account_jwt = own.sign(&operator)?;
    let config = ServerConfig {
        fleet,
        server: new.server,
        tls: new.tls,
        data: new.data,
        operator_jwt: &operator_jwt,
        accounts: [(&system.public_key(), &system_jwt), (&account.public_key(), &account_jwt)],
    };
    let private = |name, content| FleetFile { name, content, mode: PRIVATE };
    let of_role = |role: &Role| permissions(role, new.subjects, None);
    Ok(vec![
        FleetFile { name: SERVER_CONFIG, content: Secret::new(config.text()), mode: 0o644 },
        private(OPERATOR_SEED, seed_file(&operator)?),
        private(ACCOUNT_SEED, seed_file(&account)?),
        private(NODE_SEED, seed_file(&node_signer)?),
        private(JOIN_SEED, seed_file(&join_signer)?),
        private(ACCOUNT_JWT, Secret::new(format!("{account_jwt}\n"))),
        private(SYSTEM_CREDS, user_creds("system", &system_permissions(&account.public_key()), &system)?),
        private("operator.creds", user_creds("operator", &of_role(&Role::Operator), &account)?),
        private("monitor.creds", user_creds("monitor", &of_role(&Role::Monitor), &account)?),
    ])
}

/// Returns the permissions of the user that reads and replaces the JWT of the account.
fn system_permissions(account: &str) -> Permissions {
    Permissions {
        publish: vec!["$SYS.REQ.CLAIMS.UPDATE".to_owned(), format!("$SYS.REQ.ACCOUNT.{account}.CLAIMS.LOOKUP")],
        subscribe: vec!["_INBOX.>".to_owned()],
        responses: false,
    }
}

/// Makes a user with these permissions, and returns its `.creds` file.
fn user_creds(name: &str, permissions: &Permissions, account: &KeyPair) -> Result<Secret, FleetAccountError> {
    let user = generate(KeyPairType::User)?;
    let jwt = claims::user(name, &user.public_key(), permissions).sign(account)?;
    Ok(creds(&jwt, &seed_file(&user)?))
}
