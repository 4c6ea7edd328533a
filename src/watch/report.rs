//! The plain data that the hub takes and gives.

use std::path::Path;
use std::sync::Arc;

use crate::host::inotify::ChangeKind;
use crate::model::WatchTarget;

/// The number of a watched resource, which its owner chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceKey(pub u32);

/// The reason for which a resource may have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// An object changed at a path.
    Path {
        /// The path of the object, as the target or a link spells its directory.
        path: Arc<Path>,
        /// The change.
        kind: ChangeKind,
    },
    /// This unit of systemd changed its state.
    Unit(Arc<str>),
    /// The mount table changed.
    Mounts,
    /// The interval of a target that is polled has passed.
    Poll,
    /// The kernel lost events, as its queue was full.
    Overflow,
    /// The source reports changes again, after a time without reports.
    Rearmed,
}

/// A resource that may have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dirty {
    /// The resource.
    pub key: ResourceKey,
    /// The first reason since the last report.
    pub cause: Cause,
}

/// The reason for which a target is polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum PollReason {
    /// The user has no watches left.
    #[error("the limit fs.inotify.max_user_watches is reached")]
    WatchLimit,
    /// The kernel watches a directory only for users that may read the directory.
    #[error("a directory of the path may not be watched")]
    Unwatchable,
    /// No systemd runs here, or its bus does not answer.
    #[error("systemd does not report changes of units")]
    NoSystemd,
    /// The kernel reports no mounts.
    #[error("the mount table can't be watched")]
    NoMountTable,
}

/// The outcome of setting the targets of a resource.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Armed {
    /// The targets without reports, which are polled instead, each with the reason.
    pub polled: Vec<(WatchTarget, PollReason)>,
}

/// Figures of the hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HubStats {
    /// Watches of the kernel.
    pub watches: usize,
    /// Resources.
    pub keys: usize,
    /// Resources with a target that is polled for lack of reports.
    pub polled_keys: usize,
    /// Overflows of the kernel's queue so far.
    pub overflows: u64,
}
