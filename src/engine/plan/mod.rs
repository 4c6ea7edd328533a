//! Planning: everything that can be known, resolved and rejected before the run.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock};

use serde_json::{Map, Value};

use crate::data::{self, Annotations};
use crate::diag::{Diagnostic, SourceLocation, did_you_mean};
use crate::goss;
use crate::host::Host;
use crate::manifest::{self, Declaration, ManifestText, Resources};
use crate::model::{Effects, ManifestId, ResourceRef, Secrets, merge};
use crate::resource::{self, Common, DecodeError, ParsedResource, ResourceType};
use crate::template::{Scope, TemplateError, is_template};
use crate::wire::value_decode;
use crate::yaml::{KeyOrIndex, YamlDocument};

use super::provenance::{self, Provenance};
use super::{RunInputs, redact};

mod nested_check;
mod precheck;
mod relations;
mod runtime_texts;

use nested_check::PlanContext;
use relations::KnownResource;

pub use precheck::{precheck, precheck_one};

/// The resources of a run, in order. A plan depends on the host only by facts and read files.
pub struct Plan {
    /// The resources.
    pub resources: Vec<PlannedResource>,
    /// True when the run stops after the first failure.
    pub fail_on_error: bool,
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
    pub(super) scope: Scope,
    /// The inputs of the plan, for nested manifests.
    pub(super) inputs: RunInputs,
    pub(super) data: Value,
    document: YamlDocument,
}

/// A resource whose properties were read and are valid.
pub struct PlannedResource {
    /// The type.
    pub kind: &'static dyn ResourceType,
    /// The common properties.
    pub common: Arc<Common>,
    pub(super) requires: Vec<ResourceRef>,
    pub(super) subscribes: Vec<ResourceRef>,
    pub(super) decoded: Arc<dyn ParsedResource>,
    /// Properties with runtime templates: all of them, resolved when the resource runs.
    pub(super) deferred: Option<Map<String, Value>>,
    /// The provenance of the properties.
    pub(super) provenance: Provenance,
    declaration: Declaration,
}

impl PlannedResource {
    /// Returns the reference, `type#name`.
    pub fn reference(&self) -> ResourceRef {
        ResourceRef::new(self.kind.name(), self.decoded.name())
    }

    /// Returns the effects of the type's properties and of the common ones. An effect that depends on a template is unknown.
    pub fn effects(&self) -> Effects {
        let own = self.decoded.effects().into_iter().chain(super::effects::of_common(&self.common));
        own.collect::<Effects>().unresolved(is_template)
    }

    /// Returns the number of characters of the reference.
    pub fn width(&self) -> usize {
        self.kind.name().len() + 1 + self.decoded.name().chars().count()
    }
}

impl Plan {
    fn empty(resources: usize, scope: Scope, inputs: &RunInputs, document: YamlDocument, data: Value) -> Self {
        Self {
            resources: Vec::with_capacity(resources),
            fail_on_error: false,
            pre_message: None,
            post_message: None,
            manifest: None,
            warnings: Vec::new(),
            failing: Vec::new(),
            scope,
            inputs: inputs.clone(),
            data,
            document,
        }
    }

    /// Returns the secrets that templates have read so far.
    pub fn secrets(&self) -> &Secrets {
        self.inputs.secrets()
    }

    pub(super) fn shared_secrets(&self) -> Arc<Secrets> {
        self.inputs.shared_secrets()
    }

    /// Returns the resolved data with the resources as planned. Secrets are in clear: redact the output with
    /// [`Plan::secrets`].
    pub fn rendered(&self) -> Value {
        let resources = self.resources.iter().map(|planned| {
            let mut properties = match (&planned.deferred, planned.decoded.redacted()) {
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
    pub(super) fn template_error(&self, planned: &PlannedResource, property: &str, error: &TemplateError) -> Diagnostic {
        let diagnostic = planned.declaration.diagnose(&self.document, Some(property), format!("{property}: {error}"));
        runtime_texts::narrow_place(&self.document, diagnostic, &error.expression, error.within)
    }

    /// Reads properties again after their deferred templates were resolved.
    pub(super) fn decode_late(
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

/// Plans a manifest.
///
/// # Errors
/// Every error of the manifest. Nothing may run then.
pub fn plan_manifest(source: &ManifestText, inputs: &RunInputs, host: &Host) -> Result<Plan, Vec<Diagnostic>> {
    without_secrets(manifest_plan(source, inputs, host, PlanContext::new(host, &inputs.access)), inputs)
}

/// Plans a nested manifest: resources that it refers to may have run before.
///
/// # Errors
/// Every error of the manifest. Nothing of it may run then.
pub(super) fn plan_nested(source: &ManifestText, inputs: &RunInputs, host: &Host) -> Result<Plan, Vec<Diagnostic>> {
    without_secrets(manifest_plan(source, inputs, host, PlanContext::new(host, &inputs.access).in_session()), inputs)
}

fn manifest_plan(
    source: &ManifestText,
    inputs: &RunInputs,
    host: &Host,
    mut around: PlanContext,
) -> Result<Plan, Vec<Diagnostic>> {
    let manifest = manifest::parse::parse(source)?;
    let mut rules = Annotations::read(&manifest.document).map_err(|error| vec![error])?;
    rules.extend(inputs.rules.clone());
    let mut data = data::resolve(manifest.document.value(), &inputs.restricted(host))
        .map_err(|error| vec![data_error(&manifest.document, &error)])?
        .data;
    if let Some(over) = &inputs.data {
        data = merge::deep_merge(data, over.clone());
    }
    let wrong = rules.check(&data, inputs.secrets());
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let keys = keys_of_all_hosts(manifest.document.value(), &data);
    let scope = inputs.scope(data.clone(), host);
    let before = scope.mark();
    let declared = match manifest.resources {
        Resources::Inline(list) => Ok((manifest.document, list)),
        Resources::JetFile(file) => {
            let at = key_place(&manifest.document, &["ccm", "resources_jet_file"]);
            jet_resources(&file, &scope)
                .map_err(|errors| errors.into_iter().map(|error| with_place(error, &at)).collect::<Vec<_>>())
        }
    };
    let used = scope.since(before);
    if used.bus {
        let unfit = provenance::ProvenanceError::Bus("resources_jet_file".to_owned());
        return Err(vec![Diagnostic::new(unfit.to_string()).hint(unfit.hint())]);
    }
    let conceal = |error| if used.read { provenance::withheld(error) } else { error };
    let (document, declarations) = declared.map_err(|errors| errors.into_iter().map(conceal).collect::<Vec<_>>())?;
    // A rendered manifest may contain read values in every property.
    let shaped = if used.read { Provenance::of_rendered_resource() } else { Provenance::default() };
    let mut plan = Plan {
        fail_on_error: manifest.fail_on_error,
        manifest: Some(ManifestId { source: source.name.clone(), digest: source.digest.clone() }),
        warnings: rules.warnings,
        ..Plan::empty(declarations.len(), scope, inputs, document, data)
    };
    let mut errors = Vec::new();
    plan.post_message = resolve_message(&plan, "post_message", manifest.post_message, &mut errors);
    plan.pre_message = resolve_message(&plan, "pre_message", manifest.pre_message, &mut errors);
    add_resources(&mut plan, declarations, true, &keys, &shaped, &mut errors);
    around.enter(source);
    check_relations(plan, &mut around, errors)
}

/// Returns the plan, unless there are errors in its resources or their relations.
fn check_relations(plan: Plan, around: &mut PlanContext, mut errors: Vec<Diagnostic>) -> Result<Plan, Vec<Diagnostic>> {
    // An unreadable resource would cause further errors in resources that refer to it.
    if errors.is_empty() {
        let known: Vec<KnownResource<'_>> = plan.resources.iter().map(KnownResource::planned).collect();
        relations::check(&known, &plan.document, around, &mut errors);
    }
    if errors.is_empty() { Ok(plan) } else { Err(errors) }
}

/// Plans one resource: a map of properties with `name`, or a list of one in the list form. No resource ran before.
///
/// # Errors
/// Every error of the resource. Nothing may run then.
pub fn plan_one(kind: &str, properties: &Value, inputs: &RunInputs, host: &Host) -> Result<Plan, Vec<Diagnostic>> {
    without_secrets(
        one_plan(kind, properties, inputs, host, PlanContext::new(host, &inputs.access).for_single_resource()),
        inputs,
    )
}

/// Plans one resource in a session, which knows the earlier resources.
///
/// # Errors
/// Every error of the resource. Nothing may run then.
pub fn plan_next(kind: &str, properties: &Value, inputs: &RunInputs, host: &Host) -> Result<Plan, Vec<Diagnostic>> {
    without_secrets(one_plan(kind, properties, inputs, host, PlanContext::new(host, &inputs.access).in_session()), inputs)
}

fn one_plan(
    kind: &str,
    properties: &Value,
    inputs: &RunInputs,
    host: &Host,
    mut around: PlanContext,
) -> Result<Plan, Vec<Diagnostic>> {
    let mut document = YamlDocument::from_value(serde_json::json!([{ kind: properties }]));
    let declarations = manifest::parse::declarations(&mut document, &[])?;
    match declarations.len() {
        0 => return Err(vec![Diagnostic::new("no resources found")]),
        1 => {}
        _ => return Err(vec![Diagnostic::new("multiple resources found: a request is about one")]),
    }
    let data = inputs.data.clone().unwrap_or_else(|| Value::Object(Map::new()));
    let wrong = inputs.rules.check(&data, inputs.secrets());
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let scope = inputs.scope(data.clone(), host);
    let mut plan = Plan::empty(1, scope, inputs, document, data.clone());
    let mut errors = Vec::new();
    add_resources(&mut plan, declarations, false, &data, &Provenance::default(), &mut errors);
    check_relations(plan, &mut around, errors)
}

/// Redacts the secrets of templates in the diagnostics of a plan.
fn without_secrets(planned: Result<Plan, Vec<Diagnostic>>, inputs: &RunInputs) -> Result<Plan, Vec<Diagnostic>> {
    let secrets = inputs.secrets();
    let mut plan = planned.map_err(|errors| redact::diagnostics(secrets, errors))?;
    plan.warnings = redact::diagnostics(secrets, plan.warnings);
    plan.failing = redact::diagnostics(secrets, plan.failing);
    [&mut plan.pre_message, &mut plan.post_message].into_iter().flatten().for_each(|text| secrets.redact_in(text));
    Ok(plan)
}

/// Returns the data with the keys that it has on other hosts.
fn keys_of_all_hosts(document: &Value, data: &Value) -> Value {
    let overrides = document.get("overrides").and_then(Value::as_object);
    overrides
        .into_iter()
        .flat_map(|overrides| overrides.values())
        .fold(data.clone(), |all, more| merge::deep_merge(more.clone(), all))
}

/// Adds resources; `keys` has the keys that their data may have.
fn add_resources(
    plan: &mut Plan,
    declarations: Vec<Declaration>,
    numbered: bool,
    keys: &Value,
    shaped: &Provenance,
    errors: &mut Vec<Diagnostic>,
) {
    let keys = (!plan.scope.hides_values()).then_some(keys);
    for declaration in declarations {
        let number = declaration.number;
        let named = |mut error: Diagnostic| {
            if numbered {
                error.message = format!("invalid manifest resource {number}: {}", error.message);
            }
            error
        };
        plan.warnings.extend(runtime_texts::unclosed(&declaration, &plan.document));
        match plan_resource(declaration, shaped.clone(), &plan.document, &plan.scope) {
            Ok(planned) => {
                let found = runtime_texts::check_runtime_texts(&planned, &plan.document, &plan.scope, keys);
                let said = |found: Vec<Diagnostic>| found.into_iter().map(|found| shaped.withhold(named(found)));
                errors.extend(said(found.errors));
                plan.failing.extend(said(found.failing));
                plan.warnings.extend(found.suspicious.into_iter().map(|found| shaped.withhold(found)));
                plan.resources.push(planned);
            }
            Err(error) => errors.push(named(error)),
        }
    }
}

fn plan_resource(
    mut declaration: Declaration,
    mut shaped: Provenance,
    document: &YamlDocument,
    scope: &Scope,
) -> Result<PlannedResource, Diagnostic> {
    let Some(kind) = resource::find(&declaration.kind) else {
        let message = format!("unknown resource type {}", declaration.kind);
        let hint = did_you_mean(&declaration.kind, resource::names()).map_or_else(
            || format!("known types are {}", resource::names().collect::<Vec<_>>().join(", ")),
            |near| format!("did you mean \"{near}\"?"),
        );
        return Err(declaration.diagnose(document, None, message).hint(hint));
    };
    let mut own = declaration.take_properties();
    as_written(&mut own, kind, document, &declaration);
    let mut deferred = false;
    for (key, value) in &mut own {
        if Common::LITERAL.contains(&key.as_str()) || !holds_template(value) {
            continue;
        }
        if kind.runtime_templates().contains(&key.as_str()) {
            deferred = true;
            continue;
        }
        let before = scope.mark();
        let resolved = if key == "health_checks" { resolve_checks(scope, kind, value) } else { resolve(scope, kind, key, value) };
        *value = resolved.map_err(|error| runtime_texts::unresolved(&declaration, document, key, &error, scope))?;
        let noted = shaped.record(kind, key, value, scope.since(before), scope);
        noted.map_err(|unfit| declaration.diagnose(document, Some(key), unfit.to_string()).hint(unfit.hint()))?;
    }
    let common = take_common(&mut own).map_err(|error| shaped.withhold(invalid_common(&declaration, document, &error)))?;
    let wrong = |invalid: resource::Invalid| shaped.withhold(decode_error(&declaration, document, invalid.into()));
    common.validate_checks().map_err(wrong)?;
    check_rules(&common, &declaration, document).map_err(|wrong| shaped.withhold(wrong))?;
    let requires = common.requirements().map_err(wrong)?;
    let subscribes = common.subscriptions(kind.ccm_subscribe_syntax()).map_err(wrong)?;
    if !subscribes.is_empty() && !kind.refreshes() {
        let message = format!("{} resources do not act on subscribe", kind.name());
        return Err(declaration
            .diagnose(document, Some("subscribe"), message)
            .hint("use require to order them; exec acts on subscribe"));
    }
    let decoded = kind.decode(&own, &scope.with_data_uses(shaped.used));
    let decoded = decoded.map_err(|error| shaped.withhold(decode_error(&declaration, document, error)))?;
    if !deferred {
        decoded.report_secrets(&mut |hidden| scope.secrets().add_hidden(hidden));
    }
    Ok(PlannedResource {
        kind,
        common,
        requires,
        subscribes,
        decoded,
        deferred: deferred.then_some(own),
        provenance: shaped,
        declaration,
    })
}

/// Resolves health checks. Their rules are resolved when they are checked.
fn resolve_checks(scope: &Scope, kind: &dyn ResourceType, checks: &Value) -> Result<Value, TemplateError> {
    let resolve_check = |check: &Value| match check {
        Value::Object(check) => check
            .iter()
            .map(|(key, value)| {
                let value = match key.as_str() {
                    "goss_rules" => value.clone(),
                    "tries" => scope.resolve_tree(value)?,
                    _ => resolve(scope, kind, "", value)?,
                };
                Ok((key.clone(), value))
            })
            .collect(),
        other => resolve(scope, kind, "", other),
    };
    match checks {
        Value::Array(checks) => checks.iter().map(resolve_check).collect(),
        other => resolve(scope, kind, "", other),
    }
}

/// Checks that the rules of health checks can be read, as far as they are not templates.
fn check_rules(common: &Common, declaration: &Declaration, document: &YamlDocument) -> Result<(), Diagnostic> {
    for rules in common.health_checks.iter().filter_map(|check| check.goss_rules.as_ref()) {
        if let Err(wrong) = goss::GossRules::read(rules) {
            let diagnostic = declaration.diagnose(document, Some("health_checks"), format!("health_checks: goss_rules: {wrong}"));
            let mut diagnostic = runtime_texts::narrow_place(document, diagnostic, wrong.key.as_deref().unwrap_or_default(), 0);
            diagnostic.hint = wrong.hint;
            return Err(diagnostic);
        }
    }
    Ok(())
}

/// The common properties of a resource that sets none.
static COMMON: LazyLock<Arc<Common>> = LazyLock::new(Arc::default);

/// Takes the common properties out of the properties of a resource. Most resources have none, and share the default.
fn take_common(properties: &mut Map<String, Value>) -> Result<Arc<Common>, value_decode::Mismatch> {
    if !properties.keys().any(|key| Common::KEYS.contains(&key.as_str())) {
        return Ok(Arc::clone(&COMMON));
    }
    let taken = Common::KEYS.iter().filter_map(|key| properties.shift_remove(*key).map(|value| ((*key).to_owned(), value)));
    Common::read(taken.collect()).map(Arc::new)
}

/// Returns the diagnostic of invalid common properties, at the unknown key if there is one.
fn invalid_common(declaration: &Declaration, document: &YamlDocument, error: &value_decode::Mismatch) -> Diagnostic {
    let (path, why) = (error.path().to_string(), error.inner().to_string());
    let step = |step: &str| step.trim_end_matches(']').parse().map_or_else(|_| KeyOrIndex::from(step), KeyOrIndex::Index);
    let mut steps: Vec<KeyOrIndex> = path.split(['.', '[']).map(step).collect();
    let quoted: Vec<&str> = why.split('`').skip(1).step_by(2).collect();
    let (Some((given, known)), true) = (quoted.split_first(), why.starts_with("unknown field")) else {
        return declaration.diagnose_at(document, &steps, format!("{path}: {why}"));
    };
    if steps.last() != Some(&KeyOrIndex::from(*given)) {
        steps.push(KeyOrIndex::from(*given));
    }
    let hint = did_you_mean(given, known.iter().copied())
        .map_or_else(|| format!("known keys are {}", known.join(", ")), |near| format!("did you mean \"{near}\"?"));
    let above = path.strip_suffix(&format!(".{given}")).unwrap_or(&path);
    declaration.diagnose_at(document, &steps, format!("{above}: unknown key \"{given}\"")).hint(hint)
}

/// Restores a number to its text, where a property is text: `version: 1.10` is not 1.1.
fn as_written(properties: &mut Map<String, Value>, kind: &dyn ResourceType, document: &YamlDocument, declaration: &Declaration) {
    let endless = |value: &Value| value.as_str().is_some_and(|text| matches!(text, "+Inf" | "-Inf" | "NaN"));
    for (key, value) in properties.iter_mut().filter(|(_, value)| value.is_number() || endless(value)) {
        if !is_typed(kind, key) {
            let below = |path: &[KeyOrIndex]| document.number_text(&[path, &[KeyOrIndex::Key(key.clone())]].concat());
            let defaults = || declaration.defaults_at.as_deref().and_then(below);
            if let Some(text) = below(&declaration.at.path()).or_else(defaults) {
                *value = Value::String(text);
            }
        }
    }
}

/// The properties of each type that are not text.
static TYPED: LazyLock<HashSet<(&'static str, String)>> = LazyLock::new(|| {
    let of = |kind: &&'static dyn ResourceType| {
        let schema = kind.schema(&mut schemars::SchemaGenerator::default()).to_value();
        let properties = schema.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
        let is_typed = |property: &Value| is_plain(property) || is_free(property) || property.get("items").is_some_and(is_plain);
        let name = kind.name();
        properties.into_iter().filter(move |(_, property)| is_typed(property)).map(move |(key, _)| (name, key))
    };
    resource::TYPES.iter().flat_map(of).collect()
});

/// Returns true for numbers and flags, also optional ones.
fn is_plain(property: &Value) -> bool {
    let is_plain = |name: &Value| matches!(name.as_str(), Some("boolean" | "integer" | "number"));
    match property.get("type") {
        Some(Value::Array(types)) => types.iter().all(|name| is_plain(name) || name.as_str() == Some("null")),
        Some(one) => is_plain(one),
        None => false,
    }
}

/// Returns true for a map with any keys and values.
fn is_free(property: &Value) -> bool {
    property.get("additionalProperties").is_some_and(|rest| rest.as_bool() == Some(true))
}

/// Returns true for properties that are not text: their templates keep the type of their result.
fn is_typed(kind: &dyn ResourceType, key: &str) -> bool {
    TYPED.contains(&(kind.name(), key.to_owned()))
}

/// Returns true when a text or a key in the value is a template.
fn holds_template(value: &Value) -> bool {
    match value {
        Value::String(text) => is_template(text),
        Value::Array(list) => list.iter().any(holds_template),
        Value::Object(map) => map.iter().any(|(key, item)| is_template(key) || holds_template(item)),
        _ => false,
    }
}

/// Resolves the templates of one property. The result is text, except for a property that is not text.
pub(super) fn resolve(scope: &Scope, kind: &dyn ResourceType, key: &str, value: &Value) -> Result<Value, TemplateError> {
    if kind.templated_keys().contains(&key) {
        return scope.resolve_tree_with_keys(value);
    }
    if is_typed(kind, key) {
        return scope.resolve_tree(value);
    }
    match value {
        Value::String(text) => scope.resolve_text(text).map(|text| Value::String(text.into_owned())),
        Value::Array(list) => list.iter().map(|item| resolve(scope, kind, "", item)).collect(),
        Value::Object(map) => {
            map.iter().map(|(name, item)| resolve(scope, kind, "", item).map(|item| (name.clone(), item))).collect()
        }
        other => Ok(other.clone()),
    }
}

fn decode_error(declaration: &Declaration, document: &YamlDocument, error: DecodeError) -> Diagnostic {
    let mut diagnostic = declaration.diagnose(document, error.property.as_deref(), error.message);
    diagnostic.hint = error.hint;
    diagnostic
}

fn resolve_message(plan: &Plan, key: &str, text: Option<String>, errors: &mut Vec<Diagnostic>) -> Option<String> {
    match plan.scope.resolve_text(&text?) {
        Ok(text) => Some(text.into_owned()),
        Err(error) => {
            let diagnostic =
                Diagnostic::new(format!("invalid {key} template: {error}")).at(key_place(&plan.document, &["ccm", key]));
            errors.push(runtime_texts::explain(&plan.document, diagnostic, &error, &plan.scope));
            None
        }
    }
}

fn jet_resources(file: &str, scope: &Scope) -> Result<(YamlDocument, Vec<Declaration>), Vec<Diagnostic>> {
    let quoted = Value::String(file.to_owned());
    let expression = format!("{{{{ jet(readFile({quoted})) }}}}");
    let rendered = scope.resolve_text(&expression).map_err(|error| vec![Diagnostic::new(format!("{file}: {error}"))])?;
    if rendered.trim().is_empty() {
        return Err(vec![Diagnostic::new("resources jet template produced no output, check for syntax errors")]);
    }
    let mut document = YamlDocument::parse(&rendered, &format!("{file} (rendered)")).map_err(|error| vec![error])?;
    let declarations = manifest::parse::declarations(&mut document, &[])?;
    if declarations.is_empty() {
        return Err(vec![Diagnostic::new("manifest must contain resources: the jet template made none")]);
    }
    Ok((document, declarations))
}

/// Returns an error with a place, unless it has one.
fn with_place(mut error: Diagnostic, place: &Option<SourceLocation>) -> Diagnostic {
    error.place = error.place.take().or_else(|| place.clone());
    error
}

fn data_error(document: &YamlDocument, error: &data::DataResolveError) -> Diagnostic {
    let path: Vec<KeyOrIndex> = error.path().iter().map(|key| KeyOrIndex::Key(key.clone())).collect();
    Diagnostic::new(crate::diag::error_chain(error)).at(document.key_place(&path))
}

fn key_place(document: &YamlDocument, path: &[&str]) -> Option<SourceLocation> {
    document.key_place(&path.iter().map(|key| KeyOrIndex::Key((*key).to_owned())).collect::<Vec<_>>())
}
