//! The connection to a NATS server, for every command that needs one.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::config::Nats;
use crate::diag::{Diagnostic, chain};
use crate::fleet::setup::operator_config;
use crate::host::fs;
use crate::transport::{BusSettings, TransportError};

use super::nats_context;
use crate::cli::error::{Exit, Failure};

/// Largest operator.toml in bytes.
const CONFIG_MAX: u64 = 1 << 20;

/// The server and its credentials.
#[derive(Debug, Clone, Default, Args)]
pub struct Connection {
    /// URL of the NATS server; several with commas.
    #[arg(long, global = true, env = "NATS_URL", hide_env_values = true, value_name = "URL")]
    pub nats: Option<String>,
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
    pub fn written(&self) -> Result<Option<(String, PathBuf)>, Failure> {
        let path = match &self.operator {
            Some(path) => Some(path.clone()),
            None => default_config().filter(|path| path.is_file()),
        };
        let Some(path) = path else { return Ok(None) };
        let text = fs::read_trusted_text(&path, CONFIG_MAX).map_err(|error| Failure::from_error(Exit::Usage, &error))?;
        Ok(Some((text, path)))
    }

    /// Returns the settings of the connection.
    ///
    /// # Errors
    /// When `operator.toml` can't be read, or is wrong.
    pub fn settings(&self) -> Result<BusSettings, Failure> {
        let written = self.written()?;
        let written = written.as_ref().map(|(text, path)| (text.as_str(), path.as_path()));
        let wrong = |diagnostics| Failure { exit: Exit::Usage, diagnostics };
        let context = self.context(written)?;
        operator_config::connection(self.nats.as_deref(), context.as_ref(), written).map_err(wrong)
    }

    /// Loads the context of the NATS CLI that the command line or `operator.toml` names.
    ///
    /// # Errors
    /// When the context can't be used.
    pub fn context(&self, written: Option<(&str, &Path)>) -> Result<Option<Nats>, Failure> {
        let named = match &self.context {
            Some(name) => Some(name.clone()),
            None => operator_config::context(written).map_err(|diagnostics| Failure { exit: Exit::Usage, diagnostics })?,
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
pub fn failure(error: &TransportError) -> Failure {
    let diagnostic = Diagnostic::new(chain(error));
    let hint = match error {
        TransportError::Connect { .. } => {
            "check that the server runs and accepts these credentials; --nats URL or NATS_URL names the server"
        }
        TransportError::NoStream(_) => {
            "`ensign fleet init` creates the streams of a fleet, `ensign registration init` that of registrations"
        }
        TransportError::NoJetStream => "the server needs `jetstream {}` in its configuration",
        TransportError::Url(..) => "write nats://host:4222 or tls://host:4222",
        _ => return Failure::new(Exit::Partial, diagnostic),
    };
    let exit =
        if matches!(error, TransportError::Url(..) | TransportError::Credentials(..)) { Exit::Usage } else { Exit::Partial };
    Failure::new(exit, diagnostic.hint(hint))
}
