//! Mounts as mount(8) gets them, and what a node's owner lists of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A mount: the words that mount(8) gets.
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
    /// True where something becomes or stays reachable; false for unmounting and unlisting alone.
    pub attaches: bool,
}

impl MountRequest {
    /// The table of file systems, which every mount is listed in.
    pub const TABLE: &'static str = "/etc/fstab";

    /// The options one by one, as mount(8) splits them: a comma in double quotes ends none.
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
