//! The properties of a resource with templates that only the run can resolve, where the type can't read them before.

use std::any::Any;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::dyn_type::{BindError, BoundResource, ObservedResource, ParsedResource, Providers};
use super::type_ref::TypeRef;
use crate::host::Host;
use crate::model::{Effects, Identity, Need, OnRemoval, RedactedProperty, WatchTarget};
use crate::resource::{Nested, ResourceError};
use crate::template::is_template;

/// Properties that stay open until the resource runs. Name and `ensure` are as written.
pub struct OpenProperties {
    kind: TypeRef,
    properties: Map<String, Value>,
}

impl OpenProperties {
    /// Creates open properties of a type.
    pub fn new(kind: TypeRef, properties: Map<String, Value>) -> Self {
        Self { kind, properties }
    }

    fn text(&self, key: &str) -> &str {
        self.properties.get(key).and_then(Value::as_str).unwrap_or_default()
    }
}

impl ParsedResource for OpenProperties {
    fn name(&self) -> &str {
        self.text("name")
    }

    fn ensure(&self) -> &str {
        self.text("ensure")
    }

    /// Returns name, `ensure` and the templates. Any other value may be a secret.
    fn redacted(&self) -> Value {
        let is_shown = |key: &str, value: &Value| matches!(key, "name" | "ensure") || value.as_str().is_some_and(is_template);
        let shown = self.properties.iter().filter(|(key, value)| is_shown(key, value));
        shown.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    fn report_secrets(&self, _: &mut dyn FnMut(RedactedProperty<'_>)) {}

    fn matches(&self, so: &dyn Fn(&Value) -> bool) -> bool {
        so(&Value::Object(self.properties.clone()))
    }

    fn command_lines(&self, _: &str) -> Vec<(&'static str, &str)> {
        Vec::new()
    }

    fn effects(&self) -> Effects {
        self.kind.effects(&self.properties)
    }

    /// Returns nothing: the run of the resource finds the targets.
    fn watches(&self, _: &Host) -> Vec<WatchTarget> {
        Vec::new()
    }

    fn provides(&self) -> Vec<Identity> {
        Vec::new()
    }

    fn removes(&self) -> Vec<Identity> {
        Vec::new()
    }

    fn needs(&self) -> Vec<Need> {
        Vec::new()
    }

    fn nested(&self) -> Option<Nested> {
        None
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn bind(self: Arc<Self>, wanted: &str, providers: &Providers, host: &Host) -> Result<Arc<dyn BoundResource>, BindError> {
        let provider = self.kind.choose_provider(wanted, providers, host)?;
        Ok(Arc::new(BoundOpenProperties { provider }))
    }
}

/// Open properties with their provider: nothing can be observed before the templates are resolved.
struct BoundOpenProperties {
    provider: &'static str,
}

fn unresolved<T>() -> Result<T, ResourceError> {
    Err(ResourceError::State("the templates of the resource are not resolved".to_owned()))
}

impl BoundResource for BoundOpenProperties {
    fn provider(&self) -> &'static str {
        self.provider
    }

    fn converges(&self) -> bool {
        true
    }

    fn refresh_cache(&self, _: &Host) -> Result<(), ResourceError> {
        unresolved()
    }

    fn observe(&self, _: &Host) -> Result<(String, Map<String, Value>), ResourceError> {
        unresolved()
    }

    fn check(&self, _: &Host, _: bool) -> Result<Box<dyn ObservedResource + '_>, ResourceError> {
        unresolved()
    }

    fn reversing(&self, _: &Host, _: OnRemoval) -> Result<Option<Map<String, Value>>, ResourceError> {
        unresolved()
    }

    fn comparable(&self, _: &Host, _: bool) -> Result<Value, ResourceError> {
        unresolved()
    }
}
