//! The join of a host that waits for its admission: its keys and its request, kept on disk.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;

use crate::agent::durable::node_key;
use crate::agent::durable::state_loss::open_ledger;
use crate::host::fs::{self, FsError};
use crate::model::{NodeId, Secret};
use crate::store::{Ledger, state_dir};
use crate::transport::nkey::UserKey;
use crate::trust::decide::join::{OpenedJoinRequest, sign_join_request};
use crate::trust::{PublicKey, SigningKey};
use crate::wire::Envelope;
use crate::wire::join::{JoinRequest, JoinToken, MAX_REQUEST};

use super::error::JoinError;

/// The directory of a join below the state directory.
const DIRECTORY: &str = "join";
/// The seed of the node's own user on the server.
const USER_SEED: &str = "user.nk";
/// The signed request.
const REQUEST: &str = "request.json";
/// Certificates of the authorities of the servers.
const AUTHORITIES: &str = "ca.pem";
/// The start of the line of `agent.toml` that names the request behind it.
pub(super) const MARK: &str = "# Join request: ";
/// Largest `agent.toml` that is searched for the request, in bytes.
const MAX_CONFIG: u64 = 1 << 20;
/// Longest seed file in bytes.
const MAX_SEED: u64 = 1024;

/// The choices for a join.
#[derive(Debug, Clone)]
pub struct JoinOptions {
    /// The token.
    pub token: JoinToken,
    /// The wanted id of the node.
    pub node: NodeId,
    /// The host name, for the operator to read.
    pub hostname: String,
    /// The operating system, for the operator to read.
    pub os: String,
    /// The configuration to write.
    pub config: PathBuf,
    /// The state directory of the agent.
    pub state_dir: PathBuf,
}

/// A join that waits for its admission, with the lock of the state directory.
pub struct PendingJoin {
    pub(super) options: JoinOptions,
    /// The request.
    pub request: JoinRequest,
    /// The public node key.
    pub node_key: PublicKey,
    /// SHA-256 of the signed bytes of the request, lower-case hex.
    pub(super) digest: String,
    /// The envelope of the request.
    pub(super) envelope: Vec<u8>,
    /// The public nkey of the user of the token.
    pub(super) token_user: String,
    pub(super) user_seed: Secret,
    /// The ledger of the future agent, with the lock of the state directory; none once the configuration exists.
    _ledger: Option<Ledger>,
}

impl PendingJoin {
    /// Makes or loads the keys and the request of the host.
    ///
    /// The same token, node and fleet continue with the kept request, so that the operator sees the same request again.
    ///
    /// # Errors
    /// When the host belongs to a fleet already, a file can't be used, or an agent has the state directory.
    pub fn prepare(options: JoinOptions, now: Timestamp) -> Result<Self, JoinError> {
        let directory = options.state_dir.join(DIRECTORY);
        if fs::exists(&options.config) && !is_own_config(&options.config, &directory.join(REQUEST)) {
            return Err(JoinError::Configured(options.config));
        }
        // The ledger comes before the key, as at the first start of an agent: a key without a ledger means lost state.
        let ledger = if fs::exists(&options.config) { None } else { Some(open_ledger(&options.state_dir, now)?.ledger) };
        state_dir::create(&directory)?;
        let node = node_key::open_key(&options.state_dir, &options.node)?;
        let user_seed = open_user_seed(&directory.join(USER_SEED))?;
        let user = UserKey::from_seed(&user_seed).map_err(JoinError::MakeKey)?.public;
        let token_user = UserKey::from_seed(&options.token.seed).map_err(JoinError::MakeKey)?.public;
        let keys = RequestKeys { node, user_key: &user, user_seed: &user_seed };
        let node_key = keys.node.public();
        let KeptRequest { request, digest, envelope } = match load_request(&directory.join(REQUEST), &options, &keys) {
            Some(kept) => kept,
            None if fs::exists(&options.config) => return Err(JoinError::Configured(options.config)),
            None => new_request(&directory.join(REQUEST), &options, &keys, now)?,
        };
        if let Some(authorities) = &options.token.ca {
            state_dir::write_atomic(&directory.join(AUTHORITIES), authorities.as_bytes())?;
        }
        Ok(Self { options, request, node_key, digest, envelope, token_user, user_seed, _ledger: ledger })
    }

    /// True when an earlier run of this join wrote the configuration: only the start of the agent is left.
    pub fn is_installed(&self) -> bool {
        fs::exists(&self.options.config)
    }

    /// Returns the path of a file of the join.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.options.state_dir.join(DIRECTORY).join(name)
    }

    /// Returns the path of the certificates of the authorities.
    pub(super) fn authority_file(&self) -> PathBuf {
        self.path(AUTHORITIES)
    }

    /// Removes the request: a later join asks anew, as after a refusal.
    pub(super) fn forget_request(&self) -> Result<(), JoinError> {
        Ok(fs::remove(&self.path(REQUEST))?)
    }
}

/// A request with its signed form.
struct KeptRequest {
    request: JoinRequest,
    digest: String,
    envelope: Vec<u8>,
}

/// The keys that a request names.
struct RequestKeys<'a> {
    node: SigningKey,
    user_key: &'a str,
    user_seed: &'a Secret,
}

/// Loads the user seed, or makes one.
fn open_user_seed(path: &Path) -> Result<Secret, JoinError> {
    match fs::read_private_text(path, MAX_SEED) {
        Ok(seed) => Ok(Secret::new(seed.trim())),
        Err(error) if error.is_not_found() => {
            let key = UserKey::generate().map_err(JoinError::MakeKey)?;
            state_dir::write_atomic(path, key.seed.reveal().as_bytes())?;
            Ok(key.seed)
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns the kept request, when it asks for the same with the same keys. A damaged or other request is replaced.
fn load_request(path: &Path, options: &JoinOptions, keys: &RequestKeys<'_>) -> Option<KeptRequest> {
    let envelope = fs::read_trusted(path, MAX_REQUEST as u64).ok()?;
    let opened = OpenedJoinRequest::open(&envelope).ok()?;
    let (request, token) = (&opened.request, &options.token);
    let is_same = request.fleet == token.fleet
        && request.node == options.node
        && request.token == token.jwt.reveal()
        && request.trust == token.trust
        && request.user_key == keys.user_key
        && opened.node_key == keys.node.public();
    is_same.then_some(KeptRequest { digest: opened.digest, request: opened.request, envelope })
}

fn new_request(path: &Path, options: &JoinOptions, keys: &RequestKeys<'_>, now: Timestamp) -> Result<KeptRequest, JoinError> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(JoinError::Random)?;
    let token = &options.token;
    let request = JoinRequest {
        fleet: token.fleet.clone(),
        node: options.node.clone(),
        node_key: keys.node.public().to_short(),
        user_key: keys.user_key.to_owned(),
        token: token.jwt.reveal().to_owned(),
        trust: token.trust.clone(),
        nonce: STANDARD.encode(nonce),
        issued: now,
        hostname: JoinRequest::shorten(&options.hostname),
        os: JoinRequest::shorten(&options.os),
    };
    let key = |what, seed: &Secret| SigningKey::from_user_nkey(seed).map_err(|error| JoinError::UserKey(what, error));
    let (token_key, user_key) = (key("seed of the join token", &token.seed)?, key("seed of the user", keys.user_seed)?);
    let signed = sign_join_request(&request, &keys.node, &token_key, &user_key);
    let envelope = signed.encode();
    state_dir::write_atomic(path, &envelope)?;
    Ok(KeptRequest { request, digest: signed.digest(), envelope })
}

/// True when `config` is the result of the join with this kept request.
fn is_own_config(config: &Path, request: &Path) -> bool {
    let digest = |path: &Path| -> Result<Option<String>, FsError> {
        Ok(Envelope::parse(&fs::read_trusted(path, MAX_REQUEST as u64)?).ok().map(|envelope| envelope.digest()))
    };
    let Ok(Some(digest)) = digest(request) else { return false };
    let text = fs::read_trusted_text(config, MAX_CONFIG).unwrap_or_default();
    text.lines().any(|line| line.strip_prefix(MARK) == Some(digest.as_str()))
}
