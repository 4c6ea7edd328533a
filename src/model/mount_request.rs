//! Mounts as mount(8) gets them, and the mounts that a node allows.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A mount: the arguments of mount(8).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MountRequest {
    /// The mounted device or directory.
    pub device: String,
    /// The type of file system.
    pub fstype: String,
    /// The options, with commas.
    pub options: String,
    /// The mount point.
    pub point: String,
    /// True where a mount becomes or stays reachable; false for unmounting and removal from the table.
    pub attaches: bool,
}

impl MountRequest {
    /// The table of file systems.
    pub const TABLE: &'static str = "/etc/fstab";

    /// Returns the options one by one, as mount(8) splits them: a comma in double quotes ends no option.
    pub fn options(&self) -> impl Iterator<Item = &str> {
        let mut quoted = false;
        let split = move |c: char| {
            quoted ^= c == '"';
            c == ',' && !quoted
        };
        self.options.split(split).filter(|option| !option.is_empty())
    }
}

/// File systems that may be mounted on a node: an entry of its limits.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MountLimit {
    /// The type of file system, as `nfs4`.
    pub fstype: String,
    /// The options that may be given, as `ro` or `uid=*`. Each mount must have `nosuid` and `nodev`, unless `suid` and `dev`
    /// are listed here.
    #[serde(default)]
    pub options: Vec<String>,
    /// The devices, as `fileserver:/export/*`; `*` does not cross a `/`, `**` does.
    pub devices: Vec<String>,
}
