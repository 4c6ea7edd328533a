//! The way to a fleet: who asks, which fleet, over which server, with which keys.

use std::ops::Deref;
use std::path::{Path, PathBuf};

use clap::Args;
use jiff::SignedDuration;
use uuid::Uuid;

use crate::diag::chain;
use crate::fleet::job::checked::CheckError;
use crate::fleet::setup::operator_config::CliOverrides;
use crate::fleet::targeting::node_identity;
use crate::fleet::targeting::node_identity::NodeKeysError;
use crate::fleet::{Checker, DispatchError, FleetConnection, NodeKeys, NodeStates, Operator};
use crate::host::{Host, fs};
use crate::transport::{Bus, TransportError};
use crate::trust::{Pin, Signer, TrustedBundle, open_bundle};
use crate::wire::{MAX_ENVELOPE, Target};

use super::super::error::{Exit, Failure};
use super::super::key::{self, NamedKey};
use super::super::ui::{Ui, text};
pub(in crate::cli) use crate::cli::args::connection::failure;
use crate::cli::args::connection::{Connection, config_file};
use crate::cli::local::inputs::OutputFormat;

/// Who asks, and where.
#[derive(Debug, Clone, Default, Args)]
pub(in crate::cli) struct Context {
    /// The fleet.
    #[arg(long, global = true, env = "ENSIGN_FLEET", hide_env_values = true, value_name = "NAME")]
    pub(in crate::cli) fleet: Option<String>,
    #[command(flatten)]
    pub(in crate::cli) connection: Connection,
    /// A private key to sign with: its file, or ssh-agent:NAME (comment, fingerprint or public key file) for one that
    /// the ssh-agent holds. May be repeated, where rules ask for several.
    #[arg(long, global = true, value_name = "FILE")]
    pub(in crate::cli) key: Vec<PathBuf>,
    /// The file with the public keys of nodes; known_nodes beside operator.toml when not given.
    #[arg(long, global = true, env = "ENSIGN_KNOWN_NODES", hide_env_values = true, value_name = "FILE")]
    pub(in crate::cli) known_nodes: Option<PathBuf>,
    /// The signed trust bundle, to check who signed what is on record; `trust` in operator.toml when not given.
    #[arg(long, global = true, value_name = "FILE")]
    pub(in crate::cli) trust: Option<PathBuf>,
    /// How results are written to standard output.
    #[arg(long, global = true, value_enum, default_value_t)]
    pub(in crate::cli) output: OutputFormat,
}

impl Context {
    /// The operator that flags, environment and `operator.toml` describe.
    ///
    /// # Errors
    /// When something is missing or wrong.
    pub(in crate::cli) fn operator(&self) -> Result<Operator, Failure> {
        let text = self.connection.written()?;
        let written = text.as_ref().map(|(text, path)| (text.as_str(), path.as_path()));
        let given = CliOverrides {
            fleet: self.fleet.clone(),
            server: self.connection.nats.clone(),
            context: self.connection.context(written)?,
            keys: self.key.clone(),
            known_nodes: self.known_nodes.clone(),
        };
        let mut operator = Operator::new(given, written).map_err(|diagnostics| Failure { exit: Exit::Usage, diagnostics })?;
        operator.known_nodes = operator.known_nodes.or_else(|| config_file("known_nodes"));
        operator.trust = self.trust.clone().or(operator.trust);
        Ok(operator)
    }

    /// Opens the way to the fleet.
    ///
    /// # Errors
    /// When the configuration is wrong, or there is no server.
    pub(in crate::cli) async fn open(&self) -> Result<Session, Failure> {
        let operator = self.operator()?;
        let node_keys = node_keys(&operator)?;
        let bus = Bus::connect(&operator.bus).await.map_err(|error| failure(&error))?;
        let fleet = FleetConnection::new(operator, bus, node_keys, Host::system(None)).await;
        Ok(Session { fleet, output: self.output })
    }
}

/// Clocks may differ by so much: nodes take a command that was signed so long before or after their own time.
const APART: SignedDuration = SignedDuration::from_secs(30);

/// How far clocks are apart, in words, when that is too far.
fn apart(ahead: SignedDuration) -> Option<String> {
    let direction = if ahead.is_negative() { "behind" } else { "ahead of" };
    (ahead.abs() >= APART).then(|| format!("{} s {direction}", ahead.abs().as_secs()))
}

/// The nodes whose keys the operator knows.
fn node_keys(operator: &Operator) -> Result<NodeKeys, Failure> {
    let known = operator.known_nodes.as_deref().map(node_identity::read).transpose().map_err(|error| unreadable(&error))?;
    Ok(NodeKeys::new(&operator.fleet, known.unwrap_or_default(), operator.known_nodes.clone()))
}

/// A command on record that does not count, with what to do about it.
pub(super) fn unchecked(error: &CheckError) -> Failure {
    let failure = Failure::from_error(Exit::Refused, error);
    match error {
        CheckError::NoBundle => failure.hint("give the trust bundle of the fleet: --trust FILE, or `trust` in operator.toml"),
        _ => failure.hint("what is on record at the server is not what an operator signed; nothing was signed or sent"),
    }
}

/// A command that did not go out, with what to do about it.
pub(super) fn undelivered(error: &DispatchError, session: &Session) -> Failure {
    match error {
        DispatchError::Bus(error) => failure(error),
        DispatchError::Conflict(conflict) => {
            let checked = conflict.winner.as_ref().map(|winner| session.checker().map(|checker| checker.check(&winner.envelope)));
            let who = match checked {
                Some(Ok(Ok(checked))) => format!("the signature of {} was checked", checked.signers().join(", ")),
                Some(Ok(Err(error))) => format!("its signature does not count here: {}", chain(&error)),
                _ => "its signature was not checked".to_owned(),
            };
            let hint = format!("{who}. Nothing of yours was stored: look at `ensign fleet channels`, then run it again");
            Failure::from_error(Exit::Refused, error).hint(hint)
        }
        DispatchError::NoRecord { .. } => {
            let hint = "nodes keep to it, `ensign fleet channels` shows it, and `fleet job` does not know it: assign it again";
            Failure::from_error(Exit::Partial, error).hint(hint)
        }
    }
}

/// Adds to an error of the connection the command that goes on following the job.
pub(super) fn disconnected(error: &TransportError, job: Uuid) -> Failure {
    failure(error).hint(format!("`ensign fleet job watch {job}` goes on"))
}

/// An error of the file of pinned keys.
pub(super) fn unreadable(error: &NodeKeysError) -> Failure {
    Failure::from_error(Exit::Usage, error)
}

/// A connection to a fleet, and the output format.
#[derive(Clone)]
pub(in crate::cli) struct Session {
    /// The connection.
    pub(in crate::cli) fleet: FleetConnection,
    /// The format of results on standard output.
    pub(in crate::cli) output: OutputFormat,
}

impl Deref for Session {
    type Target = FleetConnection;

    fn deref(&self) -> &FleetConnection {
        &self.fleet
    }
}

impl Session {
    /// Says that the clock of this machine is wrong, when commands would suffer from it.
    pub(in crate::cli) fn warn_of_clock(&self, ui: &mut Ui) {
        if let Some(apart) = apart(self.clock_offset) {
            let so = "nodes whose clocks are right refuse what is signed here";
            ui.warn(text!("the clock of this machine is {} the server's: {}", apart, so));
        }
    }

    /// Whether there are keys to sign with, before anything is done for what shall be signed.
    ///
    /// # Errors
    /// When there are none, or the file of one is not there.
    pub(in crate::cli) fn has_keys(&self) -> Result<(), Failure> {
        if self.operator.keys.is_empty() {
            return signers(&self.operator).map(drop);
        }
        let is_missing = |path: &&PathBuf| !path.to_string_lossy().starts_with("ssh-agent:") && !path.exists();
        match self.operator.keys.iter().find(is_missing) {
            Some(path) => key::signer(path).map(drop),
            None => Ok(()),
        }
    }

    /// What checks commands that are on record: the trust bundle, or the operator's own keys where there is none.
    ///
    /// # Errors
    /// When the bundle or a key can't be read, or is of another fleet.
    pub(in crate::cli) fn checker(&self) -> Result<Checker, Failure> {
        let trust = trust(&self.operator)?;
        let own = match &trust {
            Some(_) => Vec::new(),
            None => {
                let public = |path: &PathBuf| Ok(key::public_key(&path.to_string_lossy())?.0);
                self.operator.keys.iter().map(public).collect::<Result<_, Failure>>()?
            }
        };
        Checker::new(&self.operator.fleet, trust, own).map_err(|error| unchecked(&error))
    }

    /// Reads the latest states of the nodes. A command reads them once and passes them along.
    ///
    /// # Errors
    /// When the stream of states can't be read.
    pub(in crate::cli) async fn states(&self) -> Result<NodeStates, Failure> {
        self.read_states().await.map_err(|error| failure(&error))
    }

    /// Reads the states for a command to `to`: the keys of nodes that it names are pinned, however many others are new.
    ///
    /// # Errors
    /// As [`Session::states`].
    pub(super) async fn states_of(&self, to: &Target) -> Result<NodeStates, Failure> {
        self.expect(to);
        self.states().await
    }
}

/// The trust bundle of the operator, where one is configured.
pub(super) fn trust(operator: &Operator) -> Result<Option<TrustedBundle>, Failure> {
    operator.trust.as_deref().map(read_trust).transpose()
}

/// Reads a bundle of this machine, which the user who named the file vouches for.
pub(in crate::cli) fn read_trust(path: &Path) -> Result<TrustedBundle, Failure> {
    let bytes = fs::read_named(path, MAX_ENVELOPE as u64).map_err(|error| Failure::from_error(Exit::Usage, &error))?;
    open_bundle(&bytes, Pin::Kept).map_err(|error| Failure::from_error(Exit::Usage, &error))
}

/// The keys to sign with.
///
/// # Errors
/// When there are none, or one can't be read.
pub(in crate::cli) fn signers(operator: &Operator) -> Result<Vec<NamedKey>, Failure> {
    if operator.keys.is_empty() {
        let hint = "use --key FILE or --key ssh-agent:NAME, or set `keys` in operator.toml; `ensign key new FILE` makes one";
        return Err(Failure::usage("there is no key to sign with").hint(hint));
    }
    operator.keys.iter().map(|path| key::signer(path)).collect()
}

/// The keys in the form that signing takes.
pub(in crate::cli) fn borrowed(signers: &[NamedKey]) -> Vec<(&str, &dyn Signer)> {
    key::borrowed(signers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_may_differ_a_little() {
        let words = |seconds| apart(SignedDuration::from_secs(seconds));
        assert_eq!((words(29), words(-29)), (None, None));
        assert_eq!((words(45).as_deref(), words(-600).as_deref()), (Some("45 s ahead of"), Some("600 s behind")));
    }
}
