//! Watch targets: the parts of a host whose changes can change a resource.

use std::path::PathBuf;
use std::time::Duration;

/// A part of the host that can change behind the back of a resource.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WatchTarget {
    /// The object at an absolute path: its existence, kind, content and attributes. The entries of a directory do not count.
    /// Symbolic links are followed, and count themselves.
    ///
    /// Not reported are changes through a memory map, and changes that another host makes on a network file system. The same
    /// holds for changes under a hard link that was made later.
    Path(PathBuf),
    /// The object at an absolute path, and every object below. Links below are not followed. Not reported are also changes under
    /// hard links outside of the tree.
    Tree(PathBuf),
    /// A unit of systemd, by its name with suffix.
    Unit(String),
    /// The table of mounted file systems.
    Mounts,
    /// A check at this interval, for a source that reports no changes.
    Poll(Duration),
}
