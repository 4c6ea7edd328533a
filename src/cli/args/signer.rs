//! The signing keys of an operator, from files or from an SSH agent, and their passphrases.

use std::path::{Path, PathBuf};

use crate::diag::{Diagnostic, error_chain};
use crate::fleet::setup::operator_config::SSH_AGENT;
use crate::host::ssh_agent::SshAgent;
use crate::host::{fs, terminal};
use crate::model::Secret;
use crate::trust::keys::ssh_agent::{AgentKey, AgentKeyError, KeySelector};
use crate::trust::{KeyError, PublicKey, Signer, SigningKey};

use crate::cli::error::{CliError, Exit};

/// Largest key file in bytes.
pub(in crate::cli) const MAX_KEY_SIZE: u64 = 64 * 1024;
/// Environment variable with a passphrase, for use without a terminal.
pub(in crate::cli) const PASSPHRASE_VARIABLE: &str = "ENSIGN_KEY_PASSPHRASE";

/// A private key to sign with, and its id in the envelope.
#[derive(Debug)]
pub struct NamedKey {
    /// The name of the key file without the ending, or the comment of the key in the agent. A hint for nodes, which try their
    /// keys of this name first.
    pub id: String,
    /// The key.
    pub key: Box<dyn Signer>,
}

/// Returns the keys in the form that signing takes.
pub fn signer_refs(signers: &[NamedKey]) -> Vec<(&str, &dyn Signer)> {
    signers.iter().map(|signer| (signer.id.as_str(), signer.key.as_ref())).collect()
}

/// Returns a key to sign with. The passphrase of a key file comes from the environment or the terminal. `ssh-agent:NAME`
/// selects a key of the agent at `SSH_AUTH_SOCK` by comment, fingerprint or public key file.
///
/// # Errors
/// When there is no such key, it can't be read, or the passphrase is wrong.
pub fn signer(path: &Path) -> Result<NamedKey, CliError> {
    if let Some(name) = path.to_str().and_then(|path| path.strip_prefix(SSH_AGENT)) {
        return ssh_agent_key(name);
    }
    Ok(NamedKey { id: stem(path), key: Box::new(read_key_file(path)?) })
}

/// Reads the private key of a file.
///
/// # Errors
/// When the file can't be read, or the passphrase is wrong.
pub(in crate::cli) fn read_key_file(path: &Path) -> Result<SigningKey, CliError> {
    let text = fs::read_private_text(path, MAX_KEY_SIZE).map_err(|error| CliError::from_error(Exit::Usage, &error))?;
    let key = match SigningKey::from_openssh(&text, None) {
        Err(KeyError::NeedsPassphrase) => {
            let passphrase = secret_from_env(PASSPHRASE_VARIABLE)
                .map_or_else(|| prompt_passphrase(&format!("passphrase for {}: ", path.display())), Ok)?;
            SigningKey::from_openssh(&text, Some(&passphrase))
        }
        other => other,
    };
    key.map_err(|error| key_file_failure(path, &error))
}

fn ssh_agent_key(name: &str) -> Result<NamedKey, CliError> {
    let Some(socket) = std::env::var_os("SSH_AUTH_SOCK").filter(|socket| !socket.is_empty()) else {
        return Err(CliError::usage("there is no ssh-agent: SSH_AUTH_SOCK is not set").hint("start one: eval \"$(ssh-agent)\""));
    };
    let (wanted, file) = parse_key_selector(name)?;
    let key = AgentKey::find(&SshAgent::at(Path::new(&socket)), &wanted).map_err(|error| {
        let failure = CliError::from_error(Exit::Usage, &error);
        match error {
            AgentKeyError::None { .. } => failure.hint("`ssh-add -l` lists its keys, `ssh-add FILE` gives it one"),
            AgentKeyError::Several(..) => failure.hint("`ssh-add -l` shows the fingerprints: ssh-agent:SHA256:..."),
            _ => failure,
        }
    })?;
    let id = file.map_or_else(|| key.comment().to_owned(), |file| stem(&file));
    Ok(NamedKey { id, key: Box::new(key) })
}

/// Returns the key that a name selects, and the file of its public half when the name is a file.
fn parse_key_selector(name: &str) -> Result<(KeySelector, Option<PathBuf>), CliError> {
    if name.is_empty() {
        return Ok((KeySelector::Only, None));
    }
    if let Ok(key) = name.parse::<PublicKey>() {
        return Ok((KeySelector::Key(key), None));
    }
    let path = Path::new(name);
    if !fs::is_file(path) {
        return Ok((KeySelector::Named(name.to_owned()), None));
    }
    let text = fs::read_named_text(path, MAX_KEY_SIZE).map_err(|error| CliError::from_error(Exit::Usage, &error))?;
    let key = text
        .parse::<PublicKey>()
        .map_err(|error| key_file_failure(path, &error).hint("a public key file belongs after ssh-agent:"))?;
    Ok((KeySelector::Key(key), Some(path.to_owned())))
}

pub(in crate::cli) fn key_file_failure(path: &Path, error: &KeyError) -> CliError {
    CliError::new(Exit::Usage, Diagnostic::new(format!("{}: {}", path.display(), error_chain(error))))
}

/// Returns the name of a file without its ending, as the id of its key.
pub(in crate::cli) fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(|| "key".to_owned(), |name| name.to_string_lossy().into_owned())
}

pub(in crate::cli) fn secret_from_env(variable: &str) -> Option<Secret> {
    std::env::var(variable).ok().filter(|value| !value.is_empty()).map(Secret::new)
}

/// Asks for a passphrase on the terminal. The program in `SSH_ASKPASS` asks instead where there is no terminal, or where
/// `SSH_ASKPASS_REQUIRE` demands it (ssh(1)).
pub(in crate::cli) fn prompt_passphrase(prompt: &str) -> Result<Secret, CliError> {
    let program = std::env::var_os("SSH_ASKPASS").filter(|program| !program.is_empty());
    let require = std::env::var("SSH_ASKPASS_REQUIRE").unwrap_or_default();
    let asked = match program {
        None => terminal::ask_secret(prompt),
        Some(program) if matches!(require.as_str(), "force" | "prefer") => terminal::ask_program(&program, prompt),
        Some(program) => terminal::ask_secret(prompt).or_else(|error| match require.as_str() {
            "never" => Err(error),
            _ => terminal::ask_program(&program, prompt),
        }),
    };
    asked.map_err(|error| {
        CliError::new(Exit::Usage, Diagnostic::new(format!("cannot ask for the passphrase: {error}"))).hint(format!(
            "without a terminal, give it in {PASSPHRASE_VARIABLE} or by SSH_ASKPASS, or make the key with --passphrase-env or --no-passphrase"
        ))
    })
}
