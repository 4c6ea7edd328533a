//! The source of an apply or an assignment, with an address and a digest that can be signed. Local files are uploaded to the
//! object store. A URL is read once for its digest.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::Path;

use clap::Args;

use crate::diag::{Diagnostic, error_chain};
use crate::engine;
use crate::host::fs;
use crate::http::redact_url;
use crate::manifest::fetch::{self, ContentPin, FetchError};
use crate::manifest::{self, MAX_MANIFEST, bundle, open};
use crate::registry::BusObjects;
use crate::wire::command::Apply;

use super::super::error::{CliError, Exit};
use super::super::ui::{Ui, text};
use super::session::{FleetSession, connection_failure};
use crate::cli::args::types::TypesArgs;
use crate::cli::local::inputs;
use crate::cli::local::manifest_source::{BUNDLE_MAX, FETCH_TIMEOUT, exit_of};

/// Arguments that name the source of an apply or an assignment.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct SourceArgs {
    /// Directory with a manifest.yaml, bundle or manifest; or the URL of a bundle or manifest.
    pub(super) source: Option<String>,
    /// SHA-256 of the content of a URL, in hex. Without it, this command reads the URL now and signs the digest.
    #[arg(long, value_name = "HEX", requires = "size")]
    pub(super) sha256: Option<String>,
    /// Size of the content of a URL, in bytes.
    #[arg(long, value_name = "BYTES", requires = "sha256")]
    pub(super) size: Option<u64>,
}

/// A source that may have no address for nodes yet.
#[derive(Debug, PartialEq)]
pub(in crate::cli) enum ApplySource {
    /// A URL with the digest and size of its content.
    Pinned { url: String, sha256: String, size: u64 },
    /// A URL whose digest is still unknown.
    Url {
        /// The URL.
        url: String,
        /// The types for the check of its content on the read.
        check: Option<TypesArgs>,
    },
    /// Content of this machine.
    Local { content: Vec<u8>, ending: &'static str },
}

impl ApplySource {
    pub(super) fn new(args: &SourceArgs, check: Option<&TypesArgs>) -> Result<Self, CliError> {
        let Some(source) = args.source.as_deref() else {
            let hint = "name a directory, a bundle, a manifest or a URL";
            return Err(CliError::usage("no manifest or bundle named").hint(hint));
        };
        if !source.contains("://") {
            if args.sha256.is_some() {
                return Err(CliError::usage("--sha256 and --size are for URLs"));
            }
            let content = read_source(Path::new(source), check.is_some())?;
            if let Some(types) = check {
                precheck(&content, source, types)?;
            }
            return Ok(Self::from_content(content));
        }
        match (&args.sha256, args.size) {
            (Some(sha256), Some(size)) => Ok(Self::Pinned { url: source.to_owned(), sha256: sha256.clone(), size }),
            _ if source.starts_with("file:") => {
                let hint = "a path without file:// is uploaded and pinned automatically; sha256sum and stat -c %s print both";
                Err(CliError::usage(format!("{source} is a file of each node: --sha256 and --size must pin it")).hint(hint))
            }
            _ => Ok(Self::Url { url: source.to_owned(), check: check.cloned() }),
        }
    }

    /// Reads a directory, bundle or manifest of this machine.
    pub(in crate::cli) fn from_path(path: &Path) -> Result<Self, CliError> {
        Ok(Self::from_content(read_source(path, true)?))
    }

    fn from_content(content: Vec<u8>) -> Self {
        let ending = if bundle::is_bundle(&content) { "tar.gz" } else { "yaml" };
        Self::Local { content, ending }
    }

    /// Uploads local content, unless it is there already. Returns the apply for the nodes.
    pub(in crate::cli) async fn pin(self, session: &FleetSession, ui: &mut Ui) -> Result<Apply, CliError> {
        let (content, ending) = match self {
            Self::Pinned { url, sha256, size } => return Ok(Apply { url, sha256, size, data: BTreeMap::new() }),
            Self::Url { url, check } => return pin_url(url, check, session, ui).await,
            Self::Local { content, ending } => (content, ending),
        };
        let (bucket, sha256) = (session.subjects.bucket(), fs::sha256(&content));
        let key = format!("{sha256}.{ending}");
        let size = content.len() as u64;
        // An object of this name has this content: a second write would only disturb its readers.
        let there = session.bus.object_size(&bucket, &key).await.map_err(|error| connection_failure(&error))?;
        if there != Some(size) {
            session.bus.object_put(&bucket, &key, &content).await.map_err(|error| connection_failure(&error))?;
        }
        let url = format!("obj://{bucket}/{key}");
        ui.message(text!("{}, {} bytes", url, size));
        Ok(Apply { url, sha256, size, data: BTreeMap::new() })
    }
}

/// Returns the bytes that nodes get for a directory, bundle or manifest of this machine. A directory is packed.
///
/// # Errors
/// When the path is none of these, can't be read, or is larger than nodes accept.
pub(in crate::cli) fn read_source(path: &Path, check: bool) -> Result<Vec<u8>, CliError> {
    let content = if fs::is_directory(path) {
        if check {
            check_file(&path.join("manifest.yaml"))?;
        }
        bundle::pack(path).map_err(|error| CliError::usage(format!("{}: {}", path.display(), error_chain(&error))))?
    } else {
        let content = fs::read_named(path, BUNDLE_MAX).map_err(|error| CliError::from_error(Exit::Usage, &error))?;
        if check {
            check_form(&content, &path.display().to_string())?;
        }
        content
    };
    if content.len() as u64 > BUNDLE_MAX {
        return Err(CliError::usage(format!(
            "{} has {} bytes; nodes accept at most {BUNDLE_MAX}",
            path.display(),
            content.len()
        )));
    }
    Ok(content)
}

/// Reads a URL and pins its digest. Nodes accept only the same content later.
async fn pin_url(url: String, check: Option<TypesArgs>, session: &FleetSession, ui: &mut Ui) -> Result<Apply, CliError> {
    let mut content = Vec::new();
    let pin = fetch::measure(&url, BUNDLE_MAX, FETCH_TIMEOUT, &BusObjects(&session.bus), &mut content).await;
    let pin = pin.map_err(|error| read_url_failure(&error))?;
    if let Some(types) = check {
        check_form(&content, &redact_url(&url))?;
        precheck(&content, &redact_url(&url), &types)?;
    }
    ui.message(text!("{}: sha256 {}, {} bytes", redact_url(&url), pin.sha256, pin.size));
    Ok(Apply { url, sha256: pin.sha256, size: pin.size, data: BTreeMap::new() })
}

/// Returns the failure of a URL that can't be read, with a hint.
fn read_url_failure(error: &FetchError) -> CliError {
    let failure = CliError::from_error(exit_of(error), error);
    match error {
        FetchError::TooLarge { .. } | FetchError::TooLargeStream { .. } => {
            failure.hint("where `max_bundle` of the nodes allows more, --sha256 and --size pin it without reading it here")
        }
        _ => failure.hint("this machine reads it for the digest to sign; --sha256 and --size pin a URL that only nodes reach"),
    }
}

/// Checks the form of a manifest, so that no file is sent that every node would refuse.
fn check_form(content: &[u8], name: &str) -> Result<(), CliError> {
    if bundle::is_bundle(content) {
        return Ok(());
    }
    let none = |why: &str| CliError::usage(format!("{name} is neither a bundle nor a manifest: {why}"));
    if content.is_empty() {
        return Err(none("it is empty"));
    }
    if content.len() as u64 > MAX_MANIFEST {
        return Err(none(&format!("it is not packed, and has more than {MAX_MANIFEST} bytes")));
    }
    let text = std::str::from_utf8(content).map_err(|_| none("it is not text"))?;
    let source = manifest::ManifestText { text: text.to_owned(), name: name.to_owned(), directory: None, digest: None };
    parse(&source)
}

/// Checks the form of the manifest of a directory, where it is in its usual place.
fn check_file(path: &Path) -> Result<(), CliError> {
    if !fs::is_file(path) {
        return Ok(());
    }
    parse(&manifest::ManifestText::file(path).map_err(|error| CliError::from_error(Exit::Usage, &error))?)
}

/// Hint that names the flag against the check.
const NO_CHECK_HINT: &str = "nothing was signed or sent; --no-check leaves it to the nodes";

/// Returns the failure for errors that every node would report.
pub(super) fn precheck_failure(diagnostics: Vec<Diagnostic>) -> CliError {
    let failure = CliError { exit: Exit::Usage, diagnostics };
    let hint = failure.diagnostics.last().and_then(|last| last.hint.as_ref());
    let hint = hint.map_or_else(|| NO_CHECK_HINT.to_owned(), |hint| format!("{hint}; {NO_CHECK_HINT}"));
    failure.hint(hint)
}

/// Checks the manifest as far as possible without a node, so that nothing is signed that every node would refuse.
fn precheck(content: &[u8], name: &str, types: &TypesArgs) -> Result<(), CliError> {
    let failed = |error: &dyn std::error::Error| CliError::from_error(Exit::Usage, error);
    // Removed with the unpacked files on return.
    let kept = fs::private_directory().map_err(|error| failed(&error).hint("TMPDIR names another directory"))?;
    let pin = ContentPin { sha256: fs::sha256(content), size: content.len() as u64 };
    let mut source = open::open(Cursor::new(content), &pin, kept.path(), name.to_owned()).map_err(|error| failed(&error))?;
    if source.directory.is_some() {
        source.name = format!("{}/{}", name.trim_end_matches('/'), bundle::MANIFEST);
    }
    let mut host = inputs::host();
    if let Some(directory) = &source.directory {
        host = host.with_directory(directory);
    }
    engine::precheck(&source, &types.read()?, &host).map_err(precheck_failure)
}

fn parse(source: &manifest::ManifestText) -> Result<(), CliError> {
    let wrong = |diagnostics: Vec<Diagnostic>| CliError { exit: Exit::Usage, diagnostics };
    manifest::parse::parse(source).map(drop).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "ccm:\n  resources:\n    - file:\n        - /tmp/x: {ensure: absent}\n";

    fn args(source: &str) -> SourceArgs {
        SourceArgs { source: Some(source.to_owned()), ..SourceArgs::default() }
    }

    #[test]
    fn directories_are_packed_and_urls_are_seen_or_pinned() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("manifest.yaml"), MANIFEST).unwrap();
        let path = dir.path().to_str().unwrap();
        let types = TypesArgs::default();
        let check = Some(&types);
        assert!(matches!(ApplySource::new(&args(path), check).unwrap(), ApplySource::Local { ending: "tar.gz", .. }));
        assert!(matches!(
            ApplySource::new(&args(&format!("{path}/manifest.yaml")), check).unwrap(),
            ApplySource::Local { ending: "yaml", .. }
        ));
        assert_eq!(
            ApplySource::new(&args("https://x/y"), check).unwrap(),
            ApplySource::Url { url: "https://x/y".into(), check: check.cloned() }
        );
        assert!(ApplySource::new(&args("file:///x"), check).unwrap_err().message_text().contains("--sha256"));
        assert!(ApplySource::new(&args("/no/such/thing"), None).is_err());
        let pinned = SourceArgs { sha256: Some("ab".into()), size: Some(3), ..args("https://x/y") };
        assert!(matches!(ApplySource::new(&pinned, check).unwrap(), ApplySource::Pinned { size: 3, .. }));
        let here = SourceArgs { sha256: Some("ab".into()), size: Some(3), ..args(path) };
        assert!(ApplySource::new(&here, check).unwrap_err().message_text().contains("for URLs"));
    }

    #[test]
    fn what_no_node_would_take_is_not_sent() {
        for (content, said) in [
            (b"" as &[u8], "it is empty"),
            (b"\xff\xfe", "it is not text"),
            (b"<html></html>", "x:"),
            (b"ccm:\n  resources: []\n", "the list is empty"),
            (b"ccm:\n  resuorces: 1\n", "x:2:3"),
        ] {
            let failure = check_form(content, "x").unwrap_err();
            assert!(failure.exit == Exit::Usage && failure.message_text().contains(said), "{}", failure.message_text());
        }
        assert!(
            check_form("#".repeat(usize::try_from(MAX_MANIFEST).unwrap() + 1).as_bytes(), "x")
                .unwrap_err()
                .message_text()
                .contains("more than")
        );
        assert!(check_form(MANIFEST.as_bytes(), "x").is_ok() && check_form(&[0x1f, 0x8b, 0], "x").is_ok());
    }
}
