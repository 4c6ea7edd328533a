//! The effects of resources, as rules and limits need them. The inputs are signed properties with templates, and the common
//! properties.

use serde_json::{Map, Value};

use crate::goss;
use crate::model::effects::EffectKind;
use crate::model::{Effect, Effects};
use crate::resource::{Common, Types};
use crate::template::is_template;

/// Returns the effects of a resource of this type as its author wrote it. A part that depends on a template is unknown.
/// Every verifier of an `ensure` uses this function.
pub fn of_signed(types: &Types, kind: &str, properties: &Map<String, Value>) -> Effects {
    let Some(kind) = types.find(kind) else { return Effects::unknown(format!("there is no type {kind}")) };
    let is_common = |key: &str| Common::KEYS.contains(&key);
    let (common, own): (Map<_, _>, Map<_, _>) =
        properties.iter().map(|(key, value)| (key.clone(), value.clone())).partition(|(key, _)| is_common(key));
    let mut effects = kind.effects(&own);
    // A policy has no effects, and its templates must not hide those of the health checks.
    match Common::read(common.into_iter().filter(|(key, _)| key != "policy").collect()) {
        Ok(common) => effects.extend(of_common(&common)),
        // Unreadable health checks may run any program.
        Err(wrong) => effects.push(Effect::unknown(Some(EffectKind::Run), wrong.path().to_string())),
    }
    effects.unresolved(is_template)
}

/// Returns the effects of the common properties: health checks and registrations.
pub fn of_common(common: &Common) -> Effects {
    let checks = common.health_checks.iter().flat_map(|check| {
        let command = (!check.command.is_empty()).then(|| Effect::run_always(&check.command));
        let rules = check.goss_rules.as_ref().map(goss::effects).unwrap_or_default();
        command.into_iter().chain(rules)
    });
    let registrations =
        common.register_when_stable.iter().map(|entry| Effect::Publish(format!("{}/{}", entry.cluster, entry.service)));
    checks.chain(registrations).collect()
}

#[cfg(test)]
mod tests;
