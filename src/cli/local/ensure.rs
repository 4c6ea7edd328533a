//! `ensign ensure`: one resource on this host, from flags or from standard input.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use crate::diag::Diagnostic;
use crate::engine::{self, Diff, Plan, RunInputs, RunSettings};
use crate::host::{Host, RunLock, account, fs};
use crate::manifest::MAX_MANIFEST;
use crate::model::{EnsureRequest, EnsureResponse, TransactionEvent};
use crate::store::Session;
use crate::store::history::{Recording, RunStart};
use crate::wire::value_decode;
use crate::yaml::YamlDocument;

use super::refreshes;
use crate::cli::args::properties::{LocalFlags, ResourceArgs};
use crate::cli::error::{CliError, Exit};
use crate::cli::local::inputs;
use crate::cli::local::inputs::{InputArgs, OutputFormat, RunWait};
use crate::cli::render;
use crate::cli::ui::{Ui, Whole, text};

/// Bring one resource of this host to its desired state.
#[derive(Debug, Args)]
pub struct LocalEnsureArgs {
    #[command(subcommand)]
    what: LocalEnsureCommand,
    #[command(flatten)]
    how: LocalEnsureOptions,
}

#[derive(Debug, Args)]
struct LocalEnsureOptions {
    /// Show what would change; change nothing.
    #[arg(long, global = true)]
    noop: bool,
    /// Show what changes in the content of files.
    #[arg(long, global = true)]
    diff: bool,
    /// Session directory that records the event, and that `--require` and `--subscribe` look into.
    #[arg(long, value_name = "DIR", env = "CCM_SESSION_STORE", hide_env_values = true, global = true)]
    session: Option<PathBuf>,
    /// Exit with 10 when something changed and nothing failed.
    #[arg(long, global = true)]
    detailed_exitcodes: bool,
    #[command(flatten)]
    patience: RunWait,
    #[command(flatten)]
    given: InputArgs,
    /// Output format.
    #[arg(long, value_enum, default_value_t, global = true)]
    output: OutputFormat,
}

#[derive(Debug, Subcommand)]
enum LocalEnsureCommand {
    #[command(flatten)]
    Resource(ResourceArgs<LocalFlags>),
    /// Serve programs: a request on standard input, a response on standard output.
    #[command(subcommand)]
    Api(EnsureApiCommand),
}

#[derive(Debug, Subcommand)]
enum EnsureApiCommand {
    /// Answer a single request, and exit with 0 after the response.
    #[command(alias = "piped")]
    Pipe {
        /// Print the response as YAML.
        #[arg(long)]
        yaml: bool,
    },
}

/// Runs `ensign ensure`.
pub fn ensure(args: LocalEnsureArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let how = args.how;
    if !how.noop {
        inputs::end_orphans(ui);
    }
    let host = inputs::host().with_directory(".").with_deadline(inputs::cancel_on_signals(), None);
    match args.what {
        LocalEnsureCommand::Resource(described) => resource(described, &how, &inputs::with_progress(host, how.output, ui), ui),
        LocalEnsureCommand::Api(EnsureApiCommand::Pipe { yaml }) => {
            let response = pipe(&how, &host, ui).unwrap_or_else(|failure| {
                let errors: Vec<String> = failure.diagnostics.iter().map(ToString::to_string).collect();
                EnsureResponse::error(errors.join("\n"))
            });
            if yaml {
                ui.data(crate::yaml::to_string(&json!(response)).as_bytes());
            } else {
                ui.json(&response);
            }
            Ok(Exit::Success)
        }
    }
}

impl LocalEnsureOptions {
    fn inputs(&self, host: &Host) -> Result<RunInputs, CliError> {
        let default = ".hiera";
        let data = self.given.data.clone().or_else(|| fs::is_file(Path::new(default)).then(|| default.to_owned()));
        InputArgs { data, ..self.given.clone() }.inputs(host)
    }

    /// Waits for the run lock; a dry run needs none.
    fn wait_for_run_lock(&self, kind: &str, name: &str, host: &Host, ui: &mut Ui) -> Result<Option<RunLock>, CliError> {
        if self.noop {
            return Ok(None);
        }
        inputs::wait_for_run_lock(&format!("ensign ensure {kind} {name}"), self.patience.wait, host, ui)
    }

    fn settings(&self, host: &Host) -> Result<RunSettings, CliError> {
        Ok(RunSettings {
            noop: self.noop,
            health_check_only: false,
            selection: None,
            outputs: engine::OutputStore::default(),
            parallelism: engine::default_parallelism(),
            diff: Diff::when(self.diff),
            omit_details: false,
            run_id: host.new_id(),
            node: None,
            authorizer: None,
            refreshes: refreshes::pending_refreshes()?,
            reversals: None,
            registrar: None,
            pseudonymize: None,
            unconfined_thread: None,
        })
    }
}

fn resource(described: ResourceArgs<LocalFlags>, how: &LocalEnsureOptions, host: &Host, ui: &mut Ui) -> Result<Exit, CliError> {
    let types = how.given.types.read()?;
    let kind = described.kind.clone();
    let mut properties = described.properties(&types)?;
    for key in ["require", "subscribe"] {
        if properties.contains_key(key) && how.session.is_none() {
            let failure = CliError::usage(format!("--{key} needs a session, which remembers earlier resources"));
            return Err(failure.hint("run eval \"$(ensign session new)\" first, or give --session DIR"));
        }
    }
    add_shell_defaults(&kind, &mut properties, host);
    let name = properties.get("name").and_then(Value::as_str).unwrap_or_default();
    let _turn = how.wait_for_run_lock(&kind, name, host, ui)?;
    let plan = plan(&kind, &Value::Object(properties), how, host)?;
    let mut session = inputs::open_session(how.session.as_deref(), ui)?;
    let (report, events) = run(&plan, how, host, session.as_mut(), ui)?;
    for event in &events {
        match how.output {
            OutputFormat::Json => ui.json(&json!({"events": [event], "summary": report.summary})),
            OutputFormat::Jsonl => ui.jsonl(event),
            OutputFormat::Text => {
                let line = render::event_line(ui, event, event.label().chars().count());
                ui.line(line.trim());
                render::program_output(event).for_each(|line| ui.line(text!("    {}", Whole(line))));
                event.diff.iter().flat_map(|diff| diff.lines()).for_each(|line| ui.line(text!("    {}", Whole(line))));
            }
        }
    }
    if let Some(error) = &report.error {
        ui.error(Diagnostic::new(format!("the session could not be written: {error}")));
    }
    Ok(inputs::exit_of_report(&report, how.detailed_exitcodes))
}

fn plan(kind: &str, properties: &Value, how: &LocalEnsureOptions, host: &Host) -> Result<Plan, CliError> {
    let inputs = how.inputs(host)?;
    let planned = match how.session {
        Some(_) => engine::plan_next(kind, properties, &inputs, host),
        None => engine::plan_one(kind, properties, &inputs, host),
    };
    planned.map_err(|diagnostics| CliError { exit: Exit::Usage, diagnostics })
}

fn run(
    plan: &Plan,
    how: &LocalEnsureOptions,
    host: &Host,
    session: &mut dyn Session,
    ui: &mut Ui,
) -> Result<(engine::RunReport, Vec<TransactionEvent>), CliError> {
    let mut events = Vec::new();
    let settings = how.settings(host)?;
    let history = inputs::history().filter(|_| !how.noop);
    let what = plan.resources.first().map(|planned| planned.reference().to_string()).unwrap_or_default();
    let start = RunStart { run_id: settings.run_id, started: host.now(), what, digest: None };
    let mut recording = Recording::begin(history.as_ref(), &start);
    let report = engine::run(plan, &settings, host, session, &mut |event| {
        recording.event(&event);
        events.push(event);
    });
    inputs::finish_recording(recording, &report, host, ui);
    Ok((report, events))
}

/// Fills in the properties that a user at a shell leaves out. See [`crate::resource::ShellDefaults`].
fn add_shell_defaults(kind: &str, properties: &mut Map<String, Value>, host: &Host) {
    let Some(kind) = crate::resource::find(kind) else { return };
    let defaults = kind.shell_defaults(properties.get("ensure").and_then(Value::as_str));
    if let Some(mode) = defaults.mode {
        properties.entry("mode").or_insert_with(|| json!(mode));
    }
    if defaults.own_account {
        properties.entry("owner").or_insert_with(|| json!(host.accounts().user_name(account::effective_uid())));
        properties.entry("group").or_insert_with(|| json!(host.accounts().group_name(account::effective_gid())));
    }
    for (property, variable) in defaults.environment {
        if let Ok(value) = std::env::var(variable) {
            properties.entry(*property).or_insert_with(|| json!(value));
        }
    }
}

fn pipe(how: &LocalEnsureOptions, host: &Host, ui: &mut Ui) -> Result<EnsureResponse, CliError> {
    let mut text = String::new();
    let limit = MAX_MANIFEST;
    std::io::stdin()
        .take(limit + 1)
        .read_to_string(&mut text)
        .map_err(|error| CliError::usage(format!("cannot read the request from standard input: {error}")))?;
    if text.len() as u64 > limit {
        return Err(CliError::usage(format!("the request is larger than {limit} bytes")));
    }
    let document = YamlDocument::parse(&text, "request").map_err(|error| CliError::new(Exit::Usage, error))?;
    if !document.value().is_object() {
        return Err(CliError::usage("invalid request: a request is a map with protocol, type and properties"));
    }
    let request: EnsureRequest = value_decode::read(document.value())
        .map_err(|error| CliError::usage(format!("invalid request: {}", crate::diag::error_chain(&error))))?;
    request.check().map_err(CliError::usage)?;
    let name = request.properties.get("name").and_then(Value::as_str).unwrap_or_default();
    let _turn = how.wait_for_run_lock(&request.kind, name, host, ui)?;
    let plan = plan(&request.kind, &request.properties, how, host)?;
    let mut session = inputs::open_session(how.session.as_deref(), ui)?;
    let (report, mut events) = run(&plan, how, host, session.as_mut(), ui)?;
    match (events.pop(), report.error) {
        (_, Some(error)) => Err(CliError::usage(error)),
        (Some(event), None) if !event.unmet_requirements.is_empty() => {
            let unmet = event.unmet_requirements.join(", ");
            Err(CliError::usage(format!("requirements of {} are not met: {unmet}", event.label())))
        }
        (Some(event), None) => Ok(EnsureResponse::state(event)),
        (None, None) => Err(CliError::usage("the request was cancelled before it ran")),
    }
}
