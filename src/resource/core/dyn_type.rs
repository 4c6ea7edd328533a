//! Dynamic dispatch for resource types. Through these traits, `engine`, `cli` and the schemas work on the table without knowledge
//! of any type.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value};

use crate::host::Host;
use crate::model::{Effects, Identity, Need, OnRemoval, RedactedProperty, WatchTarget, lock};
use crate::template::Scope;

#[cfg(test)]
use crate::resource::properties_test::FixtureValues;
use crate::resource::{Invalid, Nested, Preview, ProviderEntry, ResourceError, ResourceOutput, ShellDefaults};

/// Properties that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DecodeError {
    /// The property at fault, if there is one: a property of the type, or an unknown property.
    pub property: Option<String>,
    /// The error.
    pub message: String,
    /// The remedy, if known.
    pub hint: Option<String>,
}

impl From<Invalid> for DecodeError {
    fn from(invalid: Invalid) -> Self {
        Self { property: invalid.property.map(str::to_owned), message: invalid.message, hint: None }
    }
}

/// No provider works on this host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// The requested provider does not exist.
    #[error("provider not found: {kind} has no provider \"{wanted}\", only {known}")]
    Unknown {
        /// The type.
        kind: String,
        /// The requested provider.
        wanted: String,
        /// The known providers.
        known: String,
    },
    /// The requested provider can't work on this host.
    #[error("provider is not manageable: {kind} provider \"{wanted}\" can't work on this host")]
    Unsuitable {
        /// The type.
        kind: String,
        /// The requested provider.
        wanted: String,
    },
    /// No provider of the type works on this host.
    #[error("no suitable provider found for {kind} on this host")]
    None {
        /// The type.
        kind: String,
    },
}

/// Open providers by type and name. Each is an `Arc` of the type's own provider trait.
type Opened = BTreeMap<(&'static str, &'static str), Box<dyn Any + Send + Sync>>;

/// The open providers of a run, shared by all its resources.
#[derive(Default)]
pub struct Providers(Mutex<Opened>);

impl Providers {
    pub(super) fn open<P: ?Sized + Send + Sync + 'static>(
        &self,
        kind: &'static str,
        entry: &ProviderEntry<P>,
        host: &Host,
    ) -> Arc<P> {
        let mut opened = lock(&self.0);
        if let Some(known) = opened.get(&(kind, entry.name)).and_then(|any| any.downcast_ref::<Arc<P>>()) {
            return Arc::clone(known);
        }
        let provider: Arc<P> = Arc::from((entry.open)(host));
        opened.insert((kind, entry.name), Box::new(Arc::clone(&provider)));
        provider
    }
}

/// A resource type, as all code outside of the type's module sees the type.
pub trait ResourceType: Send + Sync {
    /// Returns the values of the type's fixture.
    #[cfg(test)]
    fn fixture(&self) -> FixtureValues;
    /// The name of the type.
    fn name(&self) -> &str;
    /// Returns a one-sentence description.
    fn about(&self) -> &str;
    /// The schema of the properties.
    fn schema(&self, generator: &mut SchemaGenerator) -> Schema;
    /// See `Resource::RUNTIME_TEMPLATES`.
    fn runtime_templates(&self) -> &'static [&'static str];
    /// See `Resource::NO_EFFECTS`.
    fn no_effects(&self) -> &'static [(&'static str, &'static str)];
    /// Returns true for a property that is only content. See `Resource::CONTENT`.
    fn is_content(&self, property: &str) -> bool;
    /// Returns the properties that are not text; none where the schema of a type in the table tells them.
    fn typed_properties(&self) -> Option<&[String]> {
        None
    }
    /// See `Resource::TEMPLATED_KEYS`.
    fn templated_keys(&self) -> &'static [&'static str];
    /// See `Resource::REFRESHES`.
    fn refreshes(&self) -> bool;
    /// See `Resource::REVERSALS`.
    fn reversals(&self) -> &'static [OnRemoval];
    /// See `Resource::CCM_SUBSCRIBE_SYNTAX`.
    fn ccm_subscribe_syntax(&self) -> bool;
    /// See `Resource::NOOP_PER_STEP`.
    fn noop_per_step(&self) -> bool;
    /// See `Resource::CLAIMED_PATHS`.
    fn claimed_paths(&self) -> &'static [&'static str];
    /// See `Resource::NESTS`.
    fn nests(&self) -> bool;
    /// See `Resource::CHANGES_SYSTEM`.
    fn changes_system(&self) -> bool;
    /// See `Resource::shell_defaults`.
    fn shell_defaults(&self, ensure: Option<&str>) -> ShellDefaults;
    /// See `Resource::OUTPUTS`.
    fn outputs(&self) -> &[ResourceOutput];
    /// See `Resource::BATCHES`.
    fn batches(&self) -> bool;
    /// See `Resource::prefetch`. Skips resources without a provider; their runs fail later.
    fn prefetch(&self, all: &[(&dyn ParsedResource, &str)], providers: &Providers, host: &Host);
    /// Observes several resources of this type and applies their steps together. Returns the steps or the error of each.
    fn apply_all(&self, batch: &[Arc<dyn ParsedResource>], wanted: &str, providers: &Providers, host: &Host) -> Vec<BatchResult>;
    /// The names of the providers, best first.
    fn providers(&self) -> Vec<&'static str>;
    /// Returns the name of the requested provider, or of the best one for this host.
    ///
    /// # Errors
    /// When no provider works.
    fn choose_provider(&self, wanted: &str, providers: &Providers, host: &Host) -> Result<&'static str, BindError>;
    /// Returns a resource that shows the state of this name, if the type supports this.
    ///
    /// # Errors
    /// When the name is not valid.
    fn query(&self, name: &str) -> Option<Result<Arc<dyn ParsedResource>, DecodeError>>;
    /// The effects of unresolved properties, which may contain templates. See `Resource::effects`.
    fn effects(&self, properties: &Map<String, Value>) -> Effects;
    /// Reads and validates properties. `scope` is the scope for templates of the type.
    ///
    /// # Errors
    /// The property at fault.
    fn decode(&self, properties: &Map<String, Value>, scope: &Scope) -> Result<Arc<dyn ParsedResource>, DecodeError>;
}

/// The place of a resource in a confined run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunPlace {
    /// Within the confinement, unless the effects need more.
    ByEffects,
    /// Always within the confinement.
    Confined,
    /// Always outside of the confinement.
    Unconfined,
}

/// Parsed and valid properties.
pub trait ParsedResource: Send + Sync {
    /// The name of the resource.
    fn name(&self) -> &str;
    /// The requested `ensure`.
    fn ensure(&self) -> &str;
    /// The properties as in events.
    fn redacted(&self) -> Value;
    /// See `Resource::report_secrets`.
    fn report_secrets(&self, note: &mut dyn FnMut(RedactedProperty<'_>));
    /// Applies a predicate to the parsed properties.
    fn matches(&self, so: &dyn Fn(&Value) -> bool) -> bool;
    /// See `Resource::command_lines`.
    fn command_lines(&self, provider: &str) -> Vec<(&'static str, &str)>;
    /// See `Resource::effects`.
    fn effects(&self) -> Effects;
    /// See `Resource::watches`.
    fn watches(&self, host: &Host) -> Vec<WatchTarget>;
    /// See `Resource::provides`.
    fn provides(&self) -> Vec<Identity>;
    /// See `Resource::removes`.
    fn removes(&self) -> Vec<Identity>;
    /// See `Resource::needs`.
    fn needs(&self) -> Vec<Need>;
    /// See `Resource::nested`.
    fn nested(&self) -> Option<Nested>;
    /// The place of the resource in a confined run.
    fn run_place(&self) -> RunPlace {
        RunPlace::ByEffects
    }
    /// The properties themselves, for their own type.
    fn as_any(&self) -> &dyn Any;
    /// Chooses the provider.
    ///
    /// # Errors
    /// When no provider works.
    fn bind(self: Arc<Self>, wanted: &str, providers: &Providers, host: &Host) -> Result<Arc<dyn BoundResource>, BindError>;
}

/// Properties with their provider.
pub trait BoundResource: Send + Sync {
    /// The name of the provider.
    fn provider(&self) -> &'static str;
    /// See `Resource::CONVERGES`.
    fn converges(&self) -> bool;
    /// See `Resource::refresh_cache`.
    ///
    /// # Errors
    /// When the refresh fails.
    fn refresh_cache(&self, host: &Host) -> Result<(), ResourceError>;
    /// Observes the resource without a comparison.
    ///
    /// # Errors
    /// When the host can't be observed.
    fn observe(&self, host: &Host) -> Result<(String, Map<String, Value>), ResourceError>;
    /// Observes the resource, and returns the properties that reverse it. None for an object that stays.
    ///
    /// # Errors
    /// When the host can't be observed, or no properties describe the state.
    fn reversing(&self, host: &Host, on_removal: OnRemoval) -> Result<Option<Map<String, Value>>, ResourceError>;
    /// Observes the resource, and returns its state for a comparison. See `Resource::comparable`.
    ///
    /// # Errors
    /// When the host can't be observed.
    fn comparable(&self, host: &Host, removes: bool) -> Result<Value, ResourceError>;
    /// Observes and compares. With `refresh`, the steps are those of a refresh, if the type has any.
    ///
    /// # Errors
    /// When the host can't be observed, or no step leads to the desired state.
    fn check(&self, host: &Host, refresh: bool) -> Result<Box<dyn ObservedResource + '_>, ResourceError>;
}

/// The applied steps of a resource in a batch, or the error.
pub type BatchResult = Result<Vec<ChangeStep>, String>;

/// A description of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeStep {
    /// The step, as a past participle.
    pub description: String,
    /// The differences.
    pub details: Vec<String>,
}

/// An observed resource with its pending steps.
pub trait ObservedResource {
    /// The observed `ensure`.
    fn ensure(&self) -> String;
    /// The state, as in the `status` of an event.
    fn status(&self) -> Map<String, Value>;
    /// The outputs that have a value. See `Resource::outputs`.
    fn outputs(&self) -> Map<String, Value>;
    /// The pending steps; none for a converged resource.
    fn steps(&self) -> Vec<ChangeStep>;
    /// True when the status contains program output. See `State::output`.
    fn has_output(&self) -> bool;
    /// True for the steps of a refresh.
    fn is_refresh(&self) -> bool;
    /// The text before and after the steps.
    fn preview(&self, host: &Host) -> Option<Preview>;
    /// Applies all steps, in order.
    ///
    /// # Errors
    /// The first error; later steps are not applied.
    fn apply(&mut self, host: &Host) -> Result<(), ResourceError>;
}
