//! The node key, and the receipts that it signs about every message of the node.
//!
//! The agent makes the key at its first start. The key never leaves the state directory; each node state has its public
//! half.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use uuid::Uuid;

use crate::config::AgentSettings;
use crate::host::fs::{self, FsError};
use crate::model::NodeId;
use crate::store::{ChainHead, StoreError, state_dir};
use crate::trust::keys::receipt;
use crate::trust::{KeyError, PublicKey, SigningKey};
use crate::wire::digest;
use crate::wire::receipt::{Receipt, ReceiptBody};

/// The name of the key in the state directory.
pub(in crate::agent) const FILE: &str = "node.key";
/// The longest file that holds a key.
const KEY_MAX: u64 = 64 * 1024;

/// The node key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NodeKeyError {
    /// The file holds no key, or an encrypted one.
    #[error("cannot use the node key in {}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: KeyError,
    },
    /// The node has no key yet.
    #[error("the node has no key yet: {} is missing", .0.display())]
    None(PathBuf),
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FsError),
    /// The file cannot be written.
    #[error(transparent)]
    Write(#[from] StoreError),
}

/// Signs receipts for the messages of the node.
#[derive(Debug)]
pub(in crate::agent) struct ReceiptSigner {
    node: NodeId,
    boot: Uuid,
    key: SigningKey,
}

impl ReceiptSigner {
    /// Loads the node key, or makes one when there is none. The caller owns the state directory.
    pub(in crate::agent) fn open(settings: &AgentSettings, boot: Uuid) -> Result<Self, NodeKeyError> {
        Ok(Self { node: settings.node.clone(), boot, key: open_key(&settings.state_dir, &settings.node)? })
    }

    pub(in crate::agent) fn public(&self) -> PublicKey {
        self.key.public()
    }

    /// Returns a pseudonym for the SHA-256 of a content that may be a secret.
    pub(in crate::agent) fn pseudonymize(&self, sha256: &str) -> String {
        self.key.pseudonymize(sha256)
    }

    /// Returns the receipt of a message. With `head`, the receipt is the next link of the hash chain. Without `head`
    /// the receipt is outside of the chain: for a message that may get lost.
    pub(in crate::agent) fn receipt(
        &self,
        subject: &str,
        payload: &[u8],
        command: Option<&str>,
        at: Timestamp,
        head: Option<&ChainHead>,
    ) -> Receipt {
        let statement = ReceiptBody {
            node: self.node.clone(),
            boot: self.boot,
            seq: head.map(|head| head.seq + 1),
            prev: head.and_then(|head| head.digest.clone()),
            subject: subject.to_owned(),
            sha256: digest(payload),
            // Every message carries the time, and is kept for weeks.
            at: at.round(jiff::Unit::Millisecond).unwrap_or(at),
            command: command.map(str::to_owned),
        };
        receipt::sign_receipt(&self.key, &statement)
    }
}

/// Returns the public key of the node with this state directory.
///
/// # Errors
/// When the node has no key yet, or its file cannot be read.
pub fn public_key(state_dir: &Path) -> Result<PublicKey, NodeKeyError> {
    read_key(state_dir).map(|key| key.public())
}

/// Loads the node key, or makes one when there is none. The caller owns the state directory.
///
/// # Errors
/// When the file cannot be read or written.
pub(in crate::agent) fn open_key(state_dir: &Path, node: &NodeId) -> Result<SigningKey, NodeKeyError> {
    match read_key(state_dir) {
        Err(NodeKeyError::None(path)) => create_key(&path, node),
        other => other,
    }
}

fn read_key(state_dir: &Path) -> Result<SigningKey, NodeKeyError> {
    let path = state_dir.join(FILE);
    let text = match fs::read_private_text(&path, KEY_MAX) {
        Ok(text) => text,
        Err(error) if error.is_not_found() => return Err(NodeKeyError::None(path)),
        Err(error) => return Err(error.into()),
    };
    SigningKey::from_openssh(&text, None).map_err(|source| NodeKeyError::Key { path, source })
}

/// Writes a new key: completely and synced, or not at all. Half a key would stop every later start.
fn create_key(path: &Path, node: &NodeId) -> Result<SigningKey, NodeKeyError> {
    let failed = |source| NodeKeyError::Key { path: path.to_owned(), source };
    let key = SigningKey::generate().map_err(failed)?;
    let text = key.to_openssh(node.as_str(), None).map_err(failed)?;
    state_dir::write_atomic(path, text.as_bytes())?;
    tracing::info!(key = %key.public(), fingerprint = key.public().fingerprint(), "made the node key");
    Ok(key)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        assert!(matches!(public_key(dir.path()), Err(NodeKeyError::None(_))));
        let made = create_key(&path, &"web1".parse().unwrap()).unwrap().public();
        assert_eq!(public_key(dir.path()).unwrap(), made);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&path, "x").unwrap();
        assert!(matches!(public_key(dir.path()), Err(NodeKeyError::Key { .. })));
    }
}
