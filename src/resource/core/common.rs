//! The properties that every resource has, whatever its type.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::model::{HumanDuration, OnRemoval, Registration, ResourceRef};
use crate::template::Scope;
use crate::wire::value_decode;

use super::policy::Policy;
use super::text;
use crate::resource::Invalid;

/// Properties of every resource, beside those of its type.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Common {
    /// A second name, usable in `require` and `subscribe`, and shown instead of the first.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub alias: String,
    /// The provider to use, instead of the best one for this host.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub provider: String,
    /// Resources, as `type#name`, that must not have failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub require: Vec<String>,
    /// Resources, as `type#name`, on whose change this one acts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subscribe: Vec<String>,
    /// Conditions under which the resource is managed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<Control>,
    /// Checks that run after the resource. A check that is not OK fails the resource.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub health_checks: Vec<HealthCheck>,
    /// Service registrations to publish once the resource is as wanted and its health checks are OK.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub register_when_stable: Vec<Registration>,
    /// Retries, limits of time and of checks, and whether the resource is only observed.
    #[serde(default, skip_serializing_if = "Policy::is_default")]
    pub policy: Policy,
    /// Action for a resource that is no longer in the manifest: `keep`, `absent` or `revert`.
    #[serde(default, skip_serializing_if = "is_keep")]
    pub on_removal: OnRemoval,
}

fn is_keep(on_removal: &OnRemoval) -> bool {
    *on_removal == OnRemoval::Keep
}

/// The scope of templates in a type that renders files. The engine sets the scope, so all scopes are equal in comparisons.
#[derive(Clone, Default)]
pub struct TemplateScope(Option<Scope>);

impl TemplateScope {
    /// Creates a value with this scope.
    pub fn new(scope: &Scope) -> Self {
        Self(Some(scope.clone()))
    }

    /// The scope; without facts and data by default.
    pub fn scope(&self) -> Scope {
        let nothing = || Value::Object(Map::new());
        self.0.clone().unwrap_or_else(|| Scope::new(Arc::new(nothing), nothing(), BTreeMap::new()))
    }
}

impl fmt::Debug for TemplateScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Surroundings")
    }
}

impl PartialEq for TemplateScope {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// Expressions that decide whether a resource is managed: `if` and not `unless`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Control {
    /// Managed only when this expression is true.
    #[serde(default, rename = "if", deserialize_with = "text::filled", skip_serializing_if = "Option::is_none")]
    pub only_if: Option<String>,
    /// Not managed when this expression is true.
    #[serde(default, deserialize_with = "text::filled", skip_serializing_if = "Option::is_none")]
    pub unless: Option<String>,
}

/// A health check: a command or rules. A command uses the convention of Nagios plugins (exit code 0 OK, 1 warning, 2 critical).
/// Rules use the language of Goss.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("oneOf" = [{"required": ["command"]}, {"required": ["goss_rules"]}]))]
pub struct HealthCheck {
    /// The command, split into words as a shell would; no shell runs.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub command: String,
    /// Rules in the language of Goss, instead of a command. Templates in it are resolved when the check runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goss_rules: Option<Map<String, Value>>,
    /// Name of the check; by default the command line from its last `/` on, or `goss`.
    #[serde(default, deserialize_with = "text::optional", skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Format: `nagios` for a command, `goss` for rules; optional.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<HealthFormat>,
    /// Maximum number of tries until the check is OK.
    #[serde(default = "once")]
    #[schemars(schema_with = "tries")]
    pub tries: u32,
    /// Time between tries.
    #[serde(default = "a_second")]
    pub try_sleep: HumanDuration,
    /// Maximum duration of one try, of all rules together; unlimited when left out, or zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<HumanDuration>,
}

/// The formats of health checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HealthFormat {
    /// Exit codes of Nagios plugins.
    Nagios,
    /// Rules of Goss.
    Goss,
}

/// The schema of a count, or a template for a count.
fn tries(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": r"\{\{|\$\{"}]})
}

fn once() -> u32 {
    1
}

fn a_second() -> HumanDuration {
    HumanDuration::seconds(1)
}

impl HealthCheck {
    /// Returns the name of the check.
    pub fn label(&self) -> &str {
        let command = self.command.trim();
        let unnamed = || if self.goss_rules.is_some() { "goss" } else { command.rsplit('/').next().unwrap_or(command) };
        self.name.as_deref().unwrap_or_else(unnamed)
    }

    /// Checks that there is either a command or rules, in the right format.
    fn validate(&self) -> Result<(), Invalid> {
        let wrong = |message: &str| Err(Invalid::new("health_checks", message));
        match (self.command.trim().is_empty(), &self.goss_rules, self.format) {
            (false, Some(_), _) => wrong("'command' or 'goss_rules' are mutually exclusive"),
            (true, None, _) => wrong("'format' flag is required: a health check has a 'command' or 'goss_rules'"),
            (true, Some(_), Some(HealthFormat::Nagios)) => wrong("'format' must be 'goss' when using 'goss_rules'"),
            (false, None, Some(HealthFormat::Goss)) => wrong("'format' must be 'nagios' when using 'command'"),
            _ => Ok(()),
        }
    }
}

impl Common {
    /// The keys of these properties.
    pub const KEYS: &'static [&'static str] = &[
        "alias",
        "provider",
        "require",
        "subscribe",
        "control",
        "health_checks",
        "register_when_stable",
        "policy",
        "on_removal",
    ];

    /// The keys with texts that are no templates: references and expressions.
    pub const LITERAL: &'static [&'static str] = &["require", "control"];

    /// Reads these properties. A `null` counts as left out.
    ///
    /// # Errors
    /// The property with a wrong form.
    pub fn read(properties: Map<String, Value>) -> Result<Self, value_decode::Mismatch> {
        value_decode::read(&Value::Object(properties.into_iter().filter(|(_, value)| !value.is_null()).collect()))
    }

    /// Checks that the health checks can run.
    ///
    /// # Errors
    /// When a check has neither a command nor rules, or both, or a wrong format.
    pub fn validate_checks(&self) -> Result<(), Invalid> {
        self.health_checks.iter().try_for_each(HealthCheck::validate)
    }

    /// Returns the required references.
    ///
    /// # Errors
    /// When a reference is not of the form `type#name`.
    pub fn requirements(&self) -> Result<Vec<ResourceRef>, Invalid> {
        references("require", &self.require, |text| {
            format!("invalid require properties: \"{text}\" is not of the form type#name")
        })
    }

    /// Returns the subscribed references. In the syntax of CCM (`plain`), names have no `#`.
    ///
    /// # Errors
    /// When a reference is not of the form `type#name`.
    pub fn subscriptions(&self, plain: bool) -> Result<Vec<ResourceRef>, Invalid> {
        let message = |text: &str| format!("invalid subscribe format \"{text}\": expected type#name");
        if plain && let Some(text) = self.subscribe.iter().find(|text| text.matches('#').count() > 1) {
            let why = format!("{}, with one # (a resource whose name has another is subscribed to by its alias)", message(text));
            return Err(Invalid::new("subscribe", why));
        }
        references("subscribe", &self.subscribe, message)
    }
}

fn references(property: &'static str, texts: &[String], message: impl Fn(&str) -> String) -> Result<Vec<ResourceRef>, Invalid> {
    texts.iter().map(|text| text.parse().map_err(|_| Invalid::new(property, message(text)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_the_struct() {
        let schema = schemars::schema_for!(Common);
        let properties = schema.as_object().unwrap()["properties"].as_object().unwrap();
        let (mut of_struct, mut listed) = (properties.keys().map(String::as_str).collect::<Vec<_>>(), Common::KEYS.to_vec());
        of_struct.sort_unstable();
        listed.sort_unstable();
        assert_eq!(of_struct, listed);
    }

    #[test]
    fn nothing_written_is_the_default() {
        assert_eq!(serde_json::from_str::<Common>("{}").unwrap(), Common::default());
    }

    #[test]
    fn checks_are_named_after_their_command() {
        for (command, label) in [
            ("/usr/lib/nagios/plugins/check_disk", "check_disk"),
            ("/usr/bin/check_http -H localhost", "check_http -H localhost"),
            ("check", "check"),
        ] {
            let check: HealthCheck = serde_json::from_value(serde_json::json!({ "command": command })).unwrap();
            assert_eq!(check.label(), label);
            assert_eq!((check.tries, check.try_sleep), (1, HumanDuration::seconds(1)));
        }
    }

    #[test]
    fn a_check_is_a_command_or_rules() {
        for (check, wrong) in [
            (serde_json::json!({"command": "a"}), None),
            (serde_json::json!({"command": "a", "format": "nagios"}), None),
            (serde_json::json!({"goss_rules": {}, "format": "goss"}), None),
            (serde_json::json!({"command": "a", "goss_rules": {}}), Some("mutually exclusive")),
            (serde_json::json!({}), Some("'format' flag is required")),
            (serde_json::json!({"command": "a", "format": "goss"}), Some("must be 'nagios'")),
            (serde_json::json!({"goss_rules": {}, "format": "nagios"}), Some("must be 'goss'")),
        ] {
            let check: HealthCheck = serde_json::from_value(check).unwrap();
            match (check.validate(), wrong) {
                (Ok(()), None) => {}
                (Err(found), Some(wrong)) => assert!(found.message.contains(wrong), "{found}"),
                (found, _) => panic!("{check:?}: {found:?}"),
            }
        }
    }
}
