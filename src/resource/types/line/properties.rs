//! The properties of a line.

use regex::bytes::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::file::{self, Mode};
use crate::resource::Invalid;
use crate::resource::core::{safe_replace, text};

/// Properties of a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Properties {
    /// The path of the file; with `path`, any name.
    #[serde(deserialize_with = "text::text")]
    pub name: String,
    /// Desired state of the line.
    #[serde(default)]
    pub ensure: LineEnsure,
    /// The path of the file, for several lines in one file with different names.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// The line, without its end. Needed unless absent with a `match`.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub line: String,
    /// Regular expression: the matching line is replaced, or with absent removed. The expression must match `line` too. When left
    /// out, only an equal line counts.
    #[serde(default, rename = "match", deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub pattern: String,
    /// Replace every matching line. Otherwise several matching lines are an error.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// A new line goes after the last line that matches this regular expression.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub after: String,
    /// A new line goes before the first line that matches this regular expression.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub before: String,
    /// The end of the file for a new line, by default `end`. Also used if nothing matches `after` or `before`, which otherwise is
    /// an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<FileEnd>,
    /// Create the file when it is missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub create: bool,
    /// The owner of a new file. An existing file keeps its owner.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// The group of a new file.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The permission bits of a new file, in octal; 0644 when left out.
    #[serde(default, deserialize_with = "file::mode", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", regex(pattern = r"^(0[oO])?[0-7]{1,4}$"))]
    pub mode: Option<Mode>,
    /// Command that must accept the changed file before it replaces the old: `%s` is its path. No shell runs. Not run in a dry
    /// run.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub validate: String,
    /// Follow links in the path that others than root could have made, which is refused otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub follow: bool,
    /// Keep the old file before it is changed. `true` keeps it beside the file, as `NAME.TIME.bak`. A suffix that begins with a
    /// dot replaces `.bak`. An absolute path is a directory for old files.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub backup: String,
    /// Number of old files to keep; 10 when left out.
    #[serde(default = "safe_replace::keep", skip_serializing_if = "safe_replace::is_keep")]
    #[schemars(range(min = 1))]
    pub backup_keep: u32,
}

/// The desired state of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LineEnsure {
    /// Present.
    #[default]
    Present,
    /// Absent, like every matching line.
    Absent,
}

/// An end of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FileEnd {
    /// Before its first line.
    Start,
    /// After its last line.
    End,
}

/// Parses a regular expression; none for an empty text.
pub(super) fn expression(property: &'static str, text: &str) -> Result<Option<Regex>, Invalid> {
    if text.is_empty() {
        return Ok(None);
    }
    Regex::new(text)
        .map(Some)
        .map_err(|error| Invalid::new(property, format!("invalid regular expression in {property}: {error}")))
}
