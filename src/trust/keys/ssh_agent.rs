//! Keys in an SSH agent: found by comment or fingerprint, and used like any other signer.
//!
//! The agent signs the bytes that nodes verify. So a node can't distinguish such a signature from that of a key file. `host`
//! implements the protocol of the agent.

use crate::host::ssh_agent::{SshAgent, SshAgentError, SshIdentity};
use crate::wire::pae;

use super::sign::{SignError, Signer};
use crate::trust::keys::key::PublicKey;

/// The only signature format that nodes verify.
const ED25519: &str = "ssh-ed25519";
/// The prefix of the algorithms of keys in FIDO devices.
const FIDO: &str = "sk-";

/// No usable key in the agent.
#[derive(Debug, thiserror::Error)]
pub enum AgentKeyError {
    /// The agent can't be reached.
    #[error(transparent)]
    Agent(#[from] SshAgentError),
    /// The agent has no matching key.
    #[error("the ssh-agent has no key {wanted}; it has {}", list(has))]
    None {
        /// The wanted key.
        wanted: String,
        /// The names of the keys in the agent.
        has: Vec<String>,
    },
    /// The agent has several matching keys.
    #[error("the ssh-agent has {0} keys {1}: name one by its fingerprint")]
    Several(usize, String),
    /// The key is in a FIDO device. Its signatures include a counter and flags of the device, which nodes do not know.
    #[error(
        "the key {0} is in a FIDO device ({1}), whose signatures cover more than the bytes that nodes verify; only ssh-ed25519 can sign"
    )]
    Fido(String, String),
    /// The key has another algorithm.
    #[error("the key {0} is {1}, only ssh-ed25519 can sign")]
    Algorithm(String, String),
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "no keys".to_owned() } else { names.join(", ") }
}

/// The description of a key in an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySelector {
    /// The only key that can sign.
    Only,
    /// The key of this comment, or of this fingerprint (`SHA256:...`).
    Named(String),
    /// This public key.
    Key(PublicKey),
}

impl KeySelector {
    fn matches(&self, held: &AgentIdentity) -> bool {
        match self {
            Self::Only => held.algorithm == ED25519,
            Self::Named(name) => held.identity.comment == *name || held.fingerprint == *name,
            Self::Key(key) => held.key.as_ref() == Some(key),
        }
    }

    fn description(&self) -> String {
        match self {
            Self::Only => "that can sign (ssh-ed25519)".to_owned(),
            Self::Named(name) => format!("\"{name}\""),
            Self::Key(key) => key.to_string(),
        }
    }
}

/// A key in the list of the agent.
struct AgentIdentity {
    identity: SshIdentity,
    algorithm: String,
    fingerprint: String,
    key: Option<PublicKey>,
}

impl AgentIdentity {
    fn from_identity(identity: SshIdentity) -> Self {
        let parsed = ssh_key::PublicKey::from_bytes(&identity.blob).ok();
        let key = parsed.as_ref().and_then(|key| key.key_data().ed25519()).and_then(|key| PublicKey::from_bytes(&key.0).ok());
        Self {
            algorithm: parsed
                .as_ref()
                .map_or_else(|| "of a kind that is not known here".to_owned(), |key| key.algorithm().to_string()),
            fingerprint: parsed.map(|key| key.fingerprint(ssh_key::HashAlg::Sha256).to_string()).unwrap_or_default(),
            identity,
            key,
        }
    }

    fn name(&self) -> String {
        if self.identity.comment.is_empty() { self.fingerprint.clone() } else { format!("\"{}\"", self.identity.comment) }
    }
}

/// A signer with a key in an SSH agent.
#[derive(Debug, Clone)]
pub struct AgentKey {
    agent: SshAgent,
    blob: Vec<u8>,
    public: PublicKey,
    comment: String,
}

impl AgentKey {
    /// Finds a key in an agent.
    ///
    /// # Errors
    /// When no key matches or several do, or when the key can't sign.
    pub fn find(agent: &SshAgent, wanted: &KeySelector) -> Result<Self, AgentKeyError> {
        let all: Vec<AgentIdentity> = agent.identities()?.into_iter().map(AgentIdentity::from_identity).collect();
        let has: Vec<String> = all.iter().map(AgentIdentity::name).collect();
        let mut found: Vec<AgentIdentity> = all.into_iter().filter(|held| wanted.matches(held)).collect();
        let (count, last) = (found.len(), found.pop());
        match last {
            None => Err(AgentKeyError::None { wanted: wanted.description(), has }),
            Some(_) if count > 1 => Err(AgentKeyError::Several(count, wanted.description())),
            Some(AgentIdentity { identity, key: Some(public), .. }) => {
                Ok(Self { agent: agent.clone(), blob: identity.blob, public, comment: identity.comment })
            }
            Some(held) if held.algorithm.starts_with(FIDO) => Err(AgentKeyError::Fido(held.name(), held.algorithm)),
            Some(held) => Err(AgentKeyError::Algorithm(held.name(), held.algorithm)),
        }
    }

    /// Returns the comment of the key in the agent.
    pub fn comment(&self) -> &str {
        &self.comment
    }
}

impl Signer for AgentKey {
    fn public(&self) -> PublicKey {
        self.public
    }

    fn signature(&self, payload_type: &str, payload: &[u8]) -> Result<Vec<u8>, SignError> {
        let (form, signature) = self.agent.sign(&self.blob, &pae(payload_type, payload))?;
        // Every node would reject the signature, so the operator must see the error here.
        if form != ED25519 || !self.public.verify(payload_type, payload, &signature) {
            return Err(SignError::Wrong(form));
        }
        Ok(signature)
    }
}
