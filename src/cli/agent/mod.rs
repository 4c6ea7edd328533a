//! `ensign agent`: the daemon of a node, the check of its configuration, and its status on the host.

mod accept;
mod harden;
mod join;
mod location;
pub(super) mod log;
mod status;

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use clap::{Args, Subcommand};
use serde_json::json;

use crate::agent::config::connection;
use crate::agent::config::external_types::read_types;
use crate::agent::config::reload::{ReadSettings, Reload};
use crate::agent::exec::confinement;
use crate::agent::status::status_view::StatusView;
use crate::agent::trust::anchor;
use crate::agent::{self, AgentError, AgentOptions, NodeKeyError, RestartableProgram, RunBackend};
use crate::config::{AgentSettings, NatsSettings};
use crate::diag::Diagnostic;
use crate::facts;
use crate::host::{Host, fs, program::ProgramFile};
use crate::resource::Types;
use crate::trust::TrustedBundle;
use crate::web::{self, StatusSource};

use crate::cli::args::nats_context;
use crate::cli::error::{CliError, Exit};
use crate::cli::local::inputs::OutputFormat;
use crate::cli::ui::{Ui, text};

use location::{ConfigArgs, MAX_CONFIG, host_defaults};

/// Run, check and query the agent of this node.
#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Run the agent until it is asked to stop.
    Run(ConfigArgs),
    /// Join a fleet: ask with a token, wait for the admission, write agent.toml, start the agent.
    Join(join::JoinArgs),
    /// Check the configuration and the trust of the node; touch nothing.
    Check(AgentCheckArgs),
    /// Print a drop-in for the unit of the agent, without the rights that its limits do not need.
    Harden(ConfigArgs),
    /// Print the public key of the node and its fingerprint. The agent creates the key at its first start, and signs its
    /// messages with it.
    Key(AgentCheckArgs),
    /// Show the status of the agent of this host, with or without a server.
    Status(status::AgentStatusArgs),
    /// Hand a signed command to the agent of this host, as from a USB stick.
    Accept(accept::AcceptArgs),
}

/// Arguments of `ensign agent check` and `ensign agent key`.
#[derive(Debug, Args)]
pub struct AgentCheckArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// Runs `ensign agent`.
///
/// # Errors
/// When the configuration is wrong, or the agent can't start.
pub fn agent(command: &AgentCommand, ui: &mut Ui) -> Result<Exit, CliError> {
    match command {
        AgentCommand::Run(config) => run(config, ui),
        AgentCommand::Join(args) => join::run(args, ui),
        AgentCommand::Check(check) => self::check(check, ui),
        AgentCommand::Harden(config) => {
            harden::drop_in(&settings(&config.config)?).trim_end().lines().for_each(|line| ui.line(line));
            Ok(Exit::Success)
        }
        AgentCommand::Key(args) => key(args, ui),
        AgentCommand::Status(args) => status::run(args, ui),
        AgentCommand::Accept(args) => accept::run(args, ui),
    }
}

fn run(args: &ConfigArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let settings = settings(&args.config)?;
    let reload = Reload { read_settings: config_reader(&args.config), set_log: log::start_log(&settings.log) };
    ui.flush();
    let search_path = std::env::var("PATH").ok();
    let host = Host::system(search_path.as_deref());
    let gather = move |directories: &[PathBuf]| {
        let gathered = facts::gather(&host, directories);
        for warning in &gathered.warnings {
            tracing::warn!("{warning}");
        }
        gathered.value
    };
    let environ = std::env::vars_os().filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)));
    let environ = environ.collect();
    let parts = AgentOptions {
        settings,
        facts: Arc::new(gather),
        environ,
        search_path,
        platform: facts::platform_name(),
        backend: RunBackend::Engine,
        program: restartable_program(&args.config),
    };
    agent::run(parts, reload, serve_status_page).map_err(|error| failure(&error))?;
    Ok(Exit::Success)
}

/// Returns this program when a service manager started it, which then starts it again after its end.
fn restartable_program(config: &Path) -> Option<RestartableProgram> {
    std::env::var_os("NOTIFY_SOCKET")?;
    let config = std::env::current_dir().map_or_else(|_| config.to_owned(), |here| here.join(config));
    let check = ["agent", "check", "--config"].map(str::to_owned).into_iter().chain([config.to_string_lossy().into_owned()]);
    let file = std::env::current_exe().and_then(ProgramFile::at).ok()?;
    Some(RestartableProgram { file, check: check.collect() })
}

fn key(args: &AgentCheckArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let settings = settings(&args.config.config)?;
    let key = agent::public_key(&settings.state_dir).map_err(|error| node_key_failure(&error))?;
    let (line, fingerprint) = (key.to_openssh(settings.node.as_str()), key.fingerprint());
    let document = json!({
        "fleet": settings.fleet, "node": settings.node, "key": key.to_short(), "openssh": line, "fingerprint": fingerprint,
    });
    match args.output {
        OutputFormat::Text => {
            ui.line(line);
            ui.line(key.to_short());
            ui.line(fingerprint);
        }
        OutputFormat::Json => ui.json(&document),
        OutputFormat::Jsonl => ui.jsonl(&document),
    }
    Ok(Exit::Success)
}

fn node_key_failure(error: &NodeKeyError) -> CliError {
    let failure = CliError::from_error(Exit::Failed, error);
    match error {
        NodeKeyError::None(_) => failure.hint("the agent creates the key at its first start"),
        NodeKeyError::Key { .. } => failure.hint(
            "without the key the node can't sign its messages: restore the file, or remove it and run \
             `ensign fleet node forget NODE` on each machine that has the key pinned",
        ),
        NodeKeyError::File(_) | NodeKeyError::Write(_) => failure,
    }
}

/// Serves the page for monitoring beside the agent.
fn serve_status_page(view: StatusView) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    let (settings, shown) = (view.settings(), view.clone());
    let source =
        StatusSource { status: Arc::new(move || shown.status()), set_alarm: Arc::new(move |what| view.set_page_alarm(what)) };
    Box::pin(web::serve(settings, source))
}

/// Returns a function that reads the same file again, whatever the working directory is then.
fn config_reader(path: &Path) -> ReadSettings {
    let path = std::env::current_dir().map_or_else(|_| path.to_owned(), |here| here.join(path));
    Arc::new(move || settings(&path).map_err(|failure| failure.diagnostics))
}

fn failure(error: &AgentError) -> CliError {
    match error {
        AgentError::Key(error) => node_key_failure(error),
        AgentError::Anchor(error) => trust_anchor_failure(error),
        AgentError::Confinement(_) => CliError::from_error(Exit::Usage, error)
            .hint("`confine = \"auto\"` uses what the kernel has, as `ensign agent check` shows"),
        AgentError::File(_) | AgentError::Store { .. } | AgentError::Bus(_) | AgentError::System(_) => {
            CliError::from_error(Exit::Failed, error)
        }
    }
}

fn trust_anchor_failure(error: &anchor::TrustAnchorError) -> CliError {
    let failure = CliError::from_error(Exit::Usage, error);
    match error {
        anchor::TrustAnchorError::Key { .. } => failure.hint("write the line that `ensign key show` prints for the root key"),
        _ => failure,
    }
}

fn settings(path: &Path) -> Result<AgentSettings, CliError> {
    let text = fs::read_trusted_text(path, MAX_CONFIG).map_err(|error| {
        CliError::from_error(Exit::Usage, &error).hint("agent.toml.example shows every key; --config names another file")
    })?;
    let name = path.display().to_string();
    let settings = AgentSettings::read(&text, &name, &host_defaults(path)?);
    let mut settings = settings.map_err(|diagnostics| CliError { exit: Exit::Usage, diagnostics })?;
    if let Some(context) = &settings.nats.context {
        let ping_interval = settings.nats.ping_interval;
        settings.nats = NatsSettings { ping_interval, ..nats_context::load(context)? };
    }
    Ok(settings)
}

fn check(check: &AgentCheckArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let settings = settings(&check.config.config)?;
    connection::bus_settings(&settings).map_err(|error| CliError::from_error(Exit::Usage, &error))?;
    let trust = anchor::load(&settings).map_err(|error| trust_anchor_failure(&error))?;
    let now = Host::system(None).now();
    if trust.is_expired(now) {
        let message = format!("the trust bundle expired at {}: the node accepts nothing new", trust.expires());
        return Err(CliError::new(Exit::Usage, Diagnostic::new(message)).hint("publish a new version of the trust bundle"));
    }
    let kernel = confinement::ConfinementReport::new(&settings, confinement::detect_kernel());
    let (types, invalid_types) = read_types(&settings);
    invalid_types.into_iter().for_each(|why| ui.warn(Diagnostic::new(why)));
    match check.output {
        OutputFormat::Text => print_configuration(&settings, &trust, &types, &kernel, ui),
        OutputFormat::Json => ui.json(&summary(&settings, &trust, &types, &kernel)),
        OutputFormat::Jsonl => ui.jsonl(&summary(&settings, &trust, &types, &kernel)),
    }
    Ok(Exit::Success)
}

fn summary(
    settings: &AgentSettings,
    trust: &TrustedBundle,
    types: &Types,
    kernel: &confinement::ConfinementReport,
) -> serde_json::Value {
    json!({
        "fleet": settings.fleet,
        "node": settings.node,
        "hostname": settings.hostname,
        "mapped": settings.node_is_mapped(),
        "groups": settings.groups,
        "state_dir": settings.state_dir,
        "servers": settings.nats.servers,
        "trust": {"version": trust.version(), "expires": trust.expires(), "digest": trust.digest()},
        "types": types.external_names().collect::<Vec<_>>(),
        "confinement": kernel.state(),
    })
}

fn print_configuration(
    settings: &AgentSettings,
    trust: &TrustedBundle,
    types: &Types,
    kernel: &confinement::ConfinementReport,
    ui: &mut Ui,
) {
    let mapped = if settings.node_is_mapped() { format!(" (from the host name {})", settings.hostname) } else { String::new() };
    let groups = if settings.groups.is_empty() { "none".to_owned() } else { settings.groups.join(", ") };
    ui.line(text!("fleet    {}", settings.fleet));
    ui.line(text!("node     {}{}", settings.node, mapped));
    ui.line(text!("groups   {}", groups));
    ui.line(text!("state    {}", settings.state_dir.display()));
    ui.line(text!("servers  {}", settings.nats.servers.join(", ")));
    if trust.is_before_first() {
        ui.line(text!(
            "trust    no bundle yet: version 1 comes from the stream, signed by the {} root keys",
            trust.roots().len()
        ));
    } else {
        ui.line(text!("trust    version {}, until {}", trust.version(), trust.expires()));
    }
    if settings.types.dir.is_some() {
        ui.line(text!("types    {}", types.external_names().collect::<Vec<_>>().join(", ")));
    }
    ui.line(text!("kernel   {}", kernel.kernel()));
    kernel.enforced().for_each(|what| ui.line(text!("  held      {}", what)));
    kernel.unrestricted().for_each(|what| ui.line(text!("  not held  {}", what)));
}
