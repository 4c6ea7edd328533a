//! Automatic edges: the order that follows from the objects that resources provide, remove and need.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::path::Path;

use crate::model::{Identity, Need};

use super::edge::EdgeCause;
use super::node::Node;

/// An automatic edge that was found.
pub(super) struct Candidate {
    pub(super) before: usize,
    pub(super) after: usize,
    pub(super) cause: EdgeCause,
}

/// The resources of each object.
#[derive(Default)]
struct Objects<'a> {
    paths: HashMap<&'a Path, Vec<usize>>,
    mount_points: HashMap<&'a Path, Vec<usize>>,
    names: HashMap<&'a Identity, Vec<usize>>,
    /// The paths in their order; all paths below a path follow it.
    tree: BTreeMap<&'a Path, Vec<usize>>,
}

impl<'a> Objects<'a> {
    fn add(&mut self, object: &'a Identity, at: usize, has_tree: bool) {
        let list = match object {
            Identity::Path(path) | Identity::Directory(path) => {
                if has_tree {
                    self.tree.entry(path).or_default().push(at);
                }
                self.paths.entry(path).or_default()
            }
            Identity::MountPoint(path) => {
                if has_tree {
                    self.tree.entry(path).or_default().push(at);
                }
                self.mount_points.entry(path).or_default()
            }
            _ => self.names.entry(object).or_default(),
        };
        if list.last() != Some(&at) {
            list.push(at);
        }
    }

    fn resources(&self, object: &Identity) -> &[usize] {
        let list = match object {
            Identity::Path(path) | Identity::Directory(path) => self.paths.get(path.as_path()),
            Identity::MountPoint(path) => self.mount_points.get(path.as_path()),
            _ => self.names.get(object),
        };
        list.map_or(&[], Vec::as_slice)
    }

    fn below(&self, path: &Path) -> impl Iterator<Item = usize> {
        let after = self.tree.range::<Path, _>((Bound::Excluded(path), Bound::Unbounded));
        after.take_while(move |(below, _)| below.starts_with(path)).flat_map(|(_, list)| list.iter().copied())
    }
}

/// Returns the automatic edges that follow from the needs of the resources. Pairs may repeat, with other causes.
pub(super) fn candidates(nodes: &[Node]) -> Vec<Candidate> {
    let has_tree = nodes.iter().any(|node| node.needs.iter().any(|need| matches!(need, Need::Below(_))));
    let (mut provided, mut removed) = (Objects::default(), Objects::default());
    for (at, node) in nodes.iter().enumerate() {
        node.provides.iter().for_each(|object| provided.add(object, at, has_tree));
        node.removes.iter().for_each(|object| removed.add(object, at, has_tree));
    }
    let mut matching = Matching { nodes, provided, removed, found: Vec::new() };
    for (at, node) in nodes.iter().enumerate() {
        for need in &node.needs {
            match need {
                Need::Exactly(object) => matching.exactly(at, node, object),
                Need::Above(path) if node.removes.is_empty() => matching.above(at, path),
                Need::Above(_) => {}
                Need::Below(path) => matching.below(at, node, path),
            }
        }
    }
    matching.found
}

struct Matching<'a> {
    nodes: &'a [Node],
    provided: Objects<'a>,
    removed: Objects<'a>,
    found: Vec<Candidate>,
}

impl Matching<'_> {
    fn add(&mut self, before: usize, after: usize, cause: EdgeCause) {
        if before != after {
            self.found.push(Candidate { before, after, cause });
        }
    }

    fn exactly(&mut self, at: usize, node: &Node, object: &Identity) {
        // A resource that both provides and needs an object edits it. Such resources follow those that make it.
        let fills = |path: &Path| node.provides.iter().any(|own| matches!(own, Identity::Directory(own) if own == path));
        let edits = node.provides.contains(object) || matches!(object, Identity::Path(path) if fills(path));
        let needs_too = |other: usize| {
            let needs = self.nodes.get(other).map(|other| other.needs.as_slice()).unwrap_or_default();
            needs.iter().any(|need| matches!(need, Need::Exactly(needed) if needed == object))
        };
        if node.removes.is_empty() {
            let makers: Vec<_> =
                self.provided.resources(object).iter().copied().filter(|maker| !edits || !needs_too(*maker)).collect();
            makers.into_iter().for_each(|maker| self.add(maker, at, EdgeCause::Provides(object.clone())));
        }
        // A removed path is no reason to wait for a resource that stays. That resource may want the removal first.
        let is_ordered = !matches!(object, Identity::Path(_)) || !node.removes.is_empty();
        if is_ordered && !node.removes.contains(object) {
            let removers = self.removed.resources(object).to_vec();
            removers.into_iter().for_each(|remover| self.add(at, remover, EdgeCause::Removes(object.clone())));
        }
    }

    fn above(&mut self, at: usize, path: &Path) {
        for above in path.ancestors().skip(1) {
            let level = |all: &HashMap<&Path, Vec<usize>>| -> Vec<usize> {
                all.get(above).into_iter().flatten().copied().filter(|other| *other != at).collect()
            };
            let (directories, mounts) = (level(&self.provided.paths), level(&self.provided.mount_points));
            if directories.is_empty() && mounts.is_empty() {
                continue;
            }
            for directory in directories {
                self.add(directory, at, EdgeCause::Parent(Identity::Path(above.to_owned())));
            }
            for mount in mounts {
                self.add(mount, at, EdgeCause::Parent(Identity::MountPoint(above.to_owned())));
            }
            return;
        }
    }

    fn below(&mut self, at: usize, node: &Node, path: &Path) {
        let mut first: Vec<usize> = self.removed.below(path).collect();
        if node.removes.is_empty() {
            first.extend(self.provided.below(path));
        }
        first.into_iter().for_each(|below| self.add(below, at, EdgeCause::Below(path.to_owned())));
    }
}

/// Returns the objects that several resources change, with these resources. Several resources may fill a directory at once.
pub(super) fn shared_objects(nodes: &[Node]) -> Vec<(&Identity, Vec<usize>)> {
    let mut all: HashMap<&Identity, Vec<usize>> = HashMap::new();
    for (at, node) in nodes.iter().enumerate() {
        let whole = |object: &&Identity| !matches!(object, Identity::Directory(_));
        for object in node.provides.iter().chain(&node.removes).filter(whole) {
            let list = all.entry(object).or_default();
            if list.last() != Some(&at) {
                list.push(at);
            }
        }
    }
    all.into_iter().filter(|(_, list)| list.len() > 1).collect()
}
