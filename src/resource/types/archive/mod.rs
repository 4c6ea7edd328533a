//! `archive`: a file from an HTTP server, kept or unpacked.
//!
//! This module decides about the steps; `download.rs` fetches the file, `extract.rs` unpacks it. During the extraction a mark
//! file lies beside the archive. A run that finds the mark extracts again, even over existing files.

mod download;
mod extract;
mod properties;

use std::fmt;
use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};
use url::Url;

use crate::host::fs::{self, FileInfo};
use crate::host::resumable_file::ResumableFile;
use crate::host::{Host, PathInfo};
use crate::http::redact_url;
use crate::model::{Effect, Effects, Identity, Need, RedactedProperty, WatchTarget, effects};
use crate::resource::core::{path_order, text, watch_targets};
use crate::resource::{Change, Invalid, ProviderEntry, Resource, ResourceError, ResourceOutput, ShellDefaults, State};
use crate::unpack::Format;

use properties::MODE;

pub use properties::{ArchiveEnsure, Properties};

/// Archives.
pub struct ArchiveType;

/// The observed state of an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ArchiveState {
    #[serde(skip)]
    found: Option<FileInfo>,
    /// An extraction began and did not end.
    #[serde(skip)]
    interrupted: bool,
    /// True for a partial download, a mark, or an object that is not read because it may belong to others.
    #[serde(skip)]
    remains: bool,
    /// The digest of the download of this run.
    #[serde(skip)]
    downloaded: Option<String>,
    /// The numbers of owner and group; none for missing accounts.
    #[serde(skip)]
    wanted: (Option<u32>, Option<u32>),
    metadata: Metadata,
}

/// The details in the `status` of events.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
struct Metadata {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    checksum: Option<String>,
    archive_exists: bool,
    creates_exists: bool,
    owner: String,
    group: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtime: Option<jiff::Timestamp>,
    size: u64,
    provider: &'static str,
}

impl State for ArchiveState {
    fn ensure(&self) -> &str {
        if self.found.is_some() { "present" } else { "absent" }
    }
}

/// A step towards the desired archive, with the differences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArchiveChange {
    /// Download the archive from its server.
    Download {
        /// The differences.
        details: Vec<String>,
    },
    /// Unpack the archive.
    Extract {
        /// The differences; empty when the download lists them.
        details: Vec<String>,
    },
    /// Remove the archive after unpacking.
    CleanUp,
    /// Set owner and group of the archive.
    SetOwner {
        /// The old and new owner and group.
        details: Vec<String>,
    },
    /// Remove the archive, and the leftovers of a download.
    Remove,
}

impl fmt::Display for ArchiveChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Download { .. } => "downloaded",
            Self::Extract { .. } => "extracted",
            Self::CleanUp => "cleaned up",
            Self::SetOwner { .. } => "set owner and group",
            Self::Remove => "removed",
        })
    }
}

impl Change for ArchiveChange {
    fn details(&self) -> Vec<String> {
        match self {
            Self::Download { details } | Self::Extract { details } | Self::SetOwner { details } => details.clone(),
            // The extraction gives the reason.
            Self::CleanUp => vec![],
            Self::Remove => vec![self.to_string()],
        }
    }
}

/// The interface of archive providers.
pub trait Archives: Send + Sync {
    /// Downloads the archive to its place, checks its digest and sets its owner. Returns the digest.
    ///
    /// # Errors
    /// When the download fails; then the old archive is unchanged.
    fn download(&self, p: &Properties, host: &Host) -> Result<String, ResourceError>;
    /// Unpacks the archive in its place, which must have the digest of the download.
    ///
    /// # Errors
    /// When the archive can't be unpacked. Errors of the archive itself are found before the first write.
    fn extract(&self, p: &Properties, downloaded: Option<&str>, host: &Host) -> Result<(), ResourceError>;
}

/// The provider of every host: libraries for HTTP and the formats.
struct Http;

impl Archives for Http {
    fn download(&self, p: &Properties, host: &Host) -> Result<String, ResourceError> {
        download::download(p, host)
    }

    fn extract(&self, p: &Properties, downloaded: Option<&str>, host: &Host) -> Result<(), ResourceError> {
        extract::extract(p, downloaded, host)
    }
}

impl Resource for ArchiveType {
    const TYPE: &'static str = "archive";
    const CHANGES_SYSTEM: bool = false;
    const ABOUT: &'static str = "Archives from HTTP servers, kept or unpacked.";
    const NOOP_PER_STEP: bool = true;
    const NO_EFFECTS: &'static [(&'static str, &'static str)] = &[
        ("headers", "sent to the host of the URL alone"),
        ("username", "sent to the host of the URL alone"),
        ("password", "sent to the host of the URL alone"),
        ("checksum", "which content is taken"),
        ("cleanup", "removes the archive, which is written anyway"),
        ("owner", "attribute at the same path"),
        ("group", "attribute at the same path"),
        ("follow", "links on the way are followed before rules and limits are asked again"),
    ];
    const OUTPUTS: &'static [ResourceOutput] = &[
        ResourceOutput::text("checksum", "The SHA-256 of the archive, as lower-case hex, when `checksum` is given."),
        ResourceOutput::number("size", "The size in bytes."),
    ];
    const PROVIDERS: &'static [ProviderEntry<dyn Archives>] = &[ProviderEntry::everywhere("http", |_| Box::new(Http))];

    type Properties = Properties;
    type State = ArchiveState;
    type Change = ArchiveChange;
    type Provider = dyn Archives;

    fn shell_defaults(_: Option<&str>) -> ShellDefaults {
        ShellDefaults { own_account: true, environment: &[("password", "HTTP_PASSWORD")], ..ShellDefaults::default() }
    }

    fn validate(p: &Properties) -> Result<(), Invalid> {
        text::check_path("name", "file path", &p.name)?;
        check_url(p)?;
        for (property, path) in [("extract_parent", &p.extract_parent), ("creates", &p.creates)] {
            if !path.is_empty() {
                text::check_path(property, &format!("{property} path"), path)?;
            }
        }
        if p.cleanup && !p.extracts() {
            return Err(Invalid::new("cleanup", "cleanup requires extract_parent to be set"));
        }
        if p.cleanup && p.creates.is_empty() {
            return Err(Invalid::new("cleanup", "cleanup requires creates to be set"));
        }
        for (property, account) in [("owner", &p.owner), ("group", &p.group)] {
            if account.is_empty() {
                return Err(Invalid::new(property, format!("{property} cannot be empty")));
            }
        }
        Ok(())
    }

    fn name(p: &Properties) -> &str {
        &p.name
    }

    fn ensure(p: &Properties) -> &str {
        match p.ensure {
            ArchiveEnsure::Present => "present",
            ArchiveEnsure::Absent => "absent",
        }
    }

    fn effects(p: &Properties) -> Effects {
        let mut effects = Effects::default();
        // A partial download and a mark lie beside the archive for a while.
        effects.push(Effect::write(&p.name));
        if p.ensure == ArchiveEnsure::Absent {
            return effects;
        }
        effects.push(Effect::Fetch(effects::RedactedUrl::new(&p.url)));
        if p.extracts() {
            effects.push(Effect::write_below(&p.extract_parent));
        }
        if !p.creates.is_empty() {
            effects.push(Effect::Look(effects::PathScope::single(&p.creates)));
        }
        effects
    }

    /// The archive and the path that proves its extraction. The extracted files belong to their users.
    fn watches(p: &Properties, _: &Host) -> Vec<WatchTarget> {
        [&p.name, &p.creates].into_iter().filter(|path| !path.is_empty()).map(watch_targets::path).collect()
    }

    fn provides(p: &Properties) -> Vec<Identity> {
        if p.ensure == ArchiveEnsure::Absent {
            return Vec::new();
        }
        let mut objects = path_order::path_if(!p.cleanup, &p.name);
        objects.extend(path_order::path_if(!p.creates.is_empty(), &p.creates));
        objects.extend(p.extracts().then(|| Identity::Directory(p.extract_parent.clone().into())));
        objects
    }

    fn removes(p: &Properties) -> Vec<Identity> {
        path_order::path_if(p.ensure == ArchiveEnsure::Absent, &p.name)
    }

    fn needs(p: &Properties) -> Vec<Need> {
        if p.ensure == ArchiveEnsure::Absent {
            return Vec::new();
        }
        let mut needs = path_order::path_needs(&p.name, &p.owner, &p.group);
        needs.extend(path_order::existing_path_needs(&p.extract_parent));
        needs
    }

    fn observe(p: &Properties, _: &dyn Archives, host: &Host) -> Result<ArchiveState, ResourceError> {
        // Parsing could detect this, but then the whole manifest would fail. Other types find out about providers here too.
        if let Some((scheme, _)) = p.url.split_once("://").filter(|(scheme, _)| !is_http(scheme)) {
            let message =
                format!("no suitable provider found for archive: http fetches from http:// and https://, not {scheme}://");
            return Err(ResourceError::State(message));
        }
        let rules = host.managed_paths(p.follow);
        let (found, foreign) = match rules.inspect(p.path(), true)? {
            PathInfo::Nothing | PathInfo::Dangling => (None, false),
            PathInfo::Object { info: look, .. } => (Some(look), false),
            // The object is replaced or removed without reading it.
            PathInfo::Link | PathInfo::SharedFile => (None, true),
        };
        if found.as_ref().is_some_and(|look| look.kind != fs::FileKind::File) {
            return Err(ResourceError::State(format!("{} is not a regular file; cannot manage it as an archive", p.name)));
        }
        let creates_exists = !p.creates.is_empty() && rules.exists(Path::new(&p.creates))?;
        let place = rules.place(p.path())?;
        let marked = place.as_ref().map_or(Ok(false), |place| p.mark(place)?.is_free().map(|free| !free))?;
        let accounts = host.accounts();
        let wanted = (accounts.uid(&p.owner).ok(), accounts.gid(&p.group).ok());
        let mut metadata = Metadata { name: p.name.clone(), provider: "http", creates_exists, ..Metadata::default() };
        if let Some(look) = &found {
            metadata.archive_exists = true;
            metadata.checksum.clone_from(&look.sha256);
            metadata.owner = accounts.user_name(look.uid);
            metadata.group = accounts.group_name(look.gid);
            metadata.mtime = Some(look.mtime);
            metadata.size = look.size;
        }
        let remains = marked || foreign || place.as_ref().map_or(Ok(false), ResumableFile::exists)?;
        Ok(ArchiveState { found, interrupted: marked && p.extracts(), remains, downloaded: None, wanted, metadata })
    }

    fn outputs(_: &Properties, state: &ArchiveState) -> Vec<(&'static str, Value)> {
        let Metadata { checksum, size, .. } = &state.metadata;
        vec![("checksum", json!(checksum)), ("size", json!(state.found.as_ref().map(|_| size)))]
    }

    fn diff(p: &Properties, state: &ArchiveState) -> Result<Vec<ArchiveChange>, ResourceError> {
        match p.ensure {
            ArchiveEnsure::Absent if state.found.is_some() || state.remains => Ok(vec![ArchiveChange::Remove]),
            ArchiveEnsure::Absent => Ok(vec![]),
            ArchiveEnsure::Present => present_steps(p, state),
        }
    }

    fn apply(
        change: &ArchiveChange,
        p: &Properties,
        state: &mut ArchiveState,
        provider: &dyn Archives,
        host: &Host,
    ) -> Result<(), ResourceError> {
        let place = || host.managed_paths(p.follow).existing_place(p.path());
        match change {
            ArchiveChange::Download { .. } => state.downloaded = Some(provider.download(p, host)?),
            ArchiveChange::Extract { .. } => {
                provider.extract(p, state.downloaded.as_deref(), host)?;
                if !p.cleanup {
                    p.mark(&place()?)?.remove()?;
                }
            }
            ArchiveChange::CleanUp => {
                let place = place()?;
                place.remove()?;
                p.mark(&place)?.remove()?;
            }
            ArchiveChange::SetOwner { .. } => {
                let mode = state.found.as_ref().map_or(MODE, |look| look.mode);
                place()?.set(p.write_spec(host, mode)?)?;
            }
            ArchiveChange::Remove => {
                let place = place()?;
                place.remove()?;
                ResumableFile::remove(&place)?;
                p.mark(&place)?.remove()?;
            }
        }
        Ok(())
    }

    fn redacted(p: &Properties) -> Value {
        // Password and headers are redacted by their type.
        let p = Properties { url: redact_url(&p.url), ..p.clone() };
        serde_json::to_value(p).unwrap_or_default()
    }

    fn report_secrets(p: &Properties, note: &mut dyn FnMut(RedactedProperty<'_>)) {
        p.headers.values().chain([&p.password]).for_each(|secret| note(RedactedProperty::Value(secret.reveal())));
        // The parts of the URL that are redacted.
        if let Ok(url) = Url::parse(&p.url) {
            url.password().into_iter().chain(url.query()).for_each(|part| note(RedactedProperty::Value(part)));
        }
    }
}

fn is_http(scheme: &str) -> bool {
    scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")
}

const SUFFIX_RULE: &str = "must end in .zip, .tar.gz, .tgz, or .tar (or in .tar.xz, .tar.zst, .tar.bz2)";

fn check_url(p: &Properties) -> Result<(), Invalid> {
    let wrong = |message: String| Err(Invalid::new("url", message));
    if p.url.is_empty() {
        return wrong("url cannot be empty".to_owned());
    }
    let url = match Url::parse(&p.url) {
        Ok(url) => url,
        Err(url::ParseError::RelativeUrlWithoutBase) => {
            return wrong(format!("url must be absolute (include scheme like http:// or https://): \"{}\"", redact_url(&p.url)));
        }
        Err(error) => return wrong(format!("invalid url: \"{}\": {error}", redact_url(&p.url))),
    };
    let file = url.path().rsplit('/').next().unwrap_or_default();
    if file.is_empty() {
        return wrong(format!("url must have a filename in the path: \"{}\"", redact_url(&p.url)));
    }
    let Some(theirs) = Format::from_name(file) else { return wrong(format!("url filename {SUFFIX_RULE}: \"{file}\"")) };
    let Some(ours) = Format::from_name(&p.name) else {
        return Err(Invalid::new("name", format!("name {SUFFIX_RULE}: \"{}\"", p.name)));
    };
    if theirs != ours {
        let (theirs, ours) = (theirs.as_str(), ours.as_str());
        return wrong(format!("url and name must have the same archive type: url is {theirs}, name is {ours}"));
    }
    Ok(())
}

fn present_steps(p: &Properties, state: &ArchiveState) -> Result<Vec<ArchiveChange>, ResourceError> {
    let creates =
        (!p.creates.is_empty() && !state.metadata.creates_exists).then(|| format!("creates path missing: {}", p.creates));
    let interrupted = state.interrupted.then(|| "an extraction was interrupted".to_owned());
    let again = creates.clone().or(interrupted);
    let download = match &state.found {
        None if p.cleanup && again.is_none() => None,
        None => Some("archive file missing".to_owned()),
        Some(look) if look.sha256.as_ref().is_none_or(|have| !p.is_wanted(have)) => {
            let have = look.sha256.as_deref().unwrap_or_default();
            Some(format!("checksum mismatch: {have} → {}", p.checksum))
        }
        // The expected content is unknown: as in the Go system.
        Some(_) if p.checksum.is_empty() => again.clone(),
        Some(_) => None,
    };
    let mut changes = Vec::new();
    if p.extracts() && (download.is_some() || again.is_some()) {
        let why = match &again {
            Some(why) if download.as_ref() == Some(why) => vec![],
            Some(why) => vec![why.clone()],
            None => vec![format!("unpacked in {}", p.extract_parent)],
        };
        changes.push(ArchiveChange::Extract { details: why });
        changes.extend(p.cleanup.then_some(ArchiveChange::CleanUp));
    }
    if let Some(why) = download {
        changes.insert(0, ArchiveChange::Download { details: vec![why] });
    } else if let Some(details) = state.found.as_ref().map(|look| owner(p, state, look)).filter(|details| !details.is_empty()) {
        changes.insert(0, ArchiveChange::SetOwner { details });
    }
    match creates {
        Some(why) if changes.iter().all(|change| matches!(change, ArchiveChange::SetOwner { .. })) => {
            let message = format!("failed to reach desired state: {why}, and without extract_parent nothing is unpacked");
            Err(ResourceError::State(message))
        }
        _ => Ok(changes),
    }
}

fn owner(p: &Properties, state: &ArchiveState, look: &FileInfo) -> Vec<String> {
    let mut details = Vec::new();
    if state.wanted.0 != Some(look.uid) {
        details.push(format!("owner {} → {}", state.metadata.owner, p.owner));
    }
    if state.wanted.1 != Some(look.gid) {
        details.push(format!("group {} → {}", state.metadata.group, p.group));
    }
    details
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;
