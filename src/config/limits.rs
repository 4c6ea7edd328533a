//! `[limits]`: restrictions of the host that no command can widen.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::model::{MountLimit, ResourceLimits};

use super::document::Checks;
use super::size::byte_size;

/// Enforcement of the limits by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConfinePolicy {
    /// Enforced as far as the kernel can.
    #[default]
    Auto,
    /// The agent does not start, and nothing runs, where the kernel can't hold all that it could.
    Required,
    /// Not at all: only the agent's own checks hold.
    Off,
}

/// The use of unsigned values of the bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BusDataPolicy {
    /// Unsigned values can only be content of files.
    #[default]
    Signed,
    /// Unsigned values count as signed: the owner of the server decides what this node does with them.
    Any,
}

/// Restrictions that no command can widen.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Resource types that may be managed; all when left out.
    pub types: Option<Vec<String>>,
    /// Path prefixes below which files may be managed; all when left out.
    pub paths: Option<Vec<String>>,
    /// Path prefixes below which templates may read files (`readFile()`, `secret("file:...")`), beside those of the bundle
    /// itself.
    /// Those of `paths` when left out.
    pub read_paths: Option<Vec<String>>,
    /// True when commands may be run: by `exec`, and as health checks, post commands or `validate` of other types.
    pub exec: bool,
    /// File systems that may be mounted. When left out: none where `types`, `paths`, `read_paths` or `exec` limit
    /// something, otherwise all.
    pub mount: Option<Vec<MountLimit>>,
    /// True when manifests may be applied.
    pub apply: bool,
    /// True when assignments may have drift repaired when it happens. The agent then watches the files that they manage.
    pub watch: bool,
    /// Hosts that bundles and archives may come from. When left out: every host but addresses of this machine itself
    /// (loopback, link-local, cloud metadata), which must be named.
    pub fetch_hosts: Option<Vec<String>>,
    /// Enforcement of these limits by the kernel.
    pub confine: ConfinePolicy,
    /// True when runs that are restricted to `paths` may connect to sockets of this host. The servers behind them, as a
    /// database, the container engine or systemd, may act outside of `paths`.
    pub unix_sockets: bool,
    /// The use of unsigned values of the bus (`kvGet()`, `registrations()`, `data = "kv://..."`). `signed`: only as declared
    /// content, never as a command, path, URL, condition or account. `any`: as any other value.
    pub bus_data: BusDataPolicy,
    /// Largest archive of an `archive` resource, as it is fetched and as it is unpacked.
    #[serde(deserialize_with = "byte_size")]
    #[schemars(with = "String")]
    pub archive_size: u64,
    /// Most files, directories and links in an archive.
    pub archive_entries: u64,
    /// Most bytes that an archive may unpack to for one of its own; small ones may have 64 MiB anyway.
    pub archive_ratio: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            types: None,
            paths: None,
            read_paths: None,
            exec: false,
            mount: None,
            apply: true,
            watch: true,
            fetch_hosts: None,
            confine: ConfinePolicy::Auto,
            unix_sockets: false,
            bus_data: BusDataPolicy::default(),
            archive_size: ResourceLimits::ARCHIVE_SIZE,
            archive_entries: ResourceLimits::ARCHIVE_ENTRIES,
            archive_ratio: ResourceLimits::ARCHIVE_RATIO,
        }
    }
}

impl Limits {
    /// Reports values of the wrong form.
    pub(super) fn check(&self, checks: &mut Checks<'_>) {
        for (key, paths) in [("paths", &self.paths), ("read_paths", &self.read_paths)] {
            for path in paths.iter().flatten() {
                if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
                    checks.report(&["limits", key], format!("\"{path}\" is not an absolute path without `..`"));
                }
            }
        }
        for host in self.fetch_hosts.iter().flatten() {
            if host.is_empty() || host.contains(['/', '@', ' ']) {
                checks.report(&["limits", "fetch_hosts"], format!("\"{host}\" is not a host name or address"));
            }
        }
        for entry in self.mount.iter().flatten() {
            if entry.fstype.is_empty() || entry.fstype.contains('/') {
                checks.report(&["limits", "mount"], format!("\"{}\" is not a type of file system", entry.fstype));
            }
        }
    }
}
