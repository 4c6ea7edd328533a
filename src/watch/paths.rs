//! The events of paths: which resources an event is about.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use super::armed_trie::ArmedTrie;
use super::file_system::WatchedFiles;
use super::report::{Cause, ResourceKey};
use super::trie::{PathId, ROOT, Subscriber};
use crate::host::inotify::{ChangeKind, InotifyEvent, WatchId};

/// The watched paths, and the changes since the last report.
#[derive(Debug)]
pub(super) struct PathWatches<F> {
    pub(super) armed: ArmedTrie<F>,
    /// Nodes that another object may be at, each with the first cause.
    changed: BTreeMap<PathId, Cause>,
    dirty: BTreeMap<ResourceKey, Cause>,
}

impl<F: WatchedFiles> PathWatches<F> {
    pub(super) fn new(files: F, max_watches: usize) -> Self {
        Self { armed: ArmedTrie::new(files, max_watches), changed: BTreeMap::new(), dirty: BTreeMap::new() }
    }

    /// True when [`Self::finish`] has work to do.
    pub(super) fn has_work(&self) -> bool {
        !self.changed.is_empty() || !self.dirty.is_empty() || self.armed.is_retry_due()
    }

    /// Processes an event. The nodes that it changed are armed by [`Self::finish`].
    pub(super) fn handle(&mut self, event: InotifyEvent<'_>) {
        match event {
            InotifyEvent::Overflow => drop(self.changed.insert(ROOT, Cause::Overflow)),
            InotifyEvent::Released { watch } => {
                for id in self.armed.release(watch) {
                    self.note_change(id, ChangeKind::Removed);
                }
            }
            InotifyEvent::Own { watch, kind } => self.for_each_node(watch, |paths, id| match kind {
                ChangeKind::Content | ChangeKind::Attributes => paths.mark_object(id, kind),
                ChangeKind::Created | ChangeKind::Removed | ChangeKind::Moved => paths.note_change(id, kind),
            }),
            InotifyEvent::Entry { watch, name, kind, is_directory } => {
                self.for_each_node(watch, |paths, id| paths.handle_entry(id, name, kind, is_directory));
            }
        }
    }

    fn for_each_node(&mut self, watch: WatchId, mut act: impl FnMut(&mut Self, PathId)) {
        let mut number = 0;
        while let Some(id) = self.armed.node_of_watch(watch, number) {
            act(self, id);
            number += 1;
        }
    }

    fn handle_entry(&mut self, id: PathId, name: &OsStr, kind: ChangeKind, is_directory: bool) {
        let child = self.armed.trie.child(id, name);
        match (kind, child) {
            (ChangeKind::Content | ChangeKind::Attributes, Some(child)) => self.mark_object(child, kind),
            (ChangeKind::Content | ChangeKind::Attributes, None) => {}
            (_, Some(child)) => self.note_change(child, kind),
            (_, None) if is_directory && self.armed.trie.is_in_tree(id) => {
                let child = self.armed.trie.insert_child(id, name);
                self.note_change(child, kind);
            }
            (_, None) => {}
        }
        let keys = self.armed.trie.resources(self.armed.trie.tree_subscribers(id));
        if !keys.is_empty() {
            let path: Arc<Path> = Arc::from(self.armed.trie.path(id).join(name));
            self.mark(keys, &Cause::Path { path, kind });
        }
    }

    /// Records that another object may be at the node.
    fn note_change(&mut self, id: PathId, kind: ChangeKind) {
        self.mark_object(id, kind);
        let trie = &self.armed.trie;
        self.changed.entry(id).or_insert_with(|| Cause::Path { path: Arc::from(trie.path(id)), kind });
    }

    /// Records changed mount points.
    pub(super) fn mounts_changed<'a>(&mut self, points: impl Iterator<Item = &'a Path>) {
        for point in points {
            if let Some(id) = self.armed.trie.find(point) {
                self.changed.insert(id, Cause::Mounts);
            } else if let Some(id) = point.parent().and_then(|parent| self.armed.trie.find(parent)) {
                // A file of a tree.
                let keys = self.armed.trie.resources(self.armed.trie.tree_subscribers(id));
                self.mark(keys, &Cause::Mounts);
            }
        }
    }

    fn mark_object(&mut self, id: PathId, kind: ChangeKind) {
        let interests = self.armed.trie.node(id).map(|node| &node.interests).into_iter().flatten();
        let keys = self.armed.trie.resources(interests.map(|interest| interest.subscriber));
        if !keys.is_empty() {
            self.mark(keys, &Cause::Path { path: Arc::from(self.armed.trie.path(id)), kind });
        }
    }

    fn mark(&mut self, keys: Vec<ResourceKey>, cause: &Cause) {
        for key in keys {
            self.dirty.entry(key).or_insert_with(|| cause.clone());
        }
    }

    /// Arms all changed nodes again, and returns the resources that may have changed. Their watches are in place by then.
    pub(super) fn finish(&mut self) -> BTreeMap<ResourceKey, Cause> {
        let mut queue: VecDeque<(PathId, Cause)> = std::mem::take(&mut self.changed).into_iter().collect();
        let mut done = BTreeSet::new();
        while let Some((id, cause)) = queue.pop_front() {
            if done.insert(id) && self.armed.trie.node(id).is_some() {
                let links = self.mark_affected(id, &cause);
                self.armed.rearm(id);
                queue.extend(links.into_iter().map(|link| (link, cause.clone())));
            }
        }
        if self.armed.is_retry_due() {
            for id in self.armed.retry_refused() {
                let links = self.mark_affected(id, &Cause::Rearmed);
                self.changed.extend(links.into_iter().map(|link| (link, Cause::Rearmed)));
            }
        }
        self.armed.trie.recycle();
        std::mem::take(&mut self.dirty)
    }

    /// Marks the resources at and below a node, and those of the trees that it is in. Returns the links that lead to it.
    fn mark_affected(&mut self, id: PathId, cause: &Cause) -> BTreeSet<PathId> {
        let below = self.armed.trie.downwards(id);
        let interests = below.iter().filter_map(|id| self.armed.trie.node(*id)).flat_map(|node| &node.interests);
        let all =
            interests.map(|interest| interest.subscriber).chain(self.armed.trie.tree_subscribers(self.armed.trie.parent(id)));
        let (mut keys, mut links) = (Vec::new(), BTreeSet::new());
        for subscriber in all {
            match subscriber {
                Subscriber::Key(key) => keys.push(key),
                Subscriber::Link(link) => _ = links.insert(link),
            }
        }
        self.mark(keys, cause);
        links
    }
}
