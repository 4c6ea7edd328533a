//! The way to a fleet: who asks, which fleet, over which server, with which keys.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use jiff::Timestamp;

use crate::fleet::operator::Given;
use crate::fleet::roster::{self, RosterError};
use crate::fleet::{Operator, Roster, States, select};
use crate::host::Host;
use crate::transport::Bus;
use crate::trust::Sign;
use crate::wire::Subjects;

pub(in crate::cli) use super::super::connection::failure;
use super::super::connection::{Connection, config_file};
use super::super::error::{Exit, Failure};
use super::super::key::{self, Signer};
use super::super::local::OutputFormat;

/// Who asks, and where.
#[derive(Debug, Clone, Default, Args)]
pub(in crate::cli) struct Context {
    /// The fleet.
    #[arg(long, global = true, env = "ENSIGN_FLEET", value_name = "NAME")]
    pub(in crate::cli) fleet: Option<String>,
    #[command(flatten)]
    pub(in crate::cli) connection: Connection,
    /// A private key to sign with: its file, or ssh-agent:NAME (comment, fingerprint or public key file) for one that
    /// the ssh-agent holds. May be repeated, where rules ask for several.
    #[arg(long, global = true, value_name = "FILE")]
    pub(in crate::cli) key: Vec<PathBuf>,
    /// The file with the public keys of nodes; known_nodes beside operator.toml when not given.
    #[arg(long, global = true, env = "ENSIGN_KNOWN_NODES", value_name = "FILE")]
    pub(in crate::cli) known_nodes: Option<PathBuf>,
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
        let given = Given {
            fleet: self.fleet.clone(),
            server: self.connection.nats.clone(),
            context: self.connection.context(written)?,
            keys: self.key.clone(),
            known_nodes: self.known_nodes.clone(),
        };
        let mut operator = Operator::new(given, written).map_err(|diagnostics| Failure { exit: Exit::Usage, diagnostics })?;
        operator.known_nodes = operator.known_nodes.or_else(|| config_file("known_nodes"));
        Ok(operator)
    }

    /// Opens the way to the fleet.
    ///
    /// # Errors
    /// When the configuration is wrong, or there is no server.
    pub(in crate::cli) async fn open(&self) -> Result<Session, Failure> {
        let operator = self.operator()?;
        let roster = Arc::new(roster(&operator)?);
        let bus = Bus::connect(&operator.bus).await.map_err(|error| failure(&error))?;
        let subjects = Subjects::new(&operator.fleet);
        Ok(Session { subjects, operator, bus, roster, host: Host::system(None), output: self.output })
    }
}

/// The nodes whose keys the operator knows.
fn roster(operator: &Operator) -> Result<Roster, Failure> {
    let known = operator.known_nodes.as_deref().map(roster::read).transpose().map_err(|error| unreadable(&error))?;
    Ok(Roster::new(&operator.fleet, known.unwrap_or_default(), operator.known_nodes.clone()))
}

pub(super) fn unreadable(error: &RosterError) -> Failure {
    Failure::from_error(Exit::Usage, error)
}

/// A connection to a fleet, and who has it.
#[derive(Clone)]
pub(in crate::cli) struct Session {
    /// Who asks.
    pub(in crate::cli) operator: Operator,
    /// The connection.
    pub(in crate::cli) bus: Bus,
    /// The subjects of the fleet.
    pub(in crate::cli) subjects: Subjects,
    /// Whose word is believed.
    pub(in crate::cli) roster: Arc<Roster>,
    /// Clock and ids.
    pub(in crate::cli) host: Host,
    /// How results are written.
    pub(in crate::cli) output: OutputFormat,
}

impl Session {
    /// The time.
    pub(in crate::cli) fn now(&self) -> Timestamp {
        self.host.now()
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

    /// The latest states of the nodes.
    ///
    /// # Errors
    /// When they can't be read.
    pub(in crate::cli) async fn states(&self) -> Result<States, Failure> {
        select::states(&self.bus, &self.subjects, &self.roster, self.now()).await.map_err(|error| failure(&error))
    }
}

/// The keys to sign with.
///
/// # Errors
/// When there are none, or one can't be read.
pub(in crate::cli) fn signers(operator: &Operator) -> Result<Vec<Signer>, Failure> {
    if operator.keys.is_empty() {
        let hint = "use --key FILE or --key ssh-agent:NAME, or set `keys` in operator.toml; `ensign key new FILE` makes one";
        return Err(Failure::usage("there is no key to sign with").hint(hint));
    }
    operator.keys.iter().map(|path| key::signer(path)).collect()
}

/// The keys in the form that signing takes.
pub(in crate::cli) fn borrowed(signers: &[Signer]) -> Vec<(&str, &dyn Sign)> {
    key::borrowed(signers)
}
