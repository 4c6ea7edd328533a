//! Relations between resources: references, duplicates and conflicts. Every error in them is found before the run.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::PlannedResource;
use super::nested_check::PlanContext;
use super::runtime_texts::narrow_place;
use crate::diag::{Diagnostic, did_you_mean};
use crate::engine::provenance::Provenance;
use crate::manifest::Declaration;
use crate::model::{Effects, ResourceRef};
use crate::resource::{self, ParsedResource, ResourceType};
use crate::template::is_template;
use crate::yaml::YamlDocument;

/// A resource, as far as it is known before the run.
pub(super) struct KnownResource<'a> {
    pub(super) kind: &'static dyn ResourceType,
    /// The name; none when a template determines it.
    pub(super) name: Option<&'a str>,
    /// The alias; empty without one, none when a template determines it.
    pub(super) alias: Option<&'a str>,
    /// Required and subscribed references, each with its property.
    pub(super) references: Vec<(&'static str, ResourceRef)>,
    /// True when a control decides if the resource is managed.
    pub(super) conditional: bool,
    pub(super) declaration: &'a Declaration,
    /// The properties; none when templates determine some.
    pub(super) decoded: Option<&'a dyn ParsedResource>,
    written: Option<&'a Map<String, Value>>,
    provenance: Option<&'a Provenance>,
}

impl<'a> KnownResource<'a> {
    /// Returns a planned resource.
    pub(super) fn planned(planned: &'a PlannedResource) -> Self {
        let requires = planned.requires.iter().map(|reference| ("require", reference.clone()));
        let subscribes = planned.subscribes.iter().map(|reference| ("subscribe", reference.clone()));
        Self {
            kind: planned.kind,
            name: Some(planned.decoded.name()),
            alias: Some(&planned.common.alias),
            references: requires.chain(subscribes).collect(),
            conditional: planned.common.control.is_some(),
            declaration: &planned.declaration,
            decoded: Some(planned.decoded.as_ref()),
            written: None,
            provenance: Some(&planned.provenance),
        }
    }

    /// Returns a resource with properties that wait for a node.
    pub(super) fn open(kind: &'static dyn ResourceType, written: &'a Map<String, Value>, declaration: &'a Declaration) -> Self {
        let text = |key: &str| match written.get(key) {
            None | Some(Value::Null) => Some(""),
            Some(value) => value.as_str().filter(|text| !is_template(text)),
        };
        let references = |key: &'static str| {
            let texts = written.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
            texts.filter(|text| !is_template(text)).filter_map(move |text| Some((key, text.parse().ok()?)))
        };
        Self {
            kind,
            name: text("name"),
            alias: text("alias"),
            references: references("require").chain(references("subscribe")).collect(),
            conditional: written.get("control").is_some_and(|control| !control.is_null()),
            declaration,
            decoded: None,
            written: Some(written),
            provenance: None,
        }
    }

    /// Returns the names by which other resources refer to it.
    pub(super) fn names(&self) -> impl Iterator<Item = &'a str> {
        let alias = self.alias.filter(|alias| !alias.is_empty() && self.name != Some(alias));
        self.name.into_iter().chain(alias)
    }

    /// Returns the label for messages.
    pub(super) fn label(&self) -> String {
        ResourceRef::new(self.kind.name(), self.name.unwrap_or("?")).to_string()
    }

    pub(super) fn effects(&self) -> Effects {
        let effects = match (self.decoded, self.written) {
            (Some(decoded), _) => decoded.effects(),
            (None, Some(written)) => self.kind.effects(written),
            (None, None) => Effects::default(),
        };
        effects.unresolved(is_template)
    }

    /// Returns a diagnostic about the resource, which repeats no read value.
    pub(super) fn diagnose(&self, document: &YamlDocument, property: &str, message: &str, hint: impl Into<String>) -> Diagnostic {
        let message = format!("invalid manifest resource {}: {message}", self.declaration.number);
        let diagnostic = self.declaration.diagnose(document, Some(property), message).hint(hint);
        match self.provenance {
            Some(shaped) => shaped.withhold(diagnostic),
            None => diagnostic,
        }
    }

    fn at_reference(
        &self,
        document: &YamlDocument,
        property: &str,
        reference: &ResourceRef,
        why: &str,
        hint: String,
    ) -> Diagnostic {
        let message = format!("{property}: {} {why}", self.label());
        narrow_place(document, self.diagnose(document, property, &message, hint), &reference.to_string(), 0)
    }

    pub(super) fn is_named(&self, reference: &ResourceRef) -> bool {
        self.kind.name() == reference.kind && self.names().any(|name| name == reference.name)
    }

    fn is_open(&self) -> bool {
        self.name.is_none() || self.alias.is_none()
    }
}

/// The resources of a manifest by type and name.
struct ResourceIndex<'a> {
    list: &'a [KnownResource<'a>],
    places: HashMap<&'static str, HashMap<&'a str, Vec<usize>>>,
    /// The types with unknown names.
    open: HashSet<&'static str>,
}

impl<'a> ResourceIndex<'a> {
    fn new(list: &'a [KnownResource<'a>]) -> Self {
        let mut index = Self { list, places: HashMap::new(), open: HashSet::new() };
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
fn references(at: usize, index: &ResourceIndex<'_>, before: &PlanContext, document: &YamlDocument, wrong: &mut Vec<Diagnostic>) {
    let Some(known) = index.list.get(at) else { return };
    for (property, reference) in &known.references {
        let mut say = |why: String, hint: String| wrong.push(known.at_reference(document, property, reference, &why, hint));
        if resource::find(&reference.kind).is_none() {
            let near = did_you_mean(&reference.kind, resource::names());
            let hint = near.map_or_else(
                || format!("known types are {}", resource::names().collect::<Vec<_>>().join(", ")),
                |near| format!("did you mean \"{near}#{}\"?", reference.name),
            );
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
            let hint = "put both into a manifest, or use a session (ensign session new)".to_owned();
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
}

/// Finds ambiguous aliases.
fn aliases(list: &[KnownResource<'_>], document: &YamlDocument, wrong: &mut Vec<Diagnostic>) {
    let mut taken: HashMap<(&str, &str), &KnownResource<'_>> = HashMap::new();
    for known in list {
        let Some(alias) = known.alias.filter(|alias| !alias.is_empty()) else { continue };
        if let Some(other) = taken.insert((known.kind.name(), alias), known) {
            let message = format!("alias \"{alias}\" of {} is also the alias of {}", known.label(), other.label());
            wrong.push(known.diagnose(document, "alias", &message, "an alias names one resource of a type: choose another"));
        }
    }
    if taken.is_empty() {
        return;
    }
    for known in list {
        let Some(name) = known.name else { continue };
        if let Some(other) = taken.get(&(known.kind.name(), name)).filter(|other| other.name.is_some_and(|own| own != name)) {
            let message = format!("alias \"{name}\" of {} is the name of another {}", other.label(), known.kind.name());
            wrong.push(other.diagnose(document, "alias", &message, "an alias names one resource of a type: choose another"));
        }
    }
}

/// Finds resources that would undo each other in every run: the same path with different properties.
fn contradictions(list: &[KnownResource<'_>], document: &YamlDocument, wrong: &mut Vec<Diagnostic>) {
    let mut taken: HashMap<&str, &KnownResource<'_>> = HashMap::new();
    for known in list.iter().filter(|known| !known.conditional && !known.kind.claimed_paths().is_empty()) {
        let (Some(name), Some(decoded)) = (known.name, known.decoded) else { continue };
        let Some(earlier) = taken.insert(name, known) else { continue };
        let Some(other) = earlier.decoded else { continue };
        if let Some(property) = contradiction(known, decoded, earlier, other) {
            let (label, place) = (known.label(), describe_place(earlier, document));
            let message = format!("{label} is managed twice, and the two disagree about {property}: the other is {place}");
            let hint = "keep one of them; a control lets conditions decide which one holds";
            wrong.push(known.diagnose(document, property, &message, hint));
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

/// Checks the relations of the resources of one manifest, and adds them to the earlier resources of `around`.
pub(super) fn check(list: &[KnownResource<'_>], document: &YamlDocument, around: &mut PlanContext, wrong: &mut Vec<Diagnostic>) {
    aliases(list, document, wrong);
    contradictions(list, document, wrong);
    let index = ResourceIndex::new(list);
    let remembers = around.is_child() || list.iter().any(|known| known.kind.nests());
    for at in 0..list.len() {
        references(at, &index, around, document, wrong);
        let Some(known) = list.get(at).filter(|_| remembers) else { continue };
        if known.kind.nests() {
            super::nested_check::check(known, list, document, around, wrong);
        }
        around.add(known);
    }
}

#[cfg(test)]
mod tests;
