//! The properties of a package.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::{HumanDuration, Identity};
use crate::resource::core::text;

/// Properties of a package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Properties {
    /// The exact name. When several architectures are installed, `name:i386` (apt) or `name.i686` (dnf) selects one.
    #[serde(deserialize_with = "text::text")]
    pub name: String,
    /// `present`, `absent`, `latest`, or a version: `1.0-1`, `1:1.0-1`; for dnf also without the release, `1.0`.
    #[serde(deserialize_with = "text::text")]
    pub ensure: String,
    /// Maximum age of the package index. An older index is read again when the package may need an install or upgrade, except in
    /// a dry run. When left out, apt never reads the index, and dnf follows its own configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_valid: Option<HumanDuration>,
    /// Time to wait for another program that holds the lock of the package manager.
    #[serde(default = "two_minutes")]
    pub lock_timeout: HumanDuration,
}

pub(super) fn two_minutes() -> HumanDuration {
    HumanDuration::seconds(120)
}

/// The request in `ensure`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestedVersion<'a> {
    Present,
    Absent,
    Latest,
    Version(&'a str),
}

impl Properties {
    /// Returns the package, with and without an architecture of apt.
    pub(super) fn identities(&self) -> Vec<Identity> {
        let plain = self.name.split_once(':').map(|(plain, _)| plain);
        std::iter::once(self.name.as_str()).chain(plain).map(|name| Identity::Package(name.to_owned())).collect()
    }

    pub(super) fn wanted(&self) -> RequestedVersion<'_> {
        match self.ensure.as_str() {
            "present" => RequestedVersion::Present,
            "absent" => RequestedVersion::Absent,
            "latest" => RequestedVersion::Latest,
            version => RequestedVersion::Version(version),
        }
    }
}
