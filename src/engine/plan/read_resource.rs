//! Reads a declared resource: resolves its templates, and checks its properties and common properties.

use std::sync::{Arc, LazyLock};

use serde_json::Map;
use serde_json::Value;

use super::place::{decode_error, narrow_place};
use super::planned::PlannedResource;
use super::properties::{as_written, holds_template, resolve, resolve_checks, unknown_property};
use super::{received_outputs, runtime_texts};
use crate::diag::{Diagnostic, did_you_mean};
use crate::engine::provenance::Provenance;
use crate::goss;
use crate::manifest::Declaration;
use crate::model::OnRemoval;
use crate::resource::{self, Common, OpenProperties, ParsedResource, Policy, ResourceType, Types};
use crate::template::Scope;
use crate::wire::value_decode;
use crate::yaml::{KeyOrIndex, YamlDocument};

pub(super) fn read_resource(
    mut declaration: Declaration,
    mut shaped: Provenance,
    document: &YamlDocument,
    scope: &Scope,
    types: &Types,
) -> Result<PlannedResource, Diagnostic> {
    let Some(found) = types.find(&declaration.kind) else {
        let message = format!("unknown resource type {}", declaration.kind);
        return Err(declaration.diagnose(document, None, message).hint(types.hint(&declaration.kind)));
    };
    let kind: &dyn ResourceType = &*found;
    let mut own = declaration.take_properties();
    as_written(&mut own, kind, document, &declaration);
    let received = received_outputs::find(&own, kind, &declaration, document, scope)?;
    let mut deferred = false;
    for (key, value) in &mut own {
        if Common::LITERAL.contains(&key.as_str()) || !holds_template(value) {
            continue;
        }
        if kind.runtime_templates().contains(&key.as_str()) || received.iter().any(|received| received.property == *key) {
            deferred = true;
            continue;
        }
        let before = scope.mark();
        let resolved = match key.as_str() {
            "health_checks" => resolve_checks(scope, kind, value),
            "policy" => scope.resolve_tree(value),
            _ => resolve(scope, kind, key, value),
        };
        *value = resolved.map_err(|error| runtime_texts::unresolved(&declaration, document, key, &error, scope))?;
        let noted = shaped.record(kind, key, value, scope.since(before), scope);
        noted.map_err(|unfit| declaration.diagnose(document, Some(key), unfit.to_string()).hint(unfit.hint()))?;
    }
    let common = take_common(&mut own).map_err(|error| shaped.withhold(invalid_common(&declaration, document, &error)))?;
    let wrong = |invalid: resource::Invalid| shaped.withhold(decode_error(&declaration, document, invalid.into()));
    common.validate_checks().map_err(wrong)?;
    check_rules(&common, &declaration, document).map_err(|wrong| shaped.withhold(wrong))?;
    check_policy(&common.policy, kind, &declaration, document).map_err(|wrong| shaped.withhold(wrong))?;
    let requires = common.requirements().map_err(wrong)?;
    let subscribes = common.subscriptions(kind.ccm_subscribe_syntax()).map_err(wrong)?;
    if !subscribes.is_empty() && !kind.refreshes() {
        let message = format!("{} resources do not act on subscribe", kind.name());
        return Err(declaration
            .diagnose(document, Some("subscribe"), message)
            .hint("use require to order them; exec acts on subscribe"));
    }
    check_reversal(kind, &common, &declaration, document)?;
    let decoded = match kind.decode(&own, &scope.with_data_uses(shaped.used)) {
        // The run knows the value, and reads all properties again.
        Err(error) if !kind.nests() && received.iter().any(|received| error.property.as_ref() == Some(&received.property)) => {
            match unknown_property(kind, &own, scope) {
                Some(error) => Err(error),
                None => Ok(Arc::new(OpenProperties::new(found.clone(), own.clone())) as Arc<dyn ParsedResource>),
            }
        }
        decoded => decoded,
    };
    let decoded = decoded.map_err(|error| shaped.withhold(decode_error(&declaration, document, error)))?;
    if !deferred {
        decoded.report_secrets(&mut |hidden| scope.secrets().add_hidden(hidden));
    }
    Ok(PlannedResource {
        kind: found,
        common,
        requires,
        subscribes,
        decoded,
        deferred: deferred.then_some(own),
        received,
        provenance: shaped,
        declaration,
    })
}

/// Checks that the type supports the action for a removed resource.
fn check_reversal(
    kind: &dyn resource::ResourceType,
    common: &Common,
    declaration: &Declaration,
    document: &YamlDocument,
) -> Result<(), Diagnostic> {
    let wanted = common.on_removal;
    if wanted == OnRemoval::Keep || kind.reversals().contains(&wanted) {
        return Ok(());
    }
    let message = format!("{} resources do not support on_removal: {}", kind.name(), wanted.as_str());
    let supported: Vec<&str> = kind.reversals().iter().chain([&OnRemoval::Keep]).map(|value| value.as_str()).collect();
    let hint = format!("supported: {}", supported.join(", "));
    Err(declaration.diagnose(document, Some("on_removal"), message).hint(hint))
}

/// Checks that the rules of health checks can be read, as far as they are not templates.
fn check_rules(common: &Common, declaration: &Declaration, document: &YamlDocument) -> Result<(), Diagnostic> {
    for rules in common.health_checks.iter().filter_map(|check| check.goss_rules.as_ref()) {
        if let Err(wrong) = goss::GossRules::read(rules) {
            let diagnostic = declaration.diagnose(document, Some("health_checks"), format!("health_checks: goss_rules: {wrong}"));
            let mut diagnostic = narrow_place(document, diagnostic, wrong.key.as_deref().unwrap_or_default(), 0);
            diagnostic.hint = wrong.hint;
            return Err(diagnostic);
        }
    }
    Ok(())
}

/// Checks the values of a policy.
pub(super) fn check_policy(
    policy: &Policy,
    kind: &dyn ResourceType,
    declaration: &Declaration,
    document: &YamlDocument,
) -> Result<(), Diagnostic> {
    let checked = policy.validate().and_then(|()| if kind.nests() { policy.validate_nested() } else { Ok(()) });
    checked.map_err(|wrong| {
        let steps = [Some("policy".into()), wrong.key.map(KeyOrIndex::from), wrong.index.map(KeyOrIndex::Index)];
        let steps: Vec<KeyOrIndex> = steps.into_iter().flatten().collect();
        declaration.diagnose_at(document, &steps, wrong.to_string()).hint(wrong.hint)
    })
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
pub(super) fn invalid_common(declaration: &Declaration, document: &YamlDocument, error: &value_decode::Mismatch) -> Diagnostic {
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
