//! `file`: regular files and directories: existence, content, owner, group, mode.
//!
//! A file is replaced in one step, with its owner and mode set before it becomes visible; with what care, says `replace.rs`.
//! `file/tree.rs` has directories that are managed with all that is below them.

mod tree;

use std::fmt;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::diag::chain;
use crate::host::fs::{self, Look, Staged};
use crate::host::{Host, WriteSpec};

use super::replace::{self, Care};
use super::{Change, Invalid, Preview, ProviderEntry, Resource, ResourceError, State, text};

use tree::Task;

/// The largest text, in bytes, of which a diff is made.
pub(super) const PREVIEW_LIMIT: u64 = 1 << 20;

/// Files and directories.
pub struct File;

/// What a path shall be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Ensure {
    /// A regular file.
    Present,
    /// Nothing.
    Absent,
    /// A directory.
    Directory,
}

impl Ensure {
    fn as_str(self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::Absent => "absent",
            Self::Directory => "directory",
        }
    }
}

impl<'de> Deserialize<'de> for Ensure {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match text::or_empty(deserializer)?.as_str() {
            "present" => Ok(Self::Present),
            "absent" => Ok(Self::Absent),
            "directory" => Ok(Self::Directory),
            "" => Err(serde::de::Error::custom("ensure is required")),
            other => Err(serde::de::Error::custom(format_args!(
                "invalid ensure value: must be one of \"present\", \"absent\" or \"directory\", not \"{other}\""
            ))),
        }
    }
}

/// Permission bits, written in octal: `644`, `0644` and `0o644` are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode(u32);

impl Mode {
    /// The permission bits.
    pub(super) fn bits(self) -> u32 {
        self.0
    }

    /// The mode of a directory: who may read or write may also enter.
    fn for_directory(self) -> u32 {
        [0o100, 0o010, 0o001].into_iter().fold(self.0, |mode, x| if mode & (x * 6) == 0 { mode } else { mode | x })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let digits = text.strip_prefix("0o").or_else(|| text.strip_prefix("0O")).unwrap_or(text);
        let octal = !digits.is_empty() && digits.bytes().all(|b| (b'0'..=b'7').contains(&b));
        match u32::from_str_radix(digits, 8) {
            Ok(mode) if octal && mode <= 0o777 => Ok(Self(mode)),
            Ok(_) if octal => Err(format!("mode \"{text}\" exceeds maximum value 0777")),
            _ => Err(format!("mode \"{text}\" is not a valid octal number")),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl Serialize for Mode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A mode as it is written; none when it is left out, null or empty.
///
/// # Errors
/// When it is not octal, or more than 0777.
pub(super) fn mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Mode>, D::Error> {
    let written = text::or_empty(deserializer)?;
    if written.is_empty() { Ok(None) } else { Mode::parse(&written).map(Some).map_err(serde::de::Error::custom) }
}

/// Properties of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Properties {
    /// The path: absolute, without `.`, `..` or doubled slashes.
    #[serde(deserialize_with = "text::text")]
    pub name: String,
    /// What the path shall be.
    pub ensure: Ensure,
    /// The content. Empty text empties the file; left out or null, the content is not managed.
    #[serde(default, deserialize_with = "text::optional", skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// A file on this host to copy the content from, or with `recurse` a directory; relative to the directory of the manifest.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// The owner, by name or number. Needed unless absent.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// The group, by name or number. Needed unless absent.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The permission bits in octal, up to 0777. Needed unless absent. In a directory, who may read or write may also enter.
    #[serde(default, deserialize_with = "mode", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", regex(pattern = r"^(0[oO])?[0-7]{1,4}$"))]
    pub mode: Option<Mode>,
    /// With absent: remove a directory with all it holds.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    /// A command that must accept the new content before it takes the place of the old: `%s` stands for the path of a file
    /// with the new content, in the same directory. No shell runs. Not run in a dry run.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub validate: String,
    /// With directory: manage all that is below it too. With a `source`, which is a directory then, its files, directories and
    /// links are copied; without one, only owner, group and mode are set. Every file gets the mode, links are not followed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recurse: bool,
    /// With `recurse` and a `source`: remove what the source does not have, and replace what is of another kind.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub purge: bool,
    /// Keep the old file before its content is replaced or it is removed: `true` beside it, as `NAME.TIME.bak`; an ending
    /// that begins with a dot, in place of `.bak`; or the absolute path of a directory.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub backup: String,
    /// How many old files are kept; 10 when left out.
    #[serde(default = "replace::keep", skip_serializing_if = "replace::is_keep")]
    #[schemars(range(min = 1))]
    pub backup_keep: u32,
}

impl Properties {
    fn path(&self) -> &Path {
        Path::new(&self.name)
    }

    fn care(&self) -> Care<'_> {
        Care { validate: &self.validate, backup: &self.backup, keep: self.backup_keep }
    }

    fn manages_content(&self) -> bool {
        self.content.is_some() || !self.source.is_empty()
    }

    /// The mode that is wanted of what `ensure` says.
    fn wanted_mode(&self) -> u32 {
        let mode = self.mode.unwrap_or(Mode(0));
        if self.ensure == Ensure::Directory { mode.for_directory() } else { mode.0 }
    }

    /// What is to be done below the directory.
    fn below(&self, exists: bool, host: &Host) -> Result<Vec<Task>, String> {
        let accounts = host.accounts();
        let (uid, gid) = (accounts.uid(&self.owner).ok(), accounts.gid(&self.group).ok());
        let wanted = tree::Wanted { uid, gid, mode: self.mode.unwrap_or(Mode(0)), purge: self.purge };
        tree::look(self, wanted, exists, host).map_err(|error| chain(&error))
    }

    fn write_spec(&self, host: &Host) -> Result<WriteSpec, ResourceError> {
        let accounts = host.accounts();
        Ok(WriteSpec { uid: Some(accounts.uid(&self.owner)?), gid: Some(accounts.gid(&self.group)?), mode: self.wanted_mode() })
    }
}

/// What the path is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Found {
    Nothing,
    /// A symbolic link that leads nowhere.
    DanglingLink,
    /// What it is, links followed, and, where it is not as wanted, whether the path itself is one.
    Something {
        look: Look,
        link: bool,
    },
}

/// What is wanted, in the terms in which the host answers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Wanted {
    /// The number of the owner; none while there is no such account.
    uid: Option<u32>,
    /// The number of the group; none while there is no such account.
    gid: Option<u32>,
    /// Digest of the content, where content is managed and there is a file to compare with.
    sha256: Option<String>,
}

impl Wanted {
    fn content_differs(&self, look: &Look) -> bool {
        self.sha256.is_some() && self.sha256 != look.sha256
    }

    /// True when nothing of what is there needs a step.
    fn is_met(&self, p: &Properties, look: &Look) -> bool {
        let kind = match p.ensure {
            Ensure::Present => fs::Kind::File,
            Ensure::Directory => fs::Kind::Directory,
            Ensure::Absent => return false,
        };
        look.kind == kind
            && !self.content_differs(look)
            && (self.uid, self.gid, p.wanted_mode()) == (Some(look.uid), Some(look.gid), look.mode)
    }
}

/// What the host says of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileState {
    #[serde(skip)]
    found: Found,
    #[serde(skip)]
    wanted: Wanted,
    /// What is to be done below the directory, or why that can't be told.
    #[serde(skip)]
    below: Result<Vec<Task>, String>,
    metadata: Metadata,
}

/// The details in the `status` of events.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
struct Metadata {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    checksum: Option<String>,
    owner: String,
    group: String,
    mode: String,
    provider: &'static str,
    mtime: Option<jiff::Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
}

impl State for FileState {
    fn ensure(&self) -> &str {
        match &self.found {
            Found::Nothing => "absent",
            Found::Something { look, .. } if look.kind == fs::Kind::Directory => "directory",
            Found::Something { .. } | Found::DanglingLink => "present",
        }
    }
}

/// One step towards the wanted file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileChange {
    /// Write the file: content, owner, mode.
    Store {
        /// Nothing is managed but its existence and attributes.
        empty: bool,
        /// What differs from what is there.
        details: Vec<String>,
    },
    /// Set owner, group and mode.
    SetAttributes {
        /// The content is managed too, and right.
        managed: bool,
        /// What differs.
        details: Vec<String>,
    },
    /// Make the directory, or set its attributes.
    CreateDirectory {
        /// What differs from what is there.
        details: Vec<String>,
    },
    /// Do what is to be done below the directory.
    Below(Vec<Task>),
    /// Remove a file or link.
    RemoveFile,
    /// Remove an empty directory.
    RemoveDirectory,
    /// Remove a directory with all it holds.
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
        text::check_path("name", "file path", &p.name)?;
        if p.content.is_some() && !p.source.is_empty() {
            return Err(Invalid::new("source", "'content' and 'source' are mutually exclusive"));
        }
        if p.ensure != Ensure::Absent {
            for (property, missing) in [("owner", p.owner.is_empty()), ("group", p.group.is_empty()), ("mode", p.mode.is_none())]
            {
                if missing {
                    return Err(Invalid::new(property, format!("{property} cannot be empty")));
                }
            }
        }
        if p.force && p.ensure != Ensure::Absent {
            let message = format!("'force: true' is only valid with 'ensure: absent', got 'ensure: {}'", p.ensure.as_str());
            return Err(Invalid::new("force", message));
        }
        if p.name == "/" && p.ensure == Ensure::Absent {
            return Err(Invalid::new("force", "'force: true' cannot be used with the filesystem root"));
        }
        check_tree(p)?;
        let judged = p.ensure == Ensure::Present && p.manages_content();
        if !p.validate.is_empty() && !judged {
            return Err(Invalid::new("validate", "'validate' judges new content: it needs 'content' or 'source'"));
        }
        p.care().check()
    }

    fn name(p: &Properties) -> &str {
        &p.name
    }

    fn ensure(p: &Properties) -> &str {
        p.ensure.as_str()
    }

    fn query(name: &str) -> Option<Properties> {
        Some(Properties {
            name: name.to_owned(),
            ensure: Ensure::Present,
            content: None,
            source: String::new(),
            owner: "0".to_owned(),
            group: "0".to_owned(),
            mode: Some(Mode(0)),
            force: false,
            validate: String::new(),
            recurse: false,
            purge: false,
            backup: String::new(),
            backup_keep: replace::KEEP,
        })
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
        match p.ensure {
            Ensure::Absent => Ok(removal(p, &state.found)),
            Ensure::Directory => {
                let mut changes = directory(p, state)?;
                let below = state.below.clone().map_err(ResourceError::State)?;
                changes.extend((!below.is_empty()).then_some(FileChange::Below(below)));
                Ok(changes)
            }
            Ensure::Present => present(p, state),
        }
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

fn check_tree(p: &Properties) -> Result<(), Invalid> {
    let wrong = |property, message: &str| Err(Invalid::new(property, message));
    if p.purge && (!p.recurse || p.source.is_empty()) {
        return wrong("purge", "'purge' removes what a source does not have: it needs 'recurse: true' and 'source'");
    }
    if !p.recurse {
        return Ok(());
    }
    if p.ensure != Ensure::Directory {
        return wrong("recurse", "'recurse: true' is only valid with 'ensure: directory'");
    }
    if p.name == "/" {
        return wrong("recurse", "'recurse: true' cannot be used with the filesystem root");
    }
    if !p.backup.is_empty() && p.backup != "false" {
        return wrong("backup", "'backup' is for single files, not with 'recurse: true'");
    }
    Ok(())
}

fn source_sha256(source: &Path) -> Result<String, ResourceError> {
    let look = fs::look(source, true)?;
    look.and_then(|look| look.sha256).ok_or_else(|| not_a_file(source))
}

fn not_a_file(source: &Path) -> ResourceError {
    ResourceError::State(format!("source {} is not a file", source.display()))
}

fn describe(p: &Properties, look: Option<&Look>, host: &Host) -> Metadata {
    let mut metadata = Metadata { name: p.name.clone(), provider: "posix", ..Metadata::default() };
    if let Some(look) = look {
        metadata.checksum.clone_from(&look.sha256);
        metadata.owner = host.accounts().user_name(look.uid);
        metadata.group = host.accounts().group_name(look.gid);
        metadata.mode = Mode(look.mode).to_string();
        metadata.mtime = Some(look.mtime);
        metadata.size = (look.kind == fs::Kind::File).then_some(look.size);
    }
    metadata
}

fn removal(p: &Properties, found: &Found) -> Vec<FileChange> {
    match found {
        Found::Nothing => vec![],
        Found::Something { look, link: false } if look.kind == fs::Kind::Directory => {
            vec![if p.force { FileChange::RemoveTree } else { FileChange::RemoveDirectory }]
        }
        Found::Something { .. } | Found::DanglingLink => vec![FileChange::RemoveFile],
    }
}

fn directory(p: &Properties, state: &FileState) -> Result<Vec<FileChange>, ResourceError> {
    match &state.found {
        Found::Nothing => Ok(vec![FileChange::CreateDirectory { details: vec![] }]),
        Found::Something { look, .. } if look.kind == fs::Kind::Directory => {
            let details = attributes(p, state, look);
            Ok(if details.is_empty() { vec![] } else { vec![FileChange::CreateDirectory { details }] })
        }
        Found::Something { link: true, .. } | Found::DanglingLink => {
            Ok(vec![FileChange::CreateDirectory { details: vec!["symlink → directory".to_owned()] }])
        }
        Found::Something { .. } => {
            Err(ResourceError::State(format!("{} exists and is not a directory; cannot manage it as one", p.name)))
        }
    }
}

fn present(p: &Properties, state: &FileState) -> Result<Vec<FileChange>, ResourceError> {
    let (look, link) = match &state.found {
        Found::Nothing | Found::DanglingLink => {
            return Ok(vec![FileChange::Store { empty: !p.manages_content(), details: vec![] }]);
        }
        Found::Something { look, link } => (look, *link),
    };
    match look.kind {
        fs::Kind::File => {}
        fs::Kind::Directory => {
            return Err(ResourceError::State(format!("{} exists as a directory; cannot manage it as a file", p.name)));
        }
        fs::Kind::Other => {
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
        // A link is replaced, because attributes are not set through one.
        false if content || (managed && link) => vec![FileChange::Store { empty: false, details }],
        false => vec![FileChange::SetAttributes { managed, details }],
    })
}

fn attributes(p: &Properties, state: &FileState, look: &Look) -> Vec<String> {
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
