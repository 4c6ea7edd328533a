//! `ensign agent join`: this host asks to become a node, and becomes a node.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::json;

use crate::agent::join::{JoinError, JoinOptions, PendingJoin};
use crate::facts;
use crate::host::Host;
use crate::host::systemd::{self, Systemd, SystemdError};
use crate::model::{HumanDuration, NodeId};
use crate::transport::TransportError;
use crate::wire::join::{JoinToken, MAX_TOKEN};

use super::location::host_defaults;
use crate::cli::error::{CliError, Exit};
use crate::cli::local::inputs::OutputFormat;
use crate::cli::ui::{Ui, text};

/// The unit of the agent, as packages install it.
const UNIT: &str = "ensign-agent.service";
/// The configuration that the unit names.
const UNIT_CONFIG: &str = "/etc/ensign/agent.toml";
/// Longest wait for the start of the unit: the agent reports readiness after it opened its state.
const START_LIMIT: Duration = Duration::from_secs(90);

/// Join a fleet: ask with a token, wait for the admission, write agent.toml, start the agent.
#[derive(Debug, Args)]
pub struct JoinArgs {
    /// Join token, as `ensign fleet token` prints it; - reads standard input. Other users see arguments of commands.
    #[arg(env = "ENSIGN_JOIN_TOKEN", hide_env_values = true)]
    token: String,
    /// Id of the node; made from the host name by default.
    #[arg(long)]
    name: Option<NodeId>,
    /// Configuration to write.
    #[arg(long, value_name = "FILE", default_value = UNIT_CONFIG)]
    config: PathBuf,
    /// State directory of the agent; /var/lib/ensign for root by default.
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Write the configuration only.
    #[arg(long)]
    no_start: bool,
    /// Longest wait for the admission.
    #[arg(long, value_name = "DURATION", default_value = "10m")]
    timeout: HumanDuration,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// Runs `ensign agent join`.
///
/// # Errors
/// When the token is wrong, no operator admits the host, or a file can't be written.
pub(super) fn run(args: &JoinArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let token = JoinToken::parse(&read_token(&args.token)?)
        .map_err(|error| CliError::from_error(Exit::Usage, &error).hint("`ensign fleet token` prints a token in one line"))?;
    let defaults = host_defaults(&args.config)?;
    let node = match &args.name {
        Some(node) => node.clone(),
        None => NodeId::from_hostname(&defaults.hostname)
            .map_err(|error| CliError::from_error(Exit::Usage, &error).hint("name the node with --name"))?,
    };
    let here = |path: &Path| std::env::current_dir().map_or_else(|_| path.to_owned(), |here| here.join(path));
    let options = JoinOptions {
        token,
        node,
        hostname: defaults.hostname,
        os: facts::platform_name().unwrap_or_default(),
        config: here(&args.config),
        state_dir: here(&args.state.clone().unwrap_or(defaults.state_dir)),
    };
    let host = Host::system(None);
    let join = PendingJoin::prepare(options, host.now()).map_err(|error| failure(&error))?;
    if join.is_installed() {
        ui.message(text!("{} joined the fleet {} before", join.request.node, join.request.fleet));
    } else {
        wait_and_install(&join, args, &host, ui)?;
    }
    let (node, fleet, fingerprint) = (join.request.node.clone(), join.request.fleet.clone(), join.node_key.fingerprint());
    // The agent locks the state directory.
    drop(join);
    let is_started = !args.no_start && start_unit(&args.config, &host, ui)?;
    let document = json!({
        "fleet": fleet, "node": node, "fingerprint": fingerprint, "config": args.config, "started": is_started,
    });
    match args.output {
        OutputFormat::Text => ui.line(text!("{} is a node of the fleet {}", node, fleet)),
        OutputFormat::Json => ui.json(&document),
        OutputFormat::Jsonl => ui.jsonl(&document),
    }
    if !is_started {
        ui.message(text!("start the agent: ensign agent run --config {}", args.config.display()));
    }
    Ok(Exit::Success)
}

/// Asks, waits for the verified admission, and writes the files of the node.
fn wait_and_install(join: &PendingJoin, args: &JoinArgs, host: &Host, ui: &mut Ui) -> Result<(), CliError> {
    let (node, fingerprint) = (&join.request.node, join.node_key.fingerprint());
    ui.message(text!("{} asks to join the fleet {}: node key {}", node, join.request.fleet, fingerprint));
    ui.message(text!("an operator admits it: ensign fleet admit {} --fingerprint {}", node, fingerprint));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CliError::from_error(Exit::Failed, &error))?;
    let admitted = runtime.block_on(join.wait_for_admission(args.timeout.as_std(), || host.now()));
    let verified = admitted.map_err(|error| failure(&error))?;
    join.install(&verified).map_err(|error| failure(&error))
}

/// Returns the token of the argument, or of standard input.
fn read_token(given: &str) -> Result<String, CliError> {
    if given != "-" {
        return Ok(given.to_owned());
    }
    let mut text = String::new();
    // One byte more, so that a longer text is not taken for a token.
    let limit = MAX_TOKEN as u64 + 64;
    std::io::stdin().take(limit).read_to_string(&mut text).map_err(|error| CliError::from_error(Exit::Usage, &error))?;
    Ok(text)
}

/// Enables and starts the unit of the agent, where systemd runs and has the unit. Returns true when the unit runs.
fn start_unit(config: &Path, host: &Host, ui: &mut Ui) -> Result<bool, CliError> {
    if config != Path::new(UNIT_CONFIG) || !systemd::is_booted() {
        return Ok(false);
    }
    let failed = |error: SystemdError| {
        CliError::from_error(Exit::Failed, &error).hint("the host is a node now; start it: systemctl enable --now ensign-agent")
    };
    let systemd = Systemd::connect().map_err(failed)?;
    if systemd.unit_file_state(UNIT).map_err(failed)?.is_none() {
        ui.warn(text!("systemd has no unit {}: install it from deploy/systemd", UNIT));
        return Ok(false);
    }
    systemd.enable(UNIT, true).map_err(failed)?;
    systemd.reload().map_err(failed)?;
    match systemd.job("RestartUnit", UNIT, START_LIMIT, host.scope()).map_err(failed)?.as_deref() {
        Some("done") => Ok(true),
        other => {
            let how = other.unwrap_or("unknown");
            let failure = CliError::usage(format!("the unit {UNIT} did not start: {how}"));
            Err(CliError { exit: Exit::Failed, ..failure }.hint("the host is a node now; see: journalctl -u ensign-agent"))
        }
    }
}

fn failure(error: &JoinError) -> CliError {
    let of = |exit| CliError::from_error(exit, error);
    match error {
        JoinError::Configured(_) => of(Exit::Usage).hint("remove the file and the state directory to join another fleet"),
        JoinError::Connect(TransportError::Connect { .. }) => {
            of(Exit::Partial).hint("check the address of the server; an expired or revoked token is refused too")
        }
        JoinError::Connect(_) | JoinError::Send(_) => of(Exit::Partial).hint("run it again with the same token"),
        JoinError::Refused(_) | JoinError::NotAdmitted => {
            of(Exit::Refused).hint("the host is no node; ask the operator for another token")
        }
        JoinError::NoAnswer(..) => {
            of(Exit::Partial).hint("run it again with the same token: the host keeps its keys and its request")
        }
        JoinError::Store(_) => of(Exit::Usage).hint("an agent that runs has the state directory; name another one with --state"),
        JoinError::File(_) | JoinError::NodeKey(_) | JoinError::UserKey(..) | JoinError::MakeKey(_) | JoinError::Random(_) => {
            of(Exit::Failed)
        }
    }
}
