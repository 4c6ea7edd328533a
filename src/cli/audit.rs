//! `ensign audit`: verifies an export of `ensign fleet audit export`, without a server.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::diag::Diagnostic;
use crate::fleet::NodeKeys;
use crate::fleet::audit::{AuditReport, Finding, RecordError, verify};
use crate::fleet::targeting::node_identity;
use crate::host::fs::{self, FsError};

use super::error::{CliError, Exit};
use super::fleet::session::read_trust;
use super::ui::{Text, Tone, Ui, text};
use crate::cli::args::connection::{Connection, config_file};
use crate::cli::local::inputs::OutputFormat;

/// Verify an exported audit trail.
#[derive(Debug, Args)]
pub struct AuditArgs {
    #[command(subcommand)]
    command: AuditCommand,
}

#[derive(Debug, Subcommand)]
enum AuditCommand {
    /// Verify an export: receipts, hash chains, and results against commands.
    Verify(AuditVerifyArgs),
}

#[derive(Debug, Args)]
struct AuditVerifyArgs {
    /// File that `ensign fleet audit export` wrote.
    file: PathBuf,
    /// File of pinned node keys; known_nodes beside operator.toml by default.
    #[arg(long, env = "ENSIGN_KNOWN_NODES", hide_env_values = true, value_name = "FILE")]
    known_nodes: Option<PathBuf>,
    /// Signed trust bundle, to check the signers of commands.
    #[arg(long, value_name = "FILE")]
    trust: Option<PathBuf>,
    /// Configuration of the operator; ~/.config/ensign/operator.toml by default.
    #[arg(long, env = "ENSIGN_OPERATOR", hide_env_values = true, value_name = "FILE")]
    operator: Option<PathBuf>,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// An error in a line of an export: unreadable, or not a record.
#[derive(Debug, thiserror::Error)]
enum LineError {
    #[error(transparent)]
    File(#[from] FsError),
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// Runs `ensign audit`.
///
/// # Errors
/// When the export, the keys or the trust bundle can't be read.
pub fn run(args: AuditArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let AuditCommand::Verify(args) = args.command;
    let usage = |error: &dyn std::error::Error| CliError::from_error(Exit::Usage, error);
    let trust = args.trust.as_deref().map(read_trust).transpose()?;
    let path = known_nodes_path(&args)?;
    let known = node_identity::read_pinned_keys(&path).map_err(|error| usage(&error))?;
    let lines = export_lines(&args.file).map_err(|error| usage(&error))?;
    let report = verify(lines, |fleet| NodeKeys::new(fleet, known, None), trust.as_ref()).map_err(|error| usage(&error))?;
    if trust.as_ref().is_some_and(|trust| trust.fleet() != report.fleet) {
        return Err(CliError::usage(format!("the trust bundle is not of the fleet {} of the export", report.fleet)));
    }
    match args.output {
        OutputFormat::Json => ui.json(&report),
        OutputFormat::Jsonl => ui.jsonl(&report),
        OutputFormat::Text => print(&report, ui),
    }
    Ok(if report.is_clean() { Exit::Success } else { Exit::Failed })
}

fn known_nodes_path(args: &AuditVerifyArgs) -> Result<PathBuf, CliError> {
    let connection = Connection { operator: args.operator.clone(), ..Connection::default() };
    let beside = match &args.known_nodes {
        Some(path) => Some(path.clone()),
        None => crate::fleet::setup::operator_config::known_nodes_path(
            connection.read_operator_config()?.as_ref().map(|(text, path)| (text.as_str(), path.as_path())),
        )
        .map_err(|diagnostics| CliError { exit: Exit::Usage, diagnostics })?
        .or_else(|| config_file("known_nodes")),
    };
    let hint = "name the file of pinned keys: --known-nodes FILE";
    let none = || CliError::new(Exit::Usage, Diagnostic::new("no known_nodes file configured")).hint(hint);
    let path = beside.ok_or_else(none)?;
    if fs::is_file(&path) { Ok(path) } else { Err(CliError::usage(format!("cannot find {}", path.display())).hint(hint)) }
}

fn export_lines(path: &Path) -> Result<impl Iterator<Item = Result<String, LineError>>, FsError> {
    let file = BufReader::new(fs::open_named(path)?);
    let path = path.to_owned();
    Ok(file.lines().map(move |line| line.map_err(|error| FsError::io("read", &path, error).into())))
}

fn print(report: &AuditReport, ui: &mut Ui) {
    for (findings, mark, tone) in [(&report.findings, "✗", Tone::Error), (&report.notes, "-", Tone::Dim)] {
        for finding in findings {
            ui.line(text!("{} {:<14} {}", ui.paint(tone, mark), finding.kind.as_str(), subject(finding)));
        }
    }
    for (node, of) in &report.nodes {
        let chain = of.chain.map_or_else(|| "no chain".to_owned(), |(first, last)| format!("chain #{first} to #{last}"));
        let unverified = if of.unverified > 0 { format!(", {} unverified", of.unverified) } else { String::new() };
        ui.line(text!("  {:<20} {} verified{}, {}", node.as_str(), of.verified, unverified, chain));
    }
    if let Some(horizon) = report.horizon {
        ui.line(text!("  messages older than {:.0} may have expired", horizon));
    }
    let signed = if report.commands_checked { "" } else { " (signers not checked: give --trust FILE)" };
    let verdict = match report.findings.len() {
        0 => ui.paint(Tone::Success, "clean"),
        1 => ui.paint(Tone::Error, "1 finding"),
        count => ui.paint(Tone::Error, text!("{} findings", count)),
    };
    ui.line(text!("{}: {} messages, {} commands{}: {}", report.fleet, report.messages, report.commands, signed, verdict));
}

/// `web1  job 0198...: it never answered`
fn subject(finding: &Finding) -> Text {
    let node = finding.node.as_ref().map_or_else(Text::default, |node| text!("{}  ", node));
    let job = finding.job.map_or_else(Text::default, |job| text!("job {}: ", job));
    text!("{}{}{}", node, job, finding.what)
}
