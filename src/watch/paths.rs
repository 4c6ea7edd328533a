//! The watches of paths: which directories are watched, and which resources an event is about.
//!
//! A watch belongs to a directory, not to a file. An editor that replaces a file makes a new object under the old name. Every
//! ancestor is watched too, so that a renamed or removed parent is an event. Nodes are armed from the top: first the watch of
//! the directory, then the examination of its entries. So an earlier change is seen, and a later change is an event.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use super::file_system::WatchedFiles;
use super::report::{Cause, PollReason, ResourceKey};
use super::trie::{Depth, PathId, PathInterest, ROOT, Subscriber, Trie, WatchState};
use crate::host::inotify::{AddWatchError, ChangeKind, InotifyEvent, WatchId, WatchMask, WatchObject};
use crate::host::watch_probe::PathKind;

/// The most links in a chain that are followed to find a refused watch, the same as in the kernel.
const MAX_LINKS: usize = 40;

/// The extent of a repeated examination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// The node, and what was not examined below.
    Node,
    /// The node and all nodes below.
    Subtree,
}

/// The watches of paths.
#[derive(Debug)]
pub(super) struct PathWatches<F> {
    files: F,
    trie: Trie,
    watches: HashMap<WatchId, Vec<PathId>>,
    refused: BTreeSet<PathId>,
    /// Nodes that another object may be at, each with the first cause.
    changed: BTreeMap<PathId, Cause>,
    to_arm: Vec<(PathId, Extent)>,
    to_prune: Vec<PathId>,
    dirty: BTreeMap<ResourceKey, Cause>,
    /// A watch became free, so a refused one may be granted.
    may_retry: bool,
    is_refusal_changed: bool,
}

impl<F: WatchedFiles> PathWatches<F> {
    pub(super) fn new(files: F) -> Self {
        Self {
            files,
            trie: Trie::new(),
            watches: HashMap::new(),
            refused: BTreeSet::new(),
            changed: BTreeMap::new(),
            to_arm: Vec::new(),
            to_prune: Vec::new(),
            dirty: BTreeMap::new(),
            may_retry: false,
            is_refusal_changed: false,
        }
    }

    /// The number of watches.
    pub(super) fn len(&self) -> usize {
        self.watches.len()
    }

    /// Adds the interest of a resource in a normal absolute path. Every later change is reported.
    pub(super) fn subscribe(&mut self, key: ResourceKey, path: &Path, depth: Depth) {
        let id = self.trie.insert(path);
        self.add_interest(id, PathInterest { subscriber: Subscriber::Key(key), depth });
        self.arm_pending();
    }

    /// Ends the interest of a resource in a path.
    pub(super) fn unsubscribe(&mut self, key: ResourceKey, path: &Path, depth: Depth) {
        if let Some(id) = self.trie.find(path) {
            self.remove_interest(id, PathInterest { subscriber: Subscriber::Key(key), depth });
            self.arm_pending();
        }
    }

    /// Returns the reason for which changes at a path, or below for a tree, are not reported.
    pub(super) fn refusal(&self, path: &Path, depth: Depth) -> Option<PollReason> {
        let id = self.trie.find(path).filter(|_| !self.refused.is_empty())?;
        let is_below = |refused: PathId| depth == Depth::Tree && self.trie.upwards(refused).any(|up| up == id);
        let below = self.refused.iter().copied().filter(|refused| is_below(*refused));
        below.filter_map(|id| self.own_refusal(id)).next().or_else(|| self.refusal_above(id, MAX_LINKS))
    }

    fn refusal_above(&self, id: PathId, links: usize) -> Option<PollReason> {
        self.trie.upwards(id).find_map(|id| {
            let link = self.trie.node(id)?.link.filter(|_| links > 0);
            self.own_refusal(id).or_else(|| self.refusal_above(link?, links - 1))
        })
    }

    fn own_refusal(&self, id: PathId) -> Option<PollReason> {
        match self.trie.node(id)?.state {
            WatchState::Refused(reason) => Some(reason),
            _ => None,
        }
    }

    /// True when a watch was refused or granted since the last call.
    pub(super) fn refusals_changed(&mut self) -> bool {
        std::mem::take(&mut self.is_refusal_changed)
    }

    /// Makes the next [`Self::finish`] try the refused watches again.
    pub(super) fn retry(&mut self) {
        self.may_retry = true;
    }

    /// True when [`Self::finish`] has work to do.
    pub(super) fn has_work(&self) -> bool {
        !self.changed.is_empty() || !self.dirty.is_empty() || (self.may_retry && !self.refused.is_empty())
    }

    /// Processes an event. The nodes that it changed are armed by [`Self::finish`].
    pub(super) fn handle(&mut self, event: InotifyEvent<'_>) {
        match event {
            InotifyEvent::Overflow => drop(self.changed.insert(ROOT, Cause::Overflow)),
            InotifyEvent::Released { watch } => {
                for id in self.watches.remove(&watch).unwrap_or_default() {
                    if let Some(node) = self.trie.node_mut(id) {
                        node.state = WatchState::Unexamined;
                    }
                    self.note_change(id, ChangeKind::Removed);
                }
                self.may_retry = true;
            }
            InotifyEvent::Own { watch, kind } => self.for_each_node(watch, |watches, id| match kind {
                ChangeKind::Content | ChangeKind::Attributes => watches.mark_object(id, kind),
                ChangeKind::Created | ChangeKind::Removed | ChangeKind::Moved => watches.note_change(id, kind),
            }),
            InotifyEvent::Entry { watch, name, kind, is_directory } => {
                self.for_each_node(watch, |watches, id| watches.handle_entry(id, name, kind, is_directory));
            }
        }
    }

    fn for_each_node(&mut self, watch: WatchId, mut act: impl FnMut(&mut Self, PathId)) {
        let mut at = 0;
        while let Some(id) = self.watches.get(&watch).and_then(|nodes| nodes.get(at)).copied() {
            act(self, id);
            at += 1;
        }
    }

    fn handle_entry(&mut self, id: PathId, name: &OsStr, kind: ChangeKind, is_directory: bool) {
        let child = self.trie.child(id, name);
        match (kind, child) {
            (ChangeKind::Content | ChangeKind::Attributes, Some(child)) => self.mark_object(child, kind),
            (ChangeKind::Content | ChangeKind::Attributes, None) => {}
            (_, Some(child)) => self.note_change(child, kind),
            (_, None) if is_directory && self.trie.is_in_tree(id) => {
                let child = self.trie.insert_child(id, name);
                self.note_change(child, kind);
            }
            (_, None) => {}
        }
        let keys = self.trie.resources(self.trie.tree_subscribers(id));
        if !keys.is_empty() {
            let path: Arc<Path> = Arc::from(self.trie.path(id).join(name));
            self.mark(keys, &Cause::Path { path, kind });
        }
    }

    /// Records that another object may be at the node.
    fn note_change(&mut self, id: PathId, kind: ChangeKind) {
        self.mark_object(id, kind);
        let trie = &self.trie;
        self.changed.entry(id).or_insert_with(|| Cause::Path { path: Arc::from(trie.path(id)), kind });
    }

    /// Records changed mount points.
    pub(super) fn mounts_changed<'a>(&mut self, points: impl Iterator<Item = &'a Path>) {
        for point in points {
            if let Some(id) = self.trie.find(point) {
                self.changed.insert(id, Cause::Mounts);
            }
        }
    }

    fn mark_object(&mut self, id: PathId, kind: ChangeKind) {
        let interests = self.trie.node(id).map(|node| &node.interests).into_iter().flatten();
        let keys = self.trie.resources(interests.map(|interest| interest.subscriber));
        if !keys.is_empty() {
            self.mark(keys, &Cause::Path { path: Arc::from(self.trie.path(id)), kind });
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
            if done.insert(id) && self.trie.node(id).is_some() {
                let links = self.mark_affected(id, &cause);
                self.to_arm.push((id, Extent::Subtree));
                self.arm_pending();
                queue.extend(links.into_iter().map(|link| (link, cause.clone())));
            }
        }
        if std::mem::take(&mut self.may_retry) {
            self.retry_refused();
        }
        self.trie.recycle();
        std::mem::take(&mut self.dirty)
    }

    /// Marks the resources at and below a node, and those of the trees that it is in. Returns the links that lead to it.
    fn mark_affected(&mut self, id: PathId, cause: &Cause) -> BTreeSet<PathId> {
        let below = self.trie.downwards(id);
        let interests = below.iter().filter_map(|id| self.trie.node(*id)).flat_map(|node| &node.interests);
        let all = interests.map(|interest| interest.subscriber).chain(self.trie.tree_subscribers(self.trie.parent(id)));
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

    fn retry_refused(&mut self) {
        for id in self.refused.clone() {
            self.to_arm.push((id, Extent::Subtree));
            self.arm_pending();
            match self.own_refusal(id) {
                Some(PollReason::WatchLimit) => break,
                Some(_) => {}
                None => {
                    let links = self.mark_affected(id, &Cause::Rearmed);
                    self.changed.extend(links.into_iter().map(|link| (link, Cause::Rearmed)));
                }
            }
        }
    }

    fn add_interest(&mut self, id: PathId, interest: PathInterest) {
        let Some(node) = self.trie.node_mut(id) else { return };
        if node.interests.is_empty() {
            node.interests.reserve_exact(1);
        }
        node.interests.push(interest);
        let parent = self.trie.parent(id);
        if let Some(node) = self.trie.node_mut(parent).filter(|node| id != ROOT && !node.has_watched_entries) {
            node.has_watched_entries = true;
            if matches!(node.state, WatchState::Watched(_)) {
                self.to_arm.push((parent, Extent::Node));
            }
        }
        let chain: Vec<PathId> = self.trie.upwards(id).collect();
        for step in chain.into_iter().rev() {
            let Some(node) = self.trie.node(step) else { return };
            match node.state {
                WatchState::Watched(_) if step != id => {}
                // The directory reports when the object appears.
                WatchState::Missing | WatchState::Refused(_) => return,
                WatchState::NotDirectory if step != id => return,
                WatchState::Unexamined | WatchState::Unwatched => return self.to_arm.push((step, Extent::Subtree)),
                WatchState::NotDirectory | WatchState::Watched(_) => {
                    let extent = if interest.depth == Depth::Tree { Extent::Subtree } else { Extent::Node };
                    return self.to_arm.push((id, extent));
                }
            }
        }
    }

    fn remove_interest(&mut self, id: PathId, interest: PathInterest) {
        let Some(node) = self.trie.node_mut(id) else { return };
        let Some(at) = node.interests.iter().position(|other| *other == interest) else { return };
        node.interests.swap_remove(at);
        // A followed link, or a watch of the object itself, may have lost its purpose.
        if interest.depth == Depth::Tree {
            self.leave_tree(id);
        } else if self.trie.is_needed(id) {
            self.to_arm.push((id, Extent::Node));
        }
        self.to_prune.push(id);
    }

    /// Ends the part of the nodes below in a tree, unless another interest covers them.
    fn leave_tree(&mut self, id: PathId) {
        for id in self.trie.downwards(id) {
            let is_covered = id != ROOT && self.trie.is_in_tree(self.trie.parent(id));
            if let Some(node) = self.trie.node_mut(id).filter(|_| !is_covered) {
                node.is_discovered = false;
                self.to_arm.push((id, Extent::Node));
                self.to_prune.push(id);
            }
        }
    }

    /// Removes a node that is needed no longer, and its ancestors that only led there.
    fn prune(&mut self, mut id: PathId) {
        while id != ROOT && self.trie.node(id).is_some() && !self.trie.is_needed(id) {
            let parent = self.trie.parent(id);
            self.set_state(id, WatchState::Unexamined);
            self.unfollow(id);
            self.trie.remove(id);
            id = parent;
            if self.trie.node(id).is_some_and(|node| node.children.is_empty()) && !self.trie.is_in_tree(id) {
                self.to_arm.push((id, Extent::Node));
            }
        }
    }

    /// Arms and prunes until no node is left to do. A node is armed after its parent.
    fn arm_pending(&mut self) {
        loop {
            if let Some(id) = self.to_prune.pop() {
                self.prune(id);
            } else if let Some((id, extent)) = self.to_arm.pop() {
                self.arm_with_children(id, extent);
            } else {
                return;
            }
        }
    }

    fn arm_with_children(&mut self, id: PathId, extent: Extent) {
        if !self.arm(id) {
            self.disarm_below(id);
            self.to_prune.push(id);
            return;
        }
        let children = self.trie.node(id).map(|node| node.children.values().copied()).into_iter().flatten();
        let is_due = |id: &PathId| {
            extent == Extent::Subtree || self.trie.node(*id).is_some_and(|node| node.state == WatchState::Unexamined)
        };
        self.to_arm.extend(children.filter(is_due).map(|child| (child, Extent::Subtree)));
    }

    /// Examines a node again, and gives it the watch that it needs. False when nothing can be below.
    fn arm(&mut self, id: PathId) -> bool {
        let Some(node) = self.trie.node(id) else { return false };
        let (has_interests, has_children) = (!node.interests.is_empty(), !node.children.is_empty());
        let has_watched_entries = node.has_watched_entries;
        let path = self.trie.path(id);
        let facts = self.files.examine(&path);
        if facts.kind == PathKind::Link && (has_children || has_interests) {
            self.follow(id, &path);
        } else {
            self.unfollow(id);
        }
        let is_in_tree = facts.kind == PathKind::Directory && self.trie.is_in_tree(id);
        let needs_own = has_interests && facts.is_hidden_from_directory;
        let object = match facts.kind {
            PathKind::Missing => None,
            PathKind::Link => has_children.then_some(WatchObject::LinkedDirectory),
            PathKind::Directory => (has_children || is_in_tree || needs_own).then_some(WatchObject::Directory),
            PathKind::File => needs_own.then_some(WatchObject::Any),
        };
        let mask = if has_watched_entries || is_in_tree || needs_own { WatchMask::Content } else { WatchMask::Structure };
        let state = match object.map(|object| self.files.add(&path, object, mask)) {
            Some(Ok(watch)) => WatchState::Watched(watch),
            Some(Err(AddWatchError::Limit)) => WatchState::Refused(PollReason::WatchLimit),
            Some(Err(AddWatchError::Refused(_))) => WatchState::Refused(PollReason::Unwatchable),
            Some(Err(AddWatchError::Missing)) if facts.kind == PathKind::Link => WatchState::NotDirectory,
            Some(Err(AddWatchError::Missing)) => WatchState::Missing,
            None => match facts.kind {
                PathKind::Missing => WatchState::Missing,
                PathKind::Directory | PathKind::Link => WatchState::Unwatched,
                PathKind::File => WatchState::NotDirectory,
            },
        };
        self.set_state(id, state);
        let is_part_of_tree = is_in_tree && id != ROOT && self.trie.is_in_tree(self.trie.parent(id));
        if let Some(node) = self.trie.node_mut(id) {
            node.is_discovered = is_part_of_tree && !matches!(state, WatchState::Missing);
        }
        let is_watched = matches!(state, WatchState::Watched(_));
        if is_watched && is_in_tree {
            for name in self.files.subdirectories(&path) {
                self.trie.insert_child(id, &name);
            }
        }
        is_watched && facts.kind != PathKind::File
    }

    /// Forgets the watches below a node, as nothing is there.
    fn disarm_below(&mut self, id: PathId) {
        let below = self.trie.downwards(id);
        for id in below.into_iter().skip(1) {
            self.set_state(id, WatchState::Unexamined);
            self.unfollow(id);
            if let Some(node) = self.trie.node_mut(id) {
                node.is_discovered = false;
            }
            self.to_prune.push(id);
        }
    }

    fn set_state(&mut self, id: PathId, state: WatchState) {
        let Some(node) = self.trie.node_mut(id) else { return };
        let before = std::mem::replace(&mut node.state, state);
        if before == state {
            return;
        }
        match state {
            WatchState::Watched(watch) => self.watches.entry(watch).or_default().push(id),
            WatchState::Refused(_) => self.is_refusal_changed |= self.refused.insert(id),
            _ => {}
        }
        if !matches!(state, WatchState::Refused(_)) {
            self.is_refusal_changed |= self.refused.remove(&id);
        }
        if let WatchState::Watched(watch) = before
            && let Some(nodes) = self.watches.get_mut(&watch)
        {
            nodes.retain(|other| *other != id);
            if nodes.is_empty() {
                self.watches.remove(&watch);
                self.files.remove(watch);
                self.may_retry = true;
            }
        }
    }

    /// Makes the link subscribe to its destination, as a change there changes the object behind the link.
    fn follow(&mut self, id: PathId, path: &Path) {
        let Some(destination) = self.files.link_destination(path) else { return self.unfollow(id) };
        let Some(node) = self.trie.node(id) else { return };
        let is_tree = node.interests.iter().any(|interest| interest.depth == Depth::Tree);
        let interest =
            PathInterest { subscriber: Subscriber::Link(id), depth: if is_tree { Depth::Tree } else { Depth::Object } };
        let target = self.trie.insert(&destination);
        let is_followed = self.trie.node(target).is_some_and(|node| node.interests.contains(&interest));
        if target == id || is_followed {
            return;
        }
        self.add_interest(target, interest);
        self.unfollow_except(id, Some((target, interest.depth)));
        if let Some(node) = self.trie.node_mut(id) {
            node.link = Some(target);
        }
    }

    fn unfollow(&mut self, id: PathId) {
        self.unfollow_except(id, None);
    }

    fn unfollow_except(&mut self, id: PathId, new: Option<(PathId, Depth)>) {
        let Some(target) = self.trie.node_mut(id).and_then(|node| node.link.take()) else { return };
        for depth in [Depth::Object, Depth::Tree] {
            if new != Some((target, depth)) {
                self.remove_interest(target, PathInterest { subscriber: Subscriber::Link(id), depth });
            }
        }
    }
}
