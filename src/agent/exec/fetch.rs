//! Obtaining what an `apply` names: fetched, checked against its digest, unpacked, in a directory of its own. What an
//! `assign` names is kept, and fetched only once.

use std::io::{Read, Seek, Write};
use std::path::PathBuf;
use std::time::Instant;

use uuid::Uuid;

use crate::diag::chain;
use crate::host::fs::{self, FsError};
use crate::host::{Checkpoint, checkpoint};
use crate::http::{self, HttpError};
use crate::manifest::Source;
use crate::manifest::fetch::{self, FetchError, Pin};
use crate::manifest::open::{self, OpenError};
use crate::registry::Objects;
use crate::transport::Bus;
use crate::trust::RejectionCode;
use crate::wire::command::Apply;

use crate::agent::Node;
use crate::agent::config::limits;

/// Why there is no manifest.
pub(in crate::agent) struct FetchFailure {
    /// The reason of a refusal; without one, it just failed.
    pub(in crate::agent) code: Option<RejectionCode>,
    /// For people.
    pub(in crate::agent) why: String,
}

impl FetchFailure {
    fn failed(why: String) -> Self {
        Self { code: None, why }
    }

    fn refused(code: RejectionCode, why: String) -> Self {
        Self { code: Some(code), why }
    }
}

impl From<FsError> for FetchFailure {
    fn from(error: FsError) -> Self {
        Self::failed(chain(&error))
    }
}

/// Fetches what an `apply` names and gives the manifest in it, by `until`.
///
/// # Errors
/// When it can't be had, is not what was signed, or may not be fetched by this host.
pub(in crate::agent) async fn manifest(
    node: &Node,
    bus: &Bus,
    id: Uuid,
    apply: &Apply,
    until: Instant,
) -> Result<Source, FetchFailure> {
    let directory = directory(node, id);
    fs::remove_all(&directory)?;
    fs::create_directory(&directory, 0o700)?;
    let mut file = fs::create_new(&directory.join(FETCHED), 0o600)?;
    fetch_into(node, bus, apply, &mut file, until).await?;
    // From the same descriptor that was written and hashed: nothing can be put in between.
    file.rewind().map_err(|error| FsError::io("read", &directory, error))?;
    unpacked(file, apply, directory).await
}

/// The name of what was fetched, in a directory of its own.
const FETCHED: &str = "fetched";

async fn fetch_into(
    node: &Node,
    bus: &Bus,
    apply: &Apply,
    file: &mut (impl Write + Send),
    until: Instant,
) -> Result<(), FetchFailure> {
    let limits = limits::fetching(&node.settings(), until.saturating_duration_since(Instant::now()));
    fetch::fetch(&apply.url, &pin(apply), &limits, &Objects(bus), file).await.map_err(|error| not_fetched(&error))?;
    checkpoint(Checkpoint::RunFetched);
    Ok(())
}

fn pin(apply: &Apply) -> Pin {
    Pin { sha256: apply.sha256.clone(), size: apply.size }
}

async fn unpacked(file: impl Read + Seek + Send + 'static, apply: &Apply, directory: PathBuf) -> Result<Source, FetchFailure> {
    let (name, pin) = (http::shown(&apply.url), pin(apply));
    tokio::task::spawn_blocking(move || open::open(file, &pin, &directory, name).map_err(|error| not_opened(&error)))
        .await
        .unwrap_or_else(|_| Err(FetchFailure::failed("the bundle could not be read: the program has an error".to_owned())))
}

/// Gives the manifest of an assignment: from what is kept on this host, or else fetched by `until` and kept.
///
/// # Errors
/// When it can't be had, is not what was signed, or may not be fetched by this host.
pub(in crate::agent) async fn assigned_manifest(
    node: &Node,
    bus: &Bus,
    apply: &Apply,
    until: Instant,
) -> Result<Source, FetchFailure> {
    let objects = node.standing.objects();
    let directory = node.settings().state_dir.join("work").join(&apply.sha256);
    // Unpacked anew from bytes whose digest is right: what others, or a power cut, made of an earlier copy is gone.
    fs::remove_all(&directory)?;
    fs::create_directory(&directory, 0o700)?;
    if let Some(kept) = objects.get(&apply.sha256).map_err(|error| FetchFailure::failed(chain(&error)))? {
        return unpacked(kept, apply, directory).await;
    }
    let path = directory.join(FETCHED);
    let mut file = fs::create_new(&path, 0o600)?;
    fetch_into(node, bus, apply, &mut file, until).await?;
    objects.adopt(&path, &apply.sha256).map_err(|error| FetchFailure::failed(chain(&error)))?;
    file.rewind().map_err(|error| FsError::io("read", &path, error))?;
    unpacked(file, apply, directory).await
}

fn not_fetched(error: &FetchError) -> FetchFailure {
    let code = match error {
        FetchError::BadArtifact { .. } => RejectionCode::BadArtifact,
        FetchError::Http(HttpError::Denied { .. }) | FetchError::TooLarge { .. } | FetchError::Url(_) => {
            RejectionCode::LocalLimit
        }
        _ => return FetchFailure::failed(chain(error)),
    };
    FetchFailure::refused(code, chain(error))
}

/// What is wrong with the bytes refuses the command; what is wrong with this host fails it.
fn not_opened(error: &OpenError) -> FetchFailure {
    match error {
        OpenError::Read { .. } | OpenError::File(_) => FetchFailure::failed(chain(error)),
        _ => FetchFailure::refused(RejectionCode::BadArtifact, chain(error)),
    }
}

/// Where the files of a command are while it runs.
fn directory(node: &Node, id: Uuid) -> PathBuf {
    node.settings().state_dir.join("work").join(id.to_string())
}

/// Removes the files of a command.
pub(in crate::agent) fn clean(node: &Node, id: Uuid) {
    if let Err(error) = fs::remove_all(&directory(node, id)) {
        tracing::warn!(error = %chain(&error), "files of a command are left");
    }
}
