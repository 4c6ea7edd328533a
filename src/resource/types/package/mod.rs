//! `package`: software from the package manager of the host, apt or dnf.
//!
//! A [`PackageManager`] (`apt.rs`, `dnf.rs`) reports installed and offered packages, for all packages of a run at once, and makes
//! transactions. `debian_version.rs` and `rpm_version.rs` compare versions. `transaction.rs` makes one transaction of many
//! changes. `names.rs` checks names. A package manager without a package of exactly that name never gets the name.

mod apt;
mod debian_version;
mod dnf;
#[cfg(test)]
mod fixture;
mod names;
mod output;
mod rpm_version;
#[cfg(test)]
mod tests;
mod transaction;

use std::cmp::Ordering;
use std::collections::HashMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use crate::host::Host;
use crate::model::{Effect, Effects, HumanDuration};

use crate::resource::core::text;
use crate::resource::{Change, Invalid, Pending, ProviderEntry, Resource, ResourceError, State};

/// Packages.
pub struct PackageType;

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

fn two_minutes() -> HumanDuration {
    HumanDuration::seconds(120)
}

/// The request in `ensure`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestedVersion<'a> {
    Present,
    Absent,
    Latest,
    Version(&'a str),
}

impl Properties {
    fn wanted(&self) -> RequestedVersion<'_> {
        match self.ensure.as_str() {
            "present" => RequestedVersion::Present,
            "absent" => RequestedVersion::Absent,
            "latest" => RequestedVersion::Latest,
            version => RequestedVersion::Version(version),
        }
    }
}

/// The ordering of versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionOrder {
    /// The rule of dpkg; versions are written in full.
    Debian,
    /// The rule of rpm; missing parts of a version do not count.
    Rpm,
}

impl VersionOrder {
    fn compare(self, a: &str, b: &str) -> Ordering {
        match self {
            Self::Debian => debian_version::compare(a, b),
            Self::Rpm => rpm_version::compare(a, b),
        }
    }

    /// True where an installed or offered version is the requested one.
    fn matches_request(self, found: &str, asked: &str) -> bool {
        match self {
            Self::Debian => debian_version::compare(found, asked).is_eq(),
            Self::Rpm => rpm_version::matches_request(found, asked),
        }
    }
}

/// An installed version of a package, for one architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    version: String,
    architecture: String,
}

/// The offer of the package index.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Offer {
    /// Not queried, because the offer does not matter.
    #[default]
    NotAsked,
    /// No package of that name.
    Unknown,
    /// The known versions.
    Known {
        /// The version that is installed by default.
        candidate: Option<String>,
        /// All versions.
        versions: Vec<String>,
    },
}

/// The known state of a package: the installed version, and, if it matters, the offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageState {
    versions: VersionOrder,
    manager: &'static str,
    name: String,
    /// Every installed version for every architecture.
    installed: Vec<Installed>,
    /// The state in the terms of the package manager, if it is neither installed nor absent, as `half-configured`.
    unfinished: Option<String>,
    /// True when the files must be unpacked again.
    broken: bool,
    /// True when an administrator has put the package on hold.
    held: bool,
    offer: Offer,
}

impl PackageState {
    /// The newest installed version, with its architecture.
    fn newest(&self) -> Option<&Installed> {
        self.installed.iter().max_by(|a, b| self.versions.compare(&a.version, &b.version))
    }

    /// The newest installed version of every architecture.
    fn by_architecture(&self) -> Vec<&Installed> {
        let mut found: Vec<&Installed> = Vec::new();
        for one in &self.installed {
            match found.iter_mut().find(|known| known.architecture == one.architecture) {
                Some(known) if self.versions.compare(&known.version, &one.version).is_lt() => *known = one,
                Some(_) => {}
                None => found.push(one),
            }
        }
        found
    }

    /// True when the requested version is installed for every installed architecture.
    fn has(&self, asked: &str) -> bool {
        let is = |one: &Installed| self.versions.matches_request(&one.version, asked);
        let of = |architecture: &str| self.installed.iter().any(|one| one.architecture == architecture && is(one));
        !self.installed.is_empty() && self.installed.iter().all(|one| of(&one.architecture))
    }

    /// Returns the requested version as in the index; the newest, when several match.
    fn offered(&self, asked: &str) -> Option<&str> {
        let Offer::Known { versions, .. } = &self.offer else { return None };
        let fits = versions.iter().filter(|version| self.versions.matches_request(version, asked));
        fits.max_by(|a, b| self.versions.compare(a, b)).map(String::as_str)
    }

    fn candidate(&self) -> Option<&str> {
        match &self.offer {
            Offer::Known { candidate, .. } => candidate.as_deref(),
            _ => None,
        }
    }
}

impl State for PackageState {
    fn ensure(&self) -> &str {
        self.newest().map_or("absent", |one| &one.version)
    }
}

impl Serialize for PackageState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let newest = self.newest();
        let status = self.unfinished.as_deref().unwrap_or(if newest.is_some() { "installed" } else { "absent" });
        let metadata = Metadata {
            name: &self.name,
            version: self.ensure(),
            arch: newest.map(|one| one.architecture.as_str()),
            provider: self.manager,
            candidate: self.candidate(),
            extended: Extended { status, held: self.held },
        };
        SerializedState { metadata }.serialize(serializer)
    }
}

#[derive(Serialize)]
struct SerializedState<'a> {
    metadata: Metadata<'a>,
}

/// The details in the `status` of events.
#[derive(Serialize)]
struct Metadata<'a> {
    name: &'a str,
    version: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    arch: Option<&'a str>,
    provider: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    candidate: Option<&'a str>,
    extended: Extended<'a>,
}

#[derive(Serialize)]
struct Extended<'a> {
    status: &'a str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    held: bool,
}

/// A step towards the desired package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PackageChange {
    /// Install a missing package.
    Install {
        /// The version or keyword of `ensure`.
        ensure: String,
        /// The new version, if known.
        version: Option<String>,
        /// False when the index has no such package or version, at least not yet.
        offered: bool,
    },
    /// Replace the installed version by another.
    Replace {
        /// The version or keyword of `ensure`.
        ensure: String,
        /// The old version.
        from: String,
        /// The new version.
        to: String,
        /// True for an older version.
        down: bool,
        /// False when the index has no such version, at least not yet.
        offered: bool,
    },
    /// Finish an interrupted installation.
    Finish {
        /// The state in the terms of the package manager.
        from: String,
    },
    /// Remove the package.
    Remove {
        /// The old version, or the state in the terms of the package manager.
        from: String,
    },
}

impl fmt::Display for PackageChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Install { ensure, offered, .. } => {
                match ensure.as_str() {
                    "present" => f.write_str("installed")?,
                    "latest" => f.write_str("installed latest")?,
                    version => write!(f, "installed version {version}")?,
                }
                unoffered(f, *offered)
            }
            Self::Replace { ensure, down, offered, .. } => {
                write!(f, "{} to {ensure}", if *down { "downgraded" } else { "upgraded" })?;
                unoffered(f, *offered)
            }
            Self::Finish { .. } => f.write_str("finished the installation"),
            Self::Remove { .. } => f.write_str("uninstalled"),
        }
    }
}

fn unoffered(f: &mut fmt::Formatter<'_>, offered: bool) -> fmt::Result {
    if offered { Ok(()) } else { f.write_str(", which no package index has now") }
}

impl Change for PackageChange {
    fn details(&self) -> Vec<String> {
        let (from, to, offered) = match self {
            Self::Install { ensure, version, offered } => ("absent", version.as_deref().unwrap_or(ensure), *offered),
            Self::Replace { from, to, offered, .. } => (from.as_str(), to.as_str(), *offered),
            Self::Finish { from } => (from.as_str(), "installed", true),
            Self::Remove { from } => (from.as_str(), "absent", true),
        };
        let missing = if offered { "" } else { ", which no package index has now" };
        vec![format!("{from} → {to}{missing}")]
    }
}

/// The action of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackageAction {
    /// Install, upgrade, finish.
    Install,
    /// Install an older version.
    Downgrade,
    /// Remove.
    Remove,
}

impl PackageAction {
    fn from_change(change: &PackageChange) -> Self {
        match change {
            PackageChange::Remove { .. } => Self::Remove,
            PackageChange::Replace { down: true, .. } => Self::Downgrade,
            _ => Self::Install,
        }
    }

    /// The action as an infinitive, for errors.
    fn name(self) -> &'static str {
        match self {
            Self::Install => "install",
            Self::Downgrade => "downgrade",
            Self::Remove => "uninstall",
        }
    }
}

/// A package of a transaction.
#[derive(Debug, Clone, Copy)]
pub struct PackageJob<'a> {
    properties: &'a Properties,
    state: &'a PackageState,
    change: &'a PackageChange,
}

impl PackageJob<'_> {
    /// Returns the version to install, as in the index; none when any version will do.
    ///
    /// # Errors
    /// When the index has no such package or version.
    fn version(&self) -> Result<Option<&str>, ResourceError> {
        let name = &self.properties.name;
        if let PackageChange::Finish { .. } = self.change {
            return Ok(self.state.newest().map(|one| one.version.as_str()));
        }
        let (candidate, versions) = match &self.state.offer {
            Offer::NotAsked | Offer::Unknown => {
                return Err(ResourceError::State(format!(
                    "no package index has a package of the name \"{name}\": is the index old (cache_valid), or a repository \
                     missing?"
                )));
            }
            Offer::Known { candidate, versions } => (candidate, versions),
        };
        match self.properties.wanted() {
            RequestedVersion::Version(asked) => self.state.offered(asked).map(Some).ok_or_else(|| {
                let known = if versions.is_empty() { "none".to_owned() } else { versions.join(", ") };
                ResourceError::State(format!("no package index has version {asked} of {name}; versions are: {known}"))
            }),
            _ if candidate.is_none() => Err(ResourceError::State(format!(
                "no version of {name} can be installed: it is a virtual package, or its versions are excluded"
            ))),
            RequestedVersion::Latest => Ok(candidate.as_deref()),
            RequestedVersion::Present | RequestedVersion::Absent => Ok(None),
        }
    }
}

/// The failure of a transaction.
#[derive(Debug)]
pub struct TransactionFailure {
    /// The error message.
    message: String,
    /// True when single transactions would fail the same way.
    is_permanent: bool,
}

/// A package manager.
pub trait PackageManager: Send + Sync {
    /// Passes all packages of the run, so that one query can serve all of them.
    fn prefetch(&self, all: &[&Properties]);

    /// Returns the installed state of a name. Queries the host only after a change.
    ///
    /// # Errors
    /// When the database of the package manager can't be read.
    fn installed_state(&self, name: &str, host: &Host) -> Result<PackageState, ResourceError>;

    /// Returns the offer of the index for a resource. The same query includes the other packages that the run may need.
    ///
    /// # Errors
    /// When the package manager does not answer.
    fn offer(&self, properties: &Properties, host: &Host) -> Result<Offer, ResourceError>;

    /// Reads the index again if it is older than `age`.
    ///
    /// # Errors
    /// When it can't be read.
    fn refresh(&self, properties: &Properties, age: HumanDuration, host: &Host) -> Result<(), ResourceError>;

    /// True when one transaction can do both.
    fn can_combine(&self, one: PackageAction, other: PackageAction) -> bool;

    /// Changes several packages in one transaction.
    ///
    /// # Errors
    /// When the transaction fails; some packages may be changed.
    fn transact(&self, jobs: &[PackageJob<'_>], host: &Host) -> Result<(), TransactionFailure>;

    /// Returns the requirements of these installed packages: names of packages, by name. The answer may have more packages.
    ///
    /// # Errors
    /// When the query fails.
    fn needs(&self, names: &[&str], host: &Host) -> Result<HashMap<String, Vec<String>>, ResourceError>;

    /// True when the database records failed scripts of packages. Then the database counts, not the exit code.
    fn records_failures(&self) -> bool;
}

impl Resource for PackageType {
    const TYPE: &'static str = "package";
    const CHANGES_SYSTEM: bool = true;
    const ABOUT: &'static str = "Software from the package manager: present, absent, the latest or one version.";
    const BATCHES: bool = true;
    const NO_EFFECTS: &'static [(&'static str, &'static str)] = &[
        ("ensure", "another version of the same package"),
        ("cache_valid", "when the index of the node is read again"),
        ("lock_timeout", "limit of a wait"),
    ];
    const PROVIDERS: &'static [ProviderEntry<dyn PackageManager>] = &[
        ProviderEntry {
            name: "apt",
            only_on_request: false,
            works_on: |_| apt::is_installed(),
            open: |host| Box::new(apt::Apt::new(host.dpkg())),
        },
        ProviderEntry {
            name: "dnf",
            only_on_request: false,
            works_on: |_| dnf::is_installed(),
            open: |host| Box::new(dnf::Dnf::new(host.rpm())),
        },
    ];

    type Properties = Properties;
    type State = PackageState;
    type Change = PackageChange;
    type Provider = dyn PackageManager;

    fn validate(p: &Properties) -> Result<(), Invalid> {
        names::check_name(&p.name)?;
        match p.wanted() {
            RequestedVersion::Version(version) => names::check_version(version),
            _ => Ok(()),
        }
    }

    fn name(p: &Properties) -> &str {
        &p.name
    }

    fn ensure(p: &Properties) -> &str {
        &p.ensure
    }

    fn effects(p: &Properties) -> Effects {
        std::iter::once(Effect::Package(p.name.clone())).collect()
    }

    fn query(name: &str) -> Option<Properties> {
        let lock_timeout = two_minutes();
        Some(Properties { name: name.to_owned(), ensure: "absent".to_owned(), cache_valid: None, lock_timeout })
    }

    fn prefetch(all: &[&Properties], manager: &(dyn PackageManager + 'static)) {
        manager.prefetch(all);
    }

    fn refresh_cache(p: &Properties, manager: &(dyn PackageManager + 'static), host: &Host) -> Result<(), ResourceError> {
        let Some(age) = p.cache_valid else { return Ok(()) };
        if needs_index(p, &manager.installed_state(&p.name, host)?) { manager.refresh(p, age, host) } else { Ok(()) }
    }

    fn observe(p: &Properties, manager: &(dyn PackageManager + 'static), host: &Host) -> Result<PackageState, ResourceError> {
        let mut state = manager.installed_state(&p.name, host)?;
        if needs_index(p, &state) {
            state.offer = manager.offer(p, host)?;
        }
        Ok(state)
    }

    fn diff(p: &Properties, state: &PackageState) -> Result<Vec<PackageChange>, ResourceError> {
        let change = difference(p, state);
        match change {
            Some(_) if state.held => Err(ResourceError::State(format!(
                "{name} is on hold ({}): release it with `apt-mark unhold {name}`, or request the installed version",
                state.unfinished.as_deref().unwrap_or_else(|| state.ensure()),
                name = p.name
            ))),
            change => Ok(change.into_iter().collect()),
        }
    }

    fn apply(
        change: &PackageChange,
        p: &Properties,
        state: &mut PackageState,
        manager: &(dyn PackageManager + 'static),
        host: &Host,
    ) -> Result<(), ResourceError> {
        transaction::apply_single(PackageJob { properties: p, state, change }, manager, host)
    }

    fn apply_all(
        batch: &mut [Pending<'_, Self>],
        manager: &(dyn PackageManager + 'static),
        host: &Host,
    ) -> Vec<Result<(), ResourceError>> {
        transaction::apply_batch(batch, manager, host)
    }
}

/// True when the offer of the index matters.
fn needs_index(p: &Properties, state: &PackageState) -> bool {
    match p.wanted() {
        RequestedVersion::Latest => true,
        RequestedVersion::Absent => false,
        RequestedVersion::Present | RequestedVersion::Version(_) => {
            matches!(difference(p, state), Some(PackageChange::Install { .. } | PackageChange::Replace { .. }))
        }
    }
}

/// Returns the step to the desired state.
fn difference(p: &Properties, state: &PackageState) -> Option<PackageChange> {
    let newest = state.newest();
    let word = state.unfinished.clone();
    match (p.wanted(), newest) {
        (RequestedVersion::Absent, newest) => {
            word.or_else(|| newest.map(|one| one.version.clone())).map(|from| PackageChange::Remove { from })
        }
        (wanted, None) => Some(installation(p, wanted, state)),
        (RequestedVersion::Present, Some(_)) => word.map(|from| PackageChange::Finish { from }),
        (RequestedVersion::Latest, Some(_)) => {
            let replaced = state.candidate().and_then(|candidate| replacement(p, state, candidate));
            replaced.or_else(|| word.map(|from| PackageChange::Finish { from }))
        }
        (RequestedVersion::Version(asked), Some(_)) if state.has(asked) => word.map(|from| PackageChange::Finish { from }),
        (RequestedVersion::Version(asked), Some(newest)) => {
            let to = state.offered(asked).unwrap_or(asked);
            // With several versions installed side by side, the requested one may be none of them.
            replacement(p, state, to).or_else(|| Some(version_change(p, state, newest, to)))
        }
    }
}

fn installation(p: &Properties, wanted: RequestedVersion<'_>, state: &PackageState) -> PackageChange {
    let version = match wanted {
        RequestedVersion::Version(asked) => state.offered(asked),
        _ => state.candidate(),
    };
    let offered = version.is_some() || state.offer == Offer::NotAsked;
    PackageChange::Install { ensure: p.ensure.clone(), version: version.map(str::to_owned), offered }
}

/// Returns the step to another version: for the oldest of several architectures.
fn replacement(p: &Properties, state: &PackageState, to: &str) -> Option<PackageChange> {
    let others = state.by_architecture().into_iter().filter(|one| state.versions.compare(&one.version, to).is_ne());
    let oldest = others.min_by(|a, b| state.versions.compare(&a.version, &b.version))?;
    Some(version_change(p, state, oldest, to))
}

fn version_change(p: &Properties, state: &PackageState, old: &Installed, to: &str) -> PackageChange {
    let down = state.versions.compare(&old.version, to).is_gt();
    let offered = match p.wanted() {
        RequestedVersion::Version(asked) => state.offer == Offer::NotAsked || state.offered(asked).is_some(),
        _ => true,
    };
    PackageChange::Replace { ensure: p.ensure.clone(), from: old.version.clone(), to: to.to_owned(), down, offered }
}
