//! Dynamic dispatch for resource types. Through these traits, `engine`, `cli` and the schemas work on the table without knowledge
//! of any type.

use std::any::Any;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};

use schemars::{Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::diag::{did_you_mean, error_chain};
use crate::host::Host;
use crate::model::{Effect, Effects, RedactedProperty, lock};
use crate::template::Scope;
use crate::wire::value_decode;

use crate::resource::{Change, Invalid, Nested, Pending, Preview, ProviderEntry, Resource, ResourceError, ShellDefaults, State};

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
        kind: &'static str,
        /// The requested provider.
        wanted: String,
        /// The known providers.
        known: String,
    },
    /// The requested provider can't work on this host.
    #[error("provider is not manageable: {kind} provider \"{wanted}\" can't work on this host")]
    Unsuitable {
        /// The type.
        kind: &'static str,
        /// The requested provider.
        wanted: String,
    },
    /// No provider of the type works on this host.
    #[error("no suitable provider found for {kind} on this host")]
    None {
        /// The type.
        kind: &'static str,
    },
}

/// Open providers by type and name. Each is an `Arc` of the type's own provider trait.
type Opened = BTreeMap<(&'static str, &'static str), Box<dyn Any + Send + Sync>>;

/// The open providers of a run, shared by all its resources.
#[derive(Default)]
pub struct Providers(Mutex<Opened>);

impl Providers {
    fn open<P: ?Sized + Send + Sync + 'static>(&self, kind: &'static str, entry: &ProviderEntry<P>, host: &Host) -> Arc<P> {
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
pub trait ResourceType: Sync {
    /// Returns the values of the type's fixture.
    #[cfg(test)]
    fn fixture(&self) -> FixtureValues;
    /// The name of the type.
    fn name(&self) -> &'static str;
    /// Returns a one-sentence description.
    fn about(&self) -> &'static str;
    /// The schema of the properties.
    fn schema(&self, generator: &mut SchemaGenerator) -> Schema;
    /// See [`Resource::RUNTIME_TEMPLATES`].
    fn runtime_templates(&self) -> &'static [&'static str];
    /// See [`Resource::NO_EFFECTS`].
    fn no_effects(&self) -> &'static [(&'static str, &'static str)];
    /// See [`Resource::CONTENT`].
    fn content(&self) -> &'static [&'static str];
    /// See [`Resource::TEMPLATED_KEYS`].
    fn templated_keys(&self) -> &'static [&'static str];
    /// See [`Resource::REFRESHES`].
    fn refreshes(&self) -> bool;
    /// See [`Resource::CCM_SUBSCRIBE_SYNTAX`].
    fn ccm_subscribe_syntax(&self) -> bool;
    /// See [`Resource::NOOP_PER_STEP`].
    fn noop_per_step(&self) -> bool;
    /// See [`Resource::CLAIMED_PATHS`].
    fn claimed_paths(&self) -> &'static [&'static str];
    /// See [`Resource::NESTS`].
    fn nests(&self) -> bool;
    /// See [`Resource::CHANGES_SYSTEM`].
    fn changes_system(&self) -> bool;
    /// See [`Resource::shell_defaults`].
    fn shell_defaults(&self, ensure: Option<&str>) -> ShellDefaults;
    /// See [`Resource::BATCHES`].
    fn batches(&self) -> bool;
    /// See [`Resource::prefetch`]. Skips resources without a provider; their runs fail later.
    fn prefetch(&self, all: &[(&dyn ParsedResource, &str)], providers: &Providers, host: &Host);
    /// Observes several resources of this type and applies their steps together. Returns the steps or the error of each.
    fn apply_all(&self, batch: &[Arc<dyn ParsedResource>], wanted: &str, providers: &Providers, host: &Host) -> Vec<BatchResult>;
    /// The names of the providers, best first.
    fn providers(&self) -> Vec<&'static str>;
    /// Returns a resource that shows the state of this name, if the type supports this.
    ///
    /// # Errors
    /// When the name is not valid.
    fn query(&self, name: &str) -> Option<Result<Arc<dyn ParsedResource>, DecodeError>>;
    /// The effects of unresolved properties, which may contain templates. See [`Resource::effects`].
    fn effects(&self, properties: &Map<String, Value>) -> Effects;
    /// Reads and validates properties. `scope` is the scope for templates of the type.
    ///
    /// # Errors
    /// The property at fault.
    fn decode(&self, properties: &Map<String, Value>, scope: &Scope) -> Result<Arc<dyn ParsedResource>, DecodeError>;
}

/// Parsed and valid properties.
pub trait ParsedResource: Send + Sync {
    /// The name of the resource.
    fn name(&self) -> &str;
    /// The requested `ensure`.
    fn ensure(&self) -> &str;
    /// The properties as in events.
    fn redacted(&self) -> Value;
    /// See [`Resource::report_secrets`].
    fn report_secrets(&self, note: &mut dyn FnMut(RedactedProperty<'_>));
    /// Applies a predicate to the parsed properties.
    fn matches(&self, so: &dyn Fn(&Value) -> bool) -> bool;
    /// See [`Resource::command_lines`].
    fn command_lines(&self, provider: &str) -> Vec<(&'static str, &str)>;
    /// See [`Resource::effects`].
    fn effects(&self) -> Effects;
    /// See [`Resource::nested`].
    fn nested(&self) -> Option<Nested>;
    /// The properties themselves, for their own type.
    fn as_any(&self) -> &dyn Any;
    /// Chooses the provider.
    ///
    /// # Errors
    /// When no provider works.
    fn bind(self: Arc<Self>, wanted: &str, providers: &Providers, host: &Host) -> Result<Box<dyn BoundResource>, BindError>;
}

/// Properties with their provider.
pub trait BoundResource: Send + Sync {
    /// The name of the provider.
    fn provider(&self) -> &'static str;
    /// See [`Resource::CONVERGES`].
    fn converges(&self) -> bool;
    /// See [`Resource::refresh_cache`].
    ///
    /// # Errors
    /// When the refresh fails.
    fn refresh_cache(&self, host: &Host) -> Result<(), ResourceError>;
    /// Observes the resource without a comparison.
    ///
    /// # Errors
    /// When the host can't be observed.
    fn observe(&self, host: &Host) -> Result<(String, Map<String, Value>), ResourceError>;
    /// Observes and compares. With `refresh`, the steps are those of a refresh, if the type has any.
    ///
    /// # Errors
    /// When the host can't be observed, or no step leads to the desired state.
    fn check(&self, host: &Host, refresh: bool) -> Result<Box<dyn ObservedResource + '_>, ResourceError>;
}

/// The applied steps of a resource in a batch, or the error.
pub type BatchResult = Result<Vec<ChangeStep>, String>;

fn steps(changes: &[impl Change]) -> Vec<ChangeStep> {
    changes.iter().map(|change| ChangeStep { description: change.to_string(), details: change.details() }).collect()
}

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
    /// The pending steps; none for a converged resource.
    fn steps(&self) -> Vec<ChangeStep>;
    /// True when the status contains program output. See [`State::output`].
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

/// A resource type that can be in the table. In unit tests this requires the fixture, so that every type of the table has one.
#[cfg(not(test))]
pub trait TableEntry: Resource {}
#[cfg(not(test))]
impl<R: Resource> TableEntry for R {}
#[cfg(test)]
use crate::resource::properties_test::{FixtureValues, TypeFixture as TableEntry};

/// The adapter from a [`Resource`] to the table.
pub struct TypeEntry<R>(PhantomData<fn() -> R>);

impl<R: Resource> TypeEntry<R> {
    /// The entry of the type.
    pub const NEW: Self = Self(PhantomData);
}

impl<R: TableEntry> ResourceType for TypeEntry<R> {
    #[cfg(test)]
    fn fixture(&self) -> FixtureValues {
        FixtureValues::new::<R>()
    }

    fn name(&self) -> &'static str {
        R::TYPE
    }

    fn about(&self) -> &'static str {
        R::ABOUT
    }

    fn schema(&self, generator: &mut SchemaGenerator) -> Schema {
        generator.root_schema_for::<R::Properties>()
    }

    fn runtime_templates(&self) -> &'static [&'static str] {
        R::RUNTIME_TEMPLATES
    }

    fn no_effects(&self) -> &'static [(&'static str, &'static str)] {
        R::NO_EFFECTS
    }

    fn content(&self) -> &'static [&'static str] {
        R::CONTENT
    }

    fn templated_keys(&self) -> &'static [&'static str] {
        R::TEMPLATED_KEYS
    }

    fn refreshes(&self) -> bool {
        R::REFRESHES
    }

    fn ccm_subscribe_syntax(&self) -> bool {
        R::CCM_SUBSCRIBE_SYNTAX
    }

    fn noop_per_step(&self) -> bool {
        R::NOOP_PER_STEP
    }

    fn claimed_paths(&self) -> &'static [&'static str] {
        R::CLAIMED_PATHS
    }

    fn nests(&self) -> bool {
        R::NESTS
    }

    fn changes_system(&self) -> bool {
        R::CHANGES_SYSTEM
    }

    fn shell_defaults(&self, ensure: Option<&str>) -> ShellDefaults {
        R::shell_defaults(ensure)
    }

    fn batches(&self) -> bool {
        R::BATCHES
    }

    fn prefetch(&self, all: &[(&dyn ParsedResource, &str)], providers: &Providers, host: &Host) {
        let mut wanted: Vec<&str> = all.iter().map(|(_, wanted)| *wanted).collect();
        wanted.sort_unstable();
        wanted.dedup();
        for wanted in wanted {
            let Ok((_, provider)) = choose_provider::<R>(wanted, providers, host) else { continue };
            let of = all.iter().filter(|(_, other)| *other == wanted);
            let typed: Vec<_> =
                of.filter_map(|(one, _)| one.as_any().downcast_ref::<TypedProperties<R>>()).map(|typed| &typed.0).collect();
            R::prefetch(&typed, &provider);
        }
    }

    fn apply_all(&self, batch: &[Arc<dyn ParsedResource>], wanted: &str, providers: &Providers, host: &Host) -> Vec<BatchResult> {
        let provider = match choose_provider::<R>(wanted, providers, host) {
            Ok((_, provider)) => provider,
            Err(error) => return batch.iter().map(|_| Err(error_chain(&error))).collect(),
        };
        let mut results: Vec<BatchResult> = Vec::with_capacity(batch.len());
        let mut together = Vec::new();
        for decoded in batch {
            results.push(match observe_pending::<R>(decoded.as_ref(), &provider, host) {
                Ok(one) => {
                    together.push((results.len(), one));
                    Ok(Vec::new())
                }
                Err(error) => Err(error_chain(&error)),
            });
        }
        let (places, mut waiting): (Vec<usize>, Vec<Pending<'_, R>>) = together.into_iter().unzip();
        let ended = R::apply_all(&mut waiting, &provider, host);
        for (place, (result, one)) in places.into_iter().zip(ended.into_iter().zip(waiting)) {
            if let Some(slot) = results.get_mut(place) {
                *slot = result.map(|()| steps(&one.changes)).map_err(|error| error_chain(&error));
            }
        }
        results
    }

    fn providers(&self) -> Vec<&'static str> {
        R::PROVIDERS.iter().map(|entry| entry.name).collect()
    }

    fn query(&self, name: &str) -> Option<Result<Arc<dyn ParsedResource>, DecodeError>> {
        let properties = R::query(name)?;
        Some(match R::validate(&properties) {
            Ok(()) => Ok(Arc::new(TypedProperties::<R>(properties))),
            Err(invalid) => Err(invalid.into()),
        })
    }

    fn effects(&self, properties: &Map<String, Value>) -> Effects {
        let mut given = properties.clone();
        let mut unknown = Effects::default();
        // Each iteration removes or adds one property.
        for _ in 0..=given.len() + PLACEHOLDERS.len() {
            let wrong = match decode_after_error::<R::Properties>(&given) {
                Ok(properties) => return R::effects(&properties).into_iter().chain(unknown).collect(),
                Err(wrong) => explain_mismatch(&wrong),
            };
            match wrong.property.filter(|key| given.shift_remove(key).is_some()) {
                Some(key) if R::NO_EFFECTS.iter().any(|(harmless, _)| *harmless == key) => {}
                Some(key) => unknown.push(Effect::unknown(None, format!("{key}: {}", wrong.message))),
                None => {
                    let missing = wrong.message.strip_suffix(" is required").filter(|key| !given.contains_key(*key));
                    let Some(key) = missing.map(str::to_owned) else { break };
                    let value = PLACEHOLDERS.iter().find(|value| {
                        let with = given.clone().into_iter().chain([(key.clone(), Value::from(**value))]).collect();
                        let wrong =
                            decode_after_error::<R::Properties>(&with).err().map(|wrong| explain_mismatch(&wrong).property);
                        wrong.flatten().as_deref() != Some(&key)
                    });
                    given.insert(key, Value::from(value.copied().unwrap_or_default()));
                }
            }
        }
        Effects::unknown("its properties can't be read")
    }

    fn decode(&self, properties: &Map<String, Value>, scope: &Scope) -> Result<Arc<dyn ParsedResource>, DecodeError> {
        if !properties.contains_key("name") {
            return Err(Invalid::new("name", "name is required").into());
        }
        let mut properties: R::Properties = match value_decode::read_map(properties) {
            Ok(properties) => properties,
            Err(_) => decode_after_error(properties).map_err(|wrong| explain_mismatch(&wrong))?,
        };
        R::validate(&properties)?;
        R::attach_scope(&mut properties, scope);
        Ok(Arc::new(TypedProperties::<R>(properties)))
    }
}

/// Placeholders for a missing required property, to find the effects of the others. The resource can't run with them.
const PLACEHOLDERS: &[&str] = &["present", "mounted", "running"];

/// Parses properties after an error. A `null` counts as left out.
fn decode_after_error<P: DeserializeOwned>(properties: &Map<String, Value>) -> Result<P, value_decode::Mismatch> {
    let given = properties.iter().filter(|(_, value)| !value.is_null());
    let given: Map<String, Value> = given.map(|(key, value)| (key.clone(), value.clone())).collect();
    value_decode::read_map(&given)
}

/// Converts a serde error: adds the property at fault and a suggestion.
fn explain_mismatch(error: &value_decode::Mismatch) -> DecodeError {
    let path = error.path().to_string();
    let message = error.inner().to_string();
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    if message.starts_with("unknown field") {
        let (given, known) = quoted.split_first().map_or(("", &[][..]), |(given, known)| (*given, known));
        let hint = did_you_mean(given, known.iter().chain(crate::resource::Common::KEYS).copied())
            .map(|near| format!("did you mean \"{near}\"?"))
            .or_else(|| Some(format!("known properties are {}", known.join(", "))));
        return DecodeError { property: Some(given.to_owned()), message: format!("unknown property \"{given}\""), hint };
    }
    if message.starts_with("missing field") {
        let field = quoted.first().copied().unwrap_or_default();
        return DecodeError { property: None, message: format!("{field} is required"), hint: None };
    }
    if message.starts_with("unknown variant") && path == "ensure" {
        let (given, known) = quoted.split_first().map_or(("", &[][..]), |(given, known)| (*given, known));
        let known: Vec<String> = known.iter().map(|known| format!("\"{known}\"")).collect();
        let message = format!("invalid ensure value: must be {}, not \"{given}\"", known.join(" or "));
        return DecodeError { property: Some(path), message, hint: None };
    }
    let property = (path != ".").then(|| path.split(['.', '[']).next().unwrap_or(&path).to_owned());
    let message = whole_number(&message);
    // Many messages contain their property already.
    let message = if path == "." || message.contains(&path) { message } else { format!("{path}: {message}") };
    DecodeError { property, message, hint: None }
}

/// Replaces Rust's names of number types in a message.
fn whole_number(message: &str) -> String {
    let rust = ["i32", "i64", "u8", "u16", "u32", "u64", "usize"];
    let found = rust.iter().find_map(|name| message.strip_suffix(&format!("expected {name}")));
    found.map_or_else(|| message.to_owned(), |head| format!("{head}expected a whole number"))
}

struct TypedProperties<R: Resource>(R::Properties);

impl<R: Resource> ParsedResource for TypedProperties<R> {
    fn name(&self) -> &str {
        R::name(&self.0)
    }

    fn ensure(&self) -> &str {
        R::ensure(&self.0)
    }

    fn redacted(&self) -> Value {
        R::redacted(&self.0)
    }

    fn report_secrets(&self, note: &mut dyn FnMut(RedactedProperty<'_>)) {
        R::report_secrets(&self.0, note);
    }

    fn matches(&self, so: &dyn Fn(&Value) -> bool) -> bool {
        serde_json::to_value(&self.0).is_ok_and(|properties| so(&properties))
    }

    fn command_lines(&self, provider: &str) -> Vec<(&'static str, &str)> {
        R::command_lines(&self.0, provider)
    }

    fn effects(&self) -> Effects {
        R::effects(&self.0)
    }

    fn nested(&self) -> Option<Nested> {
        R::nested(&self.0)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn bind(self: Arc<Self>, wanted: &str, providers: &Providers, host: &Host) -> Result<Box<dyn BoundResource>, BindError> {
        let (name, provider) = choose_provider::<R>(wanted, providers, host)?;
        Ok(Box::new(BoundTo::<R> { decoded: self, name, provider }))
    }
}

/// Observes a resource of this type, and finds its pending steps.
fn observe_pending<'a, R: Resource>(
    decoded: &'a dyn ParsedResource,
    provider: &R::Provider,
    host: &Host,
) -> Result<Pending<'a, R>, ResourceError> {
    let typed = decoded.as_any().downcast_ref::<TypedProperties<R>>();
    let properties = &typed.ok_or_else(|| ResourceError::State("the resource has another type".to_owned()))?.0;
    let state = R::observe(properties, provider, host)?;
    let changes = R::diff(properties, &state)?;
    Ok(Pending { properties, state, changes })
}

/// Returns the requested provider, or the best one for this host.
fn choose_provider<R: Resource>(
    wanted: &str,
    providers: &Providers,
    host: &Host,
) -> Result<(&'static str, Arc<R::Provider>), BindError> {
    let kind = R::TYPE;
    let entry = if wanted.is_empty() {
        R::PROVIDERS.iter().find(|entry| !entry.only_on_request && (entry.works_on)(host)).ok_or(BindError::None { kind })?
    } else {
        let known = || R::PROVIDERS.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", ");
        let entry = R::PROVIDERS.iter().find(|entry| entry.name == wanted);
        let entry = entry.ok_or_else(|| BindError::Unknown { kind, wanted: wanted.to_owned(), known: known() })?;
        if !(entry.works_on)(host) {
            return Err(BindError::Unsuitable { kind, wanted: wanted.to_owned() });
        }
        entry
    };
    Ok((entry.name, providers.open(kind, entry, host)))
}

struct BoundTo<R: Resource> {
    decoded: Arc<TypedProperties<R>>,
    name: &'static str,
    provider: Arc<R::Provider>,
}

impl<R: Resource> BoundResource for BoundTo<R> {
    fn provider(&self) -> &'static str {
        self.name
    }

    fn converges(&self) -> bool {
        R::CONVERGES
    }

    fn refresh_cache(&self, host: &Host) -> Result<(), ResourceError> {
        R::refresh_cache(&self.decoded.0, &self.provider, host)
    }

    fn observe(&self, host: &Host) -> Result<(String, Map<String, Value>), ResourceError> {
        let state = R::observe(&self.decoded.0, &self.provider, host)?;
        Ok((state.ensure().to_owned(), fields(&state)))
    }

    fn check(&self, host: &Host, refresh: bool) -> Result<Box<dyn ObservedResource + '_>, ResourceError> {
        let state = R::observe(&self.decoded.0, &self.provider, host)?;
        let refresh = if refresh { R::on_refresh(&self.decoded.0, &state) } else { Vec::new() };
        let is_refresh = !refresh.is_empty();
        let changes = if is_refresh { refresh } else { R::diff(&self.decoded.0, &state)? };
        Ok(Box::new(ObservedState::<R> { bound: self, state, changes, is_refresh }))
    }
}

fn fields(state: &impl State) -> Map<String, Value> {
    match serde_json::to_value(state) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

struct ObservedState<'a, R: Resource> {
    bound: &'a BoundTo<R>,
    state: R::State,
    changes: Vec<R::Change>,
    is_refresh: bool,
}

impl<R: Resource> ObservedResource for ObservedState<'_, R> {
    fn ensure(&self) -> String {
        self.state.ensure().to_owned()
    }

    fn status(&self) -> Map<String, Value> {
        fields(&self.state)
    }

    fn steps(&self) -> Vec<ChangeStep> {
        steps(&self.changes)
    }

    fn has_output(&self) -> bool {
        !self.state.output().is_empty()
    }

    fn is_refresh(&self) -> bool {
        self.is_refresh
    }

    fn preview(&self, host: &Host) -> Option<Preview> {
        R::preview(&self.bound.decoded.0, &self.state, host)
    }

    fn apply(&mut self, host: &Host) -> Result<(), ResourceError> {
        for change in &self.changes {
            R::apply(change, &self.bound.decoded.0, &mut self.state, &self.bound.provider, host)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::common::TemplateScope;
    use crate::resource::find;

    #[test]
    fn null_counts_as_left_out() {
        let scope = TemplateScope::default().scope();
        let decode = |kind: &str, properties: serde_json::Value| {
            let decoded = find(kind).unwrap().decode(properties.as_object().unwrap(), &scope);
            decoded.map(|decoded| decoded.redacted()).map_err(|error| error.message)
        };
        let all =
            json!({"name": "a", "ensure": null, "returns": null, "environment": null, "timeout": null, "refreshonly": null});
        assert_eq!(decode("exec", all), decode("exec", json!({"name": "a"})));
        let all = json!({"name": "/a", "ensure": "absent", "owner": null, "mode": null, "force": null, "source": null});
        assert_eq!(decode("file", all), decode("file", json!({"name": "/a", "ensure": "absent"})));
        let wrong = |kind: &str, properties| decode(kind, properties).unwrap_err();
        assert_eq!(wrong("file", json!({"name": "/a", "ensure": null})), "ensure is required");
        assert_eq!(
            wrong("apply", json!({"name": "a", "ensure": "absent"})),
            "invalid ensure value: must be \"present\", not \"absent\""
        );
        assert_eq!(wrong("exec", json!({"name": "a", "nope": 1})), "unknown property \"nope\"");
    }
}
