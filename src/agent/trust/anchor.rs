//! Where trust begins on this node: the kept bundle, or the first one from the configuration, or its root keys.

use std::path::{Path, PathBuf};

use crate::config::Settings;
use crate::host::fs::{self, FsError};
use crate::host::{Checkpoint, checkpoint};
use crate::store::{StoreError, state_dir};
use crate::trust::{BundleError, KeyError, Pin, PublicKey, TrustedBundle, open_bundle};
use crate::wire::envelope::MAX_ENVELOPE;

/// The name of the kept bundle in the state directory.
pub(in crate::agent) const BUNDLE_FILE: &str = "trust.json";

/// No bundle to obey.
#[derive(Debug, thiserror::Error)]
pub enum TrustAnchorError {
    /// A root key in the configuration is none.
    #[error("root key {number} of the configuration can't be used")]
    Key {
        /// Which, from 1.
        number: usize,
        /// Why.
        #[source]
        source: KeyError,
    },
    /// A bundle that is not accepted.
    #[error("the trust bundle {} is not accepted", path.display())]
    Bundle {
        /// Where it is.
        path: PathBuf,
        /// Why.
        #[source]
        source: BundleError,
    },
    /// It can't be read or kept.
    #[error(transparent)]
    File(#[from] FsError),
}

/// The bundle in force, without writing anything.
///
/// The kept one, unless the configuration names one with a higher version that the pinned roots signed:
/// a user who can change the configuration of the node is its owner. Where neither is there, the root keys alone: version 1
/// must then come from the stream, signed by them.
///
/// # Errors
/// When there is none that is accepted.
pub fn load(settings: &Settings) -> Result<TrustedBundle, TrustAnchorError> {
    let kept = persisted(settings)?;
    let named = settings.trust.bundle.as_deref().map(|path| named(settings, path)).transpose();
    match (kept, named) {
        (Some(kept), Ok(Some(named))) if named.version() > kept.version() => Ok(named),
        (Some(kept), Ok(_)) => Ok(kept),
        // The first bundle served its purpose; that its file is gone or outdated does not stop the node.
        (Some(kept), Err(error)) => {
            tracing::warn!(error = %crate::diag::chain(&error), "the named trust bundle is not used");
            Ok(kept)
        }
        (None, Ok(Some(named))) => Ok(named),
        (None, Ok(None)) => Ok(TrustedBundle::before_first(&settings.fleet, roots(settings)?, settings.trust.threshold)),
        (None, Err(error)) => Err(error),
    }
}

/// Keeps a bundle for the next start; it is on disk when this returns, also after a power cut.
///
/// # Errors
/// When it can't be written.
pub(in crate::agent) fn persist(settings: &Settings, bundle: &TrustedBundle) -> Result<(), StoreError> {
    // There is nothing to keep of root keys alone: the configuration has them.
    if bundle.is_before_first() {
        return Ok(());
    }
    let path = settings.state_dir.join(BUNDLE_FILE);
    // Most starts have it already, and must not need room on the disk.
    if fs::read(&path, MAX_ENVELOPE as u64).is_ok_and(|kept| kept == bundle.envelope()) {
        return Ok(());
    }
    state_dir::write_atomic(&path, bundle.envelope())?;
    checkpoint(Checkpoint::TrustKept);
    Ok(())
}

fn persisted(settings: &Settings) -> Result<Option<TrustedBundle>, TrustAnchorError> {
    let path = settings.state_dir.join(BUNDLE_FILE);
    let bytes = match fs::read_trusted(&path, MAX_ENVELOPE as u64) {
        Ok(bytes) => bytes,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let bundle = open_bundle(&bytes, Pin::Kept).map_err(|source| TrustAnchorError::Bundle { path: path.clone(), source })?;
    if bundle.fleet() == settings.fleet {
        return Ok(Some(bundle));
    }
    let source = BundleError::Fleet { wanted: settings.fleet.clone(), found: bundle.fleet().to_owned() };
    Err(TrustAnchorError::Bundle { path, source })
}

/// The root keys of the configuration.
fn roots(settings: &Settings) -> Result<Vec<PublicKey>, TrustAnchorError> {
    let keys = (1..).zip(&settings.trust.root);
    keys.map(|(number, text)| text.parse().map_err(|source| TrustAnchorError::Key { number, source })).collect()
}

fn named(settings: &Settings, path: &Path) -> Result<TrustedBundle, TrustAnchorError> {
    let keys = roots(settings)?;
    let bytes = fs::read_trusted(path, MAX_ENVELOPE as u64)?;
    let pin = Pin::Roots { fleet: &settings.fleet, keys: &keys, threshold: settings.trust.threshold };
    open_bundle(&bytes, pin).map_err(|source| TrustAnchorError::Bundle { path: path.to_owned(), source })
}
