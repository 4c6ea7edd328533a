//! `file`: regular files and directories: existence, content, owner, group, mode.
//!
//! A file is replaced in one step, with its owner and mode set before it becomes visible; `core/safe_replace.rs` does this.
//! `properties.rs` has the desired state, `state.rs` the observed state, and `change.rs` the steps between the two. `tree.rs`
//! manages directories with all files below. `reversal.rs` has the way back.

mod change;
mod properties;
mod reversal;
mod state;
mod tree;

use std::path::Path;

use serde_json::{Value, json};

use crate::host::fs::{self, TempFile};
use crate::host::{DirEntryHandle, Host, PathInfo, WriteSpec};

use crate::model::{Effects, Identity, Need, OnRemoval};

use crate::resource::core::{parent_checks, path_order};
use crate::resource::{Invalid, Preview, ProviderEntry, Resource, ResourceError, ResourceOutput, ShellDefaults};

use properties::FileEnsure;
pub(in crate::resource) use state::PREVIEW_LIMIT;
use state::{DesiredFile, FoundFile, Metadata, describe};

pub use change::FileChange;
pub(in crate::resource) use properties::mode;
pub use properties::{Mode, Properties};
pub use state::FileState;

/// The upper limit of the mode of parent directories that are made.
const PARENTS: u32 = 0o755;

/// Files and directories.
pub struct FileType;

/// The interface of file providers.
pub trait FileProvider: Send + Sync {
    /// Writes a temporary file that can be put in place in one step.
    ///
    /// # Errors
    /// When a step fails.
    fn stage(&self, at: &DirEntryHandle, content: &mut dyn std::io::Read, spec: WriteSpec) -> Result<TempFile, fs::FsError>;
    /// Sets owner, group and mode.
    ///
    /// # Errors
    /// When the system refuses.
    fn set_attributes(&self, at: &DirEntryHandle, spec: WriteSpec) -> Result<(), fs::FsError>;
    /// Makes a directory, and sets its attributes.
    ///
    /// # Errors
    /// When the system refuses.
    fn create_directory(&self, at: &DirEntryHandle, spec: WriteSpec) -> Result<(), fs::FsError>;
}

/// The provider of every Unix.
struct Posix;

impl FileProvider for Posix {
    fn stage(&self, at: &DirEntryHandle, content: &mut dyn std::io::Read, spec: WriteSpec) -> Result<TempFile, fs::FsError> {
        at.temp_file(content, spec)
    }

    fn set_attributes(&self, at: &DirEntryHandle, spec: WriteSpec) -> Result<(), fs::FsError> {
        at.set(spec)
    }

    fn create_directory(&self, at: &DirEntryHandle, spec: WriteSpec) -> Result<(), fs::FsError> {
        at.make_directory(spec.mode)?;
        at.set(spec)
    }
}

impl Resource for FileType {
    const TYPE: &'static str = "file";
    const CHANGES_SYSTEM: bool = false;
    const ABOUT: &'static str = "Regular files and directories: existence, content, owner, group and mode.";
    const RUNTIME_TEMPLATES: &'static [&'static str] = &["content", "source"];
    const NO_EFFECTS: &'static [(&'static str, &'static str)] = &[
        ("content", "content at the same path"),
        ("owner", "attribute at the same path"),
        ("group", "attribute at the same path"),
        ("mode", "attribute at the same path"),
        ("purge", "removes below a directory that is written anyway"),
        ("backup_keep", "how many copies stay where they are written"),
    ];
    const CONTENT: &'static [&'static str] = &["content"];
    const CLAIMED_PATHS: &'static [&'static str] = &["ensure", "content", "source", "owner", "group", "mode"];
    const OUTPUTS: &'static [ResourceOutput] = &[
        ResourceOutput::text("checksum", "The SHA-256 of the content, as lower-case hex, when the content is managed."),
        ResourceOutput::number("size", "The size in bytes."),
        ResourceOutput::text("mode", "The permissions, as `0644`."),
        ResourceOutput::text("owner", "The name of the owner."),
        ResourceOutput::text("group", "The name of the group."),
    ];
    const REVERSALS: &'static [OnRemoval] = &[OnRemoval::Absent, OnRemoval::Revert];
    const PROVIDERS: &'static [ProviderEntry<dyn FileProvider>] = &[ProviderEntry::everywhere("posix", |_| Box::new(Posix))];

    type Properties = Properties;
    type State = FileState;
    type Change = FileChange;
    type Provider = dyn FileProvider;

    fn shell_defaults(ensure: Option<&str>) -> ShellDefaults {
        let mode = match ensure {
            Some("directory") => "0755",
            Some("present") | None => "0644",
            _ => return ShellDefaults::default(),
        };
        ShellDefaults { own_account: true, mode: Some(mode), ..ShellDefaults::default() }
    }

    fn validate(p: &Properties) -> Result<(), Invalid> {
        p.check()
    }

    fn name(p: &Properties) -> &str {
        &p.name
    }

    fn ensure(p: &Properties) -> &str {
        p.ensure.as_str()
    }

    fn effects(p: &Properties) -> Effects {
        p.effects()
    }

    fn provides(p: &Properties) -> Vec<Identity> {
        path_order::path_if(p.ensure != FileEnsure::Absent, &p.name)
    }

    fn removes(p: &Properties) -> Vec<Identity> {
        path_order::path_if(p.ensure == FileEnsure::Absent, &p.name)
    }

    fn needs(p: &Properties) -> Vec<Need> {
        if p.ensure == FileEnsure::Absent {
            return vec![Need::below(&p.name)];
        }
        let mut needs = path_order::path_needs(&p.name, &p.owner, &p.group);
        needs.extend(path_order::existing_path_needs(&p.source));
        needs.extend(path_order::command_needs(&p.validate));
        needs
    }

    fn query(name: &str) -> Option<Properties> {
        Some(Properties::for_observation(name))
    }

    fn observe(p: &Properties, _: &dyn FileProvider, host: &Host) -> Result<FileState, ResourceError> {
        let path = p.path();
        let nothing = |found| {
            let below = if p.recurse { tree::below(p, false, host) } else { Ok(vec![]) };
            let (metadata, obstacle) = (describe(p, None, host), obstacle(p, found == FoundFile::Nothing, host)?);
            Ok(FileState { metadata, found, wanted: DesiredFile::default(), below, obstacle, mounted: None })
        };
        let seen = match (p.ensure, host.managed_paths(p.follow)) {
            // The digest of a file to remove is reported, if the file can be read.
            (FileEnsure::Absent, rules) => rules.inspect(path, true).or_else(|_| rules.inspect(path, false))?,
            (ensure, rules) => rules.inspect(path, ensure == FileEnsure::Present)?,
        };
        let (look, link) = match seen {
            PathInfo::Nothing => return nothing(FoundFile::Nothing),
            PathInfo::Dangling => return nothing(FoundFile::DanglingLink),
            PathInfo::Link => return nothing(FoundFile::ForeignLink),
            PathInfo::SharedFile => return nothing(FoundFile::Shared),
            PathInfo::Object { info: look, link } => (look, link),
        };
        let sha256 = match (&p.content, p.source.is_empty()) {
            _ if look.kind != fs::FileKind::File || p.ensure != FileEnsure::Present => None,
            (Some(content), _) => Some(fs::sha256(content.as_bytes())),
            (None, false) => Some(source_sha256(p, host)?),
            (None, true) => None,
        };
        let wanted = DesiredFile { uid: host.accounts().uid(&p.owner).ok(), gid: host.accounts().gid(&p.group).ok(), sha256 };
        let there = look.kind == fs::FileKind::Directory;
        // A link to another object is replaced by a new directory, which is empty.
        let below = if p.recurse && (there || link) { tree::below(p, there, host) } else { Ok(vec![]) };
        let goes = there && !link && p.ensure == FileEnsure::Absent;
        let mounted = if goes && p.force { host.managed_paths(p.follow).existing_place(path)?.first_mount()? } else { None };
        if goes && !p.force && !host.expects_removal(path) && !host.managed_paths(p.follow).existing_place(path)?.is_empty()? {
            let obstacle = Some(not_empty(path));
            let (metadata, found) = (describe(p, Some(&look), host), FoundFile::Something { look, link });
            return Ok(FileState { metadata, found, wanted, below, obstacle, mounted });
        }
        let metadata = describe(p, Some(&look), host);
        let obstacle = obstacle(p, false, host)?;
        Ok(FileState { metadata, found: FoundFile::Something { look, link }, wanted, below, obstacle, mounted })
    }

    fn outputs(_: &Properties, state: &FileState) -> Vec<(&'static str, Value)> {
        let Metadata { checksum, size, mode, owner, group, mtime, .. } = &state.metadata;
        // Only an object has a time.
        if mtime.is_none() {
            return Vec::new();
        }
        let texts = [("mode", mode), ("owner", owner), ("group", group)].map(|(name, text)| (name, json!(text)));
        texts.into_iter().chain([("checksum", json!(checksum)), ("size", json!(size))]).collect()
    }

    fn diff(p: &Properties, state: &FileState) -> Result<Vec<FileChange>, ResourceError> {
        change::changes(p, state)
    }

    fn apply(
        change: &FileChange,
        p: &Properties,
        _: &mut FileState,
        provider: &dyn FileProvider,
        host: &Host,
    ) -> Result<(), ResourceError> {
        let rules = host.managed_paths(p.follow);
        if let FileChange::Below(tasks) = change {
            return tree::apply(tasks, p, host);
        }
        if let FileChange::CreateDirectory { .. } = change {
            let spec = p.write_spec(host)?;
            if p.recurse {
                tree::check_source(p, host)?;
            }
            let at = rules.create_place(p.path(), spec.mode & PARENTS | 0o700)?;
            if at.is_link()? {
                at.remove()?;
            }
            return Ok(provider.create_directory(&at, spec)?);
        }
        let spec = if p.ensure == FileEnsure::Absent { None } else { Some(p.write_spec(host)?) };
        let at = rules.existing_place(p.path())?;
        match (change, spec) {
            (FileChange::Store { .. }, Some(spec)) => {
                let staged = if p.source.is_empty() {
                    provider.stage(&at, &mut p.content.as_deref().unwrap_or_default().as_bytes(), spec)?
                } else {
                    provider.stage(&at, &mut source(p, host)?, spec)?
                };
                p.replace_options().replace(&at, staged, host)?;
            }
            (FileChange::SetAttributes { .. }, Some(spec)) => {
                if at.is_link()? {
                    let message = format!("{} is a symlink; refusing to set attributes through it", p.name);
                    return Err(ResourceError::State(message));
                }
                provider.set_attributes(&at, spec)?;
            }
            (FileChange::RemoveFile, _) => {
                p.replace_options().make_backup(&at, host)?;
                at.remove()?;
            }
            (FileChange::RemoveDirectory, _) => remove_empty(&at)?,
            (FileChange::RemoveTree, _) => at.remove_all()?,
            _ => {}
        }
        Ok(())
    }

    fn preview(p: &Properties, state: &FileState, host: &Host) -> Option<Preview> {
        let (before, is_public) = match &state.found {
            FoundFile::Something { look, .. } if look.kind == fs::FileKind::File => {
                (host.managed_paths(p.follow).read_text(p.path(), PREVIEW_LIMIT).ok()?, look.is_public())
            }
            FoundFile::Something { .. } => return None,
            FoundFile::Nothing | FoundFile::DanglingLink | FoundFile::ForeignLink | FoundFile::Shared => (String::new(), true),
        };
        let after = match (p.ensure, &p.content) {
            (FileEnsure::Absent, _) => String::new(),
            (FileEnsure::Directory, _) => return None,
            (FileEnsure::Present, Some(content)) => content.clone(),
            (FileEnsure::Present, None) if p.source.is_empty() => return None,
            (FileEnsure::Present, None) => {
                host.source_paths(p.follow).read_text(&host.resolve(Path::new(&p.source)), PREVIEW_LIMIT).ok()?
            }
        };
        let is_public =
            is_public && fs::is_reachable(p.path()) && (p.ensure == FileEnsure::Absent || fs::is_public(p.wanted_mode()));
        Some(Preview { before, after, is_public })
    }

    fn restoring(p: &Properties, state: &FileState, host: &Host) -> Result<Option<Properties>, ResourceError> {
        reversal::restoring(p, state, host).map(Some)
    }

    fn removing(p: &Properties, _: &FileState) -> Option<Properties> {
        Some(reversal::removing(p))
    }

    fn comparable(p: &Properties, state: &FileState, host: &Host, removes: bool) -> Result<Value, ResourceError> {
        reversal::comparable(p, state, host, removes)
    }

    fn redacted(p: &Properties) -> Value {
        let mut shown = serde_json::to_value(p).unwrap_or_default();
        if let (Some(content), Some(fields)) = (&p.content, shown.as_object_mut()) {
            fields.insert("content".to_owned(), Value::String(digest(content.as_bytes())));
        }
        shown
    }
}

/// Returns the digest that replaces content in events.
pub(in crate::resource) fn digest(content: &[u8]) -> String {
    format!("sha256:{} ({} bytes)", fs::sha256(content), content.len())
}

/// Opens the file to copy the content from.
fn source(p: &Properties, host: &Host) -> Result<fs::File, ResourceError> {
    let path = host.resolve(Path::new(&p.source));
    match host.source_paths(p.follow).open(&path) {
        Ok((file, _)) => Ok(file),
        Err(error) if error.is_not_found() || matches!(error, fs::FsError::NotAFile(_)) => {
            Err(ResourceError::State(format!("source {} is not a file", path.display())))
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns the reason why the file can't be created or owned. Ignores reasons that an earlier resource of a dry run would remove.
fn obstacle(p: &Properties, missing: bool, host: &Host) -> Result<Option<String>, ResourceError> {
    if p.ensure == FileEnsure::Absent {
        return Ok(None);
    }
    let gone = if missing && p.ensure == FileEnsure::Present {
        parent_checks::parent_error(p.path(), &host.managed_paths(p.follow), host)?
    } else {
        None
    };
    Ok(gone.or_else(|| parent_checks::account_error(&p.owner, &p.group, host)))
}

fn source_sha256(p: &Properties, host: &Host) -> Result<String, ResourceError> {
    Ok(fs::sha256_of(&mut source(p, host)?).map_err(|error| fs::FsError::io("read", Path::new(&p.source), error))?)
}

fn not_empty(path: &Path) -> String {
    let path = path.display();
    format!("cannot remove {path}: directory is not empty, set 'force: true' to remove non-empty directories")
}

fn remove_empty(at: &DirEntryHandle) -> Result<(), ResourceError> {
    at.remove().map_err(|error| match &error {
        fs::FsError::Io { source, .. } if source.kind() == std::io::ErrorKind::DirectoryNotEmpty => {
            ResourceError::State(not_empty(at.path()))
        }
        _ => error.into(),
    })
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;
