//! Planning: everything that can be known, resolved and rejected before the run.

use std::sync::OnceLock;

use serde_json::{Map, Value};

use crate::data::{self, Annotations};
use crate::diag::Diagnostic;
use crate::host::Host;
use crate::manifest::{self, Declaration, ManifestText, Ordering, Resources};
use crate::model::{ManifestId, merge};
use crate::template::Scope;
use crate::yaml::{KeyOrIndex, YamlDocument};

use super::provenance::{self, Provenance};
use super::{RunInputs, redact};

mod context;
mod known_resource;
mod nested_file;
mod order;
mod place;
mod planned;
mod precheck;
mod properties;
mod read_resource;
mod received_outputs;
mod relations;
mod runtime_texts;

pub(super) use context::MAX_DEPTH;
use context::PlanContext;
use known_resource::KnownResource;
use place::{key_place, with_place};
use read_resource::read_resource;

pub use planned::{Plan, PlannedResource};
pub use precheck::{precheck, precheck_one};
pub(super) use properties::resolve;

/// Plans a manifest.
///
/// # Errors
/// Every error of the manifest. Nothing may run then.
pub fn plan_manifest(source: &ManifestText, inputs: &RunInputs, host: &Host) -> Result<Plan, Vec<Diagnostic>> {
    without_secrets(manifest_plan(source, inputs, host, PlanContext::new(host, &inputs.access, &inputs.types)), inputs)
}

/// Plans a nested manifest: resources that it refers to may have run before.
///
/// # Errors
/// Every error of the manifest. Nothing of it may run then.
pub(super) fn plan_nested(source: &ManifestText, inputs: &RunInputs, host: &Host) -> Result<Plan, Vec<Diagnostic>> {
    without_secrets(
        manifest_plan(source, inputs, host, PlanContext::new(host, &inputs.access, &inputs.types).in_session()),
        inputs,
    )
}

fn manifest_plan(
    source: &ManifestText,
    inputs: &RunInputs,
    host: &Host,
    mut context: PlanContext,
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
        ordering: manifest.ordering,
        manifest: Some(ManifestId { source: source.name.clone(), digest: source.digest.clone() }),
        warnings: rules.warnings,
        ..Plan::empty(declarations.len(), scope, inputs, document, data)
    };
    let mut errors = Vec::new();
    plan.post_message = resolve_message(&plan, "post_message", manifest.post_message, &mut errors);
    plan.pre_message = resolve_message(&plan, "pre_message", manifest.pre_message, &mut errors);
    add_resources(&mut plan, declarations, true, &keys, &shaped, &mut errors);
    context.enter(source);
    check_relations(plan, &mut context, errors)
}

/// Returns the plan, unless there are errors in its resources or their relations.
fn check_relations(mut plan: Plan, context: &mut PlanContext, mut errors: Vec<Diagnostic>) -> Result<Plan, Vec<Diagnostic>> {
    // An unreadable resource would cause further errors in resources that refer to it.
    if errors.is_empty() {
        let known: Vec<KnownResource<'_>> = plan.resources.iter().map(KnownResource::planned).collect();
        precheck::check_relations(&known, plan.ordering, &plan.document, context, &mut errors);
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    if plan.ordering == Ordering::Graph {
        let built = order::build_graph(&plan.resources, plan.ordering, &plan.document);
        let (graph, warnings) = built.map_err(|error| vec![error])?;
        plan.graph = OnceLock::from(graph);
        plan.warnings.extend(warnings);
    }
    Ok(plan)
}

/// Plans one resource: a map of properties with `name`, or a list of one in the list form. No resource ran before.
///
/// # Errors
/// Every error of the resource. Nothing may run then.
pub fn plan_one(kind: &str, properties: &Value, inputs: &RunInputs, host: &Host) -> Result<Plan, Vec<Diagnostic>> {
    without_secrets(
        one_plan(kind, properties, inputs, host, PlanContext::new(host, &inputs.access, &inputs.types).for_single_resource()),
        inputs,
    )
}

/// Plans one resource in a session, which knows the earlier resources.
///
/// # Errors
/// Every error of the resource. Nothing may run then.
pub fn plan_next(kind: &str, properties: &Value, inputs: &RunInputs, host: &Host) -> Result<Plan, Vec<Diagnostic>> {
    without_secrets(
        one_plan(kind, properties, inputs, host, PlanContext::new(host, &inputs.access, &inputs.types).in_session()),
        inputs,
    )
}

fn one_plan(
    kind: &str,
    properties: &Value,
    inputs: &RunInputs,
    host: &Host,
    mut context: PlanContext,
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
    check_relations(plan, &mut context, errors)
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
        match read_resource(declaration, shaped.clone(), &plan.document, &plan.scope, &plan.inputs.types) {
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

fn data_error(document: &YamlDocument, error: &data::DataResolveError) -> Diagnostic {
    let path: Vec<KeyOrIndex> = error.path().iter().map(|key| KeyOrIndex::Key(key.clone())).collect();
    Diagnostic::new(crate::diag::error_chain(error)).at(document.key_place(&path))
}
