//! Limits of this machine for reads of templates, downloads and archives, independent of the manifest.

/// Limits for everything that a run reads in templates, fetches and unpacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceLimits {
    /// Hosts that may be fetched from; `None` is every host.
    pub fetch_hosts: Option<Vec<String>>,
    /// True where addresses of this machine itself may be fetched from without an entry in the list. Examples are loopback,
    /// link-local and cloud metadata.
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
    /// Limits for a user at the machine: every host, and sizes that no honest archive reaches.
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
