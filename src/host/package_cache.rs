//! Cache of the software of a host, for the length of a run. The cache is read on first use. The resources and the health checks of
//! the run share it.

use std::sync::{Arc, OnceLock};

use super::dpkg::Dpkg;
use super::rpm::Rpm;
use super::systemd::Systemd;

/// The directory of the database of dpkg.
pub const DPKG_DIRECTORY: &str = "/var/lib/dpkg";

/// The databases of packages, and the way to systemd.
pub(super) struct Software {
    pub(super) dpkg: Arc<Dpkg>,
    pub(super) rpm: Arc<Rpm>,
    /// The connection; none inside where there is no bus.
    systemd: OnceLock<Option<Arc<Systemd>>>,
}

impl Software {
    /// Returns the cache of the real machine.
    pub(super) fn system() -> Self {
        Self { dpkg: Arc::new(Dpkg::new(DPKG_DIRECTORY)), rpm: Arc::default(), systemd: OnceLock::new() }
    }

    /// The same with the database of dpkg below `root`, and without a bus.
    #[cfg(test)]
    pub(super) fn below(root: &std::path::Path) -> Self {
        let directory = root.join(DPKG_DIRECTORY.trim_start_matches('/'));
        Self { dpkg: Arc::new(Dpkg::new(directory)), ..Self::without_bus() }
    }

    /// The same with commands that are scripted: they can't script a bus, so there is none.
    pub(super) fn without_bus() -> Self {
        Self { systemd: OnceLock::from(None), ..Self::system() }
    }

    /// Returns systemd over D-Bus, connected on first use; none where there is no bus, or it denies access.
    pub(super) fn systemd(&self) -> Option<Arc<Systemd>> {
        self.systemd.get_or_init(|| Systemd::connect().ok().map(Arc::new)).clone()
    }
}
