//! What is applied or assigned, and how it gets an address and a digest that can be signed: a directory or file of this machine
//! is put into the object store, what is behind a URL is read once to know what it is.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::Path;

use clap::Args;

use crate::diag::{Diagnostic, chain};
use crate::engine;
use crate::host::fs;
use crate::http::shown;
use crate::manifest::fetch::{self, FetchError, Pin};
use crate::manifest::{self, MAX_MANIFEST, bundle, open};
use crate::registry::Objects;
use crate::wire::command::Apply;

use super::super::error::{Exit, Failure};
use super::super::ui::{Ui, text};
use super::session::{Session, failure};
use crate::cli::local::inputs;
use crate::cli::local::manifest_source::{BUNDLE_MAX, FETCH, exit_of};

/// What is to be applied.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct SourceArgs {
    /// A directory with a manifest.yaml, a bundle, a manifest; or the URL of one.
    pub(super) source: Option<String>,
    /// The SHA-256 of what is behind a URL, in hex. When it is not given, the URL is read here to see what it gives now, and that
    /// is signed.
    #[arg(long, value_name = "HEX", requires = "size")]
    pub(super) sha256: Option<String>,
    /// The size of what is behind a URL, in bytes.
    #[arg(long, value_name = "BYTES", requires = "sha256")]
    pub(super) size: Option<u64>,
}

/// What is to be applied, before it has an address that nodes can reach.
#[derive(Debug, PartialEq)]
pub(in crate::cli) enum Source {
    /// Behind a URL, with what it must be.
    Pinned { url: String, sha256: String, size: u64 },
    /// Behind a URL: what it is shall be seen.
    Behind {
        /// Where.
        url: String,
        /// True when it is checked then.
        check: bool,
    },
    /// Here.
    Here { content: Vec<u8>, ending: &'static str },
}

impl Source {
    pub(super) fn new(args: &SourceArgs, check: bool) -> Result<Self, Failure> {
        let Some(source) = args.source.as_deref() else {
            let hint = "name a directory, a bundle, a manifest or a URL";
            return Err(Failure::usage("what is to be applied is not said").hint(hint));
        };
        if !source.contains("://") {
            if args.sha256.is_some() {
                return Err(Failure::usage("--sha256 and --size are for URLs"));
            }
            let content = packed(Path::new(source), check)?;
            if check {
                precheck(&content, source)?;
            }
            return Ok(Self::of(content));
        }
        match (&args.sha256, args.size) {
            (Some(sha256), Some(size)) => Ok(Self::Pinned { url: source.to_owned(), sha256: sha256.clone(), size }),
            _ if source.starts_with("file:") => {
                let hint = "a path without file:// is uploaded and pinned by itself; sha256sum and stat -c %s say both of a file";
                Err(Failure::usage(format!("{source} is a file of each node: --sha256 and --size must say what it is"))
                    .hint(hint))
            }
            _ => Ok(Self::Behind { url: source.to_owned(), check }),
        }
    }

    /// A directory, bundle or manifest of this machine.
    pub(in crate::cli) fn here(path: &Path) -> Result<Self, Failure> {
        Ok(Self::of(packed(path, true)?))
    }

    fn of(content: Vec<u8>) -> Self {
        let ending = if bundle::is_bundle(&content) { "tar.gz" } else { "yaml" };
        Self::Here { content, ending }
    }

    /// Puts it where nodes find it, unless it is there.
    pub(in crate::cli) async fn pin(self, session: &Session, ui: &mut Ui) -> Result<Apply, Failure> {
        let (content, ending) = match self {
            Self::Pinned { url, sha256, size } => return Ok(Apply { url, sha256, size, data: BTreeMap::new() }),
            Self::Behind { url, check } => return see(url, check, session, ui).await,
            Self::Here { content, ending } => (content, ending),
        };
        let (bucket, sha256) = (session.subjects.bucket(), fs::sha256(&content));
        let key = format!("{sha256}.{ending}");
        let size = content.len() as u64;
        // What has this name has this content: writing it again would only disturb those who read it.
        let there = session.bus.object_size(&bucket, &key).await.map_err(|error| failure(&error))?;
        if there != Some(size) {
            session.bus.object_put(&bucket, &key, &content).await.map_err(|error| failure(&error))?;
        }
        let url = format!("obj://{bucket}/{key}");
        ui.say(text!("{}, {} bytes", url, size));
        Ok(Apply { url, sha256, size, data: BTreeMap::new() })
    }
}

/// The bytes of a directory, bundle or manifest of this machine that nodes would get: a directory is packed.
///
/// # Errors
/// When it is none of these, can't be read, or is larger than nodes take.
pub(in crate::cli) fn packed(path: &Path, check: bool) -> Result<Vec<u8>, Failure> {
    let content = if path.is_dir() {
        if check {
            check_file(&path.join("manifest.yaml"))?;
        }
        bundle::pack(path).map_err(|error| Failure::usage(format!("{}: {}", path.display(), chain(&error))))?
    } else {
        let content = fs::read_named(path, BUNDLE_MAX).map_err(|error| Failure::from_error(Exit::Usage, &error))?;
        if check {
            check_form(&content, &path.display().to_string())?;
        }
        content
    };
    if content.len() as u64 > BUNDLE_MAX {
        return Err(Failure::usage(format!("{} has {} bytes; nodes take {BUNDLE_MAX}", path.display(), content.len())));
    }
    Ok(content)
}

/// Reads what is behind a URL, says what it is, and pins it to that. What it gives to nodes later must be the same.
async fn see(url: String, check: bool, session: &Session, ui: &mut Ui) -> Result<Apply, Failure> {
    let mut content = Vec::new();
    let pin = fetch::measure(&url, BUNDLE_MAX, FETCH, &Objects(&session.bus), &mut content).await;
    let pin = pin.map_err(|error| not_seen(&error))?;
    if check {
        check_form(&content, &shown(&url))?;
        precheck(&content, &shown(&url))?;
    }
    ui.say(text!("{}: sha256 {}, {} bytes", shown(&url), pin.sha256, pin.size));
    Ok(Apply { url, sha256: pin.sha256, size: pin.size, data: BTreeMap::new() })
}

/// Nothing was sent.
fn not_seen(error: &FetchError) -> Failure {
    let failure = Failure::from_error(exit_of(error), error);
    match error {
        FetchError::TooLarge { .. } | FetchError::TooMuch { .. } => {
            failure.hint("where `max_bundle` of the nodes allows more, --sha256 and --size pin it without reading it here")
        }
        _ => failure.hint("it is read here to sign what it gives; --sha256 and --size pin what this machine can't reach"),
    }
}

/// What no node would take is not sent: what is no bundle must have the form of a manifest.
fn check_form(content: &[u8], name: &str) -> Result<(), Failure> {
    if bundle::is_bundle(content) {
        return Ok(());
    }
    let none = |why: &str| Failure::usage(format!("{name} is neither a bundle nor a manifest: {why}"));
    if content.is_empty() {
        return Err(none("it is empty"));
    }
    if content.len() as u64 > MAX_MANIFEST {
        return Err(none(&format!("it is not packed, and has more than {MAX_MANIFEST} bytes")));
    }
    let text = std::str::from_utf8(content).map_err(|_| none("it is not text"))?;
    let source = manifest::Source { text: text.to_owned(), name: name.to_owned(), directory: None, digest: None };
    parse(&source)
}

/// The same of the manifest of a directory, where it is in its usual place.
fn check_file(path: &Path) -> Result<(), Failure> {
    if !path.is_file() {
        return Ok(());
    }
    parse(&manifest::Source::file(path).map_err(|error| Failure::from_error(Exit::Usage, &error))?)
}

/// What sends what was refused here all the same.
const NO_CHECK: &str = "nothing was signed or sent; --no-check leaves it to the nodes";

/// What every node would refuse.
pub(super) fn refused_here(diagnostics: Vec<Diagnostic>) -> Failure {
    let failure = Failure { exit: Exit::Usage, diagnostics };
    let hint = failure.diagnostics.last().and_then(|last| last.hint.as_ref());
    let hint = hint.map_or_else(|| NO_CHECK.to_owned(), |hint| format!("{hint}; {NO_CHECK}"));
    failure.hint(hint)
}

/// Checks the manifest as far as that can be done without a node: nothing that every node would refuse is signed.
fn precheck(content: &[u8], name: &str) -> Result<(), Failure> {
    let failed = |error: &dyn std::error::Error| Failure::from_error(Exit::Usage, error);
    // Removed with what was unpacked when this returns.
    let kept = fs::private_directory().map_err(|error| failed(&error).hint("TMPDIR names another directory"))?;
    let pin = Pin { sha256: fs::sha256(content), size: content.len() as u64 };
    let mut source = open::open(Cursor::new(content), &pin, kept.path(), name.to_owned()).map_err(|error| failed(&error))?;
    if source.directory.is_some() {
        source.name = format!("{}/{}", name.trim_end_matches('/'), bundle::MANIFEST);
    }
    let mut host = inputs::host();
    if let Some(directory) = &source.directory {
        host = host.in_directory(directory);
    }
    engine::precheck(&source, &host).map_err(refused_here)
}

fn parse(source: &manifest::Source) -> Result<(), Failure> {
    let wrong = |diagnostics: Vec<Diagnostic>| Failure { exit: Exit::Usage, diagnostics };
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
        assert!(matches!(Source::new(&args(path), true).unwrap(), Source::Here { ending: "tar.gz", .. }));
        assert!(matches!(
            Source::new(&args(&format!("{path}/manifest.yaml")), true).unwrap(),
            Source::Here { ending: "yaml", .. }
        ));
        assert_eq!(Source::new(&args("https://x/y"), true).unwrap(), Source::Behind { url: "https://x/y".into(), check: true });
        assert!(Source::new(&args("file:///x"), true).unwrap_err().why().contains("--sha256"));
        assert!(Source::new(&args("/no/such/thing"), false).is_err());
        let pinned = SourceArgs { sha256: Some("ab".into()), size: Some(3), ..args("https://x/y") };
        assert!(matches!(Source::new(&pinned, true).unwrap(), Source::Pinned { size: 3, .. }));
        let here = SourceArgs { sha256: Some("ab".into()), size: Some(3), ..args(path) };
        assert!(Source::new(&here, true).unwrap_err().why().contains("for URLs"));
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
            assert!(failure.exit == Exit::Usage && failure.why().contains(said), "{}", failure.why());
        }
        assert!(
            check_form("#".repeat(usize::try_from(MAX_MANIFEST).unwrap() + 1).as_bytes(), "x")
                .unwrap_err()
                .why()
                .contains("more than")
        );
        assert!(check_form(MANIFEST.as_bytes(), "x").is_ok() && check_form(&[0x1f, 0x8b, 0], "x").is_ok());
    }
}
