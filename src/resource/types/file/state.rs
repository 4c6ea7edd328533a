//! The observed state of a path, and the desired state in the same terms.

use std::path::PathBuf;

use serde::Serialize;

use crate::host::Host;
use crate::host::fs::{self, FileInfo};

use super::properties::{Mode, Properties};
use super::tree::Task;
use crate::resource::State;

/// The largest text with a diff, in bytes.
pub(in crate::resource) const PREVIEW_LIMIT: u64 = 1 << 20;

/// The object at the path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FoundFile {
    Nothing,
    /// A symbolic link to nothing.
    DanglingLink,
    /// A symbolic link that is not followed, because others than root could have made it.
    ForeignLink,
    /// A regular file that may belong to another user under another name.
    Shared,
    /// The kind of object, links followed. If this is not the desired kind, also whether the path itself is a link.
    Something {
        look: FileInfo,
        link: bool,
    },
}

/// The desired state, with names resolved on this host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct DesiredFile {
    /// The number of the owner; none for a missing account.
    pub(super) uid: Option<u32>,
    /// The number of the group; none for a missing group.
    pub(super) gid: Option<u32>,
    /// Digest of the content, if content is managed and there is a file to compare with.
    pub(super) sha256: Option<String>,
}

impl DesiredFile {
    pub(super) fn content_differs(&self, look: &FileInfo) -> bool {
        self.sha256.is_some() && self.sha256 != look.sha256
    }
}

/// The observed state of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileState {
    #[serde(skip)]
    pub(super) found: FoundFile,
    #[serde(skip)]
    pub(super) wanted: DesiredFile,
    /// The tasks below the directory, or the error of their search.
    #[serde(skip)]
    pub(super) below: Result<Vec<Task>, String>,
    /// The reason why the file can't be created or owned.
    #[serde(skip)]
    pub(super) obstacle: Option<String>,
    /// A mount point in a directory to be removed.
    #[serde(skip)]
    pub(super) mounted: Option<PathBuf>,
    pub(super) metadata: Metadata,
}

/// The details in the `status` of events.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub(super) struct Metadata {
    pub(super) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) checksum: Option<String>,
    pub(super) owner: String,
    pub(super) group: String,
    pub(super) mode: String,
    pub(super) provider: &'static str,
    pub(super) mtime: Option<jiff::Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) size: Option<u64>,
}

impl State for FileState {
    fn ensure(&self) -> &str {
        match &self.found {
            FoundFile::Nothing => "absent",
            FoundFile::Something { look, .. } if look.kind == fs::FileKind::Directory => "directory",
            FoundFile::Something { .. } | FoundFile::DanglingLink | FoundFile::ForeignLink | FoundFile::Shared => "present",
        }
    }
}

/// The details of the observed object, by name.
pub(super) fn describe(p: &Properties, look: Option<&FileInfo>, host: &Host) -> Metadata {
    let mut metadata = Metadata { name: p.name.clone(), provider: "posix", ..Metadata::default() };
    if let Some(look) = look {
        metadata.checksum.clone_from(&look.sha256);
        metadata.owner = host.accounts().user_name(look.uid);
        metadata.group = host.accounts().group_name(look.gid);
        metadata.mode = Mode(look.mode).to_string();
        metadata.mtime = Some(look.mtime);
        metadata.size = (look.kind != fs::FileKind::Other).then_some(look.size);
    }
    metadata
}
