//! The session of an operator with a fleet: the fleet, the server, the keys.

use std::ops::Deref;
use std::path::{Path, PathBuf};

use clap::Args;
use jiff::SignedDuration;
use uuid::Uuid;

use crate::diag::error_chain;
use crate::fleet::job::checked::CheckError;
use crate::fleet::setup::operator_config::CliOverrides;
use crate::fleet::targeting::node_identity;
use crate::fleet::targeting::node_identity::NodeKeysError;
use crate::fleet::{Checker, DispatchError, FleetConnection, NodeKeys, NodeStates, Operator};
use crate::host::{Host, fs};
use crate::transport::{Bus, TransportError};
use crate::trust::{BundleAuthority, Signer, TrustedBundle, open_bundle};
use crate::wire::{MAX_ENVELOPE, Target};

use super::super::error::{CliError, Exit};
use super::super::interrupt::Interrupt;
use super::super::key::{self, NamedKey};
use super::super::ui::{Ui, text};
pub(in crate::cli) use crate::cli::args::connection::connection_failure;
use crate::cli::args::connection::{Connection, config_file};
use crate::cli::local::inputs::OutputFormat;

/// The operator, the fleet and the server.
#[derive(Debug, Clone, Default, Args)]
pub(in crate::cli) struct OperatorArgs {
    /// Name of the fleet.
    #[arg(long, global = true, env = "ENSIGN_FLEET", hide_env_values = true, value_name = "NAME")]
    pub(in crate::cli) fleet: Option<String>,
    #[command(flatten)]
    pub(in crate::cli) connection: Connection,
    /// Private key to sign with: its file, or ssh-agent:NAME (comment, fingerprint or public key file). May be repeated, where
    /// rules require several.
    #[arg(long, global = true, value_name = "FILE")]
    pub(in crate::cli) key: Vec<PathBuf>,
    /// File of pinned node keys; known_nodes beside operator.toml by default.
    #[arg(long, global = true, env = "ENSIGN_KNOWN_NODES", hide_env_values = true, value_name = "FILE")]
    pub(in crate::cli) known_nodes: Option<PathBuf>,
    /// Signed trust bundle, to check the signers of records; `trust` in operator.toml by default.
    #[arg(long, global = true, value_name = "FILE")]
    pub(in crate::cli) trust: Option<PathBuf>,
    /// Output format.
    #[arg(long, global = true, value_enum, default_value_t)]
    pub(in crate::cli) output: OutputFormat,
}

impl OperatorArgs {
    /// Returns the operator that flags, environment and `operator.toml` describe.
    ///
    /// # Errors
    /// When something is missing or wrong.
    pub(in crate::cli) fn operator(&self) -> Result<Operator, CliError> {
        let text = self.connection.read_operator_config()?;
        let written = text.as_ref().map(|(text, path)| (text.as_str(), path.as_path()));
        let given = CliOverrides {
            fleet: self.fleet.clone(),
            keys: self.key.clone(),
            known_nodes: self.known_nodes.clone(),
            ..self.connection.overrides(written)?
        };
        let mut operator = Operator::new(given, written).map_err(|diagnostics| CliError { exit: Exit::Usage, diagnostics })?;
        operator.known_nodes = operator.known_nodes.or_else(|| config_file("known_nodes"));
        operator.trust = self.trust.clone().or(operator.trust);
        Ok(operator)
    }

    /// Connects to the fleet.
    ///
    /// # Errors
    /// When the configuration is wrong, or no server answers.
    pub(in crate::cli) async fn open(&self) -> Result<FleetSession, CliError> {
        let operator = self.operator()?;
        let node_keys = node_keys(&operator)?;
        let bus = Bus::connect(&operator.bus).await.map_err(|error| connection_failure(&error))?;
        let fleet = FleetConnection::new(operator, bus, node_keys, Host::system(None)).await;
        Ok(FleetSession { fleet, output: self.output, interrupt: Interrupt::default() })
    }
}

/// Largest clock difference without a warning. Nodes accept a command signed so long before or after their own time.
const MAX_CLOCK_DIFFERENCE: SignedDuration = SignedDuration::from_secs(30);

/// Describes a clock difference that is too large.
fn describe_clock_difference(ahead: SignedDuration) -> Option<String> {
    let direction = if ahead.is_negative() { "behind" } else { "ahead of" };
    (ahead.abs() >= MAX_CLOCK_DIFFERENCE).then(|| format!("{} s {direction}", ahead.abs().as_secs()))
}

/// Reads the pinned keys of nodes.
fn node_keys(operator: &Operator) -> Result<NodeKeys, CliError> {
    let known = operator
        .known_nodes
        .as_deref()
        .map(node_identity::read_pinned_keys)
        .transpose()
        .map_err(|error| node_keys_failure(&error))?;
    // Commands that need the bundle report that it is missing. Others go on without removals.
    let trust = configured_trust(operator).unwrap_or_default();
    Ok(NodeKeys::new(&operator.fleet, known.unwrap_or_default(), operator.known_nodes.clone()).with_trust(trust))
}

/// Returns the failure for a record that does not verify, with a hint.
pub(super) fn check_failure(error: &CheckError) -> CliError {
    let failure = CliError::from_error(Exit::Refused, error);
    match error {
        CheckError::NoBundle => failure.hint("give the trust bundle of the fleet: --trust FILE, or `trust` in operator.toml"),
        _ => failure.hint("the record on the server is not what an operator signed; nothing was signed or sent"),
    }
}

/// Returns the failure for a command that was not sent, with a hint.
pub(super) fn dispatch_failure(error: &DispatchError, session: &FleetSession) -> CliError {
    match error {
        DispatchError::Bus(error) => connection_failure(error),
        DispatchError::Conflict(conflict) => {
            let checked = conflict.winner.as_ref().map(|winner| session.checker().map(|checker| checker.check(&winner.envelope)));
            let who = match checked {
                Some(Ok(Ok(checked))) => format!("the signature of {} was checked", checked.signers().join(", ")),
                Some(Ok(Err(error))) => format!("its signature does not verify here: {}", error_chain(&error)),
                _ => "its signature was not checked".to_owned(),
            };
            let hint = format!("{who}. Nothing of yours was stored: look at `ensign fleet channels`, then run it again");
            CliError::from_error(Exit::Refused, error).hint(hint)
        }
        DispatchError::NoRecord { .. } => {
            let hint = "nodes apply it and `ensign fleet channels` shows it, but `fleet job` does not: assign it again";
            CliError::from_error(Exit::Partial, error).hint(hint)
        }
    }
}

/// Returns the failure of a lost connection. Its hint is the command that continues to follow the job.
pub(super) fn disconnect_failure(error: &TransportError, job: Uuid) -> CliError {
    connection_failure(error).hint(format!("`ensign fleet job watch {job}` continues"))
}

/// Returns the failure for the file of pinned keys.
pub(super) fn node_keys_failure(error: &NodeKeysError) -> CliError {
    CliError::from_error(Exit::Usage, error)
}

/// A connection to a fleet, and the output format.
#[derive(Clone)]
pub(in crate::cli) struct FleetSession {
    /// The connection.
    pub(in crate::cli) fleet: FleetConnection,
    /// The format of results on standard output.
    pub(in crate::cli) output: OutputFormat,
    /// Ctrl-C during the command.
    pub(in crate::cli) interrupt: Interrupt,
}

impl Deref for FleetSession {
    type Target = FleetConnection;

    fn deref(&self) -> &FleetConnection {
        &self.fleet
    }
}

impl FleetSession {
    /// Warns when the clock of this machine is so wrong that nodes would refuse its commands.
    pub(in crate::cli) fn warn_of_clock(&self, ui: &mut Ui) {
        if let Some(apart) = describe_clock_difference(self.clock_offset) {
            let so = "nodes with correct clocks refuse commands signed here";
            ui.warn(text!("the clock of this machine is {} the server's: {}", apart, so));
        }
    }

    /// Checks that there are keys to sign with, before any other work.
    ///
    /// # Errors
    /// When there are none, or the file of a key does not exist.
    pub(in crate::cli) fn check_keys(&self) -> Result<(), CliError> {
        if self.operator.keys.is_empty() {
            return signers(&self.operator).map(drop);
        }
        let is_missing = |path: &&PathBuf| !path.to_string_lossy().starts_with("ssh-agent:") && !fs::exists(path);
        match self.operator.keys.iter().find(is_missing) {
            Some(path) => key::signer(path).map(drop),
            None => Ok(()),
        }
    }

    /// Returns the checker of recorded commands: the trust bundle, or else the operator's own keys.
    ///
    /// # Errors
    /// When the bundle or a key can't be read, or is of another fleet.
    pub(in crate::cli) fn checker(&self) -> Result<Checker, CliError> {
        let trust = configured_trust(&self.operator)?;
        let own = match &trust {
            Some(_) => Vec::new(),
            None => {
                let public = |path: &PathBuf| Ok(key::public_key(&path.to_string_lossy())?.0);
                self.operator.keys.iter().map(public).collect::<Result<_, CliError>>()?
            }
        };
        Checker::new(&self.operator.fleet, trust, own).map_err(|error| check_failure(&error))
    }

    /// Reads the latest states of the nodes. A command reads them once and passes them along.
    ///
    /// # Errors
    /// When the stream of states can't be read.
    pub(in crate::cli) async fn states(&self) -> Result<NodeStates, CliError> {
        self.read_states().await.map_err(|error| connection_failure(&error))
    }

    /// Reads the states for a command that nodes also accept without JetStream. No node is known then.
    ///
    /// # Errors
    /// When the connection is lost, or there is no stream of states.
    pub(super) async fn states_if_available(&self, to: &Target) -> Result<NodeStates, CliError> {
        self.expect(to);
        match self.read_states().await {
            Err(error) if error.is_jetstream_failure() => {
                Ok(NodeStates { unavailable: Some(error_chain(&error)), ..NodeStates::default() })
            }
            states => states.map_err(|error| connection_failure(&error)),
        }
    }

    /// Reads the states for a command to `to`. The keys of nodes that it names are pinned, even among many other new nodes.
    ///
    /// # Errors
    /// As [`FleetSession::states`].
    pub(super) async fn states_of(&self, to: &Target) -> Result<NodeStates, CliError> {
        self.expect(to);
        self.states().await
    }
}

/// Reads the trust bundle of the operator, where one is configured.
pub(super) fn configured_trust(operator: &Operator) -> Result<Option<TrustedBundle>, CliError> {
    operator.trust.as_deref().map(read_trust).transpose()
}

/// Reads a bundle of this machine, which the user who named the file vouches for.
pub(in crate::cli) fn read_trust(path: &Path) -> Result<TrustedBundle, CliError> {
    let bytes = fs::read_named(path, MAX_ENVELOPE as u64).map_err(|error| CliError::from_error(Exit::Usage, &error))?;
    open_bundle(&bytes, BundleAuthority::Stored).map_err(|error| CliError::from_error(Exit::Usage, &error))
}

/// Reads the keys to sign with.
///
/// # Errors
/// When there are none, or one can't be read.
pub(in crate::cli) fn signers(operator: &Operator) -> Result<Vec<NamedKey>, CliError> {
    if operator.keys.is_empty() {
        let hint = "use --key FILE or --key ssh-agent:NAME, or set `keys` in operator.toml; `ensign key new FILE` creates one";
        return Err(CliError::usage("there is no key to sign with").hint(hint));
    }
    operator.keys.iter().map(|path| key::signer(path)).collect()
}

/// Returns the keys in the form that signing takes.
pub(in crate::cli) fn signer_refs(signers: &[NamedKey]) -> Vec<(&str, &dyn Signer)> {
    key::signer_refs(signers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_may_differ_a_little() {
        let words = |seconds| describe_clock_difference(SignedDuration::from_secs(seconds));
        assert_eq!((words(29), words(-29)), (None, None));
        assert_eq!((words(45).as_deref(), words(-600).as_deref()), (Some("45 s ahead of"), Some("600 s behind")));
    }
}
