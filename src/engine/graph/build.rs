//! The graph of a manifest, built from its resources.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::manifest::Ordering;

use super::edge::{Edge, EdgeCause, Reason};
use super::node::{BatchKey, Node, ReferenceKind};
use super::order;
use super::semaphore::SemaphoreTable;
use super::{automatic, cycle};

/// The order of the resources of a manifest.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    ordering: Ordering,
    /// The edges, by the resource that waits and then by the resource before.
    edges: Vec<Edge>,
    /// The edges to each resource, as a range of `edges`.
    incoming: Vec<Range<usize>>,
    /// The edges from each resource, as indexes in `edges`.
    outgoing: Vec<Vec<usize>>,
    order: Vec<usize>,
    /// The place of each resource in the order.
    pub(super) places: Vec<usize>,
    dropped: Vec<Edge>,
    batches: Vec<Option<BatchKey>>,
    pub(super) semaphores: SemaphoreTable,
}

/// An explicit edge of a cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CycleEdge {
    /// The index of the resource with the reference.
    pub from: usize,
    /// The index of the resource that it names.
    pub target: usize,
    /// The property with the reference.
    pub kind: ReferenceKind,
}

/// The reasons of each edge, by the resource that waits and the resource before.
type Edges = BTreeMap<(usize, usize), Vec<Reason>>;

impl Graph {
    /// Builds the graph of resources in their written order. In list order, only references make edges.
    ///
    /// # Errors
    /// The edges of a cycle of references.
    pub fn build(nodes: &[Node], ordering: Ordering) -> Result<Self, Vec<CycleEdge>> {
        if let Some(cycle) = explicit_cycle(nodes) {
            return Err(cycle);
        }
        let mut edges = Edges::new();
        for (at, node) in nodes.iter().enumerate() {
            for reference in &node.references {
                edges.entry((at, reference.target)).or_default().push(Reason::Explicit(reference.kind));
            }
        }
        let mut dropped = Vec::new();
        if ordering == Ordering::Graph {
            dropped = add_needs(nodes, &mut edges);
            add_shared(nodes, &mut edges);
        }
        let mut graph = Self::new(nodes, ordering, edges);
        graph.semaphores = SemaphoreTable::new(nodes);
        graph.dropped = dropped;
        graph.order = match ordering {
            Ordering::List => (0..nodes.len()).collect(),
            Ordering::Graph => order::canonical(&graph.successors(), &graph.batches),
        };
        graph.places = order::places(&graph.order);
        Ok(graph)
    }

    fn new(nodes: &[Node], ordering: Ordering, edges: Edges) -> Self {
        let edges: Vec<Edge> = edges.into_iter().map(|((after, before), reasons)| edge(before, after, reasons)).collect();
        let mut incoming = vec![0..0; nodes.len()];
        let mut outgoing = vec![Vec::new(); nodes.len()];
        for (number, edge) in edges.iter().enumerate() {
            if let Some(range) = incoming.get_mut(edge.after) {
                *range = if range.start == range.end { number..number + 1 } else { range.start..number + 1 };
            }
            if let Some(list) = outgoing.get_mut(edge.before) {
                list.push(number);
            }
        }
        let batches = nodes.iter().map(|node| node.batch.clone()).collect();
        let (order, places, dropped, semaphores) = Default::default();
        Self { ordering, edges, incoming, outgoing, order, places, dropped, batches, semaphores }
    }

    fn successors(&self) -> cycle::Successors {
        cycle::successors(self.len(), self.edges.iter().map(|edge| (edge.before, edge.after)))
    }

    /// Returns the order in which the manifest asks its resources to run.
    pub fn ordering(&self) -> Ordering {
        self.ordering
    }

    /// Returns the number of resources.
    pub fn len(&self) -> usize {
        self.batches.len()
    }

    /// Returns true without resources.
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Returns all edges, by the resource that waits and then by the resource before.
    pub fn edges(&self) -> &[Edge] {
        &self.edges
    }

    /// Returns the edges to a resource: everything that it waits for.
    pub fn incoming(&self, index: usize) -> &[Edge] {
        let range = self.incoming.get(index).cloned();
        range.and_then(|range| self.edges.get(range)).unwrap_or_default()
    }

    /// Returns the edges from a resource.
    pub fn outgoing(&self, index: usize) -> impl Iterator<Item = &Edge> {
        self.outgoing.get(index).into_iter().flatten().filter_map(|number| self.edges.get(*number))
    }

    /// Returns the order in which a run of one resource at a time goes through the resources.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// Returns the automatic edges that are left out, because each would close a cycle.
    pub fn dropped(&self) -> &[Edge] {
        &self.dropped
    }

    /// Returns the batches that a resource can join.
    pub(super) fn batch(&self, index: usize) -> Option<&BatchKey> {
        self.batches.get(index)?.as_ref()
    }
}

fn edge(before: usize, after: usize, mut reasons: Vec<Reason>) -> Edge {
    reasons.sort();
    reasons.dedup();
    Edge { before, after, reasons }
}

/// Returns a cycle of references; none without a cycle.
pub fn explicit_cycle(nodes: &[Node]) -> Option<Vec<CycleEdge>> {
    let references = |at: usize| nodes.get(at).map(|node| node.references.as_slice()).unwrap_or_default();
    let edges: Vec<_> =
        (0..nodes.len()).flat_map(|at| references(at).iter().map(move |reference| (reference.target, at))).collect();
    // A cycle goes from each resource to the one after it, so against the references.
    let mut cycle = cycle::find(nodes.len(), &edges)?;
    cycle.reverse();
    cycle.rotate_right(1);
    let targets = cycle.iter().copied().cycle().skip(1);
    let edge = |(from, target): (usize, usize)| {
        let reference = references(from).iter().find(|reference| reference.target == target)?;
        Some(CycleEdge { from, target, kind: reference.kind })
    };
    Some(cycle.iter().copied().zip(targets).filter_map(edge).collect())
}

/// Adds the edges that follow from needs. Returns those that would close a cycle.
///
/// Edges in the written order come first: they can contradict references only.
fn add_needs(nodes: &[Node], edges: &mut Edges) -> Vec<Edge> {
    let mut found: BTreeMap<(bool, usize, usize), Vec<Reason>> = BTreeMap::new();
    for automatic::Candidate { before, after, cause } in automatic::candidates(nodes) {
        let reason = Reason::Automatic(cause);
        match edges.get_mut(&(after, before)) {
            Some(reasons) => reasons.push(reason),
            None => found.entry((before > after, after, before)).or_default().push(reason),
        }
    }
    let explicit = edges.keys().map(|(after, before)| (*before, *after));
    let all: Vec<_> = explicit.chain(found.keys().map(|(_, after, before)| (*before, *after))).collect();
    let cyclic = cycle::cyclic(nodes.len(), &all);
    let is_cyclic = |at: usize| cyclic.get(at) == Some(&true);
    let within = |(before, after): &(usize, usize)| is_cyclic(*before) && is_cyclic(*after);
    let mut next = cycle::successors(nodes.len(), edges.keys().map(|(after, before)| (*before, *after)).filter(within));
    let mut dropped = Vec::new();
    for ((_, after, before), reasons) in found {
        if within(&(before, after)) {
            if cycle::leads_to(&next, after, before) {
                dropped.push(edge(before, after, reasons));
                continue;
            }
            if let Some(list) = next.get_mut(before) {
                list.push(after);
            }
        }
        edges.insert((after, before), reasons);
    }
    dropped
}

/// Adds edges between the resources that change the same object, in the order that the other edges leave.
fn add_shared(nodes: &[Node], edges: &mut Edges) {
    let shared = automatic::shared_objects(nodes);
    if shared.is_empty() {
        return;
    }
    let next = cycle::successors(nodes.len(), edges.keys().map(|(after, before)| (*before, *after)));
    let order = order::canonical(&next, &[]);
    let places = order::places(&order);
    for (object, mut resources) in shared {
        resources.sort_by_key(|at| places.get(*at));
        for (before, after) in resources.iter().zip(resources.iter().skip(1)) {
            edges.entry((*after, *before)).or_default().push(Reason::Automatic(EdgeCause::Same(object.clone())));
        }
    }
}
