//! The way back of a file or directory that leaves its manifest.

use serde_json::{Value, json};

use crate::host::Host;
use crate::host::fs::{self, FileInfo, FileKind};
use crate::resource::ResourceError;

use super::properties::{FileEnsure, Mode, Properties};
use super::state::PREVIEW_LIMIT;
use super::state::{FileState, FoundFile};

/// Returns properties that bring back the observed object.
///
/// # Errors
/// When no properties describe the object: a link, a device, a special mode. When the content is too large, or no text.
pub(super) fn restoring(p: &Properties, state: &FileState, host: &Host) -> Result<Properties, ResourceError> {
    let refuse = |what: &str| Err(ResourceError::State(format!("{} {what}", p.name)));
    let look = match &state.found {
        _ if p.recurse => return refuse("is managed with all files below, of which none are kept"),
        FoundFile::Nothing => return Ok(removing(p)),
        FoundFile::Something { look, link: false } => look,
        _ => return refuse("is a link, or shares its content with other names"),
    };
    let base = Properties {
        owner: state.metadata.owner.clone(),
        group: state.metadata.group.clone(),
        mode: Some(Mode(look.mode)),
        follow: p.follow,
        ..Properties::for_observation(&p.name)
    };
    match look.kind {
        FileKind::File if look.mode > 0o777 => refuse("has setuid, setgid or the sticky bit"),
        FileKind::File => Ok(Properties { ensure: FileEnsure::Present, content: content(p, look, host)?, ..base }),
        FileKind::Directory if look.mode & 0o4000 != 0 => refuse("has the setuid bit"),
        FileKind::Directory if p.force => refuse("is removed with all files below, of which none are kept"),
        FileKind::Directory => Ok(Properties { ensure: FileEnsure::Directory, ..base }),
        FileKind::Other => refuse("is neither a file nor a directory"),
    }
}

/// Returns the content that a run replaces.
fn content(p: &Properties, look: &FileInfo, host: &Host) -> Result<Option<String>, ResourceError> {
    if !p.manages_content() && p.ensure == FileEnsure::Present {
        return Ok(None);
    }
    if look.size > PREVIEW_LIMIT {
        let message = format!("{} has {} bytes, more than the {PREVIEW_LIMIT} that are kept", p.name, look.size);
        return Err(ResourceError::State(message));
    }
    Ok(Some(host.managed_paths(p.follow).read_text(p.path(), PREVIEW_LIMIT)?))
}

/// Returns properties that remove the object; a directory only when empty.
pub(super) fn removing(p: &Properties) -> Properties {
    let (owner, group, mode) = (String::new(), String::new(), None);
    let base = Properties::for_observation(&p.name);
    Properties { ensure: FileEnsure::Absent, owner, group, mode, follow: p.follow, ..base }
}

/// Returns the kind, owner and mode. The content counts where a run replaces the content, and where the object is removed.
pub(super) fn comparable(p: &Properties, state: &FileState, host: &Host, removes: bool) -> Result<Value, ResourceError> {
    let FoundFile::Something { look, link: false } = &state.found else {
        let is_absent = state.found == FoundFile::Nothing;
        return Ok(Value::from(if is_absent { "absent" } else { "link" }));
    };
    let paths = host.managed_paths(p.follow);
    let within = match look.kind {
        FileKind::File if removes || p.manages_content() => {
            let (mut file, _) = paths.open(p.path())?;
            Value::from(fs::sha256_of(&mut file).map_err(|error| fs::FsError::io("read", p.path(), error))?)
        }
        FileKind::Directory if removes && !host.expects_removal(p.path()) => {
            Value::from(paths.existing_place(p.path())?.is_empty()?)
        }
        FileKind::Directory if removes => Value::from(true),
        _ => Value::Null,
    };
    let kind = match look.kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Other => "other",
    };
    Ok(json!({"kind": kind, "uid": look.uid, "gid": look.gid, "mode": look.mode, "within": within}))
}
