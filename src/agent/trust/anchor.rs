//! The trust anchor: the kept bundle, or the first bundle of the configuration, or its root keys.

use std::path::{Path, PathBuf};

use crate::config::AgentSettings;
use crate::host::fs::{self, FsError};
use crate::host::{Checkpoint, checkpoint};
use crate::store::{StoreError, state_dir};
use crate::trust::{BundleAuthority, BundleError, KeyError, PublicKey, TrustedBundle, open_bundle};
use crate::wire::envelope::MAX_ENVELOPE;

/// The name of the kept bundle in the state directory.
pub(in crate::agent) const BUNDLE_FILE: &str = "trust.json";

/// The lack of a usable trust bundle.
#[derive(Debug, thiserror::Error)]
pub enum TrustAnchorError {
    /// A root key of the configuration is invalid.
    #[error("cannot use root key {number} of the configuration")]
    Key {
        /// The number of the key, from 1.
        number: usize,
        /// The reason.
        #[source]
        source: KeyError,
    },
    /// A bundle that is not valid.
    #[error("cannot accept the trust bundle {}", path.display())]
    Bundle {
        /// The path.
        path: PathBuf,
        /// The reason.
        #[source]
        source: BundleError,
    },
    /// The file cannot be read or written.
    #[error(transparent)]
    File(#[from] FsError),
}

/// Returns the bundle in force, without writing a file.
///
/// The kept bundle is in force, unless the configuration names one with a higher version that the pinned roots signed. A user who
/// can change the configuration of the node is its owner. Without either, the root keys alone are in force: the stream must then
/// deliver version 1, signed by them.
///
/// # Errors
/// When no bundle is valid.
pub fn load(settings: &AgentSettings) -> Result<TrustedBundle, TrustAnchorError> {
    let kept = load_persisted(settings)?;
    let named = settings.trust.bundle.as_deref().map(|path| load_configured(settings, path)).transpose();
    match (kept, named) {
        (Some(kept), Ok(Some(named))) if named.version() > kept.version() => Ok(named),
        (Some(kept), Ok(_)) => Ok(kept),
        // The first bundle has done its work: a missing or outdated file does not stop the node.
        (Some(kept), Err(error)) => {
            tracing::warn!(error = %crate::diag::error_chain(&error), "cannot use the trust bundle of the configuration");
            Ok(kept)
        }
        (None, Ok(Some(named))) => Ok(named),
        (None, Ok(None)) => Ok(TrustedBundle::before_first(&settings.fleet, root_keys(settings)?, settings.trust.threshold)),
        (None, Err(error)) => Err(error),
    }
}

/// Writes a bundle for the next start. Returns when the file is synced to disk.
///
/// # Errors
/// When the file cannot be written.
pub(in crate::agent) fn persist(settings: &AgentSettings, bundle: &TrustedBundle) -> Result<(), StoreError> {
    // Root keys alone need no file: the configuration has them.
    if bundle.is_before_first() {
        return Ok(());
    }
    let path = settings.state_dir.join(BUNDLE_FILE);
    // Most starts find the same bundle on disk, and must not need free space.
    if fs::read(&path, MAX_ENVELOPE as u64).is_ok_and(|kept| kept == bundle.envelope()) {
        return Ok(());
    }
    state_dir::write_atomic(&path, bundle.envelope())?;
    checkpoint(Checkpoint::TrustStored);
    Ok(())
}

fn load_persisted(settings: &AgentSettings) -> Result<Option<TrustedBundle>, TrustAnchorError> {
    let path = settings.state_dir.join(BUNDLE_FILE);
    let bytes = match fs::read_trusted(&path, MAX_ENVELOPE as u64) {
        Ok(bytes) => bytes,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let bundle =
        open_bundle(&bytes, BundleAuthority::Stored).map_err(|source| TrustAnchorError::Bundle { path: path.clone(), source })?;
    if bundle.fleet() == settings.fleet {
        return Ok(Some(bundle));
    }
    let source = BundleError::Fleet { wanted: settings.fleet.clone(), found: bundle.fleet().to_owned() };
    Err(TrustAnchorError::Bundle { path, source })
}

/// Returns the root keys of the configuration.
fn root_keys(settings: &AgentSettings) -> Result<Vec<PublicKey>, TrustAnchorError> {
    let keys = (1..).zip(&settings.trust.root);
    keys.map(|(number, text)| text.parse().map_err(|source| TrustAnchorError::Key { number, source })).collect()
}

fn load_configured(settings: &AgentSettings, path: &Path) -> Result<TrustedBundle, TrustAnchorError> {
    let keys = root_keys(settings)?;
    let bytes = fs::read_trusted(path, MAX_ENVELOPE as u64)?;
    let pin = BundleAuthority::Roots { fleet: &settings.fleet, keys: &keys, threshold: settings.trust.threshold };
    open_bundle(&bytes, pin).map_err(|source| TrustAnchorError::Bundle { path: path.to_owned(), source })
}
