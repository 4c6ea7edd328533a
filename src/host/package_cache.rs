//! Cache of the package databases of a host, during one run. A database is read on first use. The resources and the health checks
//! of the run share the cache.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::dpkg::Dpkg;
use super::rpm::{self, Rpm};
use super::systemd::Systemd;

/// The directory of the dpkg database.
pub const DPKG_DIRECTORY: &str = "/var/lib/dpkg";

/// The directories of the rpm database, by distribution.
const RPM_DIRECTORIES: [&str; 2] = ["/var/lib/rpm", "/usr/lib/sysimage/rpm"];

/// Returns the files that change with the installed packages. Most hosts have some of them only.
pub fn package_databases() -> Vec<PathBuf> {
    let rpm = RPM_DIRECTORIES.into_iter().flat_map(|directory| rpm::FILES.map(|file| Path::new(directory).join(file)));
    std::iter::once(Path::new(DPKG_DIRECTORY).join("status")).chain(rpm).collect()
}

/// The package databases, and the connection to systemd.
pub(super) struct PackageCache {
    pub(super) dpkg: Arc<Dpkg>,
    pub(super) rpm: Arc<Rpm>,
    /// The connection; `None` inside when there is no bus.
    systemd: OnceLock<Option<Arc<Systemd>>>,
}

impl PackageCache {
    /// Returns the cache of the real machine.
    pub(super) fn system() -> Self {
        Self { dpkg: Arc::new(Dpkg::new(DPKG_DIRECTORY)), rpm: Arc::default(), systemd: OnceLock::new() }
    }

    /// Returns a cache with the dpkg database below `root`, and without a bus.
    #[cfg(test)]
    pub(super) fn with_root(root: &std::path::Path) -> Self {
        let directory = root.join(DPKG_DIRECTORY.trim_start_matches('/'));
        Self { dpkg: Arc::new(Dpkg::new(directory)), ..Self::without_bus() }
    }

    /// Returns a cache for scripted commands, without a bus, as tests can't script a bus.
    pub(super) fn without_bus() -> Self {
        Self { systemd: OnceLock::from(None), ..Self::system() }
    }

    /// Returns systemd over D-Bus, connected on first use; none when there is no bus, or the bus denies access.
    pub(super) fn systemd(&self) -> Option<Arc<Systemd>> {
        self.systemd.get_or_init(|| Systemd::connect().ok().map(Arc::new)).clone()
    }
}
