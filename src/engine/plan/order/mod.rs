//! The graph of a plan, from the relations of its resources.

use std::collections::BTreeSet;

use super::known_resource::KnownResource;
use super::planned::{Plan, PlannedResource};
use super::relations::ResourceIndex;
use crate::diag::Diagnostic;
use crate::engine::graph::{CycleEdge, Edge, Graph, Node, Reference, ReferenceKind, explicit_cycle};
use crate::manifest::Ordering;
use crate::model::Effect;
use crate::yaml::YamlDocument;

impl Plan {
    /// Returns the graph of the resources, by their places in the manifest from 0.
    pub fn graph(&self) -> &Graph {
        // In list order, only a person asks for it. The references were checked with the plan.
        let build = || build_graph(&self.resources, self.ordering, &self.document);
        self.graph.get_or_init(|| build().map(|(graph, _)| graph).unwrap_or_default())
    }
}

/// Returns the graph of planned resources, and warnings about automatic edges that it leaves out.
///
/// # Errors
/// Resources that wait for each other.
pub(super) fn build_graph(
    resources: &[PlannedResource],
    ordering: Ordering,
    document: &YamlDocument,
) -> Result<(Graph, Vec<Diagnostic>), Diagnostic> {
    let known: Vec<KnownResource<'_>> = resources.iter().map(KnownResource::planned).collect();
    let index = ResourceIndex::new(&known, ordering);
    let nodes: Vec<Node> =
        resources.iter().enumerate().map(|(at, planned)| node(planned, references(at, &index), ordering)).collect();
    let graph = Graph::build(&nodes, ordering).map_err(|cycle| cycle_error(&known, &cycle, document))?;
    let warnings = graph.dropped().iter().filter_map(|edge| dropped_warning(&known, edge, document)).collect();
    Ok((graph, warnings))
}

/// Returns the error of references that form a cycle; none without a cycle.
pub(super) fn find_cycle(index: &ResourceIndex<'_>, document: &YamlDocument) -> Option<Diagnostic> {
    let nodes = (0..index.list().len()).map(|at| Node { references: references(at, index), ..Node::default() });
    Some(cycle_error(index.list(), &explicit_cycle(&nodes.collect::<Vec<_>>())?, document))
}

fn references(at: usize, index: &ResourceIndex<'_>) -> Vec<Reference> {
    let references = index.list().get(at).map(|known| known.references.as_slice()).unwrap_or_default();
    let kind = |property: &str| match property {
        "subscribe" => ReferenceKind::Subscribe,
        _ => ReferenceKind::Require,
    };
    let targets = references.iter().flat_map(|(property, reference)| {
        index.targets(at, reference).into_iter().map(move |target| Reference { target, kind: kind(property) })
    });
    targets.collect()
}

fn node(planned: &PlannedResource, references: Vec<Reference>, ordering: Ordering) -> Node {
    let batch = planned.batch_key();
    let decoded = &planned.decoded;
    match ordering {
        Ordering::List => Node { references, batch, ..Node::default() },
        Ordering::Graph => Node {
            references,
            provides: decoded.provides(),
            removes: decoded.removes(),
            needs: decoded.needs(),
            batch,
            semaphores: planned.common.policy.semaphore.clone(),
            exclusive: exclusive_parts(planned),
        },
    }
}

/// Returns the files of the system that the resource changes, and the packages. Only one resource may change them at a time.
fn exclusive_parts(planned: &PlannedResource) -> Vec<String> {
    let effects = planned.decoded.effects();
    let part = |effect: &Effect| match effect {
        Effect::Write { place, implied: true } if !place.below => Some(place.path.clone()),
        Effect::Package(_) => Some("packages".to_owned()),
        _ => None,
    };
    effects.iter().filter_map(part).collect::<BTreeSet<_>>().into_iter().collect()
}

fn cycle_error(list: &[KnownResource<'_>], cycle: &[CycleEdge], document: &YamlDocument) -> Diagnostic {
    let steps: Vec<_> = cycle
        .iter()
        .filter_map(|edge| {
            let (from, target) = list.get(edge.from).zip(list.get(edge.target))?;
            let mut references = from.references.iter().filter(|(property, _)| *property == edge.kind.property());
            let (property, reference) = references.find(|(_, reference)| target.is_named(reference))?;
            let place = from.at_reference(document, property, reference, "", String::new()).place;
            let at = place.as_ref().map(|place| format!("{}:{}: ", place.file, place.line)).unwrap_or_default();
            Some((from, *property, place, format!("\n{at}{}: {property} {}", from.label(), target.label())))
        })
        .collect();
    let message = format!("resources wait for each other:{}", steps.iter().map(|step| step.3.as_str()).collect::<String>());
    match steps.into_iter().next() {
        Some((from, property, place, _)) => {
            from.diagnose(document, property, &message, "remove one of these references").at(place)
        }
        None => Diagnostic::new(message),
    }
}

fn dropped_warning(list: &[KnownResource<'_>], edge: &Edge, document: &YamlDocument) -> Option<Diagnostic> {
    let (before, after) = (list.get(edge.before)?, list.get(edge.after)?);
    let reasons: Vec<String> = edge.reasons.iter().map(ToString::to_string).collect();
    let (first, later) = (before.label(), after.label());
    let message = format!("{later} does not wait for {first} ({}): {first} already waits for {later}", reasons.join(", "));
    let hint = "the automatic order yields to references, and then to the written order: check that this order works";
    Some(after.diagnose(document, "name", &message, hint))
}

#[cfg(test)]
mod tests;
