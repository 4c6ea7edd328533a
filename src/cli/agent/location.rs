//! The location of the agent of this host: its configuration and its state directory.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::agent::endpoints::socket_client::SocketError;
use crate::cli::error::{CliError, Exit};
use crate::cli::ui::{Ui, text};
use crate::config::{self, HostDefaults};
use crate::host::{account, fs, kernel};

/// Largest configuration in bytes.
pub(super) const MAX_CONFIG: u64 = 1 << 20;

/// Arguments that name the configuration.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// Configuration of the agent.
    #[arg(long, value_name = "FILE", default_value = "/etc/ensign/agent.toml")]
    pub(super) config: PathBuf,
}

/// Arguments that name the agent of this host.
#[derive(Debug, Args)]
pub(super) struct AgentLocationArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// State directory of the agent; that of the configuration by default.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

impl AgentLocationArgs {
    /// Returns the state directory of the agent. A configuration that became wrong does not prevent the query.
    pub(super) fn state_dir(&self, ui: &mut Ui) -> Result<PathBuf, CliError> {
        if let Some(given) = &self.state_dir {
            return Ok(given.clone());
        }
        let path = &self.config.config;
        let around = host_defaults(path)?;
        match fs::read_named_text(path, MAX_CONFIG) {
            Ok(text) => Ok(config::state_dir(&text, &around)),
            Err(error) => {
                let assumed = around.state_dir;
                ui.warn(text!("{}; assuming the state directory {}", crate::diag::error_chain(&error), assumed.display()));
                Ok(assumed)
            }
        }
    }
}

/// Returns the defaults of a configuration at `path` on this host.
pub(super) fn host_defaults(path: &Path) -> Result<HostDefaults, CliError> {
    let names = kernel::names().map_err(|error| CliError::from_error(Exit::Failed, &error))?;
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    let directory = here.join(path.parent().unwrap_or(Path::new("")));
    Ok(HostDefaults { hostname: names.hostname, state_dir: state_dir(), directory })
}

/// Returns the default state directory, which depends on the user that runs the program.
fn state_dir() -> PathBuf {
    let absolute = |path: PathBuf| Some(path).filter(|path| path.is_absolute());
    let own = || {
        std::env::var_os("XDG_STATE_HOME")
            .and_then(|state| absolute(PathBuf::from(state)))
            .or_else(|| std::env::var_os("HOME").and_then(|home| absolute(Path::new(&home).join(".local/state"))))
    };
    if account::effective_uid() == 0 {
        return PathBuf::from("/var/lib/ensign");
    }
    own().map_or_else(|| PathBuf::from("/var/lib/ensign"), |state| state.join("ensign"))
}

/// Returns the failure for an agent of this host that does not answer, with a hint.
pub(super) fn unreachable_agent(error: &SocketError) -> CliError {
    let failure = CliError::from_error(Exit::Partial, error);
    match error {
        SocketError::NotRunning(..) => failure.hint(
            "start it with `systemctl start ensign-agent`; if it runs with other files, name them with --config or --state-dir",
        ),
        SocketError::Denied(..) => failure.hint("ask as root, or as the user that the agent runs as"),
        SocketError::NoAnswer(_) | SocketError::Rejected(_) => failure,
    }
}
