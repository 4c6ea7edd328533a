//! Templates: `{{ expr }}` and `${ expr }` in the texts of a manifest.
//!
//! The module does no I/O: facts come from a function that is called at most once, files from a [`TemplateFileReader`].
//! A text is resolved once; expressions inside a resolved value are never evaluated.
//!
//! - `interpolation` finds the expressions, `expr` evaluates them, `lookup` walks paths, `text` prints values.
//! - `bus_functions` reads the bus, `check` finds errors before anything is resolved.
//! - `validate` has conditions over one value, `jet` renders the Jet language in manifests.
//! - `tree` renders directories of files in one of three languages: `jet`, `jinja` and `go`.
//!
//! `data` resolves with a restricted [`Scope`], `manifest` and `engine` with a full scope.

mod bus_functions;
mod check;
mod escape;
mod expr;
mod go;
mod gotime;
mod interpolation;
mod jet;
mod jinja;
mod json;
mod lex;
mod lookup;
mod minijinja_charges;
mod reads;
mod regexes;
mod text;
mod trace;
mod tree;
mod validate;
mod weight;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use serde_json::{Map, Value};

use crate::model::{DiscoveryClient, EvaluationBudget, ReadAccess, Secrets, TemplateRead, UnrestrictedAccess, lock};

pub use self::check::{mask_expressions, unclosed};
pub use self::expr::MissingKey;
use self::expr::{Compiled, EvaluationOutcome, Member, NameScope, Root, ValuePath};
use self::interpolation::Segment;
pub use self::reads::{SecretReader, TemplateFile, TemplateFileReader};
pub use self::text::to_text;
use self::trace::Trace;
pub use self::trace::{TraceMark, ValueUses};
pub use self::tree::{Engine, FileError, PARTS_DIR, RenderedFile, TemplateFiles, TreeOptions, render_tree};
pub use self::validate::{expected_values, validate};

/// Returns the facts; called at most once in a scope.
pub type FactsSource = Arc<dyn Fn() -> Value + Send + Sync>;

/// The deepest nesting of templates within templates.
const MAX_DEPTH: usize = 16;

/// Functions of a full scope, besides those of the language.
const FUNCTIONS: &[&str] =
    &["lookup", "readFile", "file", "template", "jet", "kvGet", "registrations", "secret", bus_functions::PROMETHEUS];
/// Functions of a restricted scope.
const RESTRICTED_FUNCTIONS: &[&str] = &["lookup", "secret"];

/// The error detail that replaces a reason which could repeat a value that was read.
const REASON_LEFT_OUT: &str = "evaluation failed after a read on this node or from the bus; the reason is left out, as it could \
                         show the value";

/// The root `value`, which only conditions of `validate` have.
static NULL: Value = Value::Null;

/// An expression that can't be resolved, with its place in the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct TemplateError {
    /// The expression, without its delimiters.
    pub expression: String,
    /// The reason.
    pub detail: String,
    /// True when the expression can't be evaluated at all, whatever the data.
    pub compile: bool,
    /// The position of the error, in bytes from the beginning of the text.
    pub offset: usize,
    /// The line of the text, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The position of the error, in bytes from the beginning of the expression.
    pub within: usize,
    /// From [`Scope::resolve_tree`]: the keys and indexes that lead to the text, from the root.
    pub path: Vec<String>,
}

impl TemplateError {
    /// True when the evaluation failed because the facts or the data lack a key.
    pub fn is_missing_key(&self) -> bool {
        !self.compile && self.detail.contains("missing key '")
    }
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { expression, detail, .. } = self;
        if self.compile {
            write!(f, "expr compile error for '{expression}': {detail}")
        } else {
            write!(f, "{detail} (in '{expression}')")
        }
    }
}

/// An error in an expression, before its place in the text is known.
struct Failure {
    detail: String,
    compile: bool,
    /// In bytes from the beginning of the expression.
    offset: usize,
}

impl Failure {
    fn at(self, text: &str, expression: &str, start: usize) -> TemplateError {
        let offset = start + self.offset;
        let before = text.get(..offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        TemplateError {
            expression: expression.to_owned(),
            detail: self.detail,
            compile: self.compile,
            offset,
            line: 1 + before.matches('\n').count(),
            column: 1 + before.get(line_start..).unwrap_or_default().chars().count(),
            within: self.offset,
            path: Vec::new(),
        }
    }
}

/// Returns the value at a GJSON path, or `None` when the path leads to nothing.
pub fn query(value: &Value, path: &str) -> Option<Value> {
    match lookup::plain_steps(path) {
        Some(steps) => lookup::find_plain(value, &steps).cloned(),
        None => lookup::find_gjson(&value.to_string(), path, &EvaluationBudget::default()).ok().flatten(),
    }
}

/// True when a text holds an expression.
pub fn is_template(text: &str) -> bool {
    may_be_template(text) && interpolation::scan(text).iter().any(|segment| matches!(segment, Segment::Expr { .. }))
}

/// False for most texts, without a scan.
fn may_be_template(text: &str) -> bool {
    // A search for one byte is far quicker than a search for two texts, and most texts have none.
    text.contains('{') && (text.contains("{{") || text.contains("${"))
}

/// The values that expressions see, and the functions that they call. Clones share everything.
#[derive(Clone)]
pub struct Scope {
    inner: Arc<ScopeState>,
}

/// Facts, gathered on first use.
struct LazyFacts {
    gather: FactsSource,
    value: OnceLock<Value>,
}

#[derive(Clone)]
struct ScopeOptions {
    facts: Arc<LazyFacts>,
    data: Arc<Value>,
    environ: Arc<Value>,
    reader: Option<TemplateFileReader>,
    discovery: Option<Arc<dyn DiscoveryClient>>,
    /// Reads secrets.
    secret_source: Option<SecretReader>,
    secrets: Arc<Secrets>,
    restricted: bool,
    access: Arc<dyn ReadAccess>,
    trace: Arc<Trace>,
    budget: EvaluationBudget,
    /// The part of the data that came from the bus unsigned.
    overlay: Arc<Value>,
    /// True where unsigned values of the bus may shape only content.
    tracks_unsigned: bool,
    /// True where data that replaces the present data comes from unsigned values of the bus.
    new_data_is_unsigned: bool,
    /// True where the data comes from values that were read.
    data_was_read: bool,
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
        }
    }
}

struct ScopeState {
    parts: ScopeOptions,
    /// Compiled expressions, by their source.
    compiled: Mutex<HashMap<String, Arc<Compiled>>>,
    /// All roots as JSON, for paths that are not plain.
    json: OnceLock<String>,
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

    /// Returns the text with its expressions resolved and printed.
    ///
    /// # Errors
    /// An expression can't be resolved, or has no value.
    pub fn resolve_text<'a>(&self, text: &'a str) -> Result<Cow<'a, str>, TemplateError> {
        self.inner.resolve_text(text, 0)
    }

    /// Resolves like [`Scope::resolve_text`]; an expression that is the whole text keeps the type of its value.
    ///
    /// A lone expression without a value is null.
    ///
    /// # Errors
    /// An expression can't be resolved, or has no value and is not alone.
    pub fn resolve_value(&self, text: &str) -> Result<Value, TemplateError> {
        self.inner.resolve_value(text, 0)
    }

    /// Resolves every text inside a value like [`Scope::resolve_value`]; keys stay.
    ///
    /// # Errors
    /// A text can't be resolved; the error has the path to the text.
    pub fn resolve_tree(&self, value: &Value) -> Result<Value, TemplateError> {
        let under = |key: &str| {
            let key = key.to_owned();
            move |mut error: TemplateError| {
                error.path.insert(0, key);
                error
            }
        };
        match value {
            Value::String(text) => self.resolve_value(text),
            Value::Array(items) => {
                let items = items.iter().enumerate();
                let items = items.map(|(index, item)| self.resolve_tree(item).map_err(under(&index.to_string())));
                items.collect::<Result<_, _>>().map(Value::Array)
            }
            Value::Object(map) => {
                let pairs = map.iter().map(|(key, item)| Ok((key.clone(), self.resolve_tree(item).map_err(under(key))?)));
                pairs.collect::<Result<Map<_, _>, _>>().map(Value::Object)
            }
            plain => Ok(plain.clone()),
        }
    }

    /// Resolves like [`Scope::resolve_tree`], and the keys too, as texts.
    ///
    /// # Errors
    /// A text or key can't be resolved.
    pub fn resolve_tree_with_keys(&self, value: &Value) -> Result<Value, TemplateError> {
        match value {
            Value::Array(items) => {
                items.iter().map(|item| self.resolve_tree_with_keys(item)).collect::<Result<_, _>>().map(Value::Array)
            }
            Value::Object(map) => {
                let pairs =
                    map.iter().map(|(key, item)| Ok((self.resolve_text(key)?.into_owned(), self.resolve_tree_with_keys(item)?)));
                pairs.collect::<Result<Map<_, _>, _>>().map(Value::Object)
            }
            other => self.resolve_tree(other),
        }
    }

    /// Resolves like [`Scope::resolve_text`] with missing values as empty texts, and tells whether the text matches.
    ///
    /// A text matches when one of its expressions is not empty. Without expressions, the text itself must not be empty.
    ///
    /// # Errors
    /// An expression can't be resolved.
    pub fn match_text(&self, text: &str) -> Result<(String, bool), TemplateError> {
        let (mut out, mut any, mut holds) = (String::new(), false, false);
        for segment in interpolation::scan(text) {
            match segment {
                Segment::Text(text) => out.push_str(text),
                Segment::Expr { source, offset } => {
                    let shown = self.inner.evaluate(source, 0).map_err(|failure| failure.at(text, source, offset))?;
                    let shown = shown.text().unwrap_or_default();
                    any = true;
                    holds |= !shown.is_empty();
                    out.push_str(&shown);
                }
            }
        }
        let holds = if any { holds } else { !out.is_empty() };
        Ok((out, holds))
    }

    /// Evaluates a bare expression as a condition.
    ///
    /// # Errors
    /// The expression can't be evaluated, or is neither true nor false.
    pub fn evaluate_condition(&self, expression: &str) -> Result<bool, TemplateError> {
        let failed = |failure: Failure| failure.at(expression, expression, 0);
        let before = self.mark();
        let outcome = self.inner.evaluate(expression, 0).map_err(failed)?;
        outcome.truth().ok_or_else(|| {
            let shown = outcome.text().unwrap_or_else(|| "<nil>".to_owned());
            let read = self.since(before).read;
            let detail = if read {
                "a condition must be true or false".to_owned()
            } else {
                format!("a condition must be true or false, this is '{shown}'")
            };
            failed(Failure { detail, compile: false, offset: 0 })
        })
    }
}

impl expr::Env for Arc<ScopeState> {
    fn root(&self, root: Root) -> &Value {
        ScopeState::root(self, root)
    }

    fn record_lookup(&self, path: &ValuePath) -> Result<(), String> {
        let keys = path.steps.iter().map(|step| match &step.to {
            Member::Key(key) => Some(key.as_str()),
            Member::Index(_) => None,
        });
        match (path.root, path.steps.first().map(|step| &step.to)) {
            (Root::Data, _) => self.note_data(keys),
            (Root::Environ, Some(Member::Key(name))) => self.check_environ(name)?,
            (root, _) => self.note_root(root),
        }
        Ok(())
    }

    fn record_all_roots(&self) {
        self.note_root(Root::Data);
        self.note_root(Root::Environ);
    }

    fn call(&self, name: &str, args: &[Value], depth: usize) -> Result<Value, String> {
        match name {
            "lookup" => self.call_lookup(args),
            "readFile" | "file" => self.call_read_file(args),
            "template" => self.call_template(args, depth),
            "jet" => self.call_jet(args, depth),
            "kvGet" | "registrations" => self.call_bus_function(name, args),
            "secret" => self.call_secret(args),
            bus_functions::PROMETHEUS => bus_functions::prometheus_targets(args),
            _ => Err(format!("unknown function {name}")),
        }
    }
}

impl ScopeState {
    fn root(&self, root: Root) -> &Value {
        match root {
            Root::Facts => self.parts.facts.value.get_or_init(|| (self.parts.facts.gather)()),
            Root::Data => &self.parts.data,
            Root::Environ => &self.parts.environ,
            Root::Value => &NULL,
        }
    }

    fn compile(&self, source: &str) -> Result<Arc<Compiled>, Failure> {
        let known = lock(&self.compiled).get(source).cloned();
        if let Some(compiled) = known {
            return Ok(compiled);
        }
        let restricted = self.parts.restricted;
        let functions = if restricted { RESTRICTED_FUNCTIONS } else { FUNCTIONS };
        let compiled = expr::compile(source, &NameScope { functions, facts_only: restricted, value_only: false })
            .map_err(|(offset, detail)| Failure { detail, compile: true, offset })?;
        let compiled = Arc::new(compiled);
        lock(&self.compiled).insert(source.to_owned(), Arc::clone(&compiled));
        Ok(compiled)
    }

    fn evaluate(self: &Arc<Self>, source: &str, depth: usize) -> Result<EvaluationOutcome, Failure> {
        let compiled = self.compile(source)?;
        let (secrets, trace, budget) = (&self.parts.secrets, &self.parts.trace, &self.parts.budget);
        let wrong = |detail: String| Failure { detail, compile: false, offset: 0 };
        if depth == 0 {
            trace.begin_evaluation();
            budget.begin_evaluation().map_err(|spent| wrong(spent.to_string()))?;
        }
        let (before, taken) = (trace.mark(secrets.use_count()), budget.used_memory());
        let outcome = expr::evaluate(&compiled, self, budget, depth);
        budget.release_since(taken, outcome.as_ref().map_or(0, EvaluationOutcome::weight));
        let used = trace.since(before, secrets.use_count());
        if !secrets.is_empty() {
            let sees = || compiled.any_path_value(self, &|value| secrets.value_contains_secret(value));
            if let Ok(outcome) = &outcome
                && (used.secret || sees())
            {
                secrets.add_derived(&outcome.clone().into_json());
            }
        }
        outcome.map_err(|detail| match used.read {
            true => wrong(REASON_LEFT_OUT.to_owned()),
            false => wrong(secrets.redact(&detail).into_owned()),
        })
    }

    /// Charges for `bytes` of memory before their allocation.
    fn charge(&self, bytes: usize) -> Result<(), String> {
        self.parts.budget.charge(bytes).map_err(|spent| spent.to_string())
    }

    /// Charges for a copy of a value.
    fn charge_copy(&self, value: &Value) -> Result<(), String> {
        weight::charge_value(value, &self.parts.budget).map_err(|spent| spent.to_string())
    }

    fn resolve_text<'a>(self: &Arc<Self>, text: &'a str, depth: usize) -> Result<Cow<'a, str>, TemplateError> {
        if !may_be_template(text) {
            return Ok(Cow::Borrowed(text));
        }
        let segments = interpolation::scan(text);
        if let [Segment::Text(_)] = segments.as_slice() {
            return Ok(Cow::Borrowed(text));
        }
        let mut out = String::with_capacity(text.len());
        for segment in segments {
            match segment {
                Segment::Text(text) => out.push_str(text),
                Segment::Expr { source, offset } => {
                    let failed = |failure: Failure| failure.at(text, source, offset);
                    let outcome = self.evaluate(source, depth).map_err(failed)?;
                    let why = EvaluationOutcome::no_value_message(outcome.missing_paths());
                    let shown = outcome.text();
                    let nothing = || failed(Failure { detail: why, compile: false, offset: 0 });
                    out.push_str(&shown.ok_or_else(nothing)?);
                }
            }
        }
        Ok(Cow::Owned(out))
    }

    fn resolve_value(self: &Arc<Self>, text: &str, depth: usize) -> Result<Value, TemplateError> {
        if !may_be_template(text) {
            return Ok(Value::String(text.to_owned()));
        }
        if let [Segment::Expr { source, offset }] = interpolation::scan(text).as_slice() {
            let outcome = self.evaluate(source, depth).map_err(|failure| failure.at(text, source, *offset))?;
            return Ok(outcome.into_json());
        }
        self.resolve_text(text, depth).map(|text| Value::String(text.into_owned()))
    }

    /// Records the result of a function as a secret when an argument contains a secret.
    fn record_derived(&self, from: &[Value], made: &Value) {
        let secrets = &self.parts.secrets;
        if !secrets.is_empty() && from.iter().any(|value| secrets.value_contains_secret(value)) {
            secrets.add_derived(made);
        }
    }

    fn call_template(self: &Arc<Self>, args: &[Value], depth: usize) -> Result<Value, String> {
        let [Value::String(text)] = args else { return Err("template requires a string argument".to_owned()) };
        if text.ends_with(".jet") {
            return self.call_jet(args, depth);
        }
        let depth = next_depth(depth)?;
        let body = if text.ends_with(".templ") { Cow::Owned(self.load_file(text)?) } else { Cow::Borrowed(text.as_str()) };
        self.resolve_value(&body, depth).map_err(|error| error.to_string())
    }

    fn call_jet(self: &Arc<Self>, args: &[Value], depth: usize) -> Result<Value, String> {
        let wanted = |value: &Value, what: &str| {
            value.as_str().map(str::to_owned).ok_or_else(|| format!("jet requires a string argument for {what}"))
        };
        let (body, left, right) = match args {
            [body] => (wanted(body, "template body")?, "[[".to_owned(), "]]".to_owned()),
            [body, left, right] => {
                (wanted(body, "template body")?, wanted(left, "left delimiter")?, wanted(right, "right delimiter")?)
            }
            _ => return Err("jet requires 1 or 3 arguments".to_owned()),
        };
        let depth = next_depth(depth)?;
        let (name, body) = if body.ends_with(".jet") { (body.clone(), self.load_file(&body)?) } else { ("jet".to_owned(), body) };
        jet::render(self, &name, &body, (&left, &right), depth).map(Value::String)
    }
}

/// Returns the depth one level down, or an error beyond the limit.
fn next_depth(depth: usize) -> Result<usize, String> {
    if depth < MAX_DEPTH { Ok(depth + 1) } else { Err(format!("templates are nested more than {MAX_DEPTH} deep")) }
}

#[cfg(test)]
mod tests;
