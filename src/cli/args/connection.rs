//! The connection to a NATS server, for every command that needs one.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::config::NatsSettings;
use crate::diag::{Diagnostic, error_chain};
use crate::fleet::setup::operator_config::{self, CliOverrides};
use crate::host::fs;
use crate::transport::{BusSettings, TransportError};

use super::nats_context;
use crate::cli::error::{CliError, Exit};

/// Largest operator.toml in bytes.
const MAX_OPERATOR_CONFIG_SIZE: u64 = 1 << 20;

/// The server and its credentials.
#[derive(Debug, Clone, Default, Args)]
pub struct Connection {
    /// URL of the NATS server; several with commas.
    #[arg(long, global = true, env = "NATS_URL", hide_env_values = true, value_name = "URL")]
    pub nats: Option<String>,
    /// JetStream domain of the streams of the fleet, from a leaf node of another domain.
    #[arg(long, global = true, value_name = "DOMAIN")]
    pub jetstream_domain: Option<String>,
    /// Context of the NATS CLI, by name or file; '' is the selected one.
    #[arg(long, global = true, env = "NATS_CONTEXT", hide_env_values = true, value_name = "NAME")]
    pub context: Option<String>,
    /// Configuration of the operator; ~/.config/ensign/operator.toml by default.
    #[arg(long, global = true, env = "ENSIGN_OPERATOR", hide_env_values = true, value_name = "FILE")]
    pub operator: Option<PathBuf>,
}

impl Connection {
    /// Returns the text of `operator.toml` and its path, when the file exists.
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn read_operator_config(&self) -> Result<Option<(String, PathBuf)>, CliError> {
        let path = match &self.operator {
            Some(path) => Some(path.clone()),
            None => default_config().filter(|path| fs::is_file(path)),
        };
        let Some(path) = path else { return Ok(None) };
        let text =
            fs::read_trusted_text(&path, MAX_OPERATOR_CONFIG_SIZE).map_err(|error| CliError::from_error(Exit::Usage, &error))?;
        Ok(Some((text, path)))
    }

    /// Returns the settings of the connection.
    ///
    /// # Errors
    /// When `operator.toml` can't be read, or is wrong.
    pub fn settings(&self) -> Result<BusSettings, CliError> {
        let written = self.read_operator_config()?;
        let written = written.as_ref().map(|(text, path)| (text.as_str(), path.as_path()));
        let wrong = |diagnostics| CliError { exit: Exit::Usage, diagnostics };
        operator_config::connection_settings(&self.overrides(written)?, written).map_err(wrong)
    }

    /// Returns the settings of the command line for the connection.
    ///
    /// # Errors
    /// When the context can't be used.
    pub fn overrides(&self, written: Option<(&str, &Path)>) -> Result<CliOverrides, CliError> {
        Ok(CliOverrides {
            server: self.nats.clone(),
            jetstream_domain: self.jetstream_domain.clone(),
            context: self.context(written)?,
            ..CliOverrides::default()
        })
    }

    /// Loads the context of the NATS CLI that the command line or `operator.toml` names.
    ///
    /// # Errors
    /// When the context can't be used.
    fn context(&self, written: Option<(&str, &Path)>) -> Result<Option<NatsSettings>, CliError> {
        let named = match &self.context {
            Some(name) => Some(name.clone()),
            None => {
                operator_config::configured_context(written).map_err(|diagnostics| CliError { exit: Exit::Usage, diagnostics })?
            }
        };
        named.map(|name| nats_context::load(&name)).transpose()
    }
}

fn default_config() -> Option<PathBuf> {
    config_file("operator.toml")
}

/// Returns the default path of a file of the operator's configuration: below `$XDG_CONFIG_HOME` or `~/.config`.
pub(in crate::cli) fn config_file(name: &str) -> Option<PathBuf> {
    let home = |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let config = home("XDG_CONFIG_HOME").or_else(|| home("HOME").map(|home| home.join(".config")))?;
    Some(config.join("ensign").join(name))
}

/// Returns the failure for an error of the bus, with a hint. The work is incomplete, as nothing was decided.
pub fn connection_failure(error: &TransportError) -> CliError {
    let diagnostic = Diagnostic::new(error_chain(error));
    let hint = match error {
        TransportError::Connect { .. } => {
            "check that the server runs and accepts these credentials; --nats URL or NATS_URL names the server"
        }
        TransportError::NoStream(_) => {
            "`ensign fleet init` creates the streams of a fleet, `ensign registration init` that of registrations"
        }
        TransportError::Denied(_) => {
            "give the user the permission in the configuration of the server: `ensign fleet init --print-permissions` prints it"
        }
        TransportError::NoJetStream => "the server needs `jetstream {}` in its configuration",
        TransportError::Url(..) => "write nats://host:4222 or tls://host:4222",
        _ => return CliError::new(Exit::Partial, diagnostic),
    };
    let exit =
        if matches!(error, TransportError::Url(..) | TransportError::Credentials(..)) { Exit::Usage } else { Exit::Partial };
    CliError::new(exit, diagnostic.hint(hint))
}
