//! The way to a fleet: who asks, which fleet, over which server, with which keys.

use std::path::PathBuf;

use clap::Args;
use jiff::Timestamp;

use crate::diag::{Diagnostic, chain};
use crate::fleet::Operator;
use crate::fleet::operator::Given;
use crate::host::{Host, fs};
use crate::transport::{Bus, TransportError};
use crate::trust::SigningKey;
use crate::wire::Subjects;

use super::super::error::{Exit, Failure};
use super::super::key::{self, Signer};
use super::super::local::OutputFormat;

/// The longest operator.toml.
const CONFIG_MAX: u64 = 1 << 20;

/// Who asks, and where.
#[derive(Debug, Clone, Default, Args)]
pub(in crate::cli) struct Context {
    /// The fleet.
    #[arg(long, global = true, env = "ENSIGN_FLEET", value_name = "NAME")]
    pub(in crate::cli) fleet: Option<String>,
    /// The NATS server; several with commas.
    #[arg(long, global = true, env = "NATS_URL", value_name = "URL")]
    pub(in crate::cli) nats: Option<String>,
    /// A private key file to sign with. May be repeated, where rules ask for several.
    #[arg(long, global = true, value_name = "FILE")]
    pub(in crate::cli) key: Vec<PathBuf>,
    /// The operator's configuration; ~/.config/ensign/operator.toml when it is there.
    #[arg(long, global = true, env = "ENSIGN_OPERATOR", value_name = "FILE")]
    pub(in crate::cli) operator: Option<PathBuf>,
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
        let path = match &self.operator {
            Some(path) => Some(path.clone()),
            None => default_config().filter(|path| path.is_file()),
        };
        let text = match &path {
            Some(path) => {
                let text = fs::read_text(path, CONFIG_MAX).map_err(|error| Failure::from_error(Exit::Usage, &error))?;
                Some((text, path))
            }
            None => None,
        };
        let given = Given { fleet: self.fleet.clone(), server: self.nats.clone(), keys: self.key.clone() };
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

fn default_config() -> Option<PathBuf> {
    let home = |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let config = home("XDG_CONFIG_HOME").or_else(|| home("HOME").map(|home| home.join(".config")))?;
    Some(config.join("ensign/operator.toml"))
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
        let hint = "use --key FILE, or set `keys` in operator.toml; `ensign key new FILE` makes one";
        return Err(Failure::usage("there is no key to sign with").hint(hint));
    }
    operator.keys.iter().map(|path| key::signer(path)).collect()
}

/// The keys in the form that signing takes.
pub(in crate::cli) fn borrowed(signers: &[Signer]) -> Vec<(&str, &SigningKey)> {
    signers.iter().map(|signer| (signer.id.as_str(), &signer.key)).collect()
}

/// What went wrong on the bus, with what to do about it. Nothing was decided: the work is incomplete.
pub(in crate::cli) fn failure(error: &TransportError) -> Failure {
    let diagnostic = Diagnostic::new(chain(error));
    let hint = match error {
        TransportError::Connect { .. } => "is the server running, and may we in? --nats URL or NATS_URL says where it is",
        TransportError::NoStream(_) => "`ensign fleet init` makes the streams of a fleet",
        TransportError::NoJetStream => "the server needs `jetstream {}` in its configuration",
        TransportError::Url(..) => "write nats://host:4222 or tls://host:4222",
        _ => return Failure::new(Exit::Incomplete, diagnostic),
    };
    let exit =
        if matches!(error, TransportError::Url(..) | TransportError::Credentials(..)) { Exit::Usage } else { Exit::Incomplete };
    Failure::new(exit, diagnostic.hint(hint))
}
