//! Trust of an agent: the trust anchor at the start, the later bundles, verification under the bundle in force.

pub mod anchor;
pub(in crate::agent) mod command_verifier;
pub(in crate::agent) mod updates;

use std::sync::{Arc, PoisonError, RwLock};

use crate::trust::TrustedBundle;

/// The trust bundle in force. Clones share it.
#[derive(Clone)]
pub(in crate::agent) struct TrustHandle(Arc<RwLock<Arc<TrustedBundle>>>);

impl TrustHandle {
    pub(in crate::agent) fn new(bundle: TrustedBundle) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(bundle))))
    }

    /// Returns the bundle in force at this moment. A decision takes it once.
    pub(in crate::agent) fn current(&self) -> Arc<TrustedBundle> {
        // The lock guards one pointer, which no panic can leave half written.
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts another bundle in force.
    pub(in crate::agent) fn replace(&self, bundle: TrustedBundle) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(bundle);
    }
}
