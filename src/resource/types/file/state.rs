//! What a path is, beside what is wanted of it in the terms in which the host answers.

use std::path::PathBuf;

use serde::Serialize;

use crate::host::Host;
use crate::host::fs::{self, FileInfo};

use super::properties::{Mode, Properties};
use super::tree::Task;
use crate::resource::State;

/// What the path is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    /// A symbolic link that leads nowhere.
    DanglingLink,
    /// A symbolic link that is not followed, because others than root could have made it.
    ForeignLink,
    /// A regular file that may be another name for a file of somebody else.
    Shared,
    /// What it is, links followed, and, where it is not as wanted, whether the path itself is one.
    Something {
        look: FileInfo,
        link: bool,
    },
}

/// What is wanted, in the terms in which the host answers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Wanted {
    /// The number of the owner; none while there is no such account.
    pub(super) uid: Option<u32>,
    /// The number of the group; none while there is no such account.
    pub(super) gid: Option<u32>,
    /// Digest of the content, where content is managed and there is a file to compare with.
    pub(super) sha256: Option<String>,
}

impl Wanted {
    pub(super) fn content_differs(&self, look: &FileInfo) -> bool {
        self.sha256.is_some() && self.sha256 != look.sha256
    }
}

/// What the host says of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileState {
    #[serde(skip)]
    pub(super) found: Found,
    #[serde(skip)]
    pub(super) wanted: Wanted,
    /// What is to be done below the directory, or why that can't be told.
    #[serde(skip)]
    pub(super) below: Result<Vec<Task>, String>,
    /// Why nothing can be made here, or given to that owner.
    #[serde(skip)]
    pub(super) obstacle: Option<String>,
    /// Where something is mounted in a directory that is to be removed with all it holds.
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
            Found::Nothing => "absent",
            Found::Something { look, .. } if look.kind == fs::FileKind::Directory => "directory",
            Found::Something { .. } | Found::DanglingLink | Found::ForeignLink | Found::Shared => "present",
        }
    }
}

/// The details of what was found, by name.
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
