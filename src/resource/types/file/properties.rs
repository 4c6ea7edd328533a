//! The properties of `file`, and the checks between them.

use std::fmt;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::host::{Host, WriteSpec};
use crate::model::effects::PathScope;
use crate::model::{Effect, Effects};

use crate::resource::core::safe_replace;
use crate::resource::core::safe_replace::ReplaceOptions;
use crate::resource::core::text;
use crate::resource::{Invalid, ResourceError};

/// The desired state of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FileEnsure {
    /// A regular file.
    Present,
    /// No object.
    Absent,
    /// A directory.
    Directory,
}

impl FileEnsure {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::Absent => "absent",
            Self::Directory => "directory",
        }
    }
}

impl<'de> Deserialize<'de> for FileEnsure {
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

/// Permission bits, written in octal, as `644`, `0644` and `0o644`, or for each class, as `u=rw,go=r`.
///
/// Of the bits above them, setgid and sticky are for directories. Setuid is never allowed: it passes on the rights of the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode(pub(super) u32);

/// The bits of owner, group and others.
const PERMISSIONS: u32 = 0o777;
/// Setgid, and sticky.
const SHARED: u32 = 0o3000;

impl Mode {
    /// The permission bits.
    pub(in crate::resource) fn bits(self) -> u32 {
        self.0
    }

    /// The mode for directories: users who may read or write may also enter.
    pub(super) fn for_directory(self) -> u32 {
        [0o100, 0o010, 0o001].into_iter().fold(self.0, |mode, x| if mode & (x * 6) == 0 { mode } else { mode | x })
    }

    /// The mode for files: the permission bits only.
    pub(super) fn for_file(self) -> u32 {
        self.0 & PERMISSIONS
    }

    fn parse(text: &str) -> Result<Self, String> {
        if text.contains(['=', '+', '-']) {
            return Self::symbolic(text);
        }
        let digits = text.strip_prefix("0o").or_else(|| text.strip_prefix("0O")).unwrap_or(text);
        let octal = !digits.is_empty() && digits.bytes().all(|b| (b'0'..=b'7').contains(&b));
        match u32::from_str_radix(digits, 8) {
            Ok(mode) if octal && mode & !(PERMISSIONS | SHARED) == 0 => Ok(Self(mode)),
            Ok(_) if octal => Err(format!("mode \"{text}\" exceeds maximum value 0777: setuid is not set")),
            _ => Err(format!("mode \"{text}\" is not a valid octal number, nor like u=rw,go=r")),
        }
    }

    /// Parses classes with their permissions, as `chmod` does. A class that is left out has none.
    fn symbolic(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| Err(format!("mode \"{text}\" is not valid: {why}"));
        let mut mode = 0;
        for clause in text.split(',') {
            let Some((classes, permissions)) = clause.split_once('=') else {
                return wrong("+ and - depend on the present mode: set the permissions of each class with =");
            };
            let mut mask = 0;
            for class in if classes.is_empty() { "a" } else { classes }.chars() {
                mask |= match class {
                    'u' => 0o700,
                    'g' => 0o070,
                    'o' => 0o007,
                    'a' => PERMISSIONS,
                    _ => return wrong("the classes are u, g, o and a"),
                };
            }
            mode &= !mask;
            for permission in permissions.chars() {
                mode |= match permission {
                    'r' => 0o444 & mask,
                    'w' => 0o222 & mask,
                    'x' => 0o111 & mask,
                    's' if mask & 0o070 != 0 && mask & 0o700 == 0 => 0o2000,
                    's' => return wrong("s is for the group: setuid is not set"),
                    't' => 0o1000,
                    _ => return wrong("the permissions are r, w, x, s and t"),
                };
            }
        }
        Ok(Self(mode))
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

/// Parses the mode of a file; none for null or an empty text.
///
/// # Errors
/// When it is no mode, or a mode for directories only.
pub(in crate::resource) fn mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Mode>, D::Error> {
    let mode = any_mode(deserializer)?;
    mode.filter(|mode| mode.0 != mode.for_file()).map_or(Ok(mode), |mode| Err(serde::de::Error::custom(only_directories(mode))))
}

/// Parses the mode of a file or directory.
fn any_mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Mode>, D::Error> {
    let written = text::or_empty(deserializer)?;
    if written.is_empty() { Ok(None) } else { Mode::parse(&written).map(Some).map_err(serde::de::Error::custom) }
}

fn only_directories(mode: Mode) -> String {
    format!("mode \"{mode}\" exceeds maximum value 0777: setgid and sticky are for directories")
}

/// Properties of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Properties {
    /// The path: absolute, without `.`, `..` or doubled slashes.
    #[serde(deserialize_with = "text::text")]
    pub name: String,
    /// Desired state of the path.
    pub ensure: FileEnsure,
    /// The content. Empty text empties the file; left out or null, the content is not managed.
    #[serde(default, deserialize_with = "text::optional", skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// File on this host to copy the content from, or with `recurse` a directory. Relative to the directory of the manifest.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// The owner, by name or number. Needed unless absent.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// The group, by name or number. Needed unless absent.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The permission bits in octal, up to 0777, or as `u=rw,go=r`. Needed unless absent. In a directory, users who may read or
    /// write may also enter. Setgid and sticky (`2755`, `1777`, `g=rxs`) are for directories.
    #[serde(default, deserialize_with = "any_mode", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", regex(pattern = r"^((0[oO])?[0-7]{1,5}|[ugoa]*=[rwxst]*(,[ugoa]*=[rwxst]*)*)$"))]
    pub mode: Option<Mode>,
    /// With absent: remove a directory with everything below.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    /// Command that must accept the new content before it replaces the old. `%s` is the path of a file with the new content, in
    /// the same directory. No shell runs. Not run in a dry run.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub validate: String,
    /// With directory: manage everything below too. With a `source` directory, its files, directories and links are copied.
    /// Without a `source`, only owner, group and mode are set. Every file gets the mode, links are not followed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recurse: bool,
    /// With `recurse` and a `source`: remove entries that the source lacks, and replace entries of another kind.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub purge: bool,
    /// Follow links that others than root could have made: in the path, in the source, and at their ends. Otherwise a link in the
    /// path is refused, and a link at the end is replaced.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub follow: bool,
    /// Keep the old file before its content is replaced or it is removed. `true` keeps it beside the file, as `NAME.TIME.bak`.
    /// A suffix that begins with a dot replaces `.bak`. An absolute path is a directory for old files.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub backup: String,
    /// Number of old files to keep; 10 when left out.
    #[serde(default = "safe_replace::keep", skip_serializing_if = "safe_replace::is_keep")]
    #[schemars(range(min = 1))]
    pub backup_keep: u32,
}

impl Properties {
    pub(super) fn path(&self) -> &Path {
        Path::new(&self.name)
    }

    pub(super) fn replace_options(&self) -> ReplaceOptions<'_> {
        ReplaceOptions { validate: &self.validate, backup: &self.backup, keep: self.backup_keep, follow: self.follow }
    }

    pub(super) fn manages_content(&self) -> bool {
        self.content.is_some() || !self.source.is_empty()
    }

    /// The desired mode for this `ensure`.
    pub(super) fn wanted_mode(&self) -> u32 {
        let mode = self.mode.unwrap_or(Mode(0));
        if self.ensure == FileEnsure::Directory { mode.for_directory() } else { mode.for_file() }
    }

    pub(super) fn write_spec(&self, host: &Host) -> Result<WriteSpec, ResourceError> {
        let accounts = host.accounts();
        Ok(WriteSpec { uid: Some(accounts.uid(&self.owner)?), gid: Some(accounts.gid(&self.group)?), mode: self.wanted_mode() })
    }

    /// See [`crate::resource::Resource::effects`].
    pub(super) fn effects(&self) -> Effects {
        let mut effects = Effects::default();
        let below = self.recurse || (self.ensure == FileEnsure::Absent && self.force);
        effects.push(if below { Effect::write_below(&self.name) } else { Effect::write(&self.name) });
        if self.follow {
            // A link at the end of the path is followed too.
            effects.push(Effect::Expose(PathScope::single(&self.name)));
        }
        if !self.source.is_empty() {
            effects.push(Effect::Read(PathScope { path: self.source.clone(), below: self.recurse }));
        }
        effects.extend(self.replace_options().effects(&self.name));
        effects
    }

    /// Returns properties for observing a file of this name.
    pub(super) fn for_observation(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ensure: FileEnsure::Present,
            content: None,
            source: String::new(),
            owner: "0".to_owned(),
            group: "0".to_owned(),
            mode: Some(Mode(0)),
            force: false,
            validate: String::new(),
            recurse: false,
            purge: false,
            follow: false,
            backup: String::new(),
            backup_keep: safe_replace::KEEP,
        }
    }

    /// Checks that the properties are compatible.
    pub(super) fn check(&self) -> Result<(), Invalid> {
        text::check_path("name", "file path", &self.name)?;
        if self.content.is_some() && !self.source.is_empty() {
            return Err(Invalid::new("source", "'content' and 'source' are mutually exclusive"));
        }
        if self.ensure != FileEnsure::Absent {
            for (property, missing) in
                [("owner", self.owner.is_empty()), ("group", self.group.is_empty()), ("mode", self.mode.is_none())]
            {
                if missing {
                    return Err(Invalid::new(property, format!("{property} cannot be empty")));
                }
            }
        }
        if let Some(mode) = self.mode.filter(|mode| self.ensure == FileEnsure::Present && mode.0 != mode.for_file()) {
            return Err(Invalid::new("mode", only_directories(mode)));
        }
        if self.force && self.ensure != FileEnsure::Absent {
            let message = format!("'force: true' is only valid with 'ensure: absent', got 'ensure: {}'", self.ensure.as_str());
            return Err(Invalid::new("force", message));
        }
        if self.name == "/" && self.ensure == FileEnsure::Absent {
            return Err(Invalid::new("force", "'force: true' cannot be used with the filesystem root"));
        }
        self.check_tree()?;
        let judged = self.ensure == FileEnsure::Present && self.manages_content();
        if !self.validate.is_empty() && !judged {
            return Err(Invalid::new("validate", "'validate' checks new content: it needs 'content' or 'source'"));
        }
        self.replace_options().check()
    }

    fn check_tree(&self) -> Result<(), Invalid> {
        let wrong = |property, message: &str| Err(Invalid::new(property, message));
        if self.purge && (!self.recurse || self.source.is_empty()) {
            return wrong("purge", "'purge' removes entries that the source lacks: it needs 'recurse: true' and 'source'");
        }
        if !self.recurse {
            return Ok(());
        }
        if self.ensure != FileEnsure::Directory {
            return wrong("recurse", "'recurse: true' is only valid with 'ensure: directory'");
        }
        if self.name == "/" {
            return wrong("recurse", "'recurse: true' cannot be used with the filesystem root");
        }
        if !self.backup.is_empty() && self.backup != "false" {
            return wrong("backup", "'backup' is for single files, not with 'recurse: true'");
        }
        Ok(())
    }
}
