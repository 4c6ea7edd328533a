//! The source of the manifest of `ensign apply`, `plan` and `check`. A local source is a manifest, a directory or a bundle.
//! Others are a URL, or an object of a NATS object store.
//!
//! In: a path or a URL. Out: the text of the manifest and the directory of its files. Anything but a plain file is unpacked
//! into a private directory, which lasts as long as the run. `manifest::fetch` reads and measures, `manifest::open` tells a
//! bundle from a manifest, `registry` has the object store.

use std::io::{Cursor, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use tempfile::TempDir;

use crate::diag::{Diagnostic, error_chain};
use crate::host::Cancel;
use crate::host::fs::{self, FsError};
use crate::http::{self, HttpError, redact_url};
use crate::manifest::fetch::{self, ContentPin, FetchError, NoObjectReader};
use crate::manifest::open::{self, OpenError};
use crate::manifest::{MAX_MANIFEST, ManifestText, bundle};
use crate::registry::BusObjects;
use crate::transport::{Bus, TransportError};

use crate::cli::args::connection;
use crate::cli::args::connection::Connection;
use crate::cli::error::{CliError, Exit};
use crate::cli::local::inputs;
use crate::cli::ui::{Ui, text};

/// Largest bundle in bytes: the default of an agent.
pub const BUNDLE_MAX: u64 = 64 << 20;
/// Longest fetch of a URL.
pub const FETCH_TIMEOUT: Duration = Duration::from_secs(120);

/// Hint with the forms of a manifest source.
const SOURCE_FORMS: &str =
    "a manifest is a file, a directory or a bundle of this machine, https://host/path, http://host/path, or obj://bucket/key";

/// Arguments that name a manifest.
#[derive(Debug, Clone, Args)]
pub struct ManifestSource {
    /// Manifest: a YAML or JSON file, or a bundle (.tar.gz) or directory with a manifest.yaml. Or the URL of a manifest or
    /// bundle, as https://HOST/PATH or obj://BUCKET/KEY.
    manifest: PathBuf,
    /// SHA-256 that the manifest or bundle must have, in hex.
    #[arg(long, value_name = "HEX", value_parser = digest)]
    sha256: Option<String>,
}

fn digest(text: &str) -> Result<String, String> {
    let is_digest = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_digest { Ok(text.to_ascii_lowercase()) } else { Err("a SHA-256 is 64 hex digits, as sha256sum prints them".to_owned()) }
}

/// A manifest on this machine.
#[derive(Debug)]
pub struct LocalManifest {
    /// Its text, name, directory and digest.
    pub source: ManifestText,
    /// The flag that ends the command, where files have to be removed then.
    pub cancel: Option<Cancel>,
    /// The unpacked files; removed on drop.
    pub kept: Option<TempDir>,
}

/// The kind of a manifest source.
#[derive(Debug, PartialEq)]
enum SourceKind<'a> {
    /// A path of this machine.
    Local(&'a Path),
    /// A URL with `https://` or `http://`.
    Web(&'a str),
    /// A URL with `obj://`.
    Object(&'a str),
}

impl ManifestSource {
    /// Returns the label of the source: a path, or a URL without credentials.
    pub fn label(&self) -> String {
        redact_url(&self.manifest.to_string_lossy())
    }

    /// Returns the file of a manifest of this machine; none for a URL. A directory has its manifest inside.
    pub fn file(&self) -> Option<PathBuf> {
        match classify(&self.manifest) {
            Ok(SourceKind::Local(path)) if fs::is_directory(path) => Some(path.join(bundle::MANIFEST)),
            Ok(SourceKind::Local(path)) => Some(path.to_path_buf()),
            _ => None,
        }
    }

    /// Opens the manifest, after a fetch where needed.
    ///
    /// # Errors
    /// When the source can't be read, is not a manifest, or does not match `--sha256`.
    pub fn load(&self, connection: &Connection, ui: &mut Ui) -> Result<LocalManifest, CliError> {
        match classify(&self.manifest)? {
            SourceKind::Local(path) => self.open_local(path),
            SourceKind::Web(url) => {
                if self.sha256.is_none() && is_unprotected(url) {
                    let warning = format!("anyone on the way to {} can change its content", redact_url(url));
                    ui.warn(Diagnostic::new(warning).hint("use https://, or pin it with --sha256"));
                }
                self.open_url(url, None, ui)
            }
            SourceKind::Object(url) => self.open_url(url, Some(connection), ui),
        }
    }

    /// Opens a file of this machine, or the manifest of a directory.
    fn open_local(&self, path: &Path) -> Result<LocalManifest, CliError> {
        let inside = fs::is_directory(path).then(|| path.join(bundle::MANIFEST));
        if inside.is_some() && self.sha256.is_some() {
            return Err(CliError::usage(format!("{} is a directory: --sha256 is for a manifest or a bundle", path.display())));
        }
        let path = inside.as_deref().unwrap_or(path);
        let missing = |error: &FsError| {
            let failure = CliError::from_error(Exit::Usage, error);
            match inside {
                Some(_) if error.is_not_found() => failure.hint("a directory needs a manifest.yaml"),
                None if error.is_not_found() => failure.hint("check the path, relative to the working directory"),
                _ => failure,
            }
        };
        let mut file = fs::open_named(path).map_err(|error| missing(&error))?;
        // Read once: the named file may be a pipe.
        let mut bytes = Vec::new();
        let read = Read::by_ref(&mut file).take(MAX_MANIFEST + 1).read_to_end(&mut bytes);
        read.map_err(|error| missing(&FsError::io("read", path, error)))?;
        if bundle::is_bundle(&bytes) {
            return self.open_bundle_file(path, Cursor::new(bytes).chain(file));
        }
        let source = ManifestText::from_bytes(path, bytes).map_err(|error| {
            let failure = missing(&error);
            if matches!(error, FsError::NotText(_)) {
                failure.hint("a bundle is a gzipped tar archive, as of `ensign bundle create`")
            } else {
                failure
            }
        })?;
        self.check_digest(&source.name, source.digest.as_deref().unwrap_or_default())?;
        Ok(LocalManifest { source, cancel: None, kept: None })
    }

    /// Opens a bundle of this machine. A private copy is measured, so that no process changes it before it is unpacked.
    fn open_bundle_file(&self, path: &Path, content: impl Read) -> Result<LocalManifest, CliError> {
        let cancel = inputs::cancel_on_signals();
        let (kept, mut file) = private_file()?;
        let pin = fetch::copy(content, path, BUNDLE_MAX, &mut file).map_err(|error| fetch_failure(&error))?;
        self.opened(file, &pin, path.display().to_string(), cancel, kept)
    }

    /// Fetches a URL; with a connection, from the object store there.
    fn open_url(&self, url: &str, connection: Option<&Connection>, ui: &mut Ui) -> Result<LocalManifest, CliError> {
        let settings = connection.map(Connection::settings).transpose()?;
        let cancel = inputs::cancel_on_signals();
        let (kept, mut file) = private_file()?;
        let work = async {
            let Some(settings) = settings else {
                return Ok(fetch::measure(url, BUNDLE_MAX, FETCH_TIMEOUT, &NoObjectReader, &mut file).await?);
            };
            let bus = Bus::connect(&settings).await?;
            Ok(fetch::measure(url, BUNDLE_MAX, FETCH_TIMEOUT, &BusObjects(&bus), &mut file).await?)
        };
        let pin: Result<ContentPin, FetchFailure> = http::block_on(work, &|| cancel.is_cancelled());
        let pin = pin.map_err(|unread| match unread {
            FetchFailure::Fetch(FetchError::Http(HttpError::Cancelled)) => cancelled(),
            FetchFailure::Fetch(error) => fetch_failure(&error),
            FetchFailure::Bus(error) => connection::connection_failure(&error),
        })?;
        if self.sha256.is_none() {
            ui.message(text!("{}: sha256 {}, {} bytes", redact_url(url), pin.sha256, pin.size));
        }
        self.opened(file, &pin, redact_url(url), cancel, kept)
    }

    fn opened(
        &self,
        mut file: impl Read + Seek,
        pin: &ContentPin,
        name: String,
        cancel: Cancel,
        kept: TempDir,
    ) -> Result<LocalManifest, CliError> {
        self.check_digest(&name, &pin.sha256)?;
        file.rewind().map_err(|error| CliError::from_error(Exit::Failed, &FsError::io("read", kept.path(), error)))?;
        let mut source = open::open(file, pin, kept.path(), name).map_err(|error| open_failure(&error))?;
        if cancel.is_cancelled() {
            return Err(cancelled());
        }
        // A manifest without files gets an empty directory. Its relative names lead nowhere, not into the working directory.
        if source.directory.is_none() {
            let alone = kept.path().join("alone");
            fs::create_directory(&alone, 0o755).map_err(|error| CliError::from_error(Exit::Failed, &error))?;
            source.directory = Some(alone);
        }
        Ok(LocalManifest { source, cancel: Some(cancel), kept: Some(kept) })
    }

    fn check_digest(&self, name: &str, found: &str) -> Result<(), CliError> {
        match self.sha256.as_deref() {
            Some(wanted) if wanted != found => {
                let why = format!("{name} does not match --sha256: its SHA-256 is {found}, not {wanted}");
                Err(CliError::new(
                    Exit::Refused,
                    Diagnostic::new(why).hint("nothing was run; check the change before you pin the new digest"),
                ))
            }
            _ => Ok(()),
        }
    }
}

/// Creates a directory for fetched bytes, and the file in it.
fn private_file() -> Result<(TempDir, impl Read + Write + Seek + Send), CliError> {
    let failed = |error: FsError| CliError::from_error(Exit::Failed, &error).hint("TMPDIR names another directory");
    let kept = fs::private_directory().map_err(failed)?;
    let file = fs::create_new(&kept.path().join("fetched"), 0o600).map_err(failed)?;
    Ok((kept, file))
}

fn classify(manifest: &Path) -> Result<SourceKind<'_>, CliError> {
    let url = manifest.to_str().and_then(|text| text.split_once("://").map(|(scheme, rest)| (text, scheme, rest)));
    let Some((text, scheme, rest)) = url else {
        return Ok(SourceKind::Local(manifest));
    };
    match scheme.to_ascii_lowercase().as_str() {
        "https" | "http" if http::host_of(text).is_some() => Ok(SourceKind::Web(text)),
        "https" | "http" => Err(CliError::usage(format!("\"{}\" is no URL", redact_url(text))).hint(SOURCE_FORMS)),
        "obj" => match rest.split_once('/').unwrap_or((rest, "")) {
            ("", _) => {
                Err(CliError::usage("bucket name is required for object store manifest source").hint("write obj://bucket/key"))
            }
            (_, "") => Err(CliError::usage("key is required for object store manifest source").hint("write obj://bucket/key")),
            _ => Ok(SourceKind::Object(text)),
        },
        "file" => {
            let hint = format!("a file of this machine is named by its path: {rest}");
            Err(CliError::usage(format!("unsupported manifest source: {}", redact_url(text))).hint(hint))
        }
        _ => Err(CliError::usage(format!("unsupported manifest source: {}", redact_url(text))).hint(SOURCE_FORMS)),
    }
}

/// True for a URL whose answer others can change on the way.
fn is_unprotected(url: &str) -> bool {
    let plain = url.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case("http://"));
    plain && !http::host_of(url).is_some_and(|host| http::is_loopback(&host))
}

/// The reason why a URL could not be fetched.
enum FetchFailure {
    Fetch(FetchError),
    Bus(TransportError),
}

impl From<FetchError> for FetchFailure {
    fn from(error: FetchError) -> Self {
        Self::Fetch(error)
    }
}

impl From<HttpError> for FetchFailure {
    fn from(error: HttpError) -> Self {
        Self::Fetch(error.into())
    }
}

impl From<TransportError> for FetchFailure {
    fn from(error: TransportError) -> Self {
        Self::Bus(error)
    }
}

/// Returns the failure of a command that was ended before it had a manifest.
pub fn cancelled() -> CliError {
    CliError::new(Exit::Partial, Diagnostic::new("the command was cancelled; nothing was run"))
}

/// Returns the error of the object store, when it caused a failed fetch.
fn object_store_error(error: &FetchError) -> Option<&TransportError> {
    match error {
        FetchError::Transport { cause, .. } => cause.downcast_ref(),
        _ => None,
    }
}

/// Returns the exit code for a failed fetch: a temporary failure is incomplete, a mistake is wrong usage.
pub fn exit_of(error: &FetchError) -> Exit {
    match error {
        FetchError::Http(HttpError::Transport { .. }) | FetchError::TimedOut { .. } => Exit::Partial,
        FetchError::Http(HttpError::Status { status, .. }) if status.starts_with('5') => Exit::Partial,
        FetchError::Transport { .. } => match object_store_error(error) {
            Some(TransportError::NotFound(_) | TransportError::NoStream(_) | TransportError::TooLarge { .. }) => Exit::Usage,
            _ => Exit::Partial,
        },
        _ => Exit::Usage,
    }
}

/// Returns the failure of a fetch, with a hint.
fn fetch_failure(error: &FetchError) -> CliError {
    const TOO_LARGE: &str = "a directory can be larger than a bundle; large files are for `archive` resources";
    let failure = CliError::from_error(exit_of(error), error);
    let hint = match (error, object_store_error(error)) {
        (_, Some(TransportError::NotFound(_))) => "`nats object ls BUCKET` lists the keys of a bucket",
        (_, Some(TransportError::NoStream(_))) => "there is no such bucket on this server; `nats object ls` lists them",
        (_, Some(TransportError::NoJetStream)) => "the server needs `jetstream {}` in its configuration",
        (_, Some(TransportError::TooLarge { .. })) | (FetchError::TooLarge { .. } | FetchError::TooLargeStream { .. }, _) => {
            TOO_LARGE
        }
        (FetchError::Http(HttpError::Status { status, .. }), _) => match status.get(..3) {
            Some("401" | "403") => "put the user and password into the URL: https://USER:PASSWORD@HOST/PATH",
            Some(code) if code.starts_with('5') => "the server can't give it now; try again later",
            _ => "check the URL: it must return the manifest or the bundle itself",
        },
        (FetchError::Http(HttpError::Transport { .. }), _) if error_chain(error).contains("certificate") => {
            "this host must trust the authority of the server's certificate; SSL_CERT_FILE names a file with further ones"
        }
        (FetchError::Http(HttpError::Transport { .. }) | FetchError::TimedOut { .. }, _) => {
            "check that the server runs, and that the URL has its scheme, https or http"
        }
        (FetchError::Sink { .. }, _) => "TMPDIR names another directory",
        _ => return failure,
    };
    failure.hint(hint)
}

/// Returns the failure for fetched bytes that are not a manifest, with a hint.
fn open_failure(error: &OpenError) -> CliError {
    let exit = if matches!(error, OpenError::Read { .. } | OpenError::File(_)) { Exit::Failed } else { Exit::Usage };
    let failure = CliError::from_error(exit, error);
    match error {
        OpenError::NoManifest { .. } => {
            failure.hint("a manifest is YAML or JSON, a bundle is a gzipped tar archive, as of `ensign bundle create`")
        }
        OpenError::Bundle { .. } => {
            failure.hint("`ensign bundle create DIR site.tar.gz` creates a bundle from a directory with a manifest.yaml")
        }
        OpenError::File(_) => failure.hint("TMPDIR names another directory"),
        OpenError::Read { .. } | OpenError::Text { .. } => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_by_their_form() {
        for (text, expected) in [
            ("m.yaml", SourceKind::Local(Path::new("m.yaml"))),
            ("dir/b.tar.gz", SourceKind::Local(Path::new("dir/b.tar.gz"))),
            ("https://u:p@h/x", SourceKind::Web("https://u:p@h/x")),
            ("HTTP://h", SourceKind::Web("HTTP://h")),
            ("obj://b/k/l", SourceKind::Object("obj://b/k/l")),
        ] {
            assert_eq!(classify(Path::new(text)).unwrap(), expected);
        }
        for (text, said) in [
            ("ftp://u:hunter2@x/y", "unsupported manifest source: ftp://x/y"),
            ("file:///x", "unsupported manifest source: file:///x"),
            ("https://", "\"https://\" is no URL"),
            ("obj:///k", "bucket name is required for object store manifest source"),
            ("obj://b", "key is required for object store manifest source"),
            ("obj://b/", "key is required for object store manifest source"),
        ] {
            let failure = classify(Path::new(text)).unwrap_err();
            assert!(failure.exit == Exit::Usage && failure.message_text().contains(said), "{text}: {}", failure.message_text());
            assert!(
                failure.diagnostics.iter().all(|diagnostic| diagnostic.hint.is_some())
                    && !failure.message_text().contains("hunter2")
            );
        }
    }

    #[test]
    fn what_is_not_protected_on_its_way_is_known() {
        for (url, open) in [
            ("http://h/x", true),
            ("HTTP://u:p@h/x", true),
            ("https://h/x", false),
            ("http://127.0.0.1:80/x", false),
            ("http://localhost/x", false),
            ("http://localhost.example/x", true),
        ] {
            assert_eq!(is_unprotected(url), open, "{url}");
        }
    }

    #[test]
    fn digests_have_64_digits() {
        assert_eq!(digest(&"AB".repeat(32)).unwrap(), "ab".repeat(32));
        assert!(digest("ab").is_err() && digest(&"xy".repeat(32)).is_err());
    }
}
