//! The properties that every resource has, whatever its type.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::model::{Registration, ResourceRef, Span};
use crate::template::Scope;

use super::Invalid;
use super::text;

/// Properties of every resource, beside those of its type.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
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
    /// Whether the resource is managed at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<Control>,
    /// Checks that run after the resource; one that is not OK fails it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub health_checks: Vec<HealthCheck>,
    /// Service registrations to publish once the resource is as wanted and its health checks are OK.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub register_when_stable: Vec<Registration>,
}

/// What templates of a type that renders files may use. No part of what the author writes: all are equal.
#[derive(Clone, Default)]
pub struct Surroundings(Option<Scope>);

impl Surroundings {
    /// These.
    pub fn of(scope: &Scope) -> Self {
        Self(Some(scope.clone()))
    }

    /// The scope; without facts and data when none was given.
    pub fn scope(&self) -> Scope {
        let nothing = || Value::Object(Map::new());
        self.0.clone().unwrap_or_else(|| Scope::new(Arc::new(nothing), nothing(), BTreeMap::new()))
    }
}

impl fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Surroundings")
    }
}

impl PartialEq for Surroundings {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// Expressions that decide whether a resource is managed: `if` and not `unless`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Control {
    /// Managed only when this holds.
    #[serde(default, rename = "if", deserialize_with = "text::optional", skip_serializing_if = "Option::is_none")]
    pub only_if: Option<String>,
    /// Not managed when this holds.
    #[serde(default, deserialize_with = "text::optional", skip_serializing_if = "Option::is_none")]
    pub unless: Option<String>,
}

/// A command in the convention of Nagios plugins: exit code 0 OK, 1 warning, 2 critical.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HealthCheck {
    /// The command, split into words as a shell would; no shell runs.
    #[serde(deserialize_with = "text::text")]
    pub command: String,
    /// What to call the check; by default the command line from its last `/` on.
    #[serde(default, deserialize_with = "text::optional", skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `nagios`, the only format of a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<HealthFormat>,
    /// How often to try until it is OK.
    #[serde(default = "once")]
    #[schemars(range(min = 1))]
    pub tries: u32,
    /// How long to wait between tries.
    #[serde(default = "a_second")]
    pub try_sleep: Span,
    /// How long one try may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
}

/// The formats of health checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HealthFormat {
    /// Exit codes of Nagios plugins.
    Nagios,
}

fn once() -> u32 {
    1
}

fn a_second() -> Span {
    Span::seconds(1)
}

impl HealthCheck {
    /// What to call it.
    pub fn label(&self) -> &str {
        let command = self.command.trim();
        self.name.as_deref().unwrap_or_else(|| command.rsplit('/').next().unwrap_or(command))
    }
}

impl Common {
    /// The keys of these properties.
    pub const KEYS: &'static [&'static str] =
        &["alias", "provider", "require", "subscribe", "control", "health_checks", "register_when_stable"];

    /// Those of the keys whose text is no template: references and expressions.
    pub const LITERAL: &'static [&'static str] = &["require", "control"];

    /// What is required, as references.
    ///
    /// # Errors
    /// When one is not of the form `type#name`.
    pub fn requires(&self) -> Result<Vec<ResourceRef>, Invalid> {
        references("require", &self.require, |text| {
            format!("invalid require properties: \"{text}\" is not of the form type#name")
        })
    }

    /// What is subscribed to, as references.
    ///
    /// # Errors
    /// When one is not of the form `type#name`.
    pub fn subscribes(&self) -> Result<Vec<ResourceRef>, Invalid> {
        references("subscribe", &self.subscribe, |text| format!("invalid subscribe format \"{text}\": expected type#name"))
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
            assert_eq!((check.tries, check.try_sleep), (1, Span::seconds(1)));
        }
    }
}
