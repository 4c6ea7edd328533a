//! Trust of an agent: the trust anchor at the start, the later bundles, verification under the bundle in force.

pub mod anchor;
pub(in crate::agent) mod command_verifier;
pub(in crate::agent) mod updates;

use std::sync::{Arc, Mutex};

use crate::model::lock;
use crate::trust::TrustedBundle;

/// The trust bundle in force. Clones share it.
#[derive(Clone)]
pub(in crate::agent) struct TrustHandle(Arc<Mutex<Arc<TrustedBundle>>>);

impl TrustHandle {
    pub(in crate::agent) fn new(bundle: TrustedBundle) -> Self {
        Self(Arc::new(Mutex::new(Arc::new(bundle))))
    }

    /// Returns the bundle in force at this moment. A decision takes it once.
    pub(in crate::agent) fn current(&self) -> Arc<TrustedBundle> {
        Arc::clone(&lock(&self.0))
    }

    /// Puts another bundle in force.
    pub(in crate::agent) fn replace(&self, bundle: TrustedBundle) {
        *lock(&self.0) = Arc::new(bundle);
    }
}
