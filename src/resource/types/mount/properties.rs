//! The properties of a mount.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::resource::core::text;

use super::fstab::FstabEntry;

/// The desired state of a mount point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MountEnsure {
    /// In fstab, and mounted.
    Mounted,
    /// In fstab, mounted or not.
    Present,
    /// In fstab, not mounted.
    Unmounted,
    /// Neither in fstab nor mounted.
    Absent,
}

impl MountEnsure {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Mounted => "mounted",
            Self::Present => "present",
            Self::Unmounted => "unmounted",
            Self::Absent => "absent",
        }
    }
}

/// Properties of a mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Properties {
    /// Mount point: an absolute path, without `.`, `..` or doubled slashes. The directory must exist before a mount.
    #[serde(deserialize_with = "text::text")]
    pub name: String,
    /// Desired state of the mount point.
    #[serde(deserialize_with = "ensure")]
    pub ensure: MountEnsure,
    /// Device: a device file, `UUID=…`, `LABEL=…`, `host:/path`, a file, or with the option `bind` a directory. Needed unless
    /// absent.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub device: String,
    /// The type of file system.
    #[serde(default = "auto", deserialize_with = "text::text")]
    pub fstype: String,
    /// Options, separated by commas. A remount corrects options in this list that the kernel reports. These are `ro`, `nosuid`,
    /// `nodev`, `noexec`, `noatime`, `nodiratime` and their opposites, and `size` and `nr_inodes` of a tmpfs.
    #[serde(default = "defaults", deserialize_with = "text::text")]
    pub options: String,
    /// Field for `dump`: the fifth field of fstab.
    #[serde(default)]
    pub dump: u32,
    /// The pass in which it is checked at boot, 0 for never: the sixth field of fstab.
    #[serde(default)]
    pub pass: u32,
}

fn ensure<'de, D: Deserializer<'de>>(deserializer: D) -> Result<MountEnsure, D::Error> {
    let known = [MountEnsure::Mounted, MountEnsure::Present, MountEnsure::Unmounted, MountEnsure::Absent];
    let written = text::or_empty(deserializer)?;
    known.into_iter().find(|one| one.as_str() == written).ok_or_else(|| {
        serde::de::Error::custom(format_args!(
            "invalid ensure value: must be one of \"mounted\", \"present\", \"unmounted\" or \"absent\", not \"{written}\""
        ))
    })
}

pub(super) fn auto() -> String {
    "auto".to_owned()
}

pub(super) fn defaults() -> String {
    "defaults".to_owned()
}

impl Properties {
    /// True when the mount point has, or gets at boot, a file system.
    pub(super) fn is_wanted(&self) -> bool {
        matches!(self.ensure, MountEnsure::Mounted | MountEnsure::Present)
    }

    pub(super) fn entry(&self) -> FstabEntry {
        FstabEntry {
            device: self.device.clone(),
            point: self.name.clone(),
            fstype: self.fstype.clone(),
            options: self.options.clone(),
            dump: self.dump,
            pass: self.pass,
        }
    }
}

/// True for a mount of a directory instead of a file system.
pub(super) fn is_bind(options: &str) -> bool {
    options.split(',').any(|option| matches!(option, "bind" | "rbind"))
}
