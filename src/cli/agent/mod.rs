//! `ensign agent`: the daemon of a node, the check of its configuration, and its status on the host.

mod accept;
mod harden;
pub(super) mod log;
mod status;

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use crate::agent::config::connection;
use crate::agent::config::reload::{Reload, Reread};
use crate::agent::endpoints::socket_client::SocketError;
use crate::agent::exec::confinement;
use crate::agent::status::view::StatusView;
use crate::agent::trust::anchor;
use crate::agent::{self, AgentError, AgentOptions, NodeKeyError, Work};
use crate::config::{self, Nats, Settings, Surroundings};
use crate::diag::Diagnostic;
use crate::facts;
use crate::host::{Host, account, fs, kernel};
use crate::trust::TrustedBundle;
use crate::web::{self, Source};

use super::error::{Exit, Failure};
use super::ui::{Ui, text};
use crate::cli::args::nats_context;

/// Largest configuration in bytes.
const MAX_CONFIG: u64 = 1 << 20;

/// Run, check and query the agent of this node.
#[derive(Debug, Subcommand)]
pub enum Agent {
    /// Run the agent until it is asked to stop.
    Run(Config),
    /// Check the configuration and the trust of the node; touch nothing.
    Check(Check),
    /// Print a drop-in for the unit of the agent, without the rights that its limits do not need.
    Harden(Config),
    /// Print the public key of the node and its fingerprint. The agent creates the key at its first start, and signs its
    /// messages with it.
    Key(Check),
    /// Show the status of the agent of this host, with or without a server.
    Status(status::Status),
    /// Hand a signed command to the agent of this host, as from a USB stick.
    Accept(accept::Accept),
}

/// Arguments that name the configuration.
#[derive(Debug, Args)]
pub struct Config {
    /// Configuration of the agent.
    #[arg(long, value_name = "FILE", default_value = "/etc/ensign/agent.toml")]
    config: PathBuf,
}

/// Arguments that name the agent of this host.
#[derive(Debug, Args)]
pub(super) struct Where {
    #[command(flatten)]
    config: Config,
    /// State directory of the agent; that of the configuration by default.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

impl Where {
    /// Returns the state directory of the agent. A configuration that became wrong does not prevent the query.
    fn state_dir(&self, ui: &mut Ui) -> Result<PathBuf, Failure> {
        if let Some(given) = &self.state_dir {
            return Ok(given.clone());
        }
        let path = &self.config.config;
        let around = surroundings(path)?;
        match fs::read_named_text(path, MAX_CONFIG) {
            Ok(text) => Ok(config::state_dir(&text, &around)),
            Err(error) => {
                let assumed = around.state_dir;
                ui.warn(text!("{}; assuming the state directory {}", crate::diag::chain(&error), assumed.display()));
                Ok(assumed)
            }
        }
    }
}

/// Returns the failure for an agent of this host that does not answer, with a hint.
fn unreached(error: &SocketError) -> Failure {
    let failure = Failure::from_error(Exit::Partial, error);
    match error {
        SocketError::NotRunning(..) => failure.hint(
            "start it with `systemctl start ensign-agent`; if it runs with other files, name them with --config or --state-dir",
        ),
        SocketError::Denied(..) => failure.hint("ask as root, or as the user that the agent runs as"),
        SocketError::Silent(_) | SocketError::Said(_) => failure,
    }
}

/// Arguments of `ensign agent check` and `ensign agent key`.
#[derive(Debug, Args)]
pub struct Check {
    #[command(flatten)]
    config: Config,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// Output formats.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Output {
    /// Text for people.
    #[default]
    Text,
    /// A JSON document.
    Json,
    /// A JSON document on one line.
    Jsonl,
}

/// Runs `ensign agent`.
///
/// # Errors
/// When the configuration is wrong, or the agent can't start.
pub fn agent(command: &Agent, ui: &mut Ui) -> Result<Exit, Failure> {
    match command {
        Agent::Run(config) => run(config, ui),
        Agent::Check(check) => self::check(check, ui),
        Agent::Harden(config) => {
            harden::drop_in(&settings(&config.config)?).trim_end().lines().for_each(|line| ui.line(line));
            Ok(Exit::Success)
        }
        Agent::Key(args) => key(args, ui),
        Agent::Status(args) => status::run(args, ui),
        Agent::Accept(args) => accept::run(args, ui),
    }
}

fn run(args: &Config, ui: &mut Ui) -> Result<Exit, Failure> {
    let settings = settings(&args.config)?;
    let reload = Reload { reread: reread(&args.config), log: log::begin(&settings.log) };
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
        work: Work::Engine,
    };
    agent::run(parts, reload, page).map_err(|error| failure(&error))?;
    Ok(Exit::Success)
}

fn key(args: &Check, ui: &mut Ui) -> Result<Exit, Failure> {
    let settings = settings(&args.config.config)?;
    let key = agent::public_key(&settings.state_dir).map_err(|error| no_key(&error))?;
    let (line, fingerprint) = (key.to_openssh(settings.node.as_str()), key.fingerprint());
    let document = json!({
        "fleet": settings.fleet, "node": settings.node, "key": key.to_short(), "openssh": line, "fingerprint": fingerprint,
    });
    match args.output {
        Output::Text => {
            ui.line(line);
            ui.line(key.to_short());
            ui.line(fingerprint);
        }
        Output::Json => ui.json(&document),
        Output::Jsonl => ui.jsonl(&document),
    }
    Ok(Exit::Success)
}

fn no_key(error: &NodeKeyError) -> Failure {
    let failure = Failure::from_error(Exit::Failed, error);
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
fn page(view: StatusView) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    let (settings, shown) = (view.settings(), view.clone());
    let source = Source { status: Arc::new(move || shown.status()), trouble: Arc::new(move |what| view.page_trouble(what)) };
    Box::pin(web::serve(settings, source))
}

/// Returns a function that reads the same file again, whatever the working directory is then.
fn reread(path: &Path) -> Reread {
    let path = std::env::current_dir().map_or_else(|_| path.to_owned(), |here| here.join(path));
    Arc::new(move || settings(&path).map_err(|failure| failure.diagnostics))
}

fn failure(error: &AgentError) -> Failure {
    match error {
        AgentError::Key(error) => no_key(error),
        AgentError::Anchor(error) => untrusted(error),
        AgentError::Confinement(_) => Failure::from_error(Exit::Usage, error)
            .hint("`confine = \"auto\"` uses what the kernel has, as `ensign agent check` shows"),
        AgentError::File(_) | AgentError::Store { .. } | AgentError::Bus(_) | AgentError::System(_) => {
            Failure::from_error(Exit::Failed, error)
        }
    }
}

fn untrusted(error: &anchor::TrustAnchorError) -> Failure {
    let failure = Failure::from_error(Exit::Usage, error);
    match error {
        anchor::TrustAnchorError::Key { .. } => failure.hint("write the line that `ensign key show` prints for the root key"),
        _ => failure,
    }
}

fn settings(path: &Path) -> Result<Settings, Failure> {
    let text = fs::read_trusted_text(path, MAX_CONFIG).map_err(|error| {
        Failure::from_error(Exit::Usage, &error).hint("agent.toml.example shows every key; --config names another file")
    })?;
    let name = path.display().to_string();
    let settings = Settings::read(&text, &name, &surroundings(path)?);
    let mut settings = settings.map_err(|diagnostics| Failure { exit: Exit::Usage, diagnostics })?;
    if let Some(context) = &settings.nats.context {
        let ping_interval = settings.nats.ping_interval;
        settings.nats = Nats { ping_interval, ..nats_context::load(context)? };
    }
    Ok(settings)
}

fn surroundings(path: &Path) -> Result<Surroundings, Failure> {
    let names = kernel::names().map_err(|error| Failure::from_error(Exit::Failed, &error))?;
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    let directory = here.join(path.parent().unwrap_or(Path::new("")));
    Ok(Surroundings { hostname: names.hostname, state_dir: state_dir(), directory })
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

fn check(check: &Check, ui: &mut Ui) -> Result<Exit, Failure> {
    let settings = settings(&check.config.config)?;
    connection::bus_settings(&settings).map_err(|error| Failure::from_error(Exit::Usage, &error))?;
    let trust = anchor::load(&settings).map_err(|error| untrusted(&error))?;
    let now = Host::system(None).now();
    if trust.is_expired(now) {
        let message = format!("the trust bundle expired at {}: the node accepts nothing new", trust.expires());
        return Err(Failure::new(Exit::Usage, Diagnostic::new(message)).hint("publish a new version of the trust bundle"));
    }
    let kernel = confinement::Report::of(&settings, confinement::kernel());
    match check.output {
        Output::Text => say(&settings, &trust, &kernel, ui),
        Output::Json => ui.json(&summary(&settings, &trust, &kernel)),
        Output::Jsonl => ui.jsonl(&summary(&settings, &trust, &kernel)),
    }
    Ok(Exit::Success)
}

fn summary(settings: &Settings, trust: &TrustedBundle, kernel: &confinement::Report) -> serde_json::Value {
    json!({
        "fleet": settings.fleet,
        "node": settings.node,
        "hostname": settings.hostname,
        "mapped": settings.node_is_mapped(),
        "groups": settings.groups,
        "state_dir": settings.state_dir,
        "servers": settings.nats.servers,
        "trust": {"version": trust.version(), "expires": trust.expires(), "digest": trust.digest()},
        "confinement": kernel.state(),
    })
}

fn say(settings: &Settings, trust: &TrustedBundle, kernel: &confinement::Report, ui: &mut Ui) {
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
    ui.line(text!("kernel   {}", kernel.kernel()));
    kernel.held().for_each(|what| ui.line(text!("  held      {}", what)));
    kernel.unrestricted().for_each(|what| ui.line(text!("  not held  {}", what)));
}
