//! `package`: software from the package manager of the host, apt or dnf.
//!
//! A [`PackageManager`] (`apt.rs`, `dnf.rs`) reports installed and offered packages, for all packages of a run at once, and makes
//! transactions. `debian_version.rs` and `rpm_version.rs` compare versions. `difference.rs` decides about the steps, and
//! `transaction.rs` makes one transaction of many. `names.rs` checks names. A package manager without a package of exactly that name never gets the name.

mod apt;
mod change;
mod debian_version;
mod difference;
mod dnf;
#[cfg(test)]
mod fixture;
mod manager;
mod names;
mod output;
mod properties;
mod rpm_version;
mod state;
#[cfg(test)]
mod tests;
mod transaction;

use crate::host::Host;
use crate::model::{Effect, Effects, Identity, OnRemoval};
use crate::resource::{Invalid, Pending, ProviderEntry, Resource, ResourceError, ResourceOutput, State};
use serde_json::{Value, json};

use manager::PackageJob;
use properties::{RequestedVersion, two_minutes};
use transaction::PendingPackage;

pub use change::PackageChange;
pub use manager::PackageManager;
pub use properties::Properties;
pub use state::PackageState;

/// Packages.
pub struct PackageType;

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
    const OUTPUTS: &'static [ResourceOutput] = &[
        ResourceOutput::text("version", "The newest installed version."),
        ResourceOutput::text("arch", "The architecture of that version."),
    ];
    const REVERSALS: &'static [OnRemoval] = &[OnRemoval::Absent, OnRemoval::Revert];
    const PROVIDERS: &'static [ProviderEntry<dyn PackageManager>] = &[
        ProviderEntry::new("apt", |_| apt::is_installed(), |host| Box::new(apt::Apt::new(host.dpkg()))),
        ProviderEntry::new("dnf", |_| dnf::is_installed(), |host| Box::new(dnf::Dnf::new(host.rpm()))),
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

    fn provides(p: &Properties) -> Vec<Identity> {
        if p.wanted() == RequestedVersion::Absent { Vec::new() } else { p.identities() }
    }

    fn removes(p: &Properties) -> Vec<Identity> {
        if p.wanted() == RequestedVersion::Absent { p.identities() } else { Vec::new() }
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
        if difference::needs_index(p, &manager.installed_state(&p.name, host)?) { manager.refresh(p, age, host) } else { Ok(()) }
    }

    fn observe(p: &Properties, manager: &(dyn PackageManager + 'static), host: &Host) -> Result<PackageState, ResourceError> {
        difference::observe(p, manager, host)
    }

    fn outputs(_: &Properties, state: &PackageState) -> Vec<(&'static str, Value)> {
        let Some(newest) = state.newest() else { return Vec::new() };
        vec![("version", json!(newest.version)), ("arch", json!(newest.architecture))]
    }

    fn restoring(p: &Properties, state: &PackageState, _: &Host) -> Result<Option<Properties>, ResourceError> {
        Ok(Self::removing(p, state))
    }

    fn removing(p: &Properties, state: &PackageState) -> Option<Properties> {
        // A package that was installed before stays, whatever its version.
        if state.ensure() == "absent" { Self::query(&p.name) } else { None }
    }

    fn comparable(_: &Properties, state: &PackageState, _: &Host, _: bool) -> Result<Value, ResourceError> {
        // An upgrade by another program is no reason to keep the package.
        Ok(Value::from(state.ensure() != "absent"))
    }

    fn diff(p: &Properties, state: &PackageState) -> Result<Vec<PackageChange>, ResourceError> {
        difference::diff(p, state)
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
        let mut packages = Vec::with_capacity(batch.len());
        for Pending { properties, state, changes } in batch {
            packages.push(PendingPackage { properties, state, changes });
        }
        transaction::apply_batch(&mut packages, manager, host)
    }
}
