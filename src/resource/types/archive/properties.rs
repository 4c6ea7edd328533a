//! The properties of an archive, and the mark of its extraction.

use std::collections::BTreeMap;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::host::resumable_file::hidden_name;
use crate::host::{DirEntryHandle, FsError, Host, WriteSpec};
use crate::model::Secret;
use crate::resource::ResourceError;
use crate::resource::core::text;

/// The mode of a downloaded archive, which may contain files that not all users may read.
pub(super) const MODE: u32 = 0o600;

/// The desired state of the archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ArchiveEnsure {
    /// Downloaded, and unpacked if requested.
    Present,
    /// Absent. Extracted files stay.
    Absent,
}

impl<'de> Deserialize<'de> for ArchiveEnsure {
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

/// Properties of an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
// Optional for serde, so that an empty and a missing value have the same error.
#[schemars(extend("required" = ["name", "ensure", "url", "owner", "group"]))]
pub struct Properties {
    /// Path of the archive: absolute, with the suffix `.tar.gz`, `.tgz`, `.tar`, `.zip`, `.tar.xz`, `.tar.zst` or `.tar.bz2`.
    /// Its directory must exist; its mode is 0600.
    #[serde(deserialize_with = "text::text")]
    pub name: String,
    /// Desired state of the archive.
    pub ensure: ArchiveEnsure,
    /// Source: `https://` or `http://`, with a suffix of the same kind as that of the name.
    #[serde(default, deserialize_with = "text::or_empty")]
    pub url: String,
    /// Headers of the request. A redirect to another host does not get them.
    #[serde(default, deserialize_with = "secrets", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, String>")]
    pub headers: BTreeMap<String, Secret>,
    /// The user, for basic authentication. Only with a password.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub username: String,
    /// The password of the user.
    #[serde(default, deserialize_with = "secret", skip_serializing_if = "is_empty")]
    #[schemars(with = "Secret")]
    pub password: Secret,
    /// SHA-256 of the archive, in hex. Without it, the archive is fetched again whenever another property differs.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub checksum: String,
    /// The directory to unpack into; made when missing.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub extract_parent: String,
    /// A path that exists once the archive is unpacked. While it is missing, the archive is unpacked again.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub creates: String,
    /// Remove the archive once it is unpacked. Needs `extract_parent` and `creates`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cleanup: bool,
    /// Follow links in the paths that others than root could have made, which is refused otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub follow: bool,
    /// The owner of the archive itself, by name or number.
    #[serde(default, deserialize_with = "text::or_empty")]
    pub owner: String,
    /// The group of the archive itself, by name or number.
    #[serde(default, deserialize_with = "text::or_empty")]
    pub group: String,
}

fn secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Secret, D::Error> {
    text::or_empty(deserializer).map(Secret::new)
}

fn secrets<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Secret>, D::Error> {
    #[derive(Deserialize)]
    struct Header(#[serde(deserialize_with = "secret")] Secret);
    let headers = Option::<BTreeMap<String, Header>>::deserialize(deserializer)?.unwrap_or_default();
    Ok(headers.into_iter().map(|(name, Header(value))| (name, value)).collect())
}

fn is_empty(secret: &Secret) -> bool {
    secret.reveal().is_empty()
}

impl Properties {
    pub(super) fn path(&self) -> &Path {
        Path::new(&self.name)
    }

    /// The mark file, which exists during an extraction.
    pub(super) fn mark(&self, place: &DirEntryHandle) -> Result<DirEntryHandle, FsError> {
        place.sibling(hidden_name(self.path().file_name().unwrap_or_default(), "unpacking"))
    }

    pub(super) fn extracts(&self) -> bool {
        !self.extract_parent.is_empty()
    }

    /// True for the desired digest. Without a checksum, every digest is accepted.
    pub(super) fn is_wanted(&self, sha256: &str) -> bool {
        self.checksum.is_empty() || self.checksum.eq_ignore_ascii_case(sha256)
    }

    pub(super) fn write_spec(&self, host: &Host, mode: u32) -> Result<WriteSpec, ResourceError> {
        let accounts = host.accounts();
        Ok(WriteSpec { uid: Some(accounts.uid(&self.owner)?), gid: Some(accounts.gid(&self.group)?), mode })
    }
}

/// Makes the mark of an extraction beside the archive.
pub(super) fn mark(p: &Properties, place: &DirEntryHandle) -> Result<(), FsError> {
    let mark = p.mark(place)?;
    if mark.is_free()? { mark.create_new(MODE).map(drop) } else { Ok(()) }
}
