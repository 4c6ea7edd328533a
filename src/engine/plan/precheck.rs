//! Errors of a manifest that appear on every node, found without one, before the signature.
//!
//! A resource without templates is read as on a node. For a resource with templates, only the type, the property names and
//! the syntax of the templates are checked. Results of templates depend on the facts and data of a node.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::context::{PlanContext, manifest_key};
use super::known_resource::KnownResource;
use super::nested_file::{self, ChildFile, MAKER};
use super::place::decode_error;
use super::planned::PlannedResource;
use super::properties::{as_written, holds_template, unknown_property};
use super::read_resource::{check_policy, invalid_common, read_resource};
use super::received_outputs::{self, ReceivedOutput};
use super::{MAX_DEPTH, order, relations, runtime_texts};
use crate::data::Annotations;
use crate::diag::{Diagnostic, error_chain};
use crate::engine::RunInputs;
use crate::engine::provenance::Provenance;
use crate::engine::template_files::GuardedFiles;
use crate::host::Host;
use crate::manifest::{self, Declaration, MAX_MANIFEST, ManifestText, Ordering, Resources};
use crate::resource::{Common, ResourceType, TypeRef, Types};
use crate::template::Scope;
use crate::yaml::YamlDocument;

/// Checks a manifest as far as possible without a node.
///
/// # Errors
/// Every error for which all nodes would reject the manifest.
pub fn precheck(source: &ManifestText, types: &Types, host: &Host) -> Result<(), Vec<Diagnostic>> {
    let mut errors = Vec::new();
    let mut context = PlanContext::without_node(host, types);
    context.enter(source);
    check_manifest(source, &mut context, &mut errors);
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Checks a manifest and its nested ones. Adds the errors to `errors`. Returns true when the manifest applies others.
pub(super) fn check_manifest(source: &ManifestText, context: &mut PlanContext, errors: &mut Vec<Diagnostic>) -> bool {
    let read = manifest::parse::parse(source);
    let read = read.and_then(|manifest| Annotations::read(&manifest.document).map(|_| manifest).map_err(|error| vec![error]));
    match read {
        Ok(manifest) => match manifest.resources {
            Resources::Inline(list) => check_resources(list, Some(manifest.ordering), &manifest.document, context, errors),
            // Only a node knows the result of a template.
            Resources::JetFile(_) => {
                context.leave_open();
                false
            }
        },
        Err(found) => {
            errors.extend(found);
            false
        }
    }
}

/// Checks one resource as far as possible without a node.
///
/// # Errors
/// Every error for which all nodes would reject the resource.
pub fn precheck_one(kind: &str, properties: &Value, types: &Types, host: &Host) -> Result<(), Vec<Diagnostic>> {
    let mut document = YamlDocument::from_value(json!([{ kind: properties }]));
    let declarations = manifest::parse::declarations(&mut document, &[])?;
    let mut errors = Vec::new();
    let mut context = PlanContext::without_node(host, types).for_single_resource();
    check_resources(declarations, None, &document, &mut context, &mut errors);
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Checks the resources of a manifest with this order; none for a single resource.
fn check_resources(
    declarations: Vec<Declaration>,
    ordering: Option<Ordering>,
    document: &YamlDocument,
    context: &mut PlanContext,
    errors: &mut Vec<Diagnostic>,
) -> bool {
    let scope = RunInputs::new(|| json!({}), BTreeMap::new(), None).scope(json!({}), context.host());
    let (mut looked, mut broken) = (Vec::with_capacity(declarations.len()), false);
    for declaration in declarations {
        let number = declaration.number;
        match check_resource(declaration, document, &scope, &context.types, errors) {
            Ok(one) => looked.push(one),
            Err(mut error) => {
                if ordering.is_some() {
                    error.message = format!("invalid manifest resource {number}: {}", error.message);
                }
                errors.push(error);
                broken = true;
            }
        }
    }
    let known: Vec<KnownResource<'_>> = looked.iter().map(CheckedResource::known_resource).collect();
    if !broken {
        check_relations(&known, ordering.unwrap_or_default(), document, context, errors);
    }
    known.iter().any(|known| known.kind.nests())
}

/// A checked resource.
enum CheckedResource {
    /// The whole resource is known.
    Planned(PlannedResource),
    /// Templates determine the rest.
    Open { kind: TypeRef, properties: Map<String, Value>, declaration: Declaration, received: Vec<ReceivedOutput> },
}

impl CheckedResource {
    fn known_resource(&self) -> KnownResource<'_> {
        match self {
            Self::Planned(planned) => KnownResource::planned(planned),
            Self::Open { kind, properties, declaration, received } => {
                KnownResource::open(&**kind, properties, declaration, received)
            }
        }
    }
}

fn check_resource(
    declaration: Declaration,
    document: &YamlDocument,
    scope: &Scope,
    types: &Types,
    errors: &mut Vec<Diagnostic>,
) -> Result<CheckedResource, Diagnostic> {
    let kind = types.find(&declaration.kind);
    let mut properties = declaration.clone().take_properties();
    let open = properties.iter().any(|(key, value)| is_open(kind.as_deref(), key, value));
    let (Some(kind), true) = (kind, open) else {
        let planned: PlannedResource = read_resource(declaration, Provenance::default(), document, scope, types)?;
        errors.extend(runtime_texts::check_runtime_texts(&planned, document, scope, None).errors);
        return Ok(CheckedResource::Planned(planned));
    };
    as_written(&mut properties, &*kind, document, &declaration);
    if let Some(error) = unknown_property(&*kind, &properties, scope) {
        return Err(decode_error(&declaration, document, error));
    }
    for (key, value) in &properties {
        if !Common::LITERAL.contains(&key.as_str()) && key != "health_checks" {
            runtime_texts::check_templates(scope, value)
                .map_err(|error| runtime_texts::unresolved(&declaration, document, key, &error, scope))?;
        }
    }
    let is_literal = |(key, value): &(&String, &Value)| *key == "control" || (*key == "policy" && !holds_template(value));
    let literal = properties.iter().filter(is_literal).map(|(key, value)| (key.clone(), value.clone())).collect();
    let literal = Common::read(literal).map_err(|error| invalid_common(&declaration, document, &error))?;
    if let Some(control) = &literal.control {
        errors.extend(runtime_texts::conditions(&declaration, document, scope, control));
    }
    check_policy(&literal.policy, &*kind, &declaration, document)?;
    let received = received_outputs::find(&properties, &*kind, &declaration, document, scope)?;
    Ok(CheckedResource::Open { kind, properties, declaration, received })
}

/// Returns true when a property depends on a node.
fn is_open(kind: Option<&dyn ResourceType>, key: &str, value: &Value) -> bool {
    let is_late = kind.is_some_and(|kind| kind.runtime_templates().contains(&key));
    !is_late && !Common::LITERAL.contains(&key) && holds_template(value)
}

/// Checks the relations of the resources of one manifest, and adds them to the earlier resources of `around`.
pub(super) fn check_relations(
    list: &[KnownResource<'_>],
    ordering: Ordering,
    document: &YamlDocument,
    context: &mut PlanContext,
    errors: &mut Vec<Diagnostic>,
) {
    relations::aliases(list, document, errors);
    relations::contradictions(list, document, errors);
    relations::semaphores(list, document, errors);
    let index = relations::ResourceIndex::new(list, ordering);
    let remembers = context.is_child() || list.iter().any(|known| known.kind.nests());
    for at in 0..list.len() {
        relations::references(at, &index, context, document, errors);
        let Some(known) = list.get(at).filter(|_| remembers) else { continue };
        if known.kind.nests() {
            check_nested(known, list, document, context, errors);
        }
        context.add(known);
    }
    if ordering == Ordering::Graph {
        errors.extend(order::find_cycle(&index, document));
    }
}

/// Checks a nested manifest, and those within it. `list` has the resources beside it.
fn check_nested(
    known: &KnownResource<'_>,
    list: &[KnownResource<'_>],
    document: &YamlDocument,
    context: &mut PlanContext,
    errors: &mut Vec<Diagnostic>,
) {
    let mut say = |message: String, hint: &str| errors.push(known.diagnose(document, "name", &message, hint));
    let Some((file, allows)) = nested_file::child_path(known) else {
        context.leave_open();
        return;
    };
    let path = match nested_file::find(known, &file, list, context) {
        ChildFile::At(path) => path,
        ChildFile::Unknown => {
            context.leave_open();
            return;
        }
        ChildFile::Missing => {
            let message = format!("{file} is missing: the command has the manifest without the files beside it");
            return say(message, "give the directory that has both: all its files are sent");
        }
    };
    let files = GuardedFiles { host: context.host.clone(), access: Arc::clone(&context.access) };
    let read = files.read(&file, MAX_MANIFEST).map(|found| ManifestText::from_bytes(&path, found.text.into_bytes()));
    let source = match read {
        Ok(Ok(source)) => source,
        Ok(Err(error)) => return say(error_chain(&error), MAKER),
        Err(why) => return say(why, MAKER),
    };
    let own = manifest_key(&source);
    if context.chain.contains(&own) {
        return say(format!("{file} is applied within itself, without end"), "add a control to the apply resource");
    }
    if context.chain.len() >= MAX_DEPTH {
        return say(format!("{file}: maximum apply depth of {MAX_DEPTH} exceeded"), "apply it at a lower depth");
    }
    let outer = context.host.clone();
    if let Some(directory) = &source.directory {
        context.host = outer.clone().with_directory(directory);
    }
    context.chain.push(own);
    let applies = check_manifest(&source, context, errors);
    context.chain.pop();
    context.host = outer;
    if applies && !allows {
        let message = format!("{file}: apply resources are denied in this manifest by allow_apply");
        errors.push(known.diagnose(document, "allow_apply", &message, "remove allow_apply, or the apply resources in that file"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::{FakeRunner, host};

    fn said(resources: &str) -> String {
        let text = format!("ccm:\n  resources:\n{resources}");
        let source = ManifestText { text, name: "site.yaml".into(), directory: None, digest: None };
        match precheck(&source, &Types::default(), &host(FakeRunner::exiting(&[]))) {
            Ok(()) => String::new(),
            Err(errors) => errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
        }
    }

    #[test]
    fn what_every_node_refuses_is_found_without_one() {
        for (resources, wanted) in [
            ("    - file:\n        - /x:\n            colour: red\n", "site.yaml:5:13"),
            ("    - file:\n        - /x:\n            colour: \"{{ Facts.colour }}\"\n", "colour"),
            ("    - file:\n        - /x: {ensure: present, owner: a, group: a, mode: rw}\n", "mode"),
            ("    - fiel:\n        - /x: {ensure: absent}\n", "did you mean"),
            (
                "    - file:\n        - /x: {ensure: present, owner: \"{{ Facts.a | }}\", group: a, mode: \"0644\"}\n",
                "resolving owner",
            ),
            ("    - file:\n        - \"{{ Facts.a }}\": {ensure: absent, control: {if: \"a ==\"}}\n", "site.yaml:4:60"),
            ("    - file:\n        - \"{{ Facts.a }}\": {ensure: absent, control: {iff: \"a\"}}\n", "did you mean \"if\"?"),
            (
                "    - file:\n        - /x: {ensure: absent, control: {if: \"true\", unless: \"1 + 1\"}}\n",
                "expected true or false",
            ),
            ("    - exec:\n        - x: {command: \"echo 'a\"}\n", "site.yaml:4:30"),
            (
                "    - exec:\n        - x: {policy: {retry: -1}}\n",
                "site.yaml:4:24: invalid manifest resource 1: policy.retry: expected",
            ),
            ("    - exec:\n        - x: {policy: {retrys: 1}}\n", "did you mean \"retry\"?"),
            ("    - exec:\n        - \"{{ Facts.a }}\": {policy: {delay: 1h}}\n", "site.yaml:4:38"),
            ("    - apply:\n        - x.yaml: {policy: {retry: 1}}\n", "can have only noop"),
            ("    - exec:\n        - defaults: {policy: {poll: 1ms}}\n        - x: {}\n", "site.yaml:4:31"),
            (
                "    - exec:\n        - x: {policy: {semaphore: [db:2]}}\n        - y: {policy: {semaphore: [net, db:3]}}\n",
                "site.yaml:5:41: invalid manifest resource 2: policy.semaphore: exec#y says db:3, exec#x says db:2",
            ),
            ("    - service:\n        - x: {ensure: on}\n    - file:\n        - /x: {colour: red}\n", "resource 2"),
        ] {
            let said = said(resources);
            assert!(said.contains(wanted), "{resources}: {said}");
        }
    }

    #[test]
    fn what_only_a_node_knows_is_left_to_it() {
        for resources in [
            "    - file:\n        - \"{{ Facts.site }}/motd\": {ensure: present, content: \"{{ Data.none.at.all }}\", owner: \"{{ Facts.o }}\", group: a, mode: \"{{ Data.mode }}\"}\n",
            "    - file:\n        - /x: {ensure: absent}\n    - exec:\n        - x: {command: \"{{ Data.command }}\", timeout: \"{{ Facts.time }}\", subscribe: [\"file#/x\"]}\n",
            "    - package:\n        - \"{{ lookup('data.package') }}\": {ensure: \"{{ Data.version }}\"}\n",
            "    - file:\n        - /x: {ensure: absent, control: {if: \"Facts.os == 'linux'\"}}\n",
            "    - exec:\n        - x: {policy: {retry: \"{{ Data.retries }}\", semaphore: [\"db:{{ Data.count }}\"]}}\n        - y: {policy: {semaphore: [db, net:2]}}\n",
        ] {
            assert_eq!(said(resources), "", "{resources}");
        }
        let jet =
            ManifestText { text: "ccm: {resources_jet_file: all.jet}\n".into(), name: "m".into(), directory: None, digest: None };
        assert!(precheck(&jet, &Types::default(), &host(FakeRunner::exiting(&[]))).is_ok());
    }
}
