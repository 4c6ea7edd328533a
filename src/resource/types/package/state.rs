//! The known state of a package: installed and offered versions.

use std::cmp::Ordering;

use serde::{Serialize, Serializer};

use crate::resource::State;

use super::{debian_version, rpm_version};

/// The ordering of versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VersionOrder {
    /// The rule of dpkg; versions are written in full.
    Debian,
    /// The rule of rpm; missing parts of a version do not count.
    Rpm,
}

impl VersionOrder {
    pub(super) fn compare(self, a: &str, b: &str) -> Ordering {
        match self {
            Self::Debian => debian_version::compare(a, b),
            Self::Rpm => rpm_version::compare(a, b),
        }
    }

    /// True where an installed or offered version is the requested one.
    pub(super) fn matches_request(self, found: &str, asked: &str) -> bool {
        match self {
            Self::Debian => debian_version::compare(found, asked).is_eq(),
            Self::Rpm => rpm_version::matches_request(found, asked),
        }
    }
}

/// An installed version of a package, for one architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Installed {
    pub(super) version: String,
    pub(super) architecture: String,
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
    pub(super) versions: VersionOrder,
    pub(super) manager: &'static str,
    pub(super) name: String,
    /// Every installed version for every architecture.
    pub(super) installed: Vec<Installed>,
    /// The state in the terms of the package manager, if it is neither installed nor absent, as `half-configured`.
    pub(super) unfinished: Option<String>,
    /// True when the files must be unpacked again.
    pub(super) broken: bool,
    /// True when an administrator has put the package on hold.
    pub(super) held: bool,
    pub(super) offer: Offer,
}

impl PackageState {
    /// The newest installed version, with its architecture.
    pub(super) fn newest(&self) -> Option<&Installed> {
        self.installed.iter().max_by(|a, b| self.versions.compare(&a.version, &b.version))
    }

    /// The newest installed version of every architecture.
    pub(super) fn by_architecture(&self) -> Vec<&Installed> {
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
    pub(super) fn has(&self, asked: &str) -> bool {
        let is = |one: &Installed| self.versions.matches_request(&one.version, asked);
        let of = |architecture: &str| self.installed.iter().any(|one| one.architecture == architecture && is(one));
        !self.installed.is_empty() && self.installed.iter().all(|one| of(&one.architecture))
    }

    /// Returns the requested version as in the index; the newest, when several match.
    pub(super) fn offered(&self, asked: &str) -> Option<&str> {
        let Offer::Known { versions, .. } = &self.offer else { return None };
        let fits = versions.iter().filter(|version| self.versions.matches_request(version, asked));
        fits.max_by(|a, b| self.versions.compare(a, b)).map(String::as_str)
    }

    pub(super) fn candidate(&self) -> Option<&str> {
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
