//! Limits of this machine for reads of templates, downloads and archives, whatever a manifest contains.

/// ResourceLimits for everything that templates read, and that is fetched and unpacked, in a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceLimits {
    /// Hosts that may be fetched from; `None` is every host.
    pub fetch_hosts: Option<Vec<String>>,
    /// True where addresses of this machine itself (loopback, link-local, cloud metadata) may be fetched from without a name in
    /// the list.
    pub internal: bool,
    /// Directories (absolute) below which templates may read files, beside the directory of the manifest itself; `None` is
    /// everywhere.
    pub read_paths: Option<Vec<String>>,
    /// Directories (absolute) below which resources may make and change files; `None` is everywhere.
    pub write_paths: Option<Vec<String>>,
    /// The largest archive, fetched and unpacked, in bytes.
    pub archive_size: u64,
    /// The most entries of an archive.
    pub archive_entries: u64,
    /// The most bytes unpacked for one byte packed.
    pub archive_ratio: u64,
}

impl ResourceLimits {
    /// See [`Self::archive_size`].
    pub const ARCHIVE_SIZE: u64 = 8 << 30;
    /// See [`Self::archive_entries`].
    pub const ARCHIVE_ENTRIES: u64 = 500_000;
    /// See [`Self::archive_ratio`]. Deflate reaches 1032 for a file of zeros.
    pub const ARCHIVE_RATIO: u64 = 1000;
}

impl Default for ResourceLimits {
    /// Those of a person at the machine: every host, and what no honest archive reaches.
    fn default() -> Self {
        Self {
            fetch_hosts: None,
            internal: true,
            read_paths: None,
            write_paths: None,
            archive_size: Self::ARCHIVE_SIZE,
            archive_entries: Self::ARCHIVE_ENTRIES,
            archive_ratio: Self::ARCHIVE_RATIO,
        }
    }
}
