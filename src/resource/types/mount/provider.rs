//! The interface between `mount` and the host.

use crate::host::Host;
use crate::host::mountinfo::Mounted;
use crate::resource::ResourceError;

use super::properties::Properties;

/// The interface of mount providers.
pub trait MountProvider: Send + Sync {
    /// The text of fstab; empty when there is none.
    ///
    /// # Errors
    /// When it can't be read.
    fn table(&self) -> Result<Vec<u8>, ResourceError>;
    /// Replaces fstab in one step, and makes systemd read it.
    ///
    /// # Errors
    /// When the system refuses.
    fn write_table(&self, table: &[u8], host: &Host) -> Result<(), ResourceError>;
    /// Returns the mounts of the host, the lowest first.
    ///
    /// # Errors
    /// When they can't be read.
    fn mounts(&self) -> Result<Vec<Mounted>, ResourceError>;
    /// True when the mount is of this device.
    ///
    /// # Errors
    /// When the host can't be observed.
    fn is_same(&self, device: &str, options: &str, mounted: &Mounted) -> Result<bool, ResourceError>;
    /// Returns the reason why a mount is impossible, as far as known before the attempt.
    fn obstacle(&self, _: &Properties, _: &Host) -> Option<String> {
        None
    }
    /// Mounts the file system, regardless of fstab.
    ///
    /// # Errors
    /// When the mount fails.
    fn mount(&self, wanted: &Properties, host: &Host) -> Result<(), ResourceError>;
    /// Remounts with the options, regardless of fstab.
    ///
    /// # Errors
    /// When the remount fails.
    fn remount(&self, wanted: &Properties, host: &Host) -> Result<(), ResourceError>;
    /// Unmounts the topmost file system at a mount point.
    ///
    /// # Errors
    /// When that fails, as for a file system in use.
    fn unmount(&self, point: &str, host: &Host) -> Result<(), ResourceError>;
}
