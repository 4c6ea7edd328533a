//! The watches of paths over a simulated file system, for what a test can't make the kernel do.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use crate::host::inotify::{AddWatchError, ChangeKind, InotifyEvent, WatchId, WatchMask, WatchObject};
use crate::host::watch_probe::{PathFacts, PathKind};
use crate::watch::file_system::WatchedFiles;
use crate::watch::paths::PathWatches;
use crate::watch::trie::Depth;
use crate::watch::{Cause, PollReason, ResourceKey};

/// A file system of directories and files, with a limit of watches.
#[derive(Default)]
struct SimulatedFiles {
    /// The objects; true for a directory.
    objects: RefCell<BTreeMap<PathBuf, bool>>,
    watches: RefCell<BTreeMap<PathBuf, WatchId>>,
    unreadable: RefCell<BTreeSet<PathBuf>>,
    limit: Cell<usize>,
    last_watch: Cell<i32>,
    additions: Cell<usize>,
    /// A directory that appears between the watch of this directory and the next call.
    appears_after: RefCell<Option<(PathBuf, PathBuf)>>,
}

impl SimulatedFiles {
    fn new(limit: usize, directories: &[&str]) -> Self {
        let files = Self { limit: Cell::new(limit), ..Self::default() };
        directories.iter().for_each(|path| files.mkdir(path));
        files
    }

    fn mkdir(&self, path: &str) {
        let mut objects = self.objects.borrow_mut();
        Path::new(path).ancestors().for_each(|path| _ = objects.insert(path.to_owned(), true));
    }

    fn watch(&self, path: &str) -> WatchId {
        self.watches.borrow()[Path::new(path)]
    }
}

impl WatchedFiles for &SimulatedFiles {
    fn examine(&self, path: &Path) -> PathFacts {
        let kind = match self.objects.borrow().get(path) {
            None => PathKind::Missing,
            Some(true) => PathKind::Directory,
            Some(false) => PathKind::File,
        };
        PathFacts { kind, is_hidden_from_directory: false }
    }

    fn link_destination(&self, _link: &Path) -> Option<PathBuf> {
        None
    }

    fn subdirectories(&self, path: &Path) -> Vec<OsString> {
        let objects = self.objects.borrow();
        let below = objects.iter().filter(|(other, is_directory)| **is_directory && other.parent() == Some(path));
        below.filter_map(|(other, _)| Some(other.file_name()?.to_owned())).collect()
    }

    fn add(&self, path: &Path, _object: WatchObject, _mask: WatchMask) -> Result<WatchId, AddWatchError> {
        self.additions.set(self.additions.get() + 1);
        if self.objects.borrow().get(path) != Some(&true) {
            return Err(AddWatchError::Missing);
        }
        if self.unreadable.borrow().contains(path) {
            return Err(AddWatchError::Refused(io::ErrorKind::PermissionDenied.into()));
        }
        let mut watches = self.watches.borrow_mut();
        if !watches.contains_key(path) && watches.len() >= self.limit.get() {
            return Err(AddWatchError::Limit);
        }
        self.last_watch.set(self.last_watch.get() + 1);
        if let Some((_, new)) = self.appears_after.borrow_mut().take_if(|(after, _)| after == path) {
            self.mkdir(new.to_str().unwrap());
        }
        Ok(*watches.entry(path.to_owned()).or_insert(WatchId::new(self.last_watch.get())))
    }

    fn remove(&self, watch: WatchId) {
        self.watches.borrow_mut().retain(|_, other| *other != watch);
    }
}

const KEYS: [ResourceKey; 3] = [ResourceKey(0), ResourceKey(1), ResourceKey(2)];

fn causes(dirty: BTreeMap<ResourceKey, Cause>) -> Vec<(u32, Cause)> {
    dirty.into_iter().map(|(key, cause)| (key.0, cause)).collect()
}

#[test]
fn a_full_limit_affects_only_the_resources_without_watches() {
    // The limit of the kernel, and that of the hub.
    for (limit, max_watches) in [(3, usize::MAX), (usize::MAX, 3)] {
        let files = SimulatedFiles::new(limit, &["/a/x", "/b"]);
        let mut paths = PathWatches::new(&files, max_watches);
        let all = [(KEYS[0], "/a/x/f"), (KEYS[1], "/b/f"), (KEYS[2], "/a/g")];
        all.iter().for_each(|(key, path)| paths.armed.subscribe(*key, Path::new(path), Depth::Object));
        let refusals = |paths: &PathWatches<_>| all.map(|(_, path)| paths.armed.refusal(Path::new(path), Depth::Object));
        assert_eq!(refusals(&paths), [None, Some(PollReason::WatchLimit), None]);
        assert!(paths.armed.refusals_changed() && !paths.armed.refusals_changed());
        assert!(!paths.has_work(), "no retry without a reason");
        // A watch becomes free.
        paths.armed.unsubscribe(KEYS[0], Path::new("/a/x/f"), Depth::Object);
        assert!(paths.has_work());
        assert_eq!(causes(paths.finish()), [(1, Cause::Rearmed)]);
        assert_eq!(refusals(&paths), [None; 3]);
        assert!(paths.armed.refusals_changed() && !paths.has_work());
    }
}

#[test]
fn a_raised_limit_is_used_after_a_retry() {
    let files = SimulatedFiles::new(2, &["/t/a", "/t/b", "/t/c"]);
    let mut paths = PathWatches::new(&files, usize::MAX);
    paths.armed.subscribe(KEYS[0], Path::new("/t"), Depth::Tree);
    assert_eq!(paths.armed.refusal(Path::new("/t"), Depth::Tree), Some(PollReason::WatchLimit));
    assert_eq!(paths.armed.refusal(Path::new("/t"), Depth::Object), None, "the directory itself is watched");
    let before = files.additions.get();
    paths.armed.retry();
    assert_eq!(causes(paths.finish()), []);
    assert_eq!(files.additions.get(), before + 1, "the first refusal ends the retry");
    files.limit.set(10);
    paths.armed.retry();
    assert_eq!(causes(paths.finish()), [(0, Cause::Rearmed)]);
    assert_eq!((paths.armed.refusal(Path::new("/t"), Depth::Tree), paths.armed.len()), (None, 5));
}

#[test]
fn an_unreadable_directory_is_refused_with_all_below() {
    let files = SimulatedFiles::new(10, &["/a/b", "/c"]);
    files.unreadable.borrow_mut().insert(PathBuf::from("/a"));
    let mut paths = PathWatches::new(&files, usize::MAX);
    paths.armed.subscribe(KEYS[0], Path::new("/a/b/f"), Depth::Object);
    paths.armed.subscribe(KEYS[1], Path::new("/c/f"), Depth::Object);
    paths.armed.subscribe(KEYS[2], Path::new("/a"), Depth::Object);
    let refusal = |path: &str| paths.armed.refusal(Path::new(path), Depth::Object);
    assert_eq!(refusal("/a/b/f"), Some(PollReason::Unwatchable));
    assert_eq!(refusal("/c/f"), None);
    // The directory itself is an entry of the root, which is watched.
    let additions = files.additions.get();
    paths.armed.subscribe(KEYS[1], Path::new("/a/b/g"), Depth::Object);
    assert_eq!(files.additions.get(), additions, "one refusal is enough");
}

#[test]
fn an_overflow_arms_everything_again() {
    let files = SimulatedFiles::new(10, &["/a", "/t"]);
    let mut paths = PathWatches::new(&files, usize::MAX);
    paths.armed.subscribe(KEYS[0], Path::new("/a/b/f"), Depth::Object);
    paths.armed.subscribe(KEYS[1], Path::new("/t"), Depth::Tree);
    // Their events are lost.
    files.mkdir("/a/b");
    files.mkdir("/t/x/y");
    paths.handle(InotifyEvent::Overflow);
    assert_eq!(causes(paths.finish()), [(0, Cause::Overflow), (1, Cause::Overflow)]);
    assert_eq!(paths.armed.len(), 6);
}

#[test]
fn a_directory_that_appears_while_its_parent_is_armed_is_found() {
    let files = SimulatedFiles::new(10, &["/"]);
    let mut paths = PathWatches::new(&files, usize::MAX);
    paths.armed.subscribe(KEYS[0], Path::new("/a/b/f"), Depth::Object);
    files.mkdir("/a");
    *files.appears_after.borrow_mut() = Some((PathBuf::from("/a"), PathBuf::from("/a/b")));
    let event =
        InotifyEvent::Entry { watch: files.watch("/"), name: OsStr::new("a"), kind: ChangeKind::Created, is_directory: true };
    paths.handle(event);
    assert_eq!(paths.finish().len(), 1);
    assert_eq!(paths.armed.len(), 3, "the new directory is watched");
}

#[test]
fn a_watch_that_the_kernel_removed_is_added_again() {
    let files = SimulatedFiles::new(10, &["/a"]);
    let mut paths = PathWatches::new(&files, usize::MAX);
    paths.armed.subscribe(KEYS[0], Path::new("/a/f"), Depth::Object);
    let watch = files.watch("/a");
    files.watches.borrow_mut().remove(Path::new("/a"));
    for event in [
        InotifyEvent::Released { watch },
        InotifyEvent::Released { watch },
        InotifyEvent::Own { watch, kind: ChangeKind::Removed },
    ] {
        paths.handle(event);
    }
    assert_eq!(paths.finish().len(), 1);
    assert_ne!(files.watch("/a"), watch);
    assert_eq!(paths.armed.len(), 2);
}
