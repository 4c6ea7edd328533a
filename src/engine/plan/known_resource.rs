//! A resource, as far as it is known before the run.

use serde_json::{Map, Value};

use super::place::narrow_place;
use super::planned::PlannedResource;
use super::received_outputs::{self, ReceivedOutput};
use crate::diag::Diagnostic;
use crate::engine::provenance::Provenance;
use crate::manifest::Declaration;
use crate::model::{Effects, ResourceRef};
use crate::resource::{ParsedResource, ResourceType, Semaphore};
use crate::template::is_template;
use crate::yaml::YamlDocument;

/// A resource, as far as it is known before the run.
pub(super) struct KnownResource<'a> {
    pub(super) kind: &'a dyn ResourceType,
    /// The name; none when a template determines it.
    pub(super) name: Option<&'a str>,
    /// The alias; empty without one, none when a template determines it.
    pub(super) alias: Option<&'a str>,
    /// The resources that must run before, each with the property that names it.
    pub(super) references: Vec<(&'a str, ResourceRef)>,
    /// The used outputs of other resources.
    pub(super) received: &'a [ReceivedOutput],
    /// The semaphores; none of those that templates determine.
    pub(super) semaphores: Vec<Semaphore>,
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
            kind: &*planned.kind,
            name: Some(planned.decoded.name()),
            alias: Some(&planned.common.alias),
            references: requires.chain(subscribes).chain(received_outputs::senders(&planned.received)).collect(),
            received: &planned.received,
            semaphores: planned.common.policy.semaphore.clone(),
            conditional: planned.common.control.is_some(),
            declaration: &planned.declaration,
            decoded: Some(planned.decoded.as_ref()),
            written: None,
            provenance: Some(&planned.provenance),
        }
    }

    /// Returns a resource with properties that wait for a node.
    pub(super) fn open(
        kind: &'a dyn ResourceType,
        written: &'a Map<String, Value>,
        declaration: &'a Declaration,
        received: &'a [ReceivedOutput],
    ) -> Self {
        let text = |key: &str| match written.get(key) {
            None | Some(Value::Null) => Some(""),
            Some(value) => value.as_str().filter(|text| !is_template(text)),
        };
        let references = |key: &'static str| {
            let texts = written.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
            texts.filter(|text| !is_template(text)).filter_map(move |text| Some((key, text.parse().ok()?)))
        };
        let semaphores = written.get("policy").and_then(|policy| policy.get("semaphore")).and_then(Value::as_array);
        let semaphores = semaphores.into_iter().flatten().filter_map(Value::as_str);
        Self {
            kind,
            name: text("name"),
            alias: text("alias"),
            references: references("require").chain(references("subscribe")).chain(received_outputs::senders(received)).collect(),
            received,
            semaphores: semaphores.filter_map(|text| text.parse().ok()).collect(),
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

    pub(super) fn at_reference(
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

    pub(super) fn is_open(&self) -> bool {
        self.name.is_none() || self.alias.is_none()
    }
}
