//! The tree of watched paths with its watches: which directories are watched.
//!
//! A watch belongs to a directory, not to a file. An editor that replaces a file makes a new object under the old name. Every
//! ancestor is watched too, so that a renamed or removed parent is an event. Nodes are armed from the top: first the watch of
//! the directory, then the examination of its entries. So an earlier change is seen, and a later change is an event.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use super::file_system::WatchedFiles;
use super::report::{PollReason, ResourceKey};
use super::trie::{Depth, PathId, PathInterest, ROOT, Subscriber, Trie, WatchState};
use crate::host::inotify::{AddWatchError, WatchId, WatchMask, WatchObject};
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

/// The tree of watched paths with its watches.
#[derive(Debug)]
pub(super) struct ArmedTrie<F> {
    pub(super) trie: Trie,
    files: F,
    max_watches: usize,
    watches: HashMap<WatchId, Vec<PathId>>,
    refused: BTreeSet<PathId>,
    to_arm: Vec<(PathId, Extent)>,
    to_prune: Vec<PathId>,
    /// A watch became free, so a refused one may be granted.
    may_retry: bool,
    is_refusal_changed: bool,
}

impl<F: WatchedFiles> ArmedTrie<F> {
    pub(super) fn new(files: F, max_watches: usize) -> Self {
        Self {
            trie: Trie::new(),
            files,
            max_watches,
            watches: HashMap::new(),
            refused: BTreeSet::new(),
            to_arm: Vec::new(),
            to_prune: Vec::new(),
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

    /// Makes [`Self::is_retry_due`] true, as the limit may have changed.
    pub(super) fn retry(&mut self) {
        self.may_retry = true;
    }

    /// True when a refused watch may be granted now.
    pub(super) fn is_retry_due(&self) -> bool {
        self.may_retry && !self.refused.is_empty()
    }

    /// Tries the refused watches again. Returns the nodes that are watched now. The first full limit ends the attempt.
    pub(super) fn retry_refused(&mut self) -> Vec<PathId> {
        self.may_retry = false;
        let mut granted = Vec::new();
        for id in self.refused.clone() {
            self.rearm(id);
            match self.own_refusal(id) {
                Some(PollReason::WatchLimit) => break,
                Some(_) => {}
                None => granted.push(id),
            }
        }
        granted
    }

    /// Returns a node with this watch. Several nodes have numbers from zero on.
    pub(super) fn node_of_watch(&self, watch: WatchId, number: usize) -> Option<PathId> {
        self.watches.get(&watch)?.get(number).copied()
    }

    /// Forgets a watch that the kernel removed. Returns the nodes that had the watch.
    pub(super) fn release(&mut self, watch: WatchId) -> Vec<PathId> {
        self.may_retry = true;
        let nodes = self.watches.remove(&watch).unwrap_or_default();
        for id in &nodes {
            if let Some(node) = self.trie.node_mut(*id) {
                node.state = WatchState::Unexamined;
            }
        }
        nodes
    }

    /// Arms a node and all nodes below again.
    pub(super) fn rearm(&mut self, id: PathId) {
        self.to_arm.push((id, Extent::Subtree));
        self.arm_pending();
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
        let is_full = self.watches.len() >= self.max_watches
            && !matches!(self.trie.node(id).map(|node| node.state), Some(WatchState::Watched(_)));
        let add = |object| if is_full { Err(AddWatchError::Limit) } else { self.files.add(&path, object, mask) };
        let state = match object.map(add) {
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
