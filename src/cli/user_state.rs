//! The state directory of this user: `$XDG_STATE_HOME/ensign`, else `~/.local/state/ensign`.

use std::path::PathBuf;

/// Returns a path below the state directory of this user; none when neither variable has an absolute path.
pub(super) fn path(name: &str) -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = variable("XDG_STATE_HOME").or_else(|| variable("HOME").map(|home| home.join(".local/state")));
    state.filter(|path| path.is_absolute()).map(|state| state.join("ensign").join(name))
}
