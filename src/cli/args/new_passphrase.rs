//! The passphrase of a new key file.

use clap::Args;

use super::signer::{prompt_passphrase, secret_from_env};
use crate::cli::error::CliError;
use crate::model::Secret;

/// The source of the passphrase of new key files; the terminal by default.
#[derive(Debug, Args)]
pub struct NewPassphraseArgs {
    /// Environment variable with the passphrase, instead of a question.
    #[arg(long, value_name = "VAR", conflicts_with = "no_passphrase")]
    passphrase_env: Option<String>,
    /// Write the private key without encryption: every user who can read the file can sign.
    #[arg(long)]
    no_passphrase: bool,
}

impl NewPassphraseArgs {
    /// Returns the passphrase for `files`, or none for files without encryption. Asks twice on a terminal.
    ///
    /// # Errors
    /// When the variable is not set, there is no terminal, or the two answers differ.
    pub(in crate::cli) fn read(&self, files: &str) -> Result<Option<Secret>, CliError> {
        if self.no_passphrase {
            return Ok(None);
        }
        if let Some(variable) = &self.passphrase_env {
            return secret_from_env(variable)
                .map(Some)
                .ok_or_else(|| CliError::usage(format!("the environment variable {variable} is not set, or empty")));
        }
        let first = prompt_passphrase(&format!("passphrase for {files}: "))?;
        if first.reveal().is_empty() {
            return Err(CliError::usage("the passphrase is empty").hint("--no-passphrase writes a key without one"));
        }
        if first != prompt_passphrase("repeat the passphrase: ")? {
            return Err(CliError::usage("the two passphrases differ"));
        }
        Ok(Some(first))
    }

    /// Returns the arguments for files without encryption.
    #[cfg(test)]
    pub(in crate::cli) fn none() -> Self {
        Self { passphrase_env: None, no_passphrase: true }
    }
}
