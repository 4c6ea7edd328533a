//! The graph of a plan, from the relations of its resources.

use std::collections::BTreeSet;

use super::known_resource::KnownResource;
use super::planned::PlannedResource;
use super::relations::ResourceIndex;
use crate::diag::Diagnostic;
use crate::engine::graph::{BatchKey, CycleEdge, Edge, Graph, GraphError, Node, Reference, ReferenceKind, explicit_cycle};
use crate::manifest::Ordering;
use crate::model::Effect;
use crate::yaml::YamlDocument;

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
    let graph = Graph::build(&nodes, ordering).map_err(|error| match error {
        GraphError::Cycle(cycle) => cycle_error(&known, &cycle, document),
        GraphError::Count(conflict) => {
            let name = |at: usize| known.get(at).map(KnownResource::label).unwrap_or_default();
            let ((first, count), (second, other)) = (conflict.first, conflict.second);
            let message = format!(
                "semaphore \"{}\" has the count {count} at {}, and {other} at {}",
                conflict.name,
                name(first),
                name(second)
            );
            let diagnostic = known.get(second).map(|known| known.diagnose(document, "policy", &message, ""));
            diagnostic.unwrap_or_else(|| Diagnostic::new(message)).hint("give all resources of a semaphore the same count")
        }
    })?;
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
            semaphores: Vec::new(),
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

impl PlannedResource {
    /// Returns the batches that the resource can join. Runtime templates and subscriptions may depend on the resource before.
    fn batch_key(&self) -> Option<BatchKey> {
        let joins = self.kind.batches() && self.deferred.is_none() && self.subscribes.is_empty();
        joins.then(|| BatchKey { kind: self.kind.name(), provider: self.common.provider.clone() })
    }
}

#[cfg(test)]
mod tests;
