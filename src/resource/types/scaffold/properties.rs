//! The properties of a scaffold.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::host::Host;
use crate::resource::core::common::TemplateScope;
use crate::resource::core::text;
use crate::template::{self, Scope};

/// The desired state of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ScaffoldEnsure {
    /// Every template is rendered into the target.
    Present,
    /// No file of the templates is in the target.
    Absent,
}

impl ScaffoldEnsure {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::Absent => "absent",
        }
    }
}

impl<'de> Deserialize<'de> for ScaffoldEnsure {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match text::or_empty(deserializer)?.as_str() {
            "present" => Ok(Self::Present),
            "absent" => Ok(Self::Absent),
            "" => Err(serde::de::Error::custom("ensure is required")),
            other => Err(serde::de::Error::custom(format_args!(
                "invalid ensure value: must be one of \"present\" or \"absent\", not \"{other}\""
            ))),
        }
    }
}

/// The languages of templates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ScaffoldEngine {
    /// Jinja, between `{{ }}` and `{% %}`. A file `NAME.j2` becomes `NAME`.
    Jinja,
    /// Jet, between `[[ ]]`.
    Jet,
    /// Go's text/template with the functions of Sprig, between `{{ }}`.
    Go,
}

impl From<ScaffoldEngine> for template::Engine {
    fn from(engine: ScaffoldEngine) -> Self {
        match engine {
            ScaffoldEngine::Jinja => Self::Jinja,
            ScaffoldEngine::Jet => Self::Jet,
            ScaffoldEngine::Go => Self::Go,
        }
    }
}

fn engine<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ScaffoldEngine>, D::Error> {
    match text::or_empty(deserializer)?.as_str() {
        "" => Ok(None),
        "jinja" => Ok(Some(ScaffoldEngine::Jinja)),
        "jet" => Ok(Some(ScaffoldEngine::Jet)),
        "go" => Ok(Some(ScaffoldEngine::Go)),
        other => {
            let message = format_args!("engine must be one of \"jinja\", \"go\" or \"jet\", not \"{other}\"");
            Err(serde::de::Error::custom(message))
        }
    }
}

/// Properties of a scaffold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Properties {
    /// The target directory: absolute, without `.`, `..` or doubled slashes.
    #[serde(deserialize_with = "text::text")]
    pub name: String,
    /// `present`: every template is rendered into the target. `absent`: no file of the templates is in it; other files stay.
    pub ensure: ScaffoldEnsure,
    /// The directory of the templates on this host; relative to the directory of the manifest. Files in directories named
    /// `_partials` are rendered only by `render` and not by themselves. A file that is not UTF-8 text is copied.
    #[serde(deserialize_with = "text::text")]
    pub source: String,
    /// The language of the templates. When left out: `jinja` if a file of the source ends in `.j2`, otherwise `jet`.
    #[serde(default, deserialize_with = "engine", skip_serializing_if = "Option::is_none")]
    pub engine: Option<ScaffoldEngine>,
    /// The left delimiter of expressions, instead of the engine's own.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub left_delimiter: String,
    /// The right delimiter of expressions, instead of the engine's own.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub right_delimiter: String,
    /// Leave out files that render to white space only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skip_empty: bool,
    /// Remove files from the target that no template makes. Directories stay.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub purge: bool,
    /// Follow links in the paths that others than root could have made, which is refused otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub follow: bool,
    /// Data for templates, instead of the data of the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Map<String, Value>>,
    /// Commands for files whose name matches a pattern (`*`, `?`, `[a-z]`). A command runs on a copy of a changed file, before
    /// the file is put in place. `{}` is the path of the copy, which is the last argument otherwise. No shell runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub post: Vec<BTreeMap<String, String>>,
    #[serde(skip)]
    #[schemars(skip)]
    pub(super) surroundings: TemplateScope,
}

impl Properties {
    pub(super) fn target(&self) -> &Path {
        Path::new(&self.name)
    }

    /// The absolute path of the source.
    pub(super) fn source(&self, host: &Host) -> PathBuf {
        host.resolve(Path::new(&self.source))
    }

    /// Returns the scope of templates.
    pub(super) fn scope(&self) -> Scope {
        let scope = self.surroundings.scope();
        match &self.data {
            Some(data) if !data.is_empty() => scope.with_data(Value::Object(data.clone())),
            _ => scope,
        }
    }
}
