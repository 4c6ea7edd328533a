//! Fetching of manifests: fetched, checked against the signed digest, unpacked into a directory of their own. The
//! manifest of an assignment is cached, and fetched once.

use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use uuid::Uuid;

use crate::agent::config::limits;
use crate::agent::config::settings_handle::SettingsHandle;
use crate::agent::reconcile::desired_state::DesiredState;
use crate::diag::error_chain;
use crate::host::fs::{self, FsError};
use crate::host::{Checkpoint, checkpoint};
use crate::http::{self, HttpError};
use crate::manifest::ManifestText;
use crate::manifest::fetch::{self, ContentPin, FetchError};
use crate::manifest::open::{self, OpenError};
use crate::registry::BusObjects;
use crate::transport::Bus;
use crate::trust::RejectionCode;
use crate::wire::command::Apply;

use super::result::RunResult;

/// The name of the fetched file, in a directory of its own.
const FETCHED: &str = "fetched";

/// Fetches manifests.
#[derive(Clone)]
pub(in crate::agent) struct ManifestFetcher {
    pub(in crate::agent) settings: SettingsHandle,
    pub(in crate::agent) desired_state: Arc<DesiredState>,
    pub(in crate::agent) bus: Bus,
}

/// A manifest, or the result of a run that could not get one.
type Fetched<T> = Result<T, Box<RunResult>>;

impl ManifestFetcher {
    /// Fetches the manifest of a command, at the latest `until`.
    ///
    /// # Errors
    /// When the manifest cannot be fetched, differs from the signed digest, or is outside the limits of this host.
    pub(in crate::agent) async fn manifest(&self, id: Uuid, apply: &Apply, until: Instant) -> Fetched<ManifestText> {
        let directory = self.directory(id);
        let path = prepare(&directory).map_err(|error| file_failed(&error))?;
        let mut file = fs::create_new(&path, 0o600).map_err(|error| file_failed(&error))?;
        self.fetch_into(apply, &mut file, until).await?;
        // The same descriptor was written and hashed: no other file can take its place.
        file.rewind().map_err(|error| file_failed(&FsError::io("read", &path, error)))?;
        unpack(file, apply, directory).await
    }

    /// Returns the manifest of an assignment: from the cache, or fetched at the latest `until` and cached.
    ///
    /// # Errors
    /// As [`Self::manifest`].
    pub(in crate::agent) async fn assigned_manifest(&self, apply: &Apply, until: Instant) -> Fetched<ManifestText> {
        let cache = self.desired_state.blobs();
        let directory = self.settings.now().state_dir.join("work").join(&apply.sha256);
        // Unpacked anew from bytes with the right digest: an earlier copy may have been changed, or torn by a power cut.
        let path = prepare(&directory).map_err(|error| file_failed(&error))?;
        let mut file = fs::create_new(&path, 0o600).map_err(|error| file_failed(&error))?;
        if let Some(cached) = cache.get(&apply.sha256).map_err(|error| failed(error_chain(&error)))? {
            return unpack(cached, apply, directory).await;
        }
        self.fetch_into(apply, &mut file, until).await?;
        cache.adopt(&path, &apply.sha256).map_err(|error| failed(error_chain(&error)))?;
        file.rewind().map_err(|error| file_failed(&FsError::io("read", &path, error)))?;
        unpack(file, apply, directory).await
    }

    async fn fetch_into(&self, apply: &Apply, file: &mut (impl Write + Send), until: Instant) -> Fetched<()> {
        let limits = limits::fetch_limits(&self.settings.now(), until.saturating_duration_since(Instant::now()));
        let fetched = fetch::fetch(&apply.url, &pin(apply), &limits, &BusObjects(&self.bus), file).await;
        fetched.map_err(|error| not_fetched(&error))?;
        checkpoint(Checkpoint::RunFetched);
        Ok(())
    }

    /// Returns the directory of the files of a command while it runs.
    fn directory(&self, id: Uuid) -> PathBuf {
        self.settings.now().state_dir.join("work").join(id.to_string())
    }

    /// Removes the files of a command.
    pub(in crate::agent) fn remove_files(&self, id: Uuid) {
        if let Err(error) = fs::remove_all(&self.directory(id)) {
            tracing::warn!(error = %error_chain(&error), "cannot remove the files of a command");
        }
    }
}

/// Makes an empty directory. Returns the path of the fetched file in it.
fn prepare(directory: &Path) -> Result<PathBuf, FsError> {
    fs::remove_all(directory)?;
    fs::create_directory(directory, 0o700)?;
    Ok(directory.join(FETCHED))
}

fn failed(why: String) -> Box<RunResult> {
    Box::new(RunResult::failed(why))
}

fn file_failed(error: &FsError) -> Box<RunResult> {
    failed(error_chain(error))
}

fn pin(apply: &Apply) -> ContentPin {
    ContentPin { sha256: apply.sha256.clone(), size: apply.size }
}

async fn unpack(file: impl Read + Seek + Send + 'static, apply: &Apply, directory: PathBuf) -> Fetched<ManifestText> {
    let (name, pin) = (http::redact_url(&apply.url), pin(apply));
    tokio::task::spawn_blocking(move || open::open(file, &pin, &directory, name).map_err(|error| not_opened(&error)))
        .await
        .unwrap_or_else(|_| Err(failed("cannot read the bundle: the program has an error".to_owned())))
}

fn not_fetched(error: &FetchError) -> Box<RunResult> {
    let code = match error {
        FetchError::BadArtifact { .. } => RejectionCode::BadArtifact,
        FetchError::Http(HttpError::Denied { .. }) | FetchError::TooLarge { .. } | FetchError::Url(_) => {
            RejectionCode::LocalLimit
        }
        _ => return failed(error_chain(error)),
    };
    Box::new(RunResult::refused(code, error_chain(error)))
}

/// Returns the result for a bundle that cannot be opened. Wrong bytes reject the command, a broken host fails it.
fn not_opened(error: &OpenError) -> Box<RunResult> {
    match error {
        OpenError::Read { .. } | OpenError::File(_) => failed(error_chain(error)),
        _ => Box::new(RunResult::refused(RejectionCode::BadArtifact, error_chain(error))),
    }
}
