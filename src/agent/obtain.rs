//! Obtaining what an `apply` names: fetched, checked against its digest, unpacked, in a directory of its own.

use std::io::{BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use std::time::Instant;

use uuid::Uuid;

use crate::diag::chain;
use crate::host::fs::{self, FsError};
use crate::http::{self, HttpError};
use crate::manifest::bundle::{self, BundleError, Caps};
use crate::manifest::fetch::{self, FetchError, ObjectGet, Pin};
use crate::manifest::{MAX_MANIFEST, Source};
use crate::transport::Bus;
use crate::trust::Code;
use crate::wire::command::Apply;

use super::{Node, limits};

/// Why there is no manifest.
pub(super) struct Missing {
    /// The reason of a refusal; without one, it just failed.
    pub(super) code: Option<Code>,
    /// For people.
    pub(super) why: String,
}

impl Missing {
    fn failed(why: String) -> Self {
        Self { code: None, why }
    }

    fn refused(code: Code, why: String) -> Self {
        Self { code: Some(code), why }
    }
}

impl From<FsError> for Missing {
    fn from(error: FsError) -> Self {
        Self::failed(chain(&error))
    }
}

/// The object store of the bus, as fetching sees it.
struct Objects<'a>(&'a Bus);

impl ObjectGet for Objects<'_> {
    async fn object(&self, bucket: &str, key: &str, max: u64) -> Result<Vec<u8>, fetch::Cause> {
        Ok(self.0.object_get(bucket, key, max).await?)
    }
}

/// Fetches what an `apply` names and gives the manifest in it, by `until`.
///
/// # Errors
/// When it can't be had, is not what was signed, or may not be fetched by this host.
pub(super) async fn manifest(node: &Node, bus: &Bus, id: Uuid, apply: &Apply, until: Instant) -> Result<Source, Missing> {
    let directory = directory(node, id);
    fs::remove_all(&directory)?;
    fs::create_directory(&directory, 0o700)?;
    let path = directory.join("fetched");
    let mut file = fs::create_new(&path, 0o600)?;
    let pin = Pin { sha256: apply.sha256.clone(), size: apply.size };
    let limits = limits::fetching(&node.settings(), until.saturating_duration_since(Instant::now()));
    fetch::fetch(&apply.url, &pin, &limits, &Objects(bus), &mut file).await.map_err(|error| not_fetched(&error))?;
    // From the same descriptor that was written and hashed: nothing can be put in between.
    file.rewind().map_err(|error| FsError::io("read", &path, error))?;
    let name = http::shown(&apply.url);
    tokio::task::spawn_blocking(move || read(file, &pin, &directory, name))
        .await
        .unwrap_or_else(|_| Err(Missing::failed("the bundle could not be read: the program has an error".to_owned())))
}

fn not_fetched(error: &FetchError) -> Missing {
    let code = match error {
        FetchError::BadArtifact { .. } => Code::BadArtifact,
        FetchError::Http(HttpError::Denied { .. }) | FetchError::TooLarge { .. } | FetchError::Url(_) => Code::LocalLimit,
        _ => return Missing::failed(chain(error)),
    };
    Missing::refused(code, chain(error))
}

/// The manifest of a fetched file: its own bytes, or those in the bundle that it is.
fn read(mut file: impl Read + Seek, pin: &Pin, directory: &Path, name: String) -> Result<Source, Missing> {
    let failed = |error: std::io::Error| Missing::failed(format!("could not read what {name} gave: {error}"));
    let mut head = Vec::new();
    file.by_ref().take(2).read_to_end(&mut head).map_err(failed)?;
    file.rewind().map_err(failed)?;
    let bad = |why: String| Missing::refused(Code::BadArtifact, format!("{name}: {why}"));
    if !bundle::is_bundle(&head) {
        let mut bytes = Vec::new();
        file.take(MAX_MANIFEST + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > MAX_MANIFEST {
            return Err(bad(format!("the manifest has more than {MAX_MANIFEST} bytes")));
        }
        let text = String::from_utf8(bytes).map_err(|_| bad("it is neither a bundle nor text".to_owned()))?;
        return Ok(Source { text, name, directory: None, digest: Some(pin.sha256.clone()) });
    }
    let into = directory.join("bundle");
    fs::create_directory(&into, 0o755)?;
    let manifest = bundle::unpack(BufReader::new(file), pin.size, &into, &Caps::default()).map_err(|error| match error {
        BundleError::File(error) => error.into(),
        error => bad(chain(&error)),
    })?;
    let text = fs::read_text(&manifest, MAX_MANIFEST).map_err(|error| bad(chain(&error)))?;
    let directory = manifest.parent().map(Path::to_owned);
    Ok(Source { text, name, directory, digest: Some(pin.sha256.clone()) })
}

/// Where the files of a command are while it runs.
fn directory(node: &Node, id: Uuid) -> PathBuf {
    node.settings().state_dir.join("work").join(id.to_string())
}

/// Removes the files of a command.
pub(super) fn clean(node: &Node, id: Uuid) {
    if let Err(error) = fs::remove_all(&directory(node, id)) {
        tracing::warn!(error = %chain(&error), "files of a command are left");
    }
}
