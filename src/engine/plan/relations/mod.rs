//! Relations between resources: references, duplicates and conflicts. Every error in them is found before the run.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::context::PlanContext;
use super::known_resource::KnownResource;
use super::place::narrow_place;
use super::received_outputs::{self, ReceivedOutput};
use crate::diag::{Diagnostic, did_you_mean};
use crate::manifest::Ordering;
use crate::model::ResourceRef;
use crate::resource::{ParsedResource, Semaphore};
use crate::template::is_template;
use crate::yaml::YamlDocument;

/// The resources of a manifest by type and name.
pub(super) struct ResourceIndex<'a> {
    list: &'a [KnownResource<'a>],
    ordering: Ordering,
    places: HashMap<&'a str, HashMap<&'a str, Vec<usize>>>,
    /// The types with unknown names.
    open: HashSet<&'a str>,
}

impl<'a> ResourceIndex<'a> {
    pub(super) fn new(list: &'a [KnownResource<'a>], ordering: Ordering) -> Self {
        let mut index = Self { list, ordering, places: HashMap::new(), open: HashSet::new() };
        // Without references nothing needs the index.
        if list.iter().all(|known| known.references.is_empty()) {
            return index;
        }
        for (place, known) in list.iter().enumerate() {
            let kind = known.kind.name();
            let names = index.places.entry(kind).or_default();
            known.names().for_each(|name| names.entry(name).or_default().push(place));
            if known.is_open() {
                index.open.insert(kind);
            }
        }
        index
    }

    pub(super) fn list(&self) -> &'a [KnownResource<'a>] {
        self.list
    }

    /// Returns the resources that a reference means: those of this name before the resource, or else those after it. Other names
    /// are in nested manifests, so that these come first.
    pub(super) fn targets(&self, at: usize, reference: &ResourceRef) -> Vec<usize> {
        let named = self.places(reference);
        let earlier: Vec<usize> = named.iter().copied().filter(|place| *place < at).collect();
        if !earlier.is_empty() {
            return earlier;
        }
        if named.is_empty() {
            let nests = |(place, known): (usize, &KnownResource<'_>)| known.kind.nests().then_some(place);
            return self.list.iter().take(at).enumerate().filter_map(nests).collect();
        }
        named.iter().copied().filter(|place| *place != at).collect()
    }

    fn places(&self, reference: &ResourceRef) -> &[usize] {
        let named = self.places.get(reference.kind.as_str()).and_then(|names| names.get(reference.name.as_str()));
        named.map_or(&[], Vec::as_slice)
    }

    /// Returns the resources of a path of requirements, from one resource to another.
    fn chain(&self, from: usize, to: usize) -> Option<Vec<usize>> {
        let (mut left, mut seen) = (vec![vec![from]], HashSet::from([from]));
        while let Some(path) = left.pop() {
            let at = path.last().copied()?;
            if at == to {
                return Some(path);
            }
            let wanted = self.list.get(at)?.references.iter().flat_map(|(_, reference)| self.places(reference));
            for next in wanted.copied() {
                if seen.insert(next) {
                    left.push([path.as_slice(), &[next]].concat());
                }
            }
        }
        None
    }
}

/// Returns the errors in the references of one resource; `before` has the resources that ran before the manifest.
pub(super) fn references(
    at: usize,
    index: &ResourceIndex<'_>,
    before: &PlanContext,
    document: &YamlDocument,
    errors: &mut Vec<Diagnostic>,
) {
    let Some(known) = index.list.get(at) else { return };
    for (property, reference) in &known.references {
        let mut say = |why: String, hint: String| errors.push(known.at_reference(document, property, reference, &why, hint));
        let types = &before.types;
        if types.find(&reference.kind).is_none() {
            let near = did_you_mean(&reference.kind, types.names());
            let near = near.map(|near| format!("did you mean \"{near}#{}\"?", reference.name));
            let hint = near.unwrap_or_else(|| types.hint(&reference.kind));
            say(format!("names {reference}, and there is no resource type \"{}\"", reference.kind), hint);
            continue;
        }
        let places = index.places(reference);
        if places.iter().any(|place| *place < at) || before.has(reference) {
            continue;
        }
        if known.is_named(reference) {
            say("names itself".to_owned(), format!("remove the reference from {property}"));
            continue;
        }
        if let Some(later) = places.first() {
            if index.ordering == Ordering::Graph {
                continue;
            }
            match index.chain(*later, at) {
                Some(chain) => {
                    let labels =
                        std::iter::once(at).chain(chain).filter_map(|place| index.list.get(place)).map(KnownResource::label);
                    let labels = labels.collect::<Vec<_>>().join(" → ");
                    say(format!("needs itself: {labels}"), "remove one of these references".to_owned());
                }
                None => say(
                    format!("names {reference}, which comes later"),
                    format!("resources run in their written order: move {reference} up"),
                ),
            }
            continue;
        }
        if before.is_open() || index.open.contains(reference.kind.as_str()) {
            continue;
        }
        if before.is_single_resource() {
            // A session keeps events, and no outputs.
            let is_output = known.received.iter().any(|received| received.reference.resource == *reference);
            let session = if is_output { "" } else { ", or use a session (ensign session new)" };
            let hint = format!("put both into a manifest{session}");
            say(format!("names {reference}, and it is the only resource of this request"), hint);
            continue;
        }
        let own = index.list.iter().filter(|other| other.kind.name() == reference.kind).flat_map(KnownResource::names);
        let near = did_you_mean(&reference.name, own.chain(before.names(&reference.kind)));
        let hint = near.map_or_else(
            || "a reference is TYPE#NAME, with the name or the alias as it is written at the resource".to_owned(),
            |near| format!("did you mean \"{}#{near}\"?", reference.kind),
        );
        say(format!("names {reference}, and there is no such resource"), hint);
    }
    for ReceivedOutput { property, reference } in known.received {
        let Some(sender) = before.types.find(&reference.resource.kind) else { continue };
        let Some((why, hint)) = received_outputs::unknown_output(&*sender, &reference.output) else { continue };
        errors.push(known.at_reference(document, property, &reference.resource, &why, hint));
    }
}

/// Finds ambiguous aliases.
pub(super) fn aliases(list: &[KnownResource<'_>], document: &YamlDocument, errors: &mut Vec<Diagnostic>) {
    let mut taken: HashMap<(&str, &str), &KnownResource<'_>> = HashMap::new();
    for known in list {
        let Some(alias) = known.alias.filter(|alias| !alias.is_empty()) else { continue };
        if let Some(other) = taken.insert((known.kind.name(), alias), known) {
            let message = format!("alias \"{alias}\" of {} is also the alias of {}", known.label(), other.label());
            errors.push(known.diagnose(document, "alias", &message, "an alias names one resource of a type: choose another"));
        }
    }
    if taken.is_empty() {
        return;
    }
    for known in list {
        let Some(name) = known.name else { continue };
        if let Some(other) = taken.get(&(known.kind.name(), name)).filter(|other| other.name.is_some_and(|own| own != name)) {
            let message = format!("alias \"{name}\" of {} is the name of another {}", other.label(), known.kind.name());
            errors.push(other.diagnose(document, "alias", &message, "an alias names one resource of a type: choose another"));
        }
    }
}

/// Finds semaphores with two counts.
pub(super) fn semaphores(list: &[KnownResource<'_>], document: &YamlDocument, errors: &mut Vec<Diagnostic>) {
    let mut counted: HashMap<&str, (&Semaphore, &KnownResource<'_>)> = HashMap::new();
    for known in list {
        for semaphore in known.semaphores.iter().filter(|semaphore| semaphore.count.is_some()) {
            let (earlier, other) = *counted.entry(&semaphore.name).or_insert((semaphore, known));
            if earlier.count != semaphore.count {
                let (label, other) = (known.label(), other.label());
                let message = format!("policy.semaphore: {label} says {semaphore}, {other} says {earlier}");
                let hint = "a semaphore has one count in a manifest; write the count once, and only the name elsewhere";
                let found = known.diagnose(document, "policy", &message, hint);
                errors.push(narrow_place(document, found, &semaphore.to_string(), 0));
            }
        }
    }
}

/// Finds resources that would undo each other in every run: the same path with different properties.
pub(super) fn contradictions(list: &[KnownResource<'_>], document: &YamlDocument, errors: &mut Vec<Diagnostic>) {
    let mut taken: HashMap<&str, &KnownResource<'_>> = HashMap::new();
    for known in list.iter().filter(|known| !known.conditional && !known.kind.claimed_paths().is_empty()) {
        let (Some(name), Some(decoded)) = (known.name, known.decoded) else { continue };
        let Some(earlier) = taken.insert(name, known) else { continue };
        let Some(other) = earlier.decoded else { continue };
        if let Some(property) = contradiction(known, decoded, earlier, other) {
            let (label, place) = (known.label(), describe_place(earlier, document));
            let message = format!("{label} is managed twice, and the two disagree about {property}: the other is {place}");
            let hint = "keep one of them; a control lets conditions decide which one holds";
            errors.push(known.diagnose(document, property, &message, hint));
        }
    }
}

fn describe_place(known: &KnownResource<'_>, document: &YamlDocument) -> String {
    let place = known.declaration.diagnose(document, None, "").place;
    let number = known.declaration.number;
    place.map_or_else(|| format!("resource {number}"), |place| format!("in line {}", place.line))
}

/// Returns the property in which two resources of the same path differ.
fn contradiction(
    known: &KnownResource<'_>,
    decoded: &dyn ParsedResource,
    earlier: &KnownResource<'_>,
    other: &dyn ParsedResource,
) -> Option<&'static str> {
    if known.kind.name() != earlier.kind.name() {
        return (decoded.ensure() != "absent" || other.ensure() != "absent").then_some("ensure");
    }
    if decoded.ensure() == "absent" && other.ensure() == "absent" {
        return None;
    }
    let differs = |property: &&&str| {
        decoded.matches(&|mine| {
            let mine = mine.get(**property).filter(|value| !is_deferred(value));
            other.matches(&|theirs| {
                let theirs = theirs.get(**property).filter(|value| !is_deferred(value));
                mine.zip(theirs).is_some_and(|(mine, theirs)| mine != theirs)
            })
        })
    };
    known.kind.claimed_paths().iter().find(differs).copied()
}

/// Returns true for a text that is resolved when the resource runs.
fn is_deferred(value: &Value) -> bool {
    value.as_str().is_some_and(is_template)
}

#[cfg(test)]
mod tests;
