//! `ensign session`: sessions of shell scripts, shared by several `ensign ensure` commands, and the history of runs.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::diag::Diagnostic;
use crate::host::fs;
use crate::model::RunOutcome;
use crate::store::history::RecordedRun;
use crate::store::{History, StoreError};

use crate::cli::error::{CliError, Exit};
use crate::cli::local::inputs;
use crate::cli::local::inputs::OutputFormat;
use crate::cli::render;
use crate::cli::ui::{Text, Tone, Ui, text};

/// Manage sessions of shell scripts, and show the runs on this host.
#[derive(Debug, Subcommand)]
pub enum SessionCommand {
    /// Create a session, and print the line that a shell evaluates to use it.
    #[command(alias = "start", alias = "create")]
    New {
        /// Directory of the session; a temporary one by default.
        #[arg(long)]
        directory: Option<PathBuf>,
    },
    /// Print the counts of a session.
    Report(SessionReportArgs),
    /// List the runs on this host, newest first.
    List(RunListArgs),
    /// Show a run on this host: its end, and every resource that was not as wanted.
    Show(RunShowArgs),
}

/// Arguments of `ensign session list`.
#[derive(Debug, Args)]
pub struct RunListArgs {
    /// Most runs to show.
    #[arg(long, default_value_t = 20)]
    limit: usize,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// Arguments of `ensign session show`.
#[derive(Debug, Args)]
pub struct RunShowArgs {
    /// Id of the run, or its beginning; the newest by default.
    id: Option<String>,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// Arguments of `ensign session report`.
#[derive(Debug, Args)]
pub struct SessionReportArgs {
    /// Directory of the session.
    #[arg(long, env = "CCM_SESSION_STORE", hide_env_values = true)]
    session: Option<PathBuf>,
    /// Remove the session afterwards, if it is in the directory for temporary files.
    #[arg(long)]
    remove: bool,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// Runs `ensign session`.
pub fn session(command: &SessionCommand, ui: &mut Ui) -> Result<Exit, CliError> {
    match command {
        SessionCommand::New { directory } => new(directory.clone(), ui),
        SessionCommand::Report(args) => report(args, ui),
        SessionCommand::List(args) => list(args, ui),
        SessionCommand::Show(args) => show(args, ui),
    }
}

fn new(directory: Option<PathBuf>, ui: &mut Ui) -> Result<Exit, CliError> {
    let host = inputs::host();
    let directory = directory.unwrap_or_else(|| std::env::temp_dir().join(format!("ensign-session-{}", host.new_id())));
    if fs::exists(&directory) {
        return Err(CliError::usage(format!("session store {} already exists", directory.display())));
    }
    let mut session = inputs::open_session(Some(&directory), ui)?;
    session.start(host.now(), host.new_id()).map_err(|error| CliError::from_error(Exit::Failed, &error))?;
    let quoted = directory.display().to_string();
    ui.line(text!("export CCM_SESSION_STORE={}", crate::resource::core::text::quote(&quoted)));
    Ok(Exit::Success)
}

fn report(args: &SessionReportArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let Some(directory) = &args.session else {
        return Err(
            CliError::usage("no session store specified").hint("give --session DIR, or run eval \"$(ensign session new)\" first")
        );
    };
    if !fs::is_directory(directory) {
        return Err(CliError::usage(format!("session store {} does not exist", directory.display())));
    }
    let summary = inputs::open_session_directory(directory, ui)?.summary();
    match args.output {
        OutputFormat::Text => {
            let line = render::summary_line(ui, &summary, false);
            ui.line(line);
        }
        OutputFormat::Json => ui.json(&summary),
        OutputFormat::Jsonl => ui.jsonl(&summary),
    }
    if args.remove {
        if !directory.starts_with(std::env::temp_dir()) {
            let message = format!("{} is not in the directory for temporary files; it is left as it is", directory.display());
            return Err(CliError::new(Exit::Failed, Diagnostic::new(message)));
        }
        fs::remove_all(directory).map_err(|error| CliError::from_error(Exit::Failed, &error))?;
    }
    Ok(Exit::Success)
}

fn history() -> Result<History, CliError> {
    let none = || CliError::usage("no history is kept here").hint("ENSIGN_HISTORY is off, or there is no home directory");
    inputs::history().ok_or_else(none)
}

fn list(args: &RunListArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let (mut runs, unread) = history()?.list().map_err(|error| CliError::from_error(Exit::Failed, &error))?;
    unread.iter().for_each(|why| ui.warn(why));
    runs.truncate(args.limit);
    match args.output {
        OutputFormat::Json => ui.json(&runs),
        OutputFormat::Jsonl => runs.iter().for_each(|run| ui.jsonl(run)),
        OutputFormat::Text if runs.is_empty() => ui.message("no runs are recorded"),
        OutputFormat::Text => runs.iter().for_each(|run| {
            let line = run_line(run, ui);
            ui.line(line);
        }),
    }
    Ok(Exit::Success)
}

/// `01a1…  2026-11-21T15:20:00Z  changed      3 resources, 1 changed     site.yaml`
fn run_line(run: &RecordedRun, ui: &Ui) -> Text {
    let (word, tone) = outcome(run);
    let counts = run.end.as_ref().map_or_else(String::new, |end| {
        let summary = &end.summary;
        let of = [(summary.changed_resources, "changed"), (summary.failed_resources, "failed")];
        let notable: String =
            of.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!(", {count} {what}")).collect();
        format!("{}{notable}", crate::diag::count_noun(summary.total_resources, "resource"))
    });
    let started = run.start.started.strftime("%Y-%m-%dT%H:%M:%SZ");
    let word = ui.paint(tone, word);
    text!("{}  {}  {:<11}  {:<34}  {}", run.start.run_id, started, word, counts, run.start.what)
}

fn outcome(run: &RecordedRun) -> (&'static str, Tone) {
    match run.end.as_ref().map(|end| end.outcome) {
        Some(RunOutcome::Stable) => ("stable", Tone::Success),
        Some(RunOutcome::Changed) => ("changed", Tone::Changed),
        Some(RunOutcome::Failed) => ("failed", Tone::Error),
        Some(RunOutcome::Interrupted) => ("interrupted", Tone::Error),
        None if run.running => ("running", Tone::Changed),
        None => ("killed", Tone::Error),
    }
}

fn show(args: &RunShowArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let run = history()?.find(args.id.as_deref()).map_err(|error| {
        let failure = CliError::from_error(Exit::Usage, &error);
        if matches!(error, StoreError::UnknownRun(_) | StoreError::AmbiguousRun(_)) {
            failure.hint("`ensign session list` shows the ids")
        } else {
            failure
        }
    })?;
    match args.output {
        OutputFormat::Json => ui.json(&run),
        OutputFormat::Jsonl => ui.jsonl(&run),
        OutputFormat::Text => {
            let line = run_line(&run, ui);
            ui.line(line);
            let width = render::label_width(run.events.iter().map(|event| event.label().chars().count()));
            for event in &run.events {
                let line = render::event_line(ui, event, width);
                ui.line(line);
            }
            if let Some(end) = &run.end {
                ui.line("");
                let line = render::summary_line(ui, &end.summary, false);
                ui.line(line);
            }
        }
    }
    Ok(Exit::Success)
}
