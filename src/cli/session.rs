//! `ensign session`: sessions of shell scripts, shared by several `ensign ensure` commands.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::diag::Diagnostic;

use super::error::{Exit, Failure};
use super::local::{self, OutputFormat};
use super::render;
use super::ui::Ui;

/// Sessions of shell scripts.
#[derive(Debug, Subcommand)]
pub enum Sessions {
    /// Make a session and print the line that a shell evaluates to use it.
    #[command(alias = "start", alias = "create")]
    New {
        /// The directory; a temporary one when left out.
        #[arg(long)]
        directory: Option<PathBuf>,
    },
    /// Print the counts of a session.
    Report(Report),
}

/// Which session to report on, and how.
#[derive(Debug, Args)]
pub struct Report {
    /// The directory of the session.
    #[arg(long, env = "CCM_SESSION_STORE")]
    session: Option<PathBuf>,
    /// Remove it afterwards; only a session in the directory for temporary files.
    #[arg(long)]
    remove: bool,
    /// How to print it.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// `ensign session`.
pub fn session(command: &Sessions, ui: &mut Ui) -> Result<Exit, Failure> {
    match command {
        Sessions::New { directory } => new(directory.clone(), ui),
        Sessions::Report(args) => report(args, ui),
    }
}

fn new(directory: Option<PathBuf>, ui: &mut Ui) -> Result<Exit, Failure> {
    let host = local::host();
    let directory = directory.unwrap_or_else(|| std::env::temp_dir().join(format!("ensign-session-{}", host.new_id())));
    if directory.exists() {
        return Err(Failure::usage(format!("session store {} already exists", directory.display())));
    }
    let mut session = local::session(Some(&directory), ui)?;
    session.start(host.now(), host.new_id()).map_err(|error| Failure::from_error(Exit::Failed, &error))?;
    let quoted = directory.display().to_string();
    ui.line(format_args!("export CCM_SESSION_STORE={}", crate::resource::text::quote(&quoted)));
    Ok(Exit::Done)
}

fn report(args: &Report, ui: &mut Ui) -> Result<Exit, Failure> {
    let Some(directory) = &args.session else {
        return Err(
            Failure::usage("no session store specified").hint("give --session DIR, or run eval \"$(ensign session new)\" first")
        );
    };
    if !directory.is_dir() {
        return Err(Failure::usage(format!("session store {} does not exist", directory.display())));
    }
    let summary = local::session(Some(directory), ui)?.summary();
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
            return Err(Failure::new(Exit::Failed, Diagnostic::new(message)));
        }
        crate::host::fs::remove_all(directory).map_err(|error| Failure::from_error(Exit::Failed, &error))?;
    }
    Ok(Exit::Done)
}
