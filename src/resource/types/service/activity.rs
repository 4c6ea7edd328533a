//! The activity of a unit.

use crate::host::Unit;

/// The activity of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Activity {
    Running,
    Stopped,
    /// Starting up.
    Starting,
    /// Stopping.
    Stopping,
    /// Failed, and systemd will start the unit again after a while.
    Waiting,
}

impl Activity {
    pub(super) fn from_unit(unit: &Unit) -> Self {
        match unit.active.as_str() {
            "active" | "reloading" | "refreshing" => Self::Running,
            "activating" if unit.sub.starts_with("auto-restart") => Self::Waiting,
            "activating" => Self::Starting,
            "deactivating" => Self::Stopping,
            _ => Self::Stopped,
        }
    }
}
