//! Shared parts of the local commands: the host, the facts, the data, the session, the exit code.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::diag::Diagnostic;
use crate::engine::{RunInputs, RunReport};
use crate::host::{Cancel, Host, Journal, LockMode, RunLock, RunLockError, account, fs, orphans, run_lock};
use crate::manifest::MAX_MANIFEST;
use crate::model::{DiscoveryClient, HumanDuration, RunOutcome, WatchTarget, merge};
use crate::registry::Registry;
use crate::store::history::{Recording, RunEnd};
use crate::store::{DirectorySession, History, MemorySession, Session};
use crate::transport::BusSettings;
use crate::wire::registration;
use crate::yaml::YamlDocument;
use crate::{data, facts};

use super::dotenv;
use crate::cli::args::connection::Connection;
use crate::cli::args::types::TypesArgs;
use crate::cli::error::{CliError, Exit};
use crate::cli::ui;
use crate::cli::ui::Ui;
use crate::cli::user_state;

/// Output formats of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum OutputFormat {
    /// Text for people.
    #[default]
    Text,
    /// A JSON document.
    Json,
    /// A JSON document per line, as events happen.
    Jsonl,
}

/// Facts and data from the command line.
#[derive(Debug, Clone, Default, Args)]
pub struct InputArgs {
    /// Additional fact, as text. May be repeated.
    #[arg(long = "fact", value_name = "NAME=VALUE", global = true)]
    pub facts: Vec<String>,
    /// YAML or JSON file of additional facts; `--fact` wins.
    #[arg(long = "facts", value_name = "FILE", global = true)]
    pub facts_file: Option<PathBuf>,
    /// Data for templates from a YAML or JSON file (or `https://...`, `kv://BUCKET/KEY`), merged over that of the manifest. A
    /// single resource uses `.hiera` of this directory when it exists.
    #[arg(long = "data", alias = "hiera", value_name = "SOURCE", env = "CCM_HIERA_DATA", hide_env_values = true, global = true)]
    pub data: Option<String>,
    /// Add the variables of `.env`, in this directory and beside the manifest, to the environment that templates see
    /// (the default).
    #[arg(long, overrides_with = "no_read_env", global = true)]
    pub read_env: bool,
    /// Ignore `.env`.
    #[arg(long, overrides_with = "read_env", global = true)]
    pub no_read_env: bool,
    /// The resource types.
    #[command(flatten)]
    pub types: TypesArgs,
    /// The server that templates may ask.
    #[command(flatten)]
    pub connection: Connection,
    /// Stream of registrations.
    #[arg(short = 'R', long = "registration", value_name = "STREAM", default_value = registration::STREAM, global = true)]
    pub registration: String,
}

/// Returns the host for commands on this machine.
pub fn host() -> Host {
    let path = std::env::var("PATH").ok();
    let host = match command_journals() {
        Some(directory) => Host::with_journal(path.as_deref(), Arc::new(Journal::in_directory(directory))),
        None => Host::system(path.as_deref()),
    };
    host.with_listener(ui::listener(false))
}

/// Returns the directory with the commands of active local runs, which a reboot removes together with the commands.
fn command_journals() -> Option<PathBuf> {
    let named = std::env::var_os("ENSIGN_RUNTIME").is_some_and(|value| !value.is_empty());
    run_lock::runtime_directory(|name| std::env::var_os(name))
        .map(|directory| if named { directory } else { directory.join("commands") })
}

/// Waits until no other run changes the host. Returns no lock where the lock can't be used.
///
/// # Errors
/// When another run takes longer than `wait`, or this one is cancelled.
pub fn wait_for_run_lock(what: &str, wait: HumanDuration, host: &Host, ui: &mut Ui) -> Result<Option<RunLock>, CliError> {
    let Some(path) = run_lock::path(|name| std::env::var_os(name)) else { return Ok(None) };
    let until = Instant::now() + wait.as_std();
    let waiting = |holder: &run_lock::RunLockHolder| host.notify(&format!("waiting for another run: {holder}"));
    match RunLock::acquire(&path, what, LockMode::Exclusive, until, host, &waiting) {
        Ok(turn) => Ok(Some(turn)),
        Err(RunLockError::File(error)) => {
            let diagnostic =
                Diagnostic::new(format!("cannot use the run lock of this host: {}", crate::diag::error_chain(&error)));
            ui.warn(diagnostic.hint("set ENSIGN_RUNTIME to another directory, or to off"));
            Ok(None)
        }
        Err(error @ RunLockError::Busy(_)) => {
            let failure = CliError::new(Exit::Partial, Diagnostic::new(format!("{error}; nothing was run")));
            Err(failure.hint(format!("wait longer than {wait} with --wait")))
        }
        Err(error @ RunLockError::RunEnded(_)) => Err(CliError::from_error(Exit::Partial, &error)),
    }
}

/// Ends the processes that killed local runs left.
pub fn end_orphans(ui: &mut Ui) {
    let left = command_journals().and_then(|directory| orphans::sweep(&directory).report());
    if let Some(report) = left {
        ui.warn(Diagnostic::new(report));
    }
}

/// Returns the history of the runs of this host (for root), or of this user; none when disabled.
pub fn history() -> Option<History> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    match variable("ENSIGN_HISTORY") {
        Some(off) if off.as_os_str() == "off" => None,
        Some(directory) => Some(History::in_directory(directory)),
        None if account::effective_uid() == 0 => Some(History::in_directory("/var/lib/ensign/runs")),
        None => user_state::path("runs").map(History::in_directory),
    }
}

/// Ends the record of a run.
pub fn finish_recording(recording: Recording, report: &RunReport, host: &Host, ui: &mut Ui) {
    let end = RunEnd { ended: host.now(), outcome: report.outcome, summary: report.summary.clone() };
    if let Err(error) = recording.end(&end) {
        let diagnostic = Diagnostic::new(format!("the run is not in the history: {}", crate::diag::error_chain(&error)));
        ui.warn(diagnostic.hint("set ENSIGN_HISTORY to another directory, or to off"));
    }
}

/// Returns the host with progress for a user, where results are for people and there is a terminal.
pub fn with_progress(host: Host, output: OutputFormat, ui: &Ui) -> Host {
    host.with_listener(ui::listener(ui.is_watched() && output == OutputFormat::Text))
}

/// Returns the directories in which an administrator puts additional facts; later ones win.
pub fn facts_directories() -> Vec<PathBuf> {
    let home = std::env::var_os("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".config")))
        .filter(|path| path.is_absolute());
    let system = ["/etc/choria/ccm", "/etc/ensign"].map(PathBuf::from);
    let own = home.into_iter().flat_map(|home| [home.join("choria/ccm"), home.join("ensign")]);
    system.into_iter().chain(own).collect()
}

impl InputArgs {
    /// Returns the facts of files and flags.
    ///
    /// # Errors
    /// When a flag or a file can't be read.
    pub fn added_facts(&self) -> Result<Value, CliError> {
        let mut added = match &self.facts_file {
            Some(file) => match document(file)?.value() {
                Value::Object(map) => map.clone(),
                _ => return Err(CliError::usage(format!("{}: a file of facts must be a map", file.display()))),
            },
            None => Map::new(),
        };
        for fact in &self.facts {
            let (name, value) = fact
                .split_once('=')
                .ok_or_else(|| CliError::usage(format!("--fact \"{fact}\" has no value")).hint("write --fact name=value"))?;
            added.insert(name.to_owned(), Value::String(value.to_owned()));
        }
        Ok(Value::Object(added))
    }

    /// Returns the files that the facts, the environment and the data come from, missing ones too. `directory` is that of the
    /// manifest.
    pub fn watches(&self, directory: Option<&Path>) -> Vec<WatchTarget> {
        let data = match self.data.as_ref().map(|source| source.parse()) {
            Some(Ok(data::source::DataSource::File(path))) => Some(path),
            _ => None,
        };
        let variables = if self.no_read_env { Vec::new() } else { dotenv_files(directory) };
        let files = self.facts_file.iter().cloned().chain(data).chain(variables);
        let absolute = files.filter_map(|path| std::path::absolute(path).ok()).map(WatchTarget::Path);
        absolute.chain(facts_directories().into_iter().map(WatchTarget::Tree)).collect()
    }

    /// Returns the bucket and the key of the data, and the settings of the connection; none for data from elsewhere.
    ///
    /// # Errors
    /// When the settings of the connection are wrong.
    pub fn watched_value(&self) -> Result<Option<(BusSettings, String, String)>, CliError> {
        match self.data.as_ref().map(|source| source.parse()) {
            Some(Ok(data::source::DataSource::Bucket { bucket, key })) => Ok(Some((self.connection.settings()?, bucket, key))),
            _ => Ok(None),
        }
    }

    /// Returns the bus, which connects on first use.
    pub fn exchange(&self) -> Arc<dyn DiscoveryClient> {
        let connection = self.connection.clone();
        let settings = move || connection.settings().map_err(|failure| failure.message_text());
        Arc::new(Registry::with_own_bus(settings, self.registration.clone()))
    }

    /// Returns the inputs of templates: the facts of the host, gathered on first use, the environment, the data.
    ///
    /// # Errors
    /// When a flag or a file can't be read.
    pub fn inputs(&self, host: &Host) -> Result<RunInputs, CliError> {
        let added = self.added_facts()?;
        let (host, scope_host, directory) = (host.clone(), host.clone(), host.directory().map(PathBuf::from));
        let gather = move || {
            let gathered = facts::gather(&host, &facts_directories());
            merge::deep_merge(gathered.value, added.clone())
        };
        let mut environ = environment();
        if !self.no_read_env {
            environ.extend(dotenv::read(&dotenv_files(directory.as_deref()))?);
        }
        let mut inputs = RunInputs::new(gather, environ, None);
        inputs.types = self.types.read()?;
        inputs.exchange = Some(self.exchange());
        if let Some(source) = &self.data {
            let (resolved, rules) = resolve_data(source, &inputs, &scope_host)?;
            (inputs.data, inputs.rules) = (Some(resolved.data), rules);
        }
        Ok(inputs)
    }
}

/// Returns the environment of this process, as far as it is text.
pub fn environment() -> BTreeMap<String, String> {
    std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))).collect()
}

/// Returns the files of variables: of this directory, then beside the manifest, which win.
fn dotenv_files(manifest: Option<&Path>) -> Vec<PathBuf> {
    let here = PathBuf::from(".env");
    let beside = manifest.map(|directory| directory.join(".env"));
    std::iter::once(here).chain(beside).collect()
}

/// Reads a YAML or JSON file that the command line names.
///
/// # Errors
/// When the file can't be read.
pub fn document(file: &Path) -> Result<YamlDocument, CliError> {
    let text = fs::read_named_text(file, MAX_MANIFEST).map_err(|error| CliError::from_error(Exit::Usage, &error))?;
    YamlDocument::parse(&text, &file.display().to_string()).map_err(|error| CliError::new(Exit::Usage, error))
}

/// Resolves the data of a source like that of a manifest, with the demands of its annotations.
///
/// # Errors
/// When the data can't be read or resolved.
pub fn resolve_data(source: &str, inputs: &RunInputs, host: &Host) -> Result<(data::ResolvedData, data::Annotations), CliError> {
    let from: data::source::DataSource = source.parse().map_err(CliError::usage)?;
    let wrong = |diagnostic: Diagnostic| CliError::new(Exit::Usage, diagnostic);
    let document = match &from {
        // The named file may be a pipe.
        data::source::DataSource::File(path) => document(path)?,
        from => data::source::read(from, host, inputs.exchange.as_deref()).map_err(wrong)?.document,
    };
    inputs.resolve(&document, host).map_err(wrong)
}

/// Opens the session of a command: a directory when one is given, else memory.
///
/// # Errors
/// When the directory can't be used.
pub fn open_session(directory: Option<&Path>, ui: &mut Ui) -> Result<Box<dyn Session>, CliError> {
    match directory {
        None => Ok(Box::new(MemorySession::default())),
        Some(directory) => Ok(Box::new(open_session_directory(directory, ui)?)),
    }
}

/// Opens the session in this directory.
///
/// # Errors
/// When the directory can't be used.
pub fn open_session_directory(directory: &Path, ui: &mut Ui) -> Result<DirectorySession, CliError> {
    let session = DirectorySession::open(directory).map_err(|error| CliError::from_error(Exit::Usage, &error))?;
    for warning in session.warnings() {
        ui.warn(warning);
    }
    Ok(session)
}

/// The wait for the run lock.
#[derive(Debug, Clone, Copy, Args)]
pub struct RunWait {
    /// Longest wait for another run of this host, as of an agent; 0 for none.
    #[arg(long, value_name = "TIME", default_value = "5m", global = true)]
    pub wait: HumanDuration,
}

/// Returns a flag that is set when the user or the system asks the program to end.
///
/// Commands run in process groups of their own, so a Ctrl-C reaches them through this flag only. No thread waits for the
/// signal: a second thread would slow down every system call and allocation of a run.
pub fn cancel_on_signals() -> Cancel {
    let cancel = Cancel::default();
    for signal in [SIGINT, SIGTERM] {
        // Where the signal can't be caught, it ends the program at once.
        let _caught = signal_hook::flag::register(signal, cancel.flag());
    }
    cancel
}

/// Returns the exit code of a command that ended with this report.
pub fn exit_of_report(report: &RunReport, detailed: bool) -> Exit {
    match report.outcome {
        _ if report.error.is_some() => Exit::Failed,
        RunOutcome::Interrupted => Exit::Partial,
        RunOutcome::Failed => Exit::Failed,
        RunOutcome::Changed if detailed => Exit::Changed,
        RunOutcome::Changed | RunOutcome::Stable => Exit::Success,
    }
}
