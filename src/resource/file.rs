//! `file`: regular files and directories: existence, content, owner, group, mode.
//!
//! A file is replaced in one step, with its owner and mode set before it becomes visible; with what care, says `replace.rs`.
//! `file/properties.rs` has what may be asked for, `file/state.rs` what is there, `file/change.rs` the steps between the two,
//! and `file/tree.rs` directories that are managed with all that is below them.

mod change;
mod properties;
mod state;
mod tree;

use std::path::Path;

use serde_json::Value;

use crate::host::fs::{self, Staged};
use crate::host::{Host, WriteSpec};

use super::{Invalid, Preview, ProviderEntry, Resource, ResourceError};

use properties::Ensure;
use state::{Found, Wanted, describe};

pub use change::FileChange;
pub(super) use properties::mode;
pub use properties::{Mode, Properties};
pub use state::FileState;

/// The largest text, in bytes, of which a diff is made.
pub(super) const PREVIEW_LIMIT: u64 = 1 << 20;

/// Files and directories.
pub struct File;

/// What a file provider can do.
pub trait Files: Send + Sync {
    /// Writes a file that can then be put in place in one step.
    ///
    /// # Errors
    /// When a step fails.
    fn stage(&self, path: &Path, content: &mut dyn std::io::Read, spec: WriteSpec) -> Result<Staged, fs::FsError>;
    /// Sets owner, group and mode.
    ///
    /// # Errors
    /// When the system refuses.
    fn set_attributes(&self, path: &Path, spec: WriteSpec) -> Result<(), fs::FsError>;
    /// Makes a directory with the parents it lacks, and sets its attributes.
    ///
    /// # Errors
    /// When the system refuses.
    fn create_directory(&self, path: &Path, spec: WriteSpec) -> Result<(), fs::FsError>;
}

/// The provider of every Unix.
struct Posix;

impl Files for Posix {
    fn stage(&self, path: &Path, content: &mut dyn std::io::Read, spec: WriteSpec) -> Result<Staged, fs::FsError> {
        Staged::new(path, content, spec)
    }

    fn set_attributes(&self, path: &Path, spec: WriteSpec) -> Result<(), fs::FsError> {
        fs::set_attributes(path, spec)
    }

    fn create_directory(&self, path: &Path, spec: WriteSpec) -> Result<(), fs::FsError> {
        fs::create_directory(path, spec.mode)?;
        fs::set_attributes(path, spec)
    }
}

impl Resource for File {
    const TYPE: &'static str = "file";
    const ABOUT: &'static str = "Regular files and directories: existence, content, owner, group and mode.";
    const DEFERRED: &'static [&'static str] = &["content", "source"];
    const PROVIDERS: &'static [ProviderEntry<dyn Files>] =
        &[ProviderEntry { name: "posix", explicit: false, suits: |_| true, open: |_| Box::new(Posix) }];

    type Properties = Properties;
    type State = FileState;
    type Change = FileChange;
    type Provider = dyn Files;

    fn validate(p: &Properties) -> Result<(), Invalid> {
        p.check()
    }

    fn name(p: &Properties) -> &str {
        &p.name
    }

    fn ensure(p: &Properties) -> &str {
        p.ensure.as_str()
    }

    fn query(name: &str) -> Option<Properties> {
        Some(Properties::of(name))
    }

    fn observe(p: &Properties, _: &dyn Files, host: &Host) -> Result<FileState, ResourceError> {
        let path = p.path();
        let Some(look) = fs::look(path, p.ensure == Ensure::Present)? else {
            let found = if fs::is_symlink(path) { Found::DanglingLink } else { Found::Nothing };
            let below = if p.recurse { p.below(false, host) } else { Ok(vec![]) };
            return Ok(FileState { metadata: describe(p, None, host), found, wanted: Wanted::default(), below });
        };
        let sha256 = match (&p.content, p.source.is_empty()) {
            _ if look.kind != fs::Kind::File || p.ensure != Ensure::Present => None,
            (Some(content), _) => Some(fs::sha256(content.as_bytes())),
            (None, false) => Some(source_sha256(&host.resolve(Path::new(&p.source)))?),
            (None, true) => None,
        };
        let wanted = Wanted { uid: host.accounts().uid(&p.owner).ok(), gid: host.accounts().gid(&p.group).ok(), sha256 };
        // Whether it is a link matters only to a step, and costs a call.
        let link = !wanted.is_met(p, &look) && fs::is_symlink(path);
        let there = look.kind == fs::Kind::Directory;
        // A link to something else gives way to a directory, which is empty then.
        let below = if p.recurse && (there || link) { p.below(there, host) } else { Ok(vec![]) };
        Ok(FileState { metadata: describe(p, Some(&look), host), found: Found::Something { look, link }, wanted, below })
    }

    fn diff(p: &Properties, state: &FileState) -> Result<Vec<FileChange>, ResourceError> {
        change::changes(p, state)
    }

    fn apply(
        change: &FileChange,
        p: &Properties,
        _: &mut FileState,
        provider: &dyn Files,
        host: &Host,
    ) -> Result<(), ResourceError> {
        let path = p.path();
        match change {
            FileChange::Store { .. } => {
                let spec = p.write_spec(host)?;
                let staged = if p.source.is_empty() {
                    provider.stage(path, &mut p.content.as_deref().unwrap_or_default().as_bytes(), spec)?
                } else {
                    let source = host.resolve(Path::new(&p.source));
                    if source.is_dir() {
                        return Err(not_a_file(&source));
                    }
                    provider.stage(path, &mut fs::open(&source)?, spec)?
                };
                p.care().replace(path, staged, host)?;
            }
            FileChange::SetAttributes { .. } => {
                if fs::is_symlink(path) {
                    let message = format!("{} is a symlink; refusing to set attributes through it", p.name);
                    return Err(ResourceError::State(message));
                }
                provider.set_attributes(path, p.write_spec(host)?)?;
            }
            FileChange::CreateDirectory { .. } => {
                let spec = p.write_spec(host)?;
                if p.recurse {
                    tree::check_source(p, host)?;
                }
                if fs::is_symlink(path) {
                    fs::remove(path)?;
                }
                provider.create_directory(path, spec)?;
            }
            FileChange::Below(tasks) => tree::apply(tasks, p, host)?,
            FileChange::RemoveFile => {
                p.care().keep_old(path, host)?;
                fs::remove(path)?;
            }
            FileChange::RemoveDirectory => remove_empty(path)?,
            FileChange::RemoveTree => fs::remove_all(path)?,
        }
        Ok(())
    }

    fn preview(p: &Properties, state: &FileState, host: &Host) -> Option<Preview> {
        let before = match &state.found {
            Found::Something { look, .. } if look.kind == fs::Kind::File => fs::read_text(p.path(), PREVIEW_LIMIT).ok()?,
            Found::Something { .. } => return None,
            Found::Nothing | Found::DanglingLink => String::new(),
        };
        let after = match (p.ensure, &p.content) {
            (Ensure::Absent, _) => String::new(),
            (Ensure::Directory, _) => return None,
            (Ensure::Present, Some(content)) => content.clone(),
            (Ensure::Present, None) if p.source.is_empty() => return None,
            (Ensure::Present, None) => fs::read_text(&host.resolve(Path::new(&p.source)), PREVIEW_LIMIT).ok()?,
        };
        Some(Preview { before, after })
    }

    fn shown(p: &Properties) -> Value {
        let mut shown = serde_json::to_value(p).unwrap_or_default();
        if let (Some(content), Some(fields)) = (&p.content, shown.as_object_mut()) {
            fields.insert("content".to_owned(), Value::String(digest(content.as_bytes())));
        }
        shown
    }
}

/// What stands for content where it is not shown.
pub(super) fn digest(content: &[u8]) -> String {
    format!("sha256:{} ({} bytes)", fs::sha256(content), content.len())
}

fn source_sha256(source: &Path) -> Result<String, ResourceError> {
    let look = fs::look(source, true)?;
    look.and_then(|look| look.sha256).ok_or_else(|| not_a_file(source))
}

fn not_a_file(source: &Path) -> ResourceError {
    ResourceError::State(format!("source {} is not a file", source.display()))
}

fn remove_empty(path: &Path) -> Result<(), ResourceError> {
    fs::remove(path).map_err(|error| match &error {
        fs::FsError::Io { source, .. } if source.kind() == std::io::ErrorKind::DirectoryNotEmpty => {
            let path = path.display();
            let message =
                format!("cannot remove {path}: directory is not empty, set 'force: true' to remove non-empty directories");
            ResourceError::State(message)
        }
        _ => error.into(),
    })
}

#[cfg(test)]
mod tests;
