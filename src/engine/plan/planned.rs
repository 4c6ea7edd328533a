//! The plan of a run, and its resources.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};

use super::place::{decode_error, narrow_place};
use super::received_outputs::ReceivedOutput;
use crate::diag::Diagnostic;
use crate::engine::graph::{BatchKey, Graph};
use crate::engine::provenance::{self, Provenance};
use crate::engine::{RunInputs, effects};
use crate::manifest::{Declaration, Ordering};
use crate::model::{Effects, ManifestId, OnRemoval, ResourceRef, Secrets};
use crate::resource::{Common, OpenProperties, ParsedResource, TypeRef};
use crate::template::{Scope, TemplateError, is_template};
use crate::yaml::YamlDocument;

/// The resources of a run, in order. A plan depends on the host only by facts and read files.
pub struct Plan {
    /// The resources.
    pub resources: Vec<PlannedResource>,
    /// True when the run stops after the first failure.
    pub fail_on_error: bool,
    /// The order in which the resources run.
    pub ordering: Ordering,
    /// The message before the run.
    pub pre_message: Option<String>,
    /// The message after a run without errors.
    pub post_message: Option<String>,
    /// The manifest; none for a single resource.
    pub manifest: Option<ManifestId>,
    /// Warnings for the author. A warning stops nothing.
    pub warnings: Vec<Diagnostic>,
    /// Missing data keys of runtime properties: their resources fail when they are reached.
    pub failing: Vec<Diagnostic>,
    pub(in crate::engine) graph: OnceLock<Graph>,
    pub(in crate::engine) features: OnceLock<PlanFeatures>,
    pub(in crate::engine) scope: Scope,
    /// The inputs of the plan, for nested manifests.
    pub(in crate::engine) inputs: RunInputs,
    pub(in crate::engine) data: Value,
    pub(in crate::engine) document: YamlDocument,
}

/// The kinds of relations that some resource of a plan has. Without them, a repair need not look at all resources.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::engine) struct PlanFeatures {
    pub(in crate::engine) subscribes: bool,
    pub(in crate::engine) receives: bool,
    pub(in crate::engine) nests: bool,
    pub(in crate::engine) reverses: bool,
}

/// A resource whose properties were read and are valid.
pub struct PlannedResource {
    /// The type.
    pub kind: TypeRef,
    /// The common properties.
    pub common: Arc<Common>,
    pub(in crate::engine) requires: Vec<ResourceRef>,
    pub(in crate::engine) subscribes: Vec<ResourceRef>,
    pub(in crate::engine) decoded: Arc<dyn ParsedResource>,
    /// Properties with runtime templates: all of them, resolved when the resource runs.
    pub(in crate::engine) deferred: Option<Map<String, Value>>,
    /// The outputs of other resources that the templates use.
    pub(in crate::engine) received: Vec<ReceivedOutput>,
    /// The provenance of the properties.
    pub(in crate::engine) provenance: Provenance,
    pub(in crate::engine) declaration: Declaration,
}

impl PlannedResource {
    /// Returns the reference, `type#name`.
    pub fn reference(&self) -> ResourceRef {
        ResourceRef::new(self.kind.name(), self.decoded.name())
    }

    /// Returns the references by which other resources may name this one: the name, and the alias if there is one.
    pub fn references(&self) -> impl Iterator<Item = ResourceRef> {
        let alias = Some(&self.common.alias).filter(|alias| !alias.is_empty());
        let alias = alias.map(|alias| ResourceRef::new(self.kind.name(), alias));
        std::iter::once(self.reference()).chain(alias)
    }

    /// Returns the batches that the resource can join. Runtime templates and subscriptions may depend on the resource before. A
    /// batch changes all its resources, and has no timeout for one of them.
    pub(in crate::engine) fn batch_key(&self) -> Option<BatchKey> {
        let policy = &self.common.policy;
        let is_free = !policy.noop && policy.attempt_limit().is_none();
        let joins = self.kind.batches() && self.deferred.is_none() && self.subscribes.is_empty() && is_free;
        joins.then(|| BatchKey { kind: self.kind.name().to_owned(), provider: self.common.provider.clone() })
    }

    /// Returns the resources whose outputs the templates of this one use, by name or alias.
    pub fn senders(&self) -> impl Iterator<Item = &ResourceRef> {
        self.received.iter().map(|received| &received.reference.resource)
    }

    /// Returns true for a property whose templates are resolved when the resource runs.
    pub(in crate::engine) fn is_late(&self, property: &str) -> bool {
        let receives = || self.received.iter().any(|received| received.property == property);
        !Common::LITERAL.contains(&property) && (self.kind.runtime_templates().contains(&property) || receives())
    }

    /// Returns the effects of the type's properties and of the common ones. An effect that depends on a template is unknown.
    pub fn effects(&self) -> Effects {
        let own = self.decoded.effects().into_iter().chain(effects::of_common(&self.common));
        own.collect::<Effects>().unresolved(is_template)
    }

    /// Returns the number of characters of the reference.
    pub fn width(&self) -> usize {
        self.kind.name().len() + 1 + self.decoded.name().chars().count()
    }
}

impl Plan {
    /// Returns the files that templates have read so far, or tried to read, in this plan and its runs.
    pub fn template_files(&self) -> Vec<PathBuf> {
        self.inputs.template_files()
    }

    pub(in crate::engine) fn empty(
        resources: usize,
        scope: Scope,
        inputs: &RunInputs,
        document: YamlDocument,
        data: Value,
    ) -> Self {
        Self {
            resources: Vec::with_capacity(resources),
            fail_on_error: false,
            ordering: Ordering::List,
            pre_message: None,
            post_message: None,
            manifest: None,
            warnings: Vec::new(),
            failing: Vec::new(),
            graph: OnceLock::new(),
            features: OnceLock::new(),
            scope,
            inputs: inputs.clone(),
            data,
            document,
        }
    }

    /// Returns the kinds of relations in the plan.
    pub(in crate::engine) fn features(&self) -> PlanFeatures {
        let add = |found: PlanFeatures, planned: &PlannedResource| PlanFeatures {
            subscribes: found.subscribes || !planned.subscribes.is_empty(),
            receives: found.receives || !planned.received.is_empty(),
            nests: found.nests || planned.kind.nests(),
            reverses: found.reverses || planned.common.on_removal != OnRemoval::Keep,
        };
        *self.features.get_or_init(|| self.resources.iter().fold(PlanFeatures::default(), add))
    }

    /// Returns the secrets that templates have read so far.
    pub fn secrets(&self) -> &Secrets {
        self.inputs.secrets()
    }

    pub(in crate::engine) fn shared_secrets(&self) -> Arc<Secrets> {
        self.inputs.shared_secrets()
    }

    /// Returns the resolved data with the resources as planned. Secrets are in clear: redact the output with
    /// [`Plan::secrets`].
    pub fn rendered(&self) -> Value {
        let resources = self.resources.iter().map(|planned| {
            let mut properties = match (&planned.deferred, planned.decoded.redacted()) {
                (Some(_), Value::Object(shown)) if planned.decoded.as_any().is::<OpenProperties>() => shown,
                (Some(deferred), _) => displayed_properties(deferred, planned.decoded.as_ref()),
                (None, Value::Object(shown)) => shown,
                (None, _) => Map::new(),
            };
            if let Ok(Value::Object(common)) = serde_json::to_value(&*planned.common) {
                properties.extend(common);
            }
            serde_json::json!({ planned.kind.name(): properties })
        });
        serde_json::json!({
            "data": self.data,
            "ccm": {"fail_on_error": self.fail_on_error, "resources": resources.collect::<Vec<_>>()},
        })
    }

    /// Returns a reason for people, unless the reason could repeat values that templates have read.
    pub fn without_read_values(&self, why: String) -> String {
        let conceals = self.resources.iter().any(|planned| planned.provenance.must_withhold());
        if conceals { provenance::WITHHELD.to_owned() } else { why }
    }

    /// Returns the diagnostic of an error in a template of a resource, with its place.
    pub(in crate::engine) fn template_error(
        &self,
        planned: &PlannedResource,
        property: &str,
        error: &TemplateError,
    ) -> Diagnostic {
        let diagnostic = planned.declaration.diagnose(&self.document, Some(property), format!("{property}: {error}"));
        narrow_place(&self.document, diagnostic, &error.expression, error.within)
    }

    /// Reads properties again after their deferred templates were resolved.
    pub(in crate::engine) fn decode_late(
        &self,
        planned: &PlannedResource,
        properties: &Map<String, Value>,
        shaped: &Provenance,
    ) -> Result<Arc<dyn ParsedResource>, Diagnostic> {
        let scope = self.scope.with_data_uses(planned.provenance.used.union(shaped.used));
        let decoded = planned.kind.decode(properties, &scope);
        let decoded = decoded.map_err(|error| shaped.withhold(decode_error(&planned.declaration, &self.document, error)))?;
        decoded.report_secrets(&mut |hidden| self.secrets().add_hidden(hidden));
        Ok(decoded)
    }
}

/// Returns properties with their templates, without the values that are secret. A template is no secret.
fn displayed_properties(properties: &Map<String, Value>, decoded: &dyn ParsedResource) -> Map<String, Value> {
    let secrets = Secrets::default();
    decoded.report_secrets(&mut |hidden| {
        if !is_template(hidden.text()) {
            secrets.add_hidden(hidden);
        }
    });
    let mut shown = properties.clone();
    shown.values_mut().for_each(|value| secrets.redact_output_value(value));
    shown
}
