//! An external type, as the engine sees every type.

use std::path::Path;
use std::sync::Arc;

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::definition::Definition;
use super::description::Description;
use super::property::{PropertyDescription, PropertyType};
use super::resource::{PROVIDER, ParsedValues, check_provider};
use super::values::{ABSENT, Values, defaults};
use crate::host::Host;
use crate::model::{Effects, OnRemoval};
#[cfg(test)]
use crate::resource::properties_test::FixtureValues;
use crate::resource::{
    BatchResult, BindError, DecodeError, ParsedResource, Providers, ResourceOutput, ResourceType, ShellDefaults,
};
use crate::template::Scope;

/// An external type. Clones share its definition.
#[derive(Clone)]
pub struct ExternalType(Arc<Definition>);

impl ExternalType {
    pub(super) fn new(definition: Definition) -> Self {
        Self(Arc::new(definition))
    }

    /// Returns the path of the program.
    pub(super) fn program(&self) -> &Path {
        &self.0.program.path
    }

    fn description(&self) -> &Description {
        &self.0.description
    }
}

impl ResourceType for ExternalType {
    #[cfg(test)]
    fn fixture(&self) -> FixtureValues {
        FixtureValues::none()
    }

    fn name(&self) -> &str {
        &self.0.name
    }

    fn about(&self) -> &str {
        &self.description().about
    }

    fn schema(&self, _: &mut SchemaGenerator) -> Schema {
        let description = self.description();
        let mut properties = Map::new();
        properties.insert("name".to_owned(), json!({"type": "string", "description": "Name of the resource."}));
        let ensure =
            json!({"enum": description.ensure, "default": description.default_ensure(), "description": "The wanted state."});
        properties.insert("ensure".to_owned(), ensure);
        properties.extend(description.properties.iter().map(|(key, property)| (key.clone(), property_schema(property))));
        let required = description.properties.iter().filter(|(_, property)| property.required).map(|(key, _)| key.as_str());
        let required: Vec<&str> = std::iter::once("name").chain(required).collect();
        json_schema!({"type": "object", "additionalProperties": false, "properties": properties, "required": required})
    }

    fn runtime_templates(&self) -> &'static [&'static str] {
        &[]
    }

    fn no_effects(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    fn is_content(&self, property: &str) -> bool {
        self.description().properties.get(property).is_some_and(|property| property.content)
    }

    fn typed_properties(&self) -> Option<&[String]> {
        Some(&self.0.typed)
    }

    fn templated_keys(&self) -> &'static [&'static str] {
        &[]
    }

    fn refreshes(&self) -> bool {
        self.description().refreshes
    }

    fn reversals(&self) -> &'static [OnRemoval] {
        if self.description().ensure.iter().any(|state| state == ABSENT) { &[OnRemoval::Absent] } else { &[] }
    }

    fn ccm_subscribe_syntax(&self) -> bool {
        false
    }

    fn noop_per_step(&self) -> bool {
        false
    }

    fn claimed_paths(&self) -> &'static [&'static str] {
        &[]
    }

    fn nests(&self) -> bool {
        false
    }

    fn changes_system(&self) -> bool {
        self.description().changes_system()
    }

    fn shell_defaults(&self, _: Option<&str>) -> ShellDefaults {
        ShellDefaults::default()
    }

    fn outputs(&self) -> &[ResourceOutput] {
        &self.0.outputs
    }

    fn batches(&self) -> bool {
        false
    }

    fn prefetch(&self, _: &[(&dyn ParsedResource, &str)], _: &Providers, _: &Host) {}

    fn apply_all(&self, batch: &[Arc<dyn ParsedResource>], _: &str, _: &Providers, _: &Host) -> Vec<BatchResult> {
        batch.iter().map(|_| Err("external types are not applied together".to_owned())).collect()
    }

    fn providers(&self) -> Vec<&'static str> {
        vec![PROVIDER]
    }

    fn choose_provider(&self, wanted: &str, _: &Providers, _: &Host) -> Result<&'static str, BindError> {
        check_provider(self.name(), wanted)
    }

    fn query(&self, name: &str) -> Option<Result<Arc<dyn ParsedResource>, DecodeError>> {
        let values = Values {
            name: name.to_owned(),
            ensure: self.description().default_ensure().to_owned(),
            own: defaults(self.description()),
        };
        Some(Ok(Arc::new(ParsedValues { definition: Arc::clone(&self.0), values })))
    }

    fn effects(&self, properties: &Map<String, Value>) -> Effects {
        let mut values = defaults(self.description());
        values.insert("ensure".to_owned(), json!(self.description().default_ensure()));
        values.extend(properties.iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| (key.clone(), value.clone())));
        self.description().effects(&values)
    }

    fn decode(&self, properties: &Map<String, Value>, _: &Scope) -> Result<Arc<dyn ParsedResource>, DecodeError> {
        let values = Values::read(self.description(), properties)?;
        Ok(Arc::new(ParsedValues { definition: Arc::clone(&self.0), values }))
    }
}

fn property_schema(property: &PropertyDescription) -> Value {
    let mut schema = match property.kind {
        PropertyType::Text if property.words.is_empty() => json!({"type": "string"}),
        PropertyType::Text => json!({"type": "string", "enum": property.words}),
        PropertyType::Integer => json!({"type": "integer"}),
        PropertyType::Boolean => json!({"type": "boolean"}),
        PropertyType::List => json!({"type": "array", "items": {"type": "string"}}),
        PropertyType::Map => json!({"type": "object", "additionalProperties": true}),
    };
    if let Some(fields) = schema.as_object_mut() {
        fields.insert("description".to_owned(), json!(property.about));
        fields.extend(property.default.clone().map(|default| ("default".to_owned(), default)));
        fields.extend(property.secret.then(|| ("writeOnly".to_owned(), json!(true))));
    }
    schema
}
