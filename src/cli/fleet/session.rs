//! The way to a fleet: who asks, which fleet, over which server, with which keys.

use std::path::PathBuf;

use clap::Args;
use jiff::Timestamp;

use crate::fleet::Operator;
use crate::fleet::operator::Given;
use crate::host::Host;
use crate::transport::Bus;
use crate::trust::Sign;
use crate::wire::Subjects;

use super::super::connection::Connection;
pub(in crate::cli) use super::super::connection::failure;
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
        let given = Given { fleet: self.fleet.clone(), server: self.connection.nats.clone(), keys: self.key.clone() };
        let written = text.as_ref().map(|(text, path)| (text.as_str(), path.as_path()));
        Operator::new(given, written).map_err(|diagnostics| Failure { exit: Exit::Usage, diagnostics })
    }

    /// Opens the way to the fleet.
    ///
    /// # Errors
    /// When the configuration is wrong, or there is no server.
    pub(in crate::cli) async fn open(&self) -> Result<Session, Failure> {
        let operator = self.operator()?;
        let bus = Bus::connect(&operator.bus).await.map_err(|error| failure(&error))?;
        Ok(Session { subjects: Subjects::new(&operator.fleet), operator, bus, host: Host::system(None), output: self.output })
    }
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
