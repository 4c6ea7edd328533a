//! Watch targets that follow from effects: what a resource reads and writes is what can change it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::host::{Host, package_databases};
use crate::model::effects::{Effect, PathScope};
use crate::model::{Effects, WatchTarget};

use super::account_files::{GROUP_FILES, USER_FILES};

/// The interval of checks for settings of the kernel, which reports no changes.
pub(in crate::resource) const KERNEL_INTERVAL: Duration = Duration::from_secs(60);

/// Returns the watch targets of these effects, each once.
///
/// A command has none: nothing reports the end of its effect.
pub(in crate::resource) fn from_effects(effects: &Effects, host: &Host) -> Vec<WatchTarget> {
    let mut targets: Vec<WatchTarget> = effects.iter().flat_map(|effect| from_effect(effect, host)).collect();
    targets.sort();
    targets.dedup();
    targets
}

fn from_effect(effect: &Effect, host: &Host) -> Vec<WatchTarget> {
    match effect {
        Effect::Look(place) | Effect::Read(place) | Effect::Write { place, .. } => vec![from_path(place, host)],
        Effect::Unit(name) => vec![WatchTarget::Unit(name.clone())],
        Effect::Package(_) => package_databases().into_iter().map(WatchTarget::Path).collect(),
        Effect::Account { .. } => accounts(host),
        Effect::Mount(_) => vec![WatchTarget::Mounts],
        Effect::Kernel(_) | Effect::System(_) => vec![WatchTarget::Poll(KERNEL_INTERVAL)],
        Effect::Expose(_)
        | Effect::Run { .. }
        | Effect::Variable { .. }
        | Effect::Fetch(_)
        | Effect::Connect(_)
        | Effect::Schedule(_)
        | Effect::Nested(_)
        | Effect::Publish(_)
        | Effect::Request(_)
        | Effect::Unknown { .. } => vec![],
    }
}

fn from_path(place: &PathScope, host: &Host) -> WatchTarget {
    let path = host.resolve(Path::new(&place.path));
    if place.below { WatchTarget::Tree(path) } else { WatchTarget::Path(path) }
}

/// Returns the watch targets of all accounts.
pub(in crate::resource) fn accounts(host: &Host) -> Vec<WatchTarget> {
    USER_FILES.iter().chain(GROUP_FILES).map(|file| WatchTarget::Path(host.system_path(file))).collect()
}

/// Returns the watch target of a path of the author.
pub(in crate::resource) fn path(path: impl Into<PathBuf>) -> WatchTarget {
    WatchTarget::Path(path.into())
}
