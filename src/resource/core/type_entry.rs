//! The adapter from a [`Resource`] to the table of types: one implementation of the traits of `dyn_type.rs` for every type.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;

use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value};

use crate::diag::error_chain;
use crate::host::Host;
use crate::model::{Effect, Effects, Identity, Need, OnRemoval, RedactedProperty, WatchTarget};
use crate::template::Scope;
use crate::wire::value_decode;

use super::decode_error::{decode_after_error, explain_mismatch};
use super::dyn_type::{
    BatchResult, BindError, BoundResource, ChangeStep, DecodeError, ObservedResource, ParsedResource, Providers, ResourceType,
};
#[cfg(test)]
use crate::resource::properties_test::{FixtureValues, TypeFixture as TableEntry};
use crate::resource::{Change, Invalid, Nested, Pending, Preview, Resource, ResourceError, ResourceOutput, ShellDefaults, State};

/// A resource type that can be in the table. In unit tests this requires the fixture, so that every type of the table has one.
#[cfg(not(test))]
pub trait TableEntry: Resource {}
#[cfg(not(test))]
impl<R: Resource> TableEntry for R {}

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

    fn name(&self) -> &str {
        R::TYPE
    }

    fn about(&self) -> &str {
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

    fn is_content(&self, property: &str) -> bool {
        R::CONTENT.contains(&property)
    }

    fn templated_keys(&self) -> &'static [&'static str] {
        R::TEMPLATED_KEYS
    }

    fn refreshes(&self) -> bool {
        R::REFRESHES
    }

    fn reversals(&self) -> &'static [OnRemoval] {
        R::REVERSALS
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

    fn outputs(&self) -> &[ResourceOutput] {
        R::OUTPUTS
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

    fn choose_provider(&self, wanted: &str, providers: &Providers, host: &Host) -> Result<&'static str, BindError> {
        choose_provider::<R>(wanted, providers, host).map(|(name, _)| name)
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

    fn watches(&self, host: &Host) -> Vec<WatchTarget> {
        R::watches(&self.0, host)
    }

    fn provides(&self) -> Vec<Identity> {
        R::provides(&self.0)
    }

    fn removes(&self) -> Vec<Identity> {
        R::removes(&self.0)
    }

    fn needs(&self) -> Vec<Need> {
        R::needs(&self.0)
    }

    fn nested(&self) -> Option<Nested> {
        R::nested(&self.0)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn bind(self: Arc<Self>, wanted: &str, providers: &Providers, host: &Host) -> Result<Arc<dyn BoundResource>, BindError> {
        let (name, provider) = choose_provider::<R>(wanted, providers, host)?;
        Ok(Arc::new(BoundTo::<R> { decoded: self, name, provider }))
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
    let kind = || R::TYPE.to_owned();
    let entry = if wanted.is_empty() {
        R::PROVIDERS
            .iter()
            .find(|entry| !entry.only_on_request && (entry.works_on)(host))
            .ok_or_else(|| BindError::None { kind: kind() })?
    } else {
        let known = || R::PROVIDERS.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", ");
        let entry = R::PROVIDERS.iter().find(|entry| entry.name == wanted);
        let entry = entry.ok_or_else(|| BindError::Unknown { kind: kind(), wanted: wanted.to_owned(), known: known() })?;
        if !(entry.works_on)(host) {
            return Err(BindError::Unsuitable { kind: kind(), wanted: wanted.to_owned() });
        }
        entry
    };
    Ok((entry.name, providers.open(R::TYPE, entry, host)))
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

    fn reversing(&self, host: &Host, on_removal: OnRemoval) -> Result<Option<Map<String, Value>>, ResourceError> {
        let properties = &self.decoded.0;
        let state = R::observe(properties, &self.provider, host)?;
        let reversing = match on_removal {
            OnRemoval::Keep => None,
            OnRemoval::Absent => R::removing(properties, &state),
            OnRemoval::Revert => R::restoring(properties, &state, host)?,
        };
        let fields = reversing.map(serde_json::to_value).transpose();
        match fields.map_err(|error| ResourceError::State(format!("cannot write the properties as JSON: {error}")))? {
            Some(Value::Object(fields)) => Ok(Some(fields)),
            _ => Ok(None),
        }
    }

    fn comparable(&self, host: &Host, removes: bool) -> Result<Value, ResourceError> {
        let state = R::observe(&self.decoded.0, &self.provider, host)?;
        R::comparable(&self.decoded.0, &state, host, removes)
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

    fn outputs(&self) -> Map<String, Value> {
        let all = R::outputs(&self.bound.decoded.0, &self.state).into_iter();
        all.filter(|(_, value)| !value.is_null()).map(|(name, value)| (name.to_owned(), value)).collect()
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

fn steps(changes: &[impl Change]) -> Vec<ChangeStep> {
    changes.iter().map(|change| ChangeStep { description: change.to_string(), details: change.details() }).collect()
}
