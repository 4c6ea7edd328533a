//! The tree of watched paths: a node for each component, with the interests in the object there.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::report::{PollReason, ResourceKey};
use crate::host::inotify::WatchId;

/// The number of a node. Freed numbers are used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct PathId(u32);

/// The node of `/`, which always exists.
pub(super) const ROOT: PathId = PathId(0);

/// The part that hears about a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subscriber {
    /// A resource.
    Key(ResourceKey),
    /// A symbolic link, whose destination the node is.
    Link(PathId),
}

/// The extent of an interest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Depth {
    /// The object.
    Object,
    /// The object and every object below.
    Tree,
}

/// The interest of a subscriber in a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PathInterest {
    pub(super) subscriber: Subscriber,
    pub(super) depth: Depth,
}

/// The state of the object at a node, as last examined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WatchState {
    /// Not examined yet, or below an object that is no directory.
    Unexamined,
    /// Waits for the object to appear, which the directory reports.
    Missing,
    /// Another object than a directory, without a watch of its own.
    NotDirectory,
    /// A directory or link that needs no watch, as no entry matters.
    Unwatched,
    /// The object has this watch.
    Watched(WatchId),
    /// Waits for a watch that the kernel refused. Nothing at or below the node is reported.
    Refused(PollReason),
}

/// A component of a path.
#[derive(Debug)]
pub(super) struct TrieNode {
    name: Arc<OsStr>,
    parent: PathId,
    pub(super) children: BTreeMap<Arc<OsStr>, PathId>,
    pub(super) interests: Vec<PathInterest>,
    pub(super) state: WatchState,
    /// The destination, for a symbolic link that is followed.
    pub(super) link: Option<PathId>,
    /// The node exists because a directory is there, within a tree.
    pub(super) is_discovered: bool,
    /// A child has interests, so that changes of its content matter.
    pub(super) has_watched_entries: bool,
}

impl TrieNode {
    fn new(parent: PathId, name: Arc<OsStr>) -> Self {
        Self {
            name,
            parent,
            children: BTreeMap::new(),
            interests: Vec::new(),
            state: WatchState::Unexamined,
            link: None,
            is_discovered: false,
            has_watched_entries: false,
        }
    }
}

/// The tree.
#[derive(Debug)]
pub(super) struct Trie {
    nodes: Vec<Option<TrieNode>>,
    free: Vec<PathId>,
    /// Numbers that become free with the next call of [`Self::recycle`].
    removed: Vec<PathId>,
}

impl Trie {
    pub(super) fn new() -> Self {
        Self { nodes: vec![Some(TrieNode::new(ROOT, Arc::from(OsStr::new("/"))))], free: Vec::new(), removed: Vec::new() }
    }

    pub(super) fn node(&self, id: PathId) -> Option<&TrieNode> {
        self.nodes.get(usize::try_from(id.0).ok()?)?.as_ref()
    }

    pub(super) fn node_mut(&mut self, id: PathId) -> Option<&mut TrieNode> {
        self.nodes.get_mut(usize::try_from(id.0).ok()?)?.as_mut()
    }

    /// Returns the parent of a node. The root is its own parent.
    pub(super) fn parent(&self, id: PathId) -> PathId {
        self.node(id).map_or(ROOT, |node| node.parent)
    }

    /// True when the node is there for itself or for a node below.
    pub(super) fn is_needed(&self, id: PathId) -> bool {
        self.node(id).is_some_and(|node| !node.children.is_empty() || !node.interests.is_empty() || node.is_discovered)
    }

    /// Returns the path of a node.
    pub(super) fn path(&self, id: PathId) -> PathBuf {
        let names: Vec<&OsStr> = self.upwards(id).filter_map(|id| self.node(id)).map(|node| &*node.name).collect();
        names.into_iter().rev().collect()
    }

    /// Returns the node and its ancestors, up to the root.
    pub(super) fn upwards(&self, id: PathId) -> impl Iterator<Item = PathId> {
        std::iter::successors(Some(id), |id| (*id != ROOT).then(|| self.node(*id).map(|node| node.parent)).flatten())
    }

    /// Returns the node and all nodes below, each before the nodes below it.
    pub(super) fn downwards(&self, id: PathId) -> Vec<PathId> {
        let (mut found, mut at) = (vec![id], 0);
        while let Some(next) = found.get(at) {
            let children = self.node(*next).map(|node| node.children.values().copied()).into_iter().flatten();
            found.extend(children.collect::<Vec<_>>());
            at += 1;
        }
        found
    }

    /// Finds the node of an absolute path.
    pub(super) fn find(&self, path: &Path) -> Option<PathId> {
        names(path).try_fold(ROOT, |id, name| self.child(id, name))
    }

    pub(super) fn child(&self, id: PathId, name: &OsStr) -> Option<PathId> {
        self.node(id)?.children.get(name).copied()
    }

    /// Returns the node of an absolute path, and creates missing nodes.
    pub(super) fn insert(&mut self, path: &Path) -> PathId {
        names(path).fold(ROOT, |id, name| self.insert_child(id, name))
    }

    pub(super) fn insert_child(&mut self, parent: PathId, name: &OsStr) -> PathId {
        if let Some(child) = self.child(parent, name) {
            return child;
        }
        let name: Arc<OsStr> = Arc::from(name);
        let node = TrieNode::new(parent, Arc::clone(&name));
        let id = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            // A node needs more than 4 GiB / u32::MAX bytes of memory, so the number fits.
            PathId(u32::try_from(self.nodes.len() - 1).unwrap_or(u32::MAX))
        });
        if let Some(slot) = usize::try_from(id.0).ok().and_then(|at| self.nodes.get_mut(at)) {
            *slot = Some(node);
        }
        if let Some(parent) = self.node_mut(parent) {
            parent.children.insert(name, id);
        }
        id
    }

    /// Removes a node without children. The number stays unused until [`Self::recycle`].
    pub(super) fn remove(&mut self, id: PathId) {
        let Some(node) = usize::try_from(id.0).ok().and_then(|at| self.nodes.get_mut(at)).and_then(Option::take) else { return };
        if let Some(parent) = self.node_mut(node.parent) {
            parent.children.remove(&node.name);
        }
        self.removed.push(id);
    }

    /// Frees the numbers of removed nodes.
    pub(super) fn recycle(&mut self) {
        self.free.append(&mut self.removed);
    }

    /// True for a directory whose entries belong to the tree of an interest.
    pub(super) fn is_in_tree(&self, id: PathId) -> bool {
        self.tree_subscribers(id).next().is_some()
    }

    /// Returns the subscribers to the trees that the entries of a directory belong to. The entries behind a link belong to the
    /// trees of its destination.
    pub(super) fn tree_subscribers(&self, id: PathId) -> impl Iterator<Item = Subscriber> {
        let directories = self.upwards(id).filter_map(|id| self.node(id)).take_while(|node| node.link.is_none());
        let interests = directories.flat_map(|node| &node.interests).filter(|interest| interest.depth == Depth::Tree);
        interests.map(|interest| interest.subscriber)
    }

    /// Returns the resources among these subscribers, and those that reach them over links.
    pub(super) fn resources(&self, subscribers: impl Iterator<Item = Subscriber>) -> Vec<ResourceKey> {
        let (mut keys, mut links, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
        let mut sort = |subscriber: Subscriber, links: &mut Vec<PathId>| match subscriber {
            Subscriber::Key(key) => keys.push(key),
            Subscriber::Link(link) if seen.insert(link) => links.push(link),
            Subscriber::Link(_) => {}
        };
        subscribers.for_each(|subscriber| sort(subscriber, &mut links));
        while let Some(link) = links.pop() {
            let interests = self.node(link).map(|node| &node.interests).into_iter().flatten();
            interests.for_each(|interest| sort(interest.subscriber, &mut links));
        }
        keys
    }
}

/// Returns the names of a normal absolute path.
fn names(path: &Path) -> impl Iterator<Item = &OsStr> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interest(subscriber: Subscriber, depth: Depth) -> PathInterest {
        PathInterest { subscriber, depth }
    }

    #[test]
    fn paths_are_found_again() {
        let mut trie = Trie::new();
        assert_eq!(trie.insert(Path::new("/")), ROOT);
        let deep = trie.insert(Path::new("/a/b/c"));
        assert_eq!(trie.insert(Path::new("/a/b/c")), deep);
        assert_eq!(trie.path(deep), Path::new("/a/b/c"));
        assert_eq!(trie.path(ROOT), Path::new("/"));
        assert_eq!((trie.find(Path::new("/a/b/c")), trie.find(Path::new("/a/x"))), (Some(deep), None));
        let paths: Vec<PathBuf> = trie.upwards(deep).map(|id| trie.path(id)).collect();
        assert_eq!(paths, ["/a/b/c", "/a/b", "/a", "/"].map(PathBuf::from));
        let side = trie.insert(Path::new("/a/d"));
        let below = trie.downwards(trie.find(Path::new("/a")).unwrap());
        assert_eq!((below.len(), below.contains(&side), below.contains(&ROOT)), (4, true, false));
    }

    #[test]
    fn numbers_are_used_again_only_after_a_round() {
        let mut trie = Trie::new();
        let first = trie.insert(Path::new("/a"));
        trie.remove(first);
        let second = trie.insert(Path::new("/b"));
        assert_ne!(first, second);
        trie.recycle();
        assert_eq!(trie.insert(Path::new("/c")), first);
        assert_eq!(trie.path(first), Path::new("/c"));
    }

    #[test]
    fn interests_are_reached_over_links_and_trees() {
        let mut trie = Trie::new();
        let [tree, below, link, other] = ["/t", "/t/a/b", "/l", "/o"].map(|path| trie.insert(Path::new(path)));
        let key = |number| Subscriber::Key(ResourceKey(number));
        for (id, subscriber, depth) in [
            (tree, key(1), Depth::Tree),
            (tree, Subscriber::Link(link), Depth::Tree),
            (link, key(2), Depth::Object),
            // A circle of links.
            (link, Subscriber::Link(other), Depth::Object),
            (other, Subscriber::Link(link), Depth::Object),
            (other, key(3), Depth::Object),
        ] {
            trie.node_mut(id).unwrap().interests.push(interest(subscriber, depth));
        }
        assert!(trie.is_in_tree(below) && trie.is_in_tree(tree) && !trie.is_in_tree(link));
        let mut keys = trie.resources(trie.tree_subscribers(below));
        keys.sort_unstable();
        assert_eq!(keys, [1, 2, 3].map(ResourceKey));
    }
}
