//! The interface of package managers.

use std::collections::HashMap;

use crate::host::Host;
use crate::model::HumanDuration;
use crate::resource::ResourceError;

use super::change::{PackageAction, PackageChange};
use super::properties::{Properties, RequestedVersion};
use super::state::{Offer, PackageState};

/// A package of a transaction.
#[derive(Debug, Clone, Copy)]
pub struct PackageJob<'a> {
    pub(super) properties: &'a Properties,
    pub(super) state: &'a PackageState,
    pub(super) change: &'a PackageChange,
}

impl PackageJob<'_> {
    /// Returns the version to install, as in the index; none when any version will do.
    ///
    /// # Errors
    /// When the index has no such package or version.
    pub(super) fn version(&self) -> Result<Option<&str>, ResourceError> {
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
    pub(super) message: String,
    /// True when single transactions would fail the same way.
    pub(super) is_permanent: bool,
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
