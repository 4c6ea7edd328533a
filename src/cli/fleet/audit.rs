//! `ensign fleet audit`: the audit trail, and its export for `ensign audit verify`.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::fleet::audit::export::{self, ExportLine};
use crate::fleet::audit::job_log::{self, JobLogRow};
use crate::host::fs;
use crate::model::HumanDuration;

use super::super::error::{CliError, Exit};
use super::super::ui::{Text, Tone, Ui, text};
use super::session::{FleetSession, OperatorArgs, configured_trust, connection_failure};
use crate::cli::local::inputs::OutputFormat;

#[derive(Debug, Args)]
pub(super) struct FleetAuditArgs {
    /// Age of the oldest command.
    #[arg(long, value_name = "DURATION", default_value = "7d")]
    since: HumanDuration,
    #[command(subcommand)]
    command: Option<FleetAuditCommand>,
}

#[derive(Debug, Subcommand)]
enum FleetAuditCommand {
    /// Export all records to a file: jobs, results, events and states, with their receipts.
    Export(AuditExportArgs),
}

#[derive(Debug, Args)]
struct AuditExportArgs {
    /// File to write, which must not exist; `-` is standard output.
    file: PathBuf,
    /// Age of the oldest record; all records by default.
    #[arg(long, value_name = "DURATION")]
    since: Option<HumanDuration>,
}

pub(super) async fn run(args: FleetAuditArgs, context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    match &args.command {
        Some(FleetAuditCommand::Export(export)) => write_export(export, context, ui).await,
        None => list(&args, context, ui).await,
    }
}

fn start_of(now: Timestamp, span: HumanDuration) -> Timestamp {
    let span = SignedDuration::try_from(span.as_std()).unwrap_or(SignedDuration::MAX);
    now.checked_sub(span).unwrap_or(Timestamp::UNIX_EPOCH)
}

async fn list(args: &FleetAuditArgs, context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let session = context.open().await?;
    let trust = configured_trust(&session.operator)?;
    // The states have the keys of nodes that are met for the first time.
    session.states().await?;
    let since = start_of(session.now(), args.since);
    let rows = job_log::read_job_log(&session.bus, &session.subjects, &session.node_keys, trust.as_ref(), since);
    let rows = rows.await.map_err(|error| connection_failure(&error))?;
    match session.output {
        OutputFormat::Json => ui.json(&rows),
        OutputFormat::Jsonl => rows.iter().for_each(|row| ui.jsonl(row)),
        OutputFormat::Text => print(&rows, ui),
    }
    Ok(Exit::Success)
}

fn print(rows: &[JobLogRow], ui: &mut Ui) {
    let title = text!("{:<20}  {:<36}  {:<16}  WHAT", "TIME", "ID", "SIGNED BY");
    ui.line(ui.paint(Tone::Dim, title));
    for row in rows {
        let mark = if row.signers_verified { "" } else { "?" };
        let signers = if row.signers.is_empty() { "unknown".to_owned() } else { row.signers.join(",") };
        let noop = if row.noop { " (noop)" } else { "" };
        let time = format!("{:.0}", row.time);
        let signers = format!("{signers}{mark}");
        ui.line(text!("{:<20}  {}  {:<16}  {}{} → {}", time, row.id, signers, row.action, noop, row.audience));
        let reason = row.reason.as_ref().map(|reason| text!("\"{}\"", reason));
        let counts = row.outcomes.iter().map(|(outcome, count)| text!("{} {}", count, outcome));
        let unverified = (row.unverified > 0).then(|| ui.paint(Tone::Error, text!("{} unverified", row.unverified)).into());
        let rest: Vec<Text> = reason.into_iter().chain(counts).chain(unverified).collect();
        if !rest.is_empty() {
            ui.line(text!("{:<20}  {}", "", Text::join(rest, ", ")));
        }
    }
    if rows.iter().any(|row| !row.signers_verified) {
        ui.message("? signers not checked: give --trust FILE, or set `trust` in operator.toml");
    }
}

async fn write_export(args: &AuditExportArgs, context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let session = context.open().await?;
    let since = args.since.map(|span| start_of(session.now(), span));
    let count = if args.file == Path::new("-") {
        export_to(&session, since, |line| {
            ui.data(line);
            Ok(())
        })
        .await?
    } else {
        export_to_file(&args.file, &session, since).await?
    };
    let keys =
        session.operator.known_nodes.as_ref().map_or_else(String::new, |path| format!(" --known-nodes {}", path.display()));
    ui.message(text!("{} messages; `ensign audit verify {}{}` checks them", count, args.file.display(), keys));
    Ok(Exit::Success)
}

async fn export_to_file(path: &Path, session: &FleetSession, since: Option<Timestamp>) -> Result<u64, CliError> {
    if fs::exists(path) {
        let hint = "name another file: an export overwrites none";
        return Err(CliError::usage(format!("{} exists already", path.display())).hint(hint));
    }
    let wrong = |error| CliError::from_error(Exit::Usage, &error);
    let file = fs::create_new(path, 0o600).map_err(wrong)?;
    let mut file = BufWriter::new(file);
    let count = export_to(session, since, |line| file.write_all(line)).await;
    let failed = |error| CliError::from_error(Exit::Failed, &fs::FsError::io("write", path, error));
    let written = count.and_then(|count| {
        let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
        file.sync_all().map_err(failed)?;
        Ok(count)
    });
    if written.is_err() {
        // Half of an export is useless. A failure to remove it changes nothing.
        let _removed = fs::remove(path).is_ok();
    }
    written
}

async fn export_to(
    session: &FleetSession,
    since: Option<Timestamp>,
    mut write: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> Result<u64, CliError> {
    let mut take = |line: ExportLine<'_>| {
        let mut bytes = match line {
            ExportLine::Header(opening) => encode(opening)?,
            ExportLine::Record(record) => encode(record)?,
        };
        bytes.push(b'\n');
        write(&bytes)
    };
    let fleet = &session.operator.fleet;
    let exported = export::export(&session.bus, &session.subjects, fleet, since, session.now(), &mut take).await;
    exported.map_err(|error| connection_failure(&error))?.map_err(|error| CliError::from_error(Exit::Failed, &error))
}

fn encode(value: &impl Serialize) -> std::io::Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(std::io::Error::other)
}
