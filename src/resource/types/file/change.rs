//! The steps from the observed to the desired file, decided without the host.

use std::fmt;

use crate::host::fs::{self, FileInfo, FsError};

use super::properties::{FileEnsure, Mode, Properties};
use super::state::{FileState, FoundFile};
use super::tree::{self, Task};
use crate::resource::{Change, ResourceError};

/// A step towards the desired file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileChange {
    /// Write the file: content, owner, mode.
    Store {
        /// True when only the existence and attributes are managed.
        empty: bool,
        /// The differences.
        details: Vec<String>,
    },
    /// Set owner, group and mode.
    SetAttributes {
        /// True when the content is managed too, and needs no change.
        managed: bool,
        /// The differences.
        details: Vec<String>,
    },
    /// Make the directory, or set its attributes.
    CreateDirectory {
        /// The differences.
        details: Vec<String>,
    },
    /// Apply the tasks below the directory.
    Below(Vec<Task>),
    /// Remove a file or link.
    RemoveFile,
    /// Remove an empty directory.
    RemoveDirectory,
    /// Remove a directory with everything below.
    RemoveTree,
}

impl fmt::Display for FileChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Below(tasks) => return f.write_str(&tree::summarise(tasks)),
            Self::Store { empty: true, .. } => "created an empty file with requested attributes",
            Self::Store { .. } | Self::SetAttributes { managed: true, .. } => "created the file",
            Self::SetAttributes { .. } => "updated attributes",
            Self::CreateDirectory { .. } => "created directory",
            Self::RemoveFile => "removed the file",
            Self::RemoveDirectory => "removed the directory",
            Self::RemoveTree => "recursively removed the directory",
        })
    }
}

impl Change for FileChange {
    fn details(&self) -> Vec<String> {
        match self {
            Self::Store { details, .. } | Self::SetAttributes { details, .. } | Self::CreateDirectory { details }
                if !details.is_empty() =>
            {
                details.clone()
            }
            Self::Below(tasks) => tree::describe(tasks),
            _ => vec![self.to_string()],
        }
    }
}

/// Returns the steps from the observed to the desired state.
pub(super) fn changes(p: &Properties, state: &FileState) -> Result<Vec<FileChange>, ResourceError> {
    let changes = steps(p, state)?;
    match &state.obstacle {
        Some(why) if !changes.is_empty() => Err(ResourceError::State(why.clone())),
        _ => Ok(changes),
    }
}

fn steps(p: &Properties, state: &FileState) -> Result<Vec<FileChange>, ResourceError> {
    match p.ensure {
        FileEnsure::Absent => match &state.mounted {
            Some(mounted) => Err(FsError::Mounted { path: p.path().to_owned(), mounted: mounted.clone() }.into()),
            None => Ok(removal(p, &state.found)),
        },
        FileEnsure::Directory => {
            let mut changes = directory(p, state)?;
            let below = state.below.clone().map_err(ResourceError::State)?;
            changes.extend((!below.is_empty()).then_some(FileChange::Below(below)));
            Ok(changes)
        }
        FileEnsure::Present => present(p, state),
    }
}

fn removal(p: &Properties, found: &FoundFile) -> Vec<FileChange> {
    match found {
        FoundFile::Nothing => vec![],
        FoundFile::Something { look, link: false } if look.kind == fs::FileKind::Directory => {
            vec![if p.force { FileChange::RemoveTree } else { FileChange::RemoveDirectory }]
        }
        FoundFile::Something { .. } | FoundFile::DanglingLink | FoundFile::ForeignLink | FoundFile::Shared => {
            vec![FileChange::RemoveFile]
        }
    }
}

fn directory(p: &Properties, state: &FileState) -> Result<Vec<FileChange>, ResourceError> {
    match &state.found {
        FoundFile::Nothing => Ok(vec![FileChange::CreateDirectory { details: vec![] }]),
        FoundFile::Something { look, .. } if look.kind == fs::FileKind::Directory => {
            let details = attributes(p, state, look);
            Ok(if details.is_empty() { vec![] } else { vec![FileChange::CreateDirectory { details }] })
        }
        FoundFile::Something { link: true, .. } | FoundFile::DanglingLink | FoundFile::ForeignLink => {
            Ok(vec![FileChange::CreateDirectory { details: vec!["symlink → directory".to_owned()] }])
        }
        FoundFile::Something { .. } | FoundFile::Shared => {
            Err(ResourceError::State(format!("{} exists and is not a directory; cannot manage it as one", p.name)))
        }
    }
}

fn present(p: &Properties, state: &FileState) -> Result<Vec<FileChange>, ResourceError> {
    let (look, link) = match &state.found {
        FoundFile::Nothing | FoundFile::DanglingLink => {
            return Ok(vec![FileChange::Store { empty: !p.manages_content(), details: vec![] }]);
        }
        // The target of a foreign link and the content of a shared file are not read: both are replaced.
        FoundFile::ForeignLink if p.manages_content() => return Ok(vec![replaced("link → file")]),
        FoundFile::Shared if p.manages_content() => return Ok(vec![replaced("shared → own file")]),
        FoundFile::ForeignLink => {
            let message = "is a symlink; refusing to set attributes through it: others than root can change its directory";
            return Err(ResourceError::State(format!("{} {message}", p.name)));
        }
        FoundFile::Shared => {
            let message = "has several names (hard links) in a directory that others can change; refusing to set attributes: it \
                           may be a file of another user";
            return Err(ResourceError::State(format!("{} {message}", p.name)));
        }
        FoundFile::Something { look, link } => (look, *link),
    };
    match look.kind {
        fs::FileKind::File => {}
        fs::FileKind::Directory => {
            return Err(ResourceError::State(format!("{} exists as a directory; cannot manage it as a file", p.name)));
        }
        fs::FileKind::Other => {
            return Err(ResourceError::State(format!("{} is a device, socket or pipe; cannot manage it as a file", p.name)));
        }
    }
    let mut details = Vec::new();
    let content = state.wanted.content_differs(look);
    if content {
        details.push("content".to_owned());
    }
    details.extend(attributes(p, state, look));
    let managed = p.manages_content();
    Ok(match details.is_empty() {
        true => vec![],
        // A link is replaced, because attributes are not set through a link.
        false if content || (managed && link) => vec![FileChange::Store { empty: false, details }],
        false => vec![FileChange::SetAttributes { managed, details }],
    })
}

fn replaced(detail: &str) -> FileChange {
    FileChange::Store { empty: false, details: vec![detail.to_owned()] }
}

fn attributes(p: &Properties, state: &FileState, look: &FileInfo) -> Vec<String> {
    let mut details = Vec::new();
    if state.wanted.uid != Some(look.uid) {
        details.push(format!("owner {} → {}", state.metadata.owner, p.owner));
    }
    if state.wanted.gid != Some(look.gid) {
        details.push(format!("group {} → {}", state.metadata.group, p.group));
    }
    if p.wanted_mode() != look.mode {
        details.push(format!("mode {} → {}", Mode(look.mode), Mode(p.wanted_mode())));
    }
    details
}
