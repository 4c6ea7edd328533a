//! `apply`: a manifest within a manifest, for composing large manifests of small ones.
//!
//! The engine runs the other manifest in the place of this resource, in the same session: see `engine/nested.rs`. This file has
//! the properties.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::host::Host;
use crate::model::effects::NESTED_GRANT;
use crate::model::{Effect, Effects};

use crate::resource::core::text;
use crate::resource::{Change, Invalid, Nested, ProviderEntry, Resource, ResourceError, State};

/// Manifests within manifests.
pub struct ApplyType;

/// Properties of an apply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Properties {
    /// The file of the other manifest, relative to the directory of this one.
    #[serde(deserialize_with = "text::text")]
    pub name: String,
    /// Always `present`, for uniformity with other types.
    #[serde(default)]
    pub ensure: ApplyEnsure,
    /// Dry-run the other manifest. A dry run of this manifest always includes the other one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub noop: bool,
    /// Run only the health checks of the other manifest.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub health_check_only: bool,
    /// Allow `apply` resources in the other manifest.
    #[serde(default = "default_true", skip_serializing_if = "Clone::clone")]
    pub allow_apply: bool,
    /// Data merged over that of the other manifest. When left out, all data of this manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Map<String, Value>>,
}

/// The only state of an apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ApplyEnsure {
    /// Applied.
    #[default]
    Present,
}

fn default_true() -> bool {
    true
}

/// The state of the other manifest; the engine counts its resources.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NestedManifestState {}

impl State for NestedManifestState {
    fn ensure(&self) -> &str {
        "present"
    }
}

/// An apply has no steps of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApplyChange {}

impl fmt::Display for ApplyChange {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

impl Change for ApplyChange {}

impl Resource for ApplyType {
    const TYPE: &'static str = NESTED_GRANT;
    const CHANGES_SYSTEM: bool = false;
    const ABOUT: &'static str = "Manifests within manifests.";
    const NO_EFFECTS: &'static [(&'static str, &'static str)] = &[
        ("ensure", "always present"),
        ("noop", "only narrows"),
        ("health_check_only", "only narrows"),
        ("allow_apply", "resources of the other manifest are asked about on their own"),
        ("data", "what the other manifest sees"),
    ];
    const CONTENT: &'static [&'static str] = &["data"];
    const NESTS: bool = true;
    const PROVIDERS: &'static [ProviderEntry<()>] = &[ProviderEntry::only("ccmmanifest")];

    type Properties = Properties;
    type State = NestedManifestState;
    type Change = ApplyChange;
    type Provider = ();

    fn validate(p: &Properties) -> Result<(), Invalid> {
        if p.name.trim().is_empty() {
            return Err(Invalid::new("name", "name is required"));
        }
        if p.name.contains("://") {
            return Err(Invalid::new("name", format!("name must be a file path, not a URL: \"{}\"", p.name)));
        }
        Ok(())
    }

    fn name(p: &Properties) -> &str {
        &p.name
    }

    fn ensure(_: &Properties) -> &str {
        "present"
    }

    fn effects(p: &Properties) -> Effects {
        let files = [Effect::read(&p.name), Effect::Nested(p.name.clone())];
        files.into_iter().collect()
    }

    fn observe(_: &Properties, (): &(), _: &Host) -> Result<NestedManifestState, ResourceError> {
        Ok(NestedManifestState {})
    }

    fn diff(_: &Properties, _: &NestedManifestState) -> Result<Vec<ApplyChange>, ResourceError> {
        Ok(Vec::new())
    }

    fn apply(change: &ApplyChange, _: &Properties, _: &mut NestedManifestState, (): &(), _: &Host) -> Result<(), ResourceError> {
        match *change {}
    }

    fn nested(p: &Properties) -> Option<Nested> {
        Some(Nested {
            file: p.name.clone(),
            data: p.data.clone().map(Value::Object),
            noop: p.noop,
            health_check_only: p.health_check_only,
            allow_apply: p.allow_apply,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_files() {
        let named = |name: &str| serde_json::from_value::<Properties>(serde_json::json!({ "name": name })).unwrap();
        for (name, wrong) in [("sub/m.yaml", None), ("", Some("name is required")), ("https://x/m.yaml", Some("not a URL"))] {
            let result = ApplyType::validate(&named(name)).map_err(|invalid| invalid.message);
            assert_eq!(
                result.as_ref().err().map(|text| wrong.is_some_and(|wrong| text.contains(wrong))),
                wrong.map(|_| true),
                "{name}"
            );
        }
        assert!(serde_json::from_str::<Properties>(r#"{"name":"x","ensure":"absent"}"#).is_err());
        assert!(named("x").allow_apply);
    }
}

#[cfg(test)]
mod fixture {
    use crate::resource::properties_test::prelude::*;

    use super::ApplyType;

    /// The engine runs the manifest of an `apply`; the type itself takes no step.
    impl TypeFixture for ApplyType {
        const CHANGES: bool = false;

        fn host(_: &Path) -> Host {
            Host::system(None)
        }

        fn wanted(_: &Path) -> BoxedStrategy<Self::Properties> {
            let data = prop::option::of(prop::sample::select(vec![json!({}), json!({"a": [1, "x"]})]));
            (prop::sample::select(vec!["m.yaml", "sub/m.yaml"]), any::<bool>(), any::<bool>(), data)
                .prop_map(|(name, noop, allow, data)| {
                    serde_json::from_value(json!({"name": name, "noop": noop, "allow_apply": allow, "data": data})).unwrap()
                })
                .boxed()
        }

        fn before(_: &Path) -> BoxedStrategy<Vec<Preexisting>> {
            Just(Vec::new()).boxed()
        }

        fn samples() -> (Value, Value) {
            (
                json!({"name": "a.yaml", "ensure": "present", "noop": false, "health_check_only": false, "allow_apply": true, "data": {"a": 1}}),
                json!({"name": "b.yaml", "ensure": "present", "noop": true, "health_check_only": true, "allow_apply": false, "data": {"a": 2}}),
            )
        }
    }

    #[test]
    fn keeps_the_laws() {
        check_type::<ApplyType>();
    }
}
