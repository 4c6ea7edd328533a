//! The state of a package, and its difference from the desired state.

use crate::host::Host;
use crate::resource::{ResourceError, State};

use super::change::PackageChange;
use super::manager::PackageManager;
use super::properties::{Properties, RequestedVersion};
use super::state::{Installed, Offer, PackageState};

/// See [`crate::resource::Resource::observe`].
pub(super) fn observe(
    p: &Properties,
    manager: &(dyn PackageManager + 'static),
    host: &Host,
) -> Result<PackageState, ResourceError> {
    let mut state = manager.installed_state(&p.name, host)?;
    if needs_index(p, &state) {
        state.offer = manager.offer(p, host)?;
    }
    Ok(state)
}

/// See [`crate::resource::Resource::diff`].
pub(super) fn diff(p: &Properties, state: &PackageState) -> Result<Vec<PackageChange>, ResourceError> {
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

/// True when the offer of the index matters.
pub(super) fn needs_index(p: &Properties, state: &PackageState) -> bool {
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
