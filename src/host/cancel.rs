//! The flag that ends work early.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Interval between two checks of the cancel flag in a wait.
pub(super) const CANCEL_POLL: Duration = Duration::from_millis(50);

/// A flag that ends work early, with the reason. Clones share both.
#[derive(Debug, Clone, Default)]
pub struct Cancel {
    flag: Arc<AtomicBool>,
    reason: Arc<OnceLock<String>>,
}

impl Cancel {
    /// Sets the flag for all clones.
    pub fn cancel(&self) {
        self.flag.store(true, Ordering::Relaxed);
    }

    /// Sets the flag for all clones, with a reason. The first reason counts.
    pub fn cancel_for(&self, reason: String) {
        let _later = self.reason.set(reason);
        self.cancel();
    }

    /// Returns the reason; none for a cancel without a reason.
    pub fn reason(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }

    /// The flag itself, for a signal handler.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
    }

    /// True after a call of [`Self::cancel`].
    pub fn is_cancelled(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }
}
