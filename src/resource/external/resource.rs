//! A resource of an external type: its properties, its provider and its state.

use std::any::Any;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::definition::Definition;
use super::state::{ObservedValues, difference, redacted};
use super::values::{ABSENT, Values};
use crate::diag::clean;
use crate::host::Host;
use crate::model::effects::Effect;
use crate::model::{Effects, Identity, Need, OnRemoval, RedactedProperty, WatchTarget};
use crate::resource::core::path_order;
use crate::resource::{
    BindError, BoundResource, ChangeStep, Nested, ObservedResource, ParsedResource, Preview, Providers, ResourceError, RunPlace,
};

/// The only provider: the program.
pub(super) const PROVIDER: &str = "external";
/// Maximum number of changes that a program reports.
const MAX_CHANGES: usize = 64;
/// Maximum length of a change that a program reports, in characters.
const MAX_CHANGE: usize = 200;

/// Read properties of an external type.
pub(super) struct ParsedValues {
    pub(super) definition: Arc<Definition>,
    pub(super) values: Values,
}

impl ParsedValues {
    fn all(&self) -> Map<String, Value> {
        self.values.with_name()
    }
}

impl ParsedResource for ParsedValues {
    fn name(&self) -> &str {
        &self.values.name
    }

    fn ensure(&self) -> &str {
        &self.values.ensure
    }

    fn redacted(&self) -> Value {
        let mut shown = Map::from_iter([("name".to_owned(), json!(self.values.name))]);
        shown.insert("ensure".to_owned(), json!(self.values.ensure));
        shown.extend(redacted(&self.definition.description, &self.values.own));
        Value::Object(shown)
    }

    fn report_secrets(&self, note: &mut dyn FnMut(RedactedProperty<'_>)) {
        let secret = |key: &String| self.definition.description.properties.get(key).is_some_and(|property| property.secret);
        for (_, value) in self.values.own.iter().filter(|(key, _)| secret(key)) {
            let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
            std::iter::once(value).chain(list).filter_map(Value::as_str).for_each(|text| note(RedactedProperty::Value(text)));
        }
    }

    fn matches(&self, so: &dyn Fn(&Value) -> bool) -> bool {
        so(&Value::Object(self.all()))
    }

    fn command_lines(&self, _: &str) -> Vec<(&'static str, &str)> {
        Vec::new()
    }

    fn effects(&self) -> Effects {
        self.definition.description.effects(&self.all())
    }

    fn watches(&self, host: &Host) -> Vec<WatchTarget> {
        self.definition.description.watches(&self.all(), host)
    }

    fn provides(&self) -> Vec<Identity> {
        Vec::new()
    }

    fn removes(&self) -> Vec<Identity> {
        Vec::new()
    }

    /// Returns the paths, units, packages and accounts of the effects: a program works on what other resources make.
    fn needs(&self) -> Vec<Need> {
        let need = |effect: Effect| match effect {
            Effect::Look(place) | Effect::Read(place) | Effect::Write { place, .. } => {
                path_order::existing_path_needs(&place.path)
            }
            Effect::Package(name) => vec![Need::package(name)],
            _ => Vec::new(),
        };
        self.effects().into_iter().flat_map(need).collect()
    }

    fn nested(&self) -> Option<Nested> {
        None
    }

    fn run_place(&self) -> RunPlace {
        if self.definition.description.changes_system() { RunPlace::Unconfined } else { RunPlace::Confined }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn bind(self: Arc<Self>, wanted: &str, _: &Providers, _: &Host) -> Result<Arc<dyn BoundResource>, BindError> {
        check_provider(&self.definition.name, wanted)?;
        Ok(Arc::new(BoundValues { parsed: self }))
    }
}

/// Checks a requested provider.
pub(super) fn check_provider(kind: &str, wanted: &str) -> Result<&'static str, BindError> {
    if wanted.is_empty() || wanted == PROVIDER {
        return Ok(PROVIDER);
    }
    Err(BindError::Unknown { kind: kind.to_owned(), wanted: wanted.to_owned(), known: PROVIDER.to_owned() })
}

struct BoundValues {
    parsed: Arc<ParsedValues>,
}

impl BoundValues {
    fn request(&self) -> Map<String, Value> {
        let values = &self.parsed.values;
        let mut request = Map::from_iter([("name".to_owned(), json!(values.name))]);
        request.insert("ensure".to_owned(), json!(values.ensure));
        request.insert("properties".to_owned(), Value::Object(values.own.clone()));
        request
    }

    fn observe_values(&self, host: &Host) -> Result<ObservedValues, ResourceError> {
        let kind = &self.parsed.definition;
        let response = kind.program.call("observe", &self.request(), host)?;
        ObservedValues::read(&kind.description, response).map_err(|why| ResourceError::State(format!("observe: {why}")))
    }

    fn difference(&self, observed: &ObservedValues, host: &Host) -> Result<Vec<ChangeStep>, ResourceError> {
        let (kind, values) = (&self.parsed.definition, &self.parsed.values);
        if !kind.description.diff {
            return Ok(difference(&kind.description, values, observed));
        }
        let response = kind.program.call("diff", &self.request_with(observed), host)?;
        read_changes(response).map_err(|why| ResourceError::State(format!("diff: {why}")))
    }

    fn request_with(&self, observed: &ObservedValues) -> Map<String, Value> {
        let mut request = self.request();
        let observed = json!({"ensure": observed.ensure, "properties": observed.own, "outputs": observed.outputs});
        request.insert("observed".to_owned(), observed);
        request
    }
}

/// Reads the response to `diff`.
fn read_changes(mut response: Map<String, Value>) -> Result<Vec<ChangeStep>, String> {
    let changes = match response.shift_remove("changes") {
        Some(Value::Array(changes)) if changes.len() <= MAX_CHANGES && response.is_empty() => changes,
        _ => return Err(format!("expected changes, a list of at most {MAX_CHANGES} texts, and nothing else")),
    };
    let step = |change: &Value| {
        let text = change.as_str().filter(|text| !text.trim().is_empty()).ok_or("a change is a text")?;
        let text = clean::cell_with_limit(text.trim(), MAX_CHANGE).into_owned();
        Ok(ChangeStep { description: text.clone(), details: vec![text] })
    };
    changes.iter().map(step).collect()
}

impl BoundResource for BoundValues {
    fn provider(&self) -> &'static str {
        PROVIDER
    }

    fn converges(&self) -> bool {
        true
    }

    fn refresh_cache(&self, _: &Host) -> Result<(), ResourceError> {
        Ok(())
    }

    fn observe(&self, host: &Host) -> Result<(String, Map<String, Value>), ResourceError> {
        let observed = self.observe_values(host)?;
        Ok((observed.ensure.clone(), observed.redacted(&self.parsed.definition.description)))
    }

    fn reversing(&self, _: &Host, on_removal: OnRemoval) -> Result<Option<Map<String, Value>>, ResourceError> {
        let mut properties = self.parsed.all();
        properties.insert("ensure".to_owned(), json!(ABSENT));
        Ok((on_removal == OnRemoval::Absent).then_some(properties))
    }

    fn comparable(&self, host: &Host, _: bool) -> Result<Value, ResourceError> {
        self.observe_values(host).map(|observed| Value::from(observed.ensure))
    }

    fn check(&self, host: &Host, refresh: bool) -> Result<Box<dyn ObservedResource + '_>, ResourceError> {
        let observed = self.observe_values(host)?;
        let mut steps = self.difference(&observed, host)?;
        let is_refresh = refresh && self.parsed.definition.description.refreshes;
        if is_refresh {
            steps.insert(0, ChangeStep { description: "refreshed".to_owned(), details: vec!["refreshed".to_owned()] });
        }
        Ok(Box::new(CheckedValues { bound: self, observed, steps, is_refresh }))
    }
}

struct CheckedValues<'a> {
    bound: &'a BoundValues,
    observed: ObservedValues,
    steps: Vec<ChangeStep>,
    is_refresh: bool,
}

impl ObservedResource for CheckedValues<'_> {
    fn ensure(&self) -> String {
        self.observed.ensure.clone()
    }

    fn status(&self) -> Map<String, Value> {
        self.observed.redacted(&self.bound.parsed.definition.description)
    }

    fn outputs(&self) -> Map<String, Value> {
        self.observed.outputs.clone()
    }

    fn steps(&self) -> Vec<ChangeStep> {
        self.steps.clone()
    }

    fn has_output(&self) -> bool {
        false
    }

    fn is_refresh(&self) -> bool {
        self.is_refresh
    }

    fn preview(&self, _: &Host) -> Option<Preview> {
        None
    }

    fn apply(&mut self, host: &Host) -> Result<(), ResourceError> {
        let mut request = self.bound.request_with(&self.observed);
        let changes: Vec<&String> = self.steps.iter().flat_map(|step| &step.details).collect();
        request.insert("changes".to_owned(), json!(changes));
        request.insert("refresh".to_owned(), json!(self.is_refresh));
        self.bound.parsed.definition.program.call("apply", &request, host)?;
        Ok(())
    }
}
