//! The calls of the kernel that the tree of watched paths needs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::host::inotify::{AddWatchError, Inotify, WatchId, WatchMask, WatchObject};
use crate::host::watch_probe::{self, PathFacts};

/// A file system with watches.
pub(super) trait WatchedFiles {
    /// Examines a path, a link not followed.
    fn examine(&self, path: &Path) -> PathFacts;
    /// Returns the path that a symbolic link names; none when the link is gone.
    fn link_destination(&self, link: &Path) -> Option<PathBuf>;
    /// Returns the names of the directories in a directory; none when the directory is gone.
    fn subdirectories(&self, path: &Path) -> Vec<OsString>;
    /// Adds a watch, or changes to an existing watch.
    fn add(&self, path: &Path, object: WatchObject, mask: WatchMask) -> Result<WatchId, AddWatchError>;
    /// Removes a watch.
    fn remove(&self, watch: WatchId);
}

impl WatchedFiles for Arc<Inotify> {
    fn examine(&self, path: &Path) -> PathFacts {
        watch_probe::examine_path(path)
    }

    fn link_destination(&self, link: &Path) -> Option<PathBuf> {
        watch_probe::link_destination(link).ok()
    }

    fn subdirectories(&self, path: &Path) -> Vec<OsString> {
        // The directory is watched by now, so its end is an event.
        watch_probe::subdirectories(path).unwrap_or_default()
    }

    fn add(&self, path: &Path, object: WatchObject, mask: WatchMask) -> Result<WatchId, AddWatchError> {
        Inotify::add(self, path, object, mask)
    }

    fn remove(&self, watch: WatchId) {
        Inotify::remove(self, watch);
    }
}
