//! The values that expressions see, and the functions that they call.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, OnceLock};

use serde_json::Value;

use super::outputs::OutputTable;
use super::sources::{FactsSource, SecretReader, TemplateFileReader};
use super::trace::{Trace, TraceMark, ValueUses};
use crate::model::{DiscoveryClient, EvaluationBudget, ReadAccess, Secrets, TemplateRead, UnrestrictedAccess};
use crate::template::expr::{Compiled, Root};
use crate::template::functions::limits;

/// The root of a scope without the root.
static NULL: Value = Value::Null;

/// The values that expressions see, and the functions that they call. Clones share everything.
#[derive(Clone)]
pub struct Scope {
    pub(in crate::template) inner: Arc<ScopeState>,
}

/// Facts, gathered on first use.
struct LazyFacts {
    gather: FactsSource,
    value: OnceLock<Value>,
}

#[derive(Clone)]
pub(in crate::template) struct ScopeOptions {
    facts: Arc<LazyFacts>,
    pub(in crate::template) data: Arc<Value>,
    pub(super) environ: Arc<Value>,
    pub(super) reader: Option<TemplateFileReader>,
    pub(super) discovery: Option<Arc<dyn DiscoveryClient>>,
    /// Reads secrets.
    pub(super) secret_source: Option<SecretReader>,
    pub(in crate::template) secrets: Arc<Secrets>,
    pub(super) restricted: bool,
    pub(super) access: Arc<dyn ReadAccess>,
    pub(in crate::template) trace: Arc<Trace>,
    pub(in crate::template) budget: EvaluationBudget,
    /// The part of the data that came from the bus unsigned.
    pub(super) overlay: Arc<Value>,
    /// True where unsigned values of the bus may shape only content.
    pub(super) tracks_unsigned: bool,
    /// True where data that replaces the present data comes from unsigned values of the bus.
    new_data_is_unsigned: bool,
    /// True where the data comes from values that were read.
    pub(super) data_was_read: bool,
    /// The outputs of resources; none before the resource of the templates runs.
    pub(super) outputs: Option<Arc<OutputTable>>,
}

impl ScopeOptions {
    fn new(facts: FactsSource, data: Value, environ: Value, restricted: bool) -> Self {
        Self {
            facts: Arc::new(LazyFacts { gather: facts, value: OnceLock::new() }),
            data: Arc::new(data),
            environ: Arc::new(environ),
            reader: None,
            discovery: None,
            secret_source: None,
            secrets: Arc::default(),
            restricted,
            access: Arc::new(UnrestrictedAccess),
            trace: Arc::default(),
            budget: EvaluationBudget::default(),
            overlay: Arc::new(Value::Null),
            tracks_unsigned: false,
            new_data_is_unsigned: false,
            data_was_read: false,
            outputs: None,
        }
    }
}

pub(in crate::template) struct ScopeState {
    pub(in crate::template) parts: ScopeOptions,
    /// Compiled expressions, by their source.
    pub(super) compiled: Mutex<HashMap<String, Arc<Compiled>>>,
    /// All roots as JSON, for paths that are not plain.
    pub(super) json: OnceLock<String>,
}

impl Scope {
    /// Creates a full scope; `facts` are gathered on first use, then kept.
    pub fn new(facts: FactsSource, data: Value, environ: BTreeMap<String, String>) -> Self {
        let environ = environ.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
        Self::from_options(ScopeOptions::new(facts, data, Value::Object(environ), false))
    }

    /// Creates a scope for the values of data itself.
    ///
    /// Expressions have only `Facts`, `lookup` and `secret`, and `lookup` returns an empty text for a missing key.
    pub fn restricted(facts: FactsSource) -> Self {
        Self::from_options(ScopeOptions::new(facts, Value::Null, Value::Null, true))
    }

    /// Returns the scope with access to files.
    #[must_use]
    pub fn with_reader(self, reader: TemplateFileReader) -> Self {
        Self::from_options(ScopeOptions { reader: Some(reader), ..self.inner.parts.clone() })
    }

    /// Returns the scope with access to the bus.
    #[must_use]
    pub fn with_discovery(self, exchange: Arc<dyn DiscoveryClient>) -> Self {
        Self::from_options(ScopeOptions { discovery: Some(exchange), ..self.inner.parts.clone() })
    }

    /// Returns the scope with access to secrets.
    ///
    /// `vault` returns the secret of a name. `secrets` collects each secret in use and all values derived from them.
    #[must_use]
    pub fn with_secrets(self, vault: SecretReader, secrets: Arc<Secrets>) -> Self {
        Self::from_options(ScopeOptions { secret_source: Some(vault), secrets, ..self.inner.parts.clone() })
    }

    /// Returns the scope with the reads that `access` allows.
    ///
    /// Environment variables that `access` refuses are absent.
    #[must_use]
    pub fn with_access(self, access: Arc<dyn ReadAccess>) -> Self {
        let parts = self.inner.parts.clone();
        let allowed = |name: &String| access.may_read(&TemplateRead::Environ(name)).is_ok();
        let environ = match parts.environ.as_ref() {
            Value::Object(map) if !map.keys().all(allowed) => {
                let kept = map.iter().filter(|(name, _)| allowed(name)).map(|(name, value)| (name.clone(), value.clone()));
                Arc::new(Value::Object(kept.collect()))
            }
            _ => Arc::clone(&parts.environ),
        };
        Self::from_options(ScopeOptions { access, environ, ..parts })
    }

    /// Returns the scope with the budget of a run.
    #[must_use]
    pub fn with_budget(self, budget: EvaluationBudget) -> Self {
        Self::from_options(ScopeOptions { budget, ..self.inner.parts.clone() })
    }

    /// Returns the scope with a record of the uses of unsigned values of the bus.
    ///
    /// The values come from `kvGet`, `registrations` and the part of the data that is in `overlay`.
    #[must_use]
    pub fn with_unsigned_data(self, overlay: Value) -> Self {
        Self::from_options(ScopeOptions { overlay: Arc::new(overlay), tracks_unsigned: true, ..self.inner.parts.clone() })
    }

    /// Returns the scope with other data.
    #[must_use]
    pub fn with_data(&self, data: Value) -> Self {
        let overlay = Arc::new(if self.inner.parts.new_data_is_unsigned { data.clone() } else { Value::Null });
        Self::from_options(ScopeOptions { data: Arc::new(data), overlay, ..self.inner.parts.clone() })
    }

    /// Returns the scope for data that comes from values that were read.
    #[must_use]
    pub fn with_read_data(self) -> Self {
        Self::from_options(ScopeOptions { data_was_read: true, ..self.inner.parts.clone() })
    }

    /// Returns the scope for a resource whose own data comes from values with these uses.
    #[must_use]
    pub fn with_data_uses(&self, used: ValueUses) -> Self {
        if used.bus == self.inner.parts.new_data_is_unsigned {
            return self.clone();
        }
        Self::from_options(ScopeOptions { new_data_is_unsigned: used.bus, ..self.inner.parts.clone() })
    }

    /// Returns the scope with the outputs of the resources that have run.
    #[must_use]
    pub fn with_outputs(&self, outputs: OutputTable) -> Self {
        Self::from_options(ScopeOptions { outputs: Some(Arc::new(outputs)), ..self.inner.parts.clone() })
    }

    /// Returns the present counts of uses; see [`Scope::since`].
    pub fn mark(&self) -> TraceMark {
        self.inner.parts.trace.mark(self.inner.parts.secrets.use_count())
    }

    /// Returns the uses since a mark.
    pub fn since(&self, before: TraceMark) -> ValueUses {
        self.inner.parts.trace.since(before, self.inner.parts.secrets.use_count())
    }

    /// The budget that evaluations in this scope are charged to.
    pub fn budget(&self) -> &EvaluationBudget {
        &self.inner.parts.budget
    }

    /// The secrets that templates in this scope have used.
    pub fn secrets(&self) -> &Secrets {
        &self.inner.parts.secrets
    }

    /// True where errors and events must not show values that templates read.
    pub fn hides_values(&self) -> bool {
        self.inner.parts.access.hides_values()
    }

    fn from_options(parts: ScopeOptions) -> Self {
        Self { inner: Arc::new(ScopeState { parts, compiled: Mutex::default(), json: OnceLock::new() }) }
    }
}

impl ScopeState {
    pub(in crate::template) fn root(&self, root: Root) -> &Value {
        match root {
            Root::Facts => self.parts.facts.value.get_or_init(|| (self.parts.facts.gather)()),
            Root::Data => &self.parts.data,
            Root::Environ => &self.parts.environ,
            Root::Resources => self.parts.outputs.as_ref().map_or(&NULL, |outputs| outputs.values()),
            Root::Value => &NULL,
        }
    }

    /// Charges for `bytes` of memory before their allocation.
    pub(in crate::template) fn charge(&self, bytes: usize) -> Result<(), String> {
        self.parts.budget.charge(bytes).map_err(|spent| spent.to_string())
    }

    /// Charges for a copy of a value.
    pub(in crate::template) fn charge_copy(&self, value: &Value) -> Result<(), String> {
        limits::charge_value(value, &self.parts.budget).map_err(|spent| spent.to_string())
    }

    /// Records the result of a function as a secret when an argument contains a secret.
    pub(in crate::template) fn record_derived(&self, from: &[Value], made: &Value) {
        let secrets = &self.parts.secrets;
        if !secrets.is_empty() && from.iter().any(|value| secrets.value_contains_secret(value)) {
            secrets.add_derived(made);
        }
    }
}
