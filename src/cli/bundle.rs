//! `ensign bundle`: a manifest and its files in one archive, for agents and `ensign apply`.
//!
//! `manifest::bundle` packs it. `local/manifest_source.rs` fetches and unpacks it. `fleet/source.rs` uploads it for the nodes
//! of a fleet.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use jiff::SignedDuration;
use serde::Serialize;
use serde_json::Value;

use crate::diag::count_noun;
use crate::fleet::bundles::{BundleRow, BundleUsers, RetentionRule};
use crate::host::fs::{self, FileKind, FsError, WriteSpec};
use crate::manifest::parse::{self, Declaration, Resources};
use crate::model::HumanDuration;

use super::error::{CliError, Exit};
use super::fleet::session::{OperatorArgs, connection_failure};
use super::fleet::source::{ApplySource, read_source};
use super::format::ago;
use super::ui::{Ui, text};
use crate::cli::args::connection::Connection;
use crate::cli::local::inputs::OutputFormat;
use crate::cli::local::manifest_source::ManifestSource;

/// Create, show, upload and prune bundles: a manifest with its files in one archive.
#[derive(Debug, Subcommand)]
pub enum BundleCommand {
    /// Pack a directory with a manifest.yaml. The same files always give the same bytes.
    Create(BundleCreateArgs),
    /// Show the content of a bundle and its digest.
    Show(BundleShowArgs),
    /// Upload a directory or bundle to the object store of a fleet. The nodes get no command.
    Push(BundlePushArgs),
    /// Remove the bundles of the object store that no assignment, recorded command or node uses.
    Prune(BundlePruneArgs),
}

/// Arguments of `ensign bundle create`.
#[derive(Debug, Args)]
pub struct BundleCreateArgs {
    /// Directory to pack.
    directory: PathBuf,
    /// File of the bundle; an existing file is replaced.
    file: PathBuf,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// Arguments of `ensign bundle show`.
#[derive(Debug, Args)]
pub struct BundleShowArgs {
    #[command(flatten)]
    manifest_source: ManifestSource,
    #[command(flatten)]
    connection: Connection,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// Arguments of `ensign bundle push`.
#[derive(Debug, Args)]
pub struct BundlePushArgs {
    /// Directory with a manifest.yaml, bundle, or manifest.
    path: PathBuf,
    #[command(flatten)]
    context: OperatorArgs,
}

/// Arguments of `ensign bundle prune`.
#[derive(Debug, Args)]
pub struct BundlePruneArgs {
    /// Bucket to prune; the bucket of the fleet by default.
    #[arg(long, value_name = "BUCKET")]
    bucket: Option<String>,
    /// Number of the newest unused bundles to keep.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    keep: usize,
    /// Age below which unused bundles stay.
    #[arg(long, value_name = "DURATION", default_value = "1d")]
    older_than: HumanDuration,
    /// List the bundles; remove nothing.
    #[arg(long)]
    dry_run: bool,
    /// Remove without a question.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    context: OperatorArgs,
}

/// The digest and size of a source, for a signed command.
#[derive(Debug, Serialize)]
struct PinnedSource {
    /// The path or URL of the source.
    source: String,
    /// The SHA-256 digest in hex.
    sha256: String,
    /// The size in bytes.
    size: u64,
}

/// The content of a bundle.
#[derive(Debug, Serialize)]
struct BundleContent {
    /// The source: a path, or a URL without credentials.
    source: String,
    /// The SHA-256 digest of the bundle in hex.
    sha256: String,
    /// The files, by their paths in the bundle.
    files: Vec<PackedFile>,
    /// `type#name` of each resource as written; none where a template creates the list.
    resources: Option<Vec<String>>,
}

/// A file of a bundle.
#[derive(Debug, Serialize)]
struct PackedFile {
    path: String,
    /// The size in bytes.
    size: u64,
    /// The permissions, as `0644`.
    mode: String,
}

/// Runs `ensign bundle`.
///
/// # Errors
/// When the bundle has no manifest, or can't be read, written or sent.
pub fn run(command: BundleCommand, ui: &mut Ui) -> Result<Exit, CliError> {
    match command {
        BundleCommand::Create(args) => create(&args, ui),
        BundleCommand::Show(args) => show(&args, ui),
        BundleCommand::Push(args) => {
            let runtime = tokio::runtime::Runtime::new().map_err(|error| CliError::from_error(Exit::Failed, &error))?;
            runtime.block_on(push(&args, ui))
        }
        BundleCommand::Prune(args) => {
            let runtime = tokio::runtime::Runtime::new().map_err(|error| CliError::from_error(Exit::Failed, &error))?;
            runtime.block_on(prune(&args, ui))
        }
    }
}

fn create(args: &BundleCreateArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let (directory, file) = (&args.directory, &args.file);
    if !fs::is_directory(directory) {
        let why = format!("{} is not a directory", directory.display());
        return Err(CliError::usage(why).hint("name a directory with a manifest.yaml"));
    }
    let place = std::path::absolute(file).map_err(|error| CliError::usage(format!("{}: {error}", file.display())))?;
    if place.parent().is_some_and(|above| fs::resolve_links(above).starts_with(fs::resolve_links(directory))) {
        let why = format!("{} is inside {}: the next bundle would contain this one", file.display(), directory.display());
        return Err(CliError::usage(why).hint("write the bundle to another directory"));
    }
    let content = read_source(directory, true)?;
    let spec = WriteSpec { uid: None, gid: None, mode: 0o644 };
    fs::write_atomic(&place, &mut content.as_slice(), spec).map_err(|error| CliError::from_error(Exit::Failed, &error))?;
    let pinned = PinnedSource { source: file.display().to_string(), sha256: fs::sha256(&content), size: content.len() as u64 };
    print(&pinned, args.output, ui);
    Ok(Exit::Success)
}

fn show(args: &BundleShowArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let obtained = args.manifest_source.load(&args.connection, ui)?;
    let source = &obtained.source;
    let (Some(_), Some(directory), Some(sha256)) = (&obtained.kept, &source.directory, &source.digest) else {
        return Err(
            CliError::usage(format!("{} is not a bundle", source.name)).hint("`ensign check` reads manifests and directories")
        );
    };
    let manifest = parse::parse(source).map_err(|diagnostics| CliError { exit: Exit::Usage, diagnostics })?;
    let resources = match manifest.resources {
        Resources::Inline(list) => Some(list.into_iter().map(resource_label).collect()),
        Resources::JetFile(_) => None,
    };
    let mut files = Vec::new();
    collect_files(directory, directory, &mut files).map_err(|error| CliError::from_error(Exit::Failed, &error))?;
    let shown = BundleContent { source: source.name.clone(), sha256: sha256.clone(), files, resources };
    match args.output {
        OutputFormat::Text => shown.print(ui),
        OutputFormat::Json => ui.json(&shown),
        OutputFormat::Jsonl => ui.jsonl(&shown),
    }
    Ok(Exit::Success)
}

/// Returns `type#name`; a template in the name is not rendered.
fn resource_label(mut declaration: Declaration) -> String {
    let properties = declaration.take_properties();
    format!("{}#{}", declaration.kind, properties.get("name").and_then(Value::as_str).unwrap_or_default())
}

/// Collects the files below a directory of an unpacked bundle, which has neither links nor devices.
fn collect_files(directory: &Path, top: &Path, found: &mut Vec<PackedFile>) -> Result<(), FsError> {
    for path in fs::list(directory)? {
        let Some(look) = fs::stat(&path, false)? else { continue };
        if look.kind == FileKind::Directory {
            collect_files(&path, top, found)?;
            continue;
        }
        let name = path.strip_prefix(top).unwrap_or(&path).display().to_string();
        found.push(PackedFile { path: name, size: look.size, mode: format!("{:04o}", look.mode & 0o7777) });
    }
    Ok(())
}

impl BundleContent {
    fn print(&self, ui: &mut Ui) {
        ui.line(text!("{}  sha256 {}", self.source, self.sha256));
        let width = self.files.iter().map(|file| file.size.to_string().len()).max().unwrap_or_default();
        for file in &self.files {
            ui.line(text!("  {} {:>width$}  {}", file.mode, file.size, file.path));
        }
        match &self.resources {
            Some(resources) => resources.iter().for_each(|resource| ui.line(text!("  {}", resource))),
            None => ui.line("  a template creates the resources"),
        }
    }
}

async fn push(args: &BundlePushArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let source = ApplySource::from_path(&args.path)?;
    let session = args.context.open().await?;
    let apply = source.pin(&session, ui).await?;
    print(&PinnedSource { source: apply.url, sha256: apply.sha256, size: apply.size }, args.context.output, ui);
    Ok(Exit::Success)
}

async fn prune(args: &BundlePruneArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let session = args.context.open().await?;
    let bucket = args.bucket.clone().unwrap_or_else(|| session.subjects.bucket());
    let objects = session.bus.objects(&bucket).await.map_err(|error| connection_failure(&error))?;
    let states = session.states().await?;
    let users = BundleUsers::read(&session, &states).await.map_err(|error| CliError::from_error(Exit::Partial, &error))?;
    let older_than = SignedDuration::try_from(args.older_than.as_std()).unwrap_or(SignedDuration::MAX);
    let rows = users.rows(objects, RetentionRule { keep: args.keep, older_than, now: session.server_now() });
    match session.output {
        OutputFormat::Text => rows.iter().for_each(|row| {
            let age = row.stored.map_or_else(|| "?".to_owned(), |stored| ago(stored, session.server_now()));
            let user = row.kept_for.as_deref().unwrap_or("unused");
            ui.line(text!("{:>12} {:>6}  {}  {}", row.size, age, row.key, user));
        }),
        OutputFormat::Json => ui.json(&rows),
        OutputFormat::Jsonl => rows.iter().for_each(|row| ui.jsonl(row)),
    }
    let unused: Vec<&BundleRow> = rows.iter().filter(|row| row.kept_for.is_none()).collect();
    let bytes: u64 = unused.iter().map(|row| row.size).sum();
    let counts = format!("{} of {} in {bucket}, {bytes} bytes", unused.len(), count_noun(rows.len() as u64, "object"));
    if args.dry_run || unused.is_empty() {
        ui.message(text!("unused: {}", counts));
        return Ok(Exit::Success);
    }
    if !args.yes {
        if !std::io::stdin().is_terminal() {
            return Err(CliError::usage(format!("not removed without a question: {counts}")).hint("use --yes, or --dry-run"));
        }
        if !ui.confirm(text!("Remove {}? [y/N]", counts)).map_err(|error| CliError::from_error(Exit::Failed, &error))? {
            return Ok(Exit::Partial);
        }
    }
    for row in unused {
        session.bus.object_delete(&bucket, &row.key).await.map_err(|error| connection_failure(&error))?;
    }
    ui.message(text!("removed {}", counts));
    Ok(Exit::Success)
}

fn print(pinned: &PinnedSource, output: OutputFormat, ui: &mut Ui) {
    match output {
        OutputFormat::Text => {
            ui.line(text!("{} --sha256 {} --size {}", pinned.source, pinned.sha256, pinned.size));
        }
        OutputFormat::Json => ui.json(pinned),
        OutputFormat::Jsonl => ui.jsonl(pinned),
    }
}
