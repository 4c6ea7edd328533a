//! Templates: `{{ expr }}` and `${ expr }` in the texts of a manifest.
//!
//! The module does no I/O: facts come from a function that is called at most once, files from a [`Reader`].
//! A text is resolved once; expressions inside a resolved value are never evaluated.
//!
//! - `scan` finds the expressions, `expr` evaluates them, `lookup` walks paths, `text` prints values.
//! - `remote` reads the bus, `check` finds errors before anything is resolved.
//! - `validate` has conditions over one value, `jet` renders the Jet language in manifests.
//! - `tree` renders directories of files in one of three languages: `jet`, `jinja` and `go`.
//!
//! `data` resolves with a restricted [`Scope`], `manifest` and `engine` with a full scope.

mod check;
mod escape;
mod expr;
mod go;
mod gotime;
mod jet;
mod jinja;
mod json;
mod lex;
mod lookup;
mod paid;
mod reads;
mod regexes;
mod remote;
mod scan;
mod text;
mod trace;
mod tree;
mod validate;
mod weight;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde_json::{Map, Value};

use crate::model::{DiscoveryClient, EvaluationBudget, ReadAccess, Secrets, TemplateRead, UnrestrictedAccess};

pub use self::check::{outline, unclosed};
pub use self::expr::Missing;
use self::expr::{Compiled, Member, Names, Outcome, Path, Root};
pub use self::reads::{Found, Reader, Vault};
use self::scan::Segment;
pub use self::text::to_text;
use self::trace::Trace;
pub use self::trace::{Mark, Used};
pub use self::tree::{Engine, FileError, Files, Made, Options, PARTIALS, render_tree};
pub use self::validate::{validate, wanted};

/// Returns the facts; called at most once in a scope.
pub type Gather = Arc<dyn Fn() -> Value + Send + Sync>;

/// The deepest nesting of templates within templates.
const MAX_DEPTH: usize = 16;

/// Functions of a full scope, besides those of the language.
const FUNCTIONS: &[&str] =
    &["lookup", "readFile", "file", "template", "jet", "kvGet", "registrations", "secret", remote::PROMETHEUS];
/// Functions of a restricted scope.
const RESTRICTED_FUNCTIONS: &[&str] = &["lookup", "secret"];

/// The error detail that replaces a reason which could repeat a value that was read.
const CONCEALED: &str = "evaluation failed after a read on this node or from the bus; the reason is left out, as it could \
                         show the value";

/// The root `value`, which only conditions of `validate` have.
static NOTHING: Value = Value::Null;

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
    /// From [`Scope::tree`]: the keys and indexes that lead to the text, from the root.
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
    match lookup::steps(path) {
        Some(steps) => lookup::plain(value, &steps).cloned(),
        None => lookup::by_gjson(&value.to_string(), path, &EvaluationBudget::default()).ok().flatten(),
    }
}

/// True when a text holds an expression.
pub fn is_template(text: &str) -> bool {
    may_be_template(text) && scan::scan(text).iter().any(|segment| matches!(segment, Segment::Expr { .. }))
}

/// False for most texts, without a scan.
fn may_be_template(text: &str) -> bool {
    // A search for one byte is far quicker than a search for two texts, and most texts have none.
    text.contains('{') && (text.contains("{{") || text.contains("${"))
}

/// The values that expressions see, and the functions that they call. Clones share everything.
#[derive(Clone)]
pub struct Scope {
    inner: Arc<Inner>,
}

/// Facts, gathered on first use.
struct Facts {
    gather: Gather,
    value: OnceLock<Value>,
}

#[derive(Clone)]
struct Parts {
    facts: Arc<Facts>,
    data: Arc<Value>,
    environ: Arc<Value>,
    reader: Option<Reader>,
    exchange: Option<Arc<dyn DiscoveryClient>>,
    /// Reads secrets.
    vault: Option<Vault>,
    secrets: Arc<Secrets>,
    restricted: bool,
    access: Arc<dyn ReadAccess>,
    trace: Arc<Trace>,
    budget: EvaluationBudget,
    /// The part of the data that came from the bus unsigned.
    overlay: Arc<Value>,
    /// True where unsigned values of the bus may shape only content.
    checks_bus: bool,
    /// True where data that replaces the present data comes from unsigned values of the bus.
    gives_bus: bool,
    /// True where the data comes from values that were read.
    reads_data: bool,
}

impl Parts {
    fn of(facts: Gather, data: Value, environ: Value, restricted: bool) -> Self {
        Self {
            facts: Arc::new(Facts { gather: facts, value: OnceLock::new() }),
            data: Arc::new(data),
            environ: Arc::new(environ),
            reader: None,
            exchange: None,
            vault: None,
            secrets: Arc::default(),
            restricted,
            access: Arc::new(UnrestrictedAccess),
            trace: Arc::default(),
            budget: EvaluationBudget::default(),
            overlay: Arc::new(Value::Null),
            checks_bus: false,
            gives_bus: false,
            reads_data: false,
        }
    }
}

struct Inner {
    parts: Parts,
    /// Compiled expressions, by their source.
    compiled: Mutex<HashMap<String, Arc<Compiled>>>,
    /// All roots as JSON, for paths that are not plain.
    json: OnceLock<String>,
}

impl Scope {
    /// Creates a full scope; `facts` are gathered on first use, then kept.
    pub fn new(facts: Gather, data: Value, environ: BTreeMap<String, String>) -> Self {
        let environ = environ.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
        Self::of(Parts::of(facts, data, Value::Object(environ), false))
    }

    /// Creates a scope for the values of data itself.
    ///
    /// Expressions have only `Facts`, `lookup` and `secret`, and `lookup` returns an empty text for a missing key.
    pub fn restricted(facts: Gather) -> Self {
        Self::of(Parts::of(facts, Value::Null, Value::Null, true))
    }

    /// Returns the scope with access to files.
    #[must_use]
    pub fn with_reader(self, reader: Reader) -> Self {
        Self::of(Parts { reader: Some(reader), ..self.inner.parts.clone() })
    }

    /// Returns the scope with access to the bus.
    #[must_use]
    pub fn with_exchange(self, exchange: Arc<dyn DiscoveryClient>) -> Self {
        Self::of(Parts { exchange: Some(exchange), ..self.inner.parts.clone() })
    }

    /// Returns the scope with access to secrets.
    ///
    /// `vault` returns the secret of a name. `secrets` collects each secret in use and all values derived from them.
    #[must_use]
    pub fn with_secrets(self, vault: Vault, secrets: Arc<Secrets>) -> Self {
        Self::of(Parts { vault: Some(vault), secrets, ..self.inner.parts.clone() })
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
        Self::of(Parts { access, environ, ..parts })
    }

    /// Returns the scope with the budget of a run.
    #[must_use]
    pub fn with_budget(self, budget: EvaluationBudget) -> Self {
        Self::of(Parts { budget, ..self.inner.parts.clone() })
    }

    /// Returns the scope with a record of the uses of unsigned values of the bus.
    ///
    /// The values come from `kvGet`, `registrations` and the part of the data that is in `overlay`.
    #[must_use]
    pub fn with_bus_checked(self, overlay: Value) -> Self {
        Self::of(Parts { overlay: Arc::new(overlay), checks_bus: true, ..self.inner.parts.clone() })
    }

    /// Returns the scope with other data.
    #[must_use]
    pub fn with_data(&self, data: Value) -> Self {
        let overlay = Arc::new(if self.inner.parts.gives_bus { data.clone() } else { Value::Null });
        Self::of(Parts { data: Arc::new(data), overlay, ..self.inner.parts.clone() })
    }

    /// Returns the scope for data that comes from values that were read.
    #[must_use]
    pub fn with_read_data(self) -> Self {
        Self::of(Parts { reads_data: true, ..self.inner.parts.clone() })
    }

    /// Returns the scope for a resource whose own data comes from values with these uses.
    #[must_use]
    pub fn giving(&self, used: Used) -> Self {
        if used.bus == self.inner.parts.gives_bus {
            return self.clone();
        }
        Self::of(Parts { gives_bus: used.bus, ..self.inner.parts.clone() })
    }

    /// Returns the present counts of uses; see [`Scope::since`].
    pub fn mark(&self) -> Mark {
        self.inner.parts.trace.mark(self.inner.parts.secrets.use_count())
    }

    /// Returns the uses since a mark.
    pub fn since(&self, before: Mark) -> Used {
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
    pub fn is_discreet(&self) -> bool {
        self.inner.parts.access.hides_values()
    }

    fn of(parts: Parts) -> Self {
        Self { inner: Arc::new(Inner { parts, compiled: Mutex::default(), json: OnceLock::new() }) }
    }

    /// Returns the text with its expressions resolved and printed.
    ///
    /// # Errors
    /// An expression can't be resolved, or has no value.
    pub fn text<'a>(&self, text: &'a str) -> Result<Cow<'a, str>, TemplateError> {
        self.inner.text(text, 0)
    }

    /// Resolves like [`Scope::text`]; an expression that is the whole text keeps the type of its value.
    ///
    /// A lone expression without a value is null.
    ///
    /// # Errors
    /// An expression can't be resolved, or has no value and is not alone.
    pub fn value(&self, text: &str) -> Result<Value, TemplateError> {
        self.inner.value(text, 0)
    }

    /// Resolves every text inside a value like [`Scope::value`]; keys stay.
    ///
    /// # Errors
    /// A text can't be resolved; the error has the path to the text.
    pub fn tree(&self, value: &Value) -> Result<Value, TemplateError> {
        let under = |key: &str| {
            let key = key.to_owned();
            move |mut error: TemplateError| {
                error.path.insert(0, key);
                error
            }
        };
        match value {
            Value::String(text) => self.value(text),
            Value::Array(items) => {
                let items = items.iter().enumerate();
                let items = items.map(|(index, item)| self.tree(item).map_err(under(&index.to_string())));
                items.collect::<Result<_, _>>().map(Value::Array)
            }
            Value::Object(map) => {
                let pairs = map.iter().map(|(key, item)| Ok((key.clone(), self.tree(item).map_err(under(key))?)));
                pairs.collect::<Result<Map<_, _>, _>>().map(Value::Object)
            }
            plain => Ok(plain.clone()),
        }
    }

    /// Resolves like [`Scope::tree`], and the keys too, as texts.
    ///
    /// # Errors
    /// A text or key can't be resolved.
    pub fn tree_with_keys(&self, value: &Value) -> Result<Value, TemplateError> {
        match value {
            Value::Array(items) => items.iter().map(|item| self.tree_with_keys(item)).collect::<Result<_, _>>().map(Value::Array),
            Value::Object(map) => {
                let pairs = map.iter().map(|(key, item)| Ok((self.text(key)?.into_owned(), self.tree_with_keys(item)?)));
                pairs.collect::<Result<Map<_, _>, _>>().map(Value::Object)
            }
            other => self.tree(other),
        }
    }

    /// Resolves like [`Scope::text`] with missing values as empty texts, and tells whether the text matches.
    ///
    /// A text matches when one of its expressions is not empty. Without expressions, the text itself must not be empty.
    ///
    /// # Errors
    /// An expression can't be resolved.
    pub fn matched(&self, text: &str) -> Result<(String, bool), TemplateError> {
        let (mut out, mut any, mut holds) = (String::new(), false, false);
        for segment in scan::scan(text) {
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
    pub fn condition(&self, expression: &str) -> Result<bool, TemplateError> {
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

impl expr::Env for Arc<Inner> {
    fn root(&self, root: Root) -> &Value {
        Inner::root(self, root)
    }

    fn looks_up(&self, path: &Path) -> Result<(), String> {
        let keys = path.steps.iter().map(|step| match &step.to {
            Member::Key(key) => Some(key.as_str()),
            Member::Index(_) => None,
        });
        match (path.root, path.steps.first().map(|step| &step.to)) {
            (Root::Data, _) => self.uses_data(keys),
            (Root::Environ, Some(Member::Key(name))) => self.may_environ(name)?,
            (root, _) => self.uses_root(root),
        }
        Ok(())
    }

    fn looks_at_all(&self) {
        self.uses_root(Root::Data);
        self.uses_root(Root::Environ);
    }

    fn call(&self, name: &str, args: &[Value], depth: usize) -> Result<Value, String> {
        match name {
            "lookup" => self.lookup(args),
            "readFile" | "file" => self.read_file(args),
            "template" => self.template(args, depth),
            "jet" => self.jet(args, depth),
            "kvGet" | "registrations" => self.asked(name, args),
            "secret" => self.secret(args),
            remote::PROMETHEUS => remote::prometheus(args),
            _ => Err(format!("unknown function {name}")),
        }
    }
}

impl Inner {
    fn root(&self, root: Root) -> &Value {
        match root {
            Root::Facts => self.parts.facts.value.get_or_init(|| (self.parts.facts.gather)()),
            Root::Data => &self.parts.data,
            Root::Environ => &self.parts.environ,
            Root::Value => &NOTHING,
        }
    }

    fn compile(&self, source: &str) -> Result<Arc<Compiled>, Failure> {
        let lock = || self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lock().get(source).cloned();
        if let Some(compiled) = known {
            return Ok(compiled);
        }
        let restricted = self.parts.restricted;
        let functions = if restricted { RESTRICTED_FUNCTIONS } else { FUNCTIONS };
        let compiled = expr::compile(source, &Names { functions, restricted, subject: false })
            .map_err(|(offset, detail)| Failure { detail, compile: true, offset })?;
        let compiled = Arc::new(compiled);
        lock().insert(source.to_owned(), Arc::clone(&compiled));
        Ok(compiled)
    }

    fn evaluate(self: &Arc<Self>, source: &str, depth: usize) -> Result<Outcome, Failure> {
        let compiled = self.compile(source)?;
        let (secrets, trace, budget) = (&self.parts.secrets, &self.parts.trace, &self.parts.budget);
        let wrong = |detail: String| Failure { detail, compile: false, offset: 0 };
        if depth == 0 {
            trace.begin();
            budget.begin().map_err(|spent| wrong(spent.to_string()))?;
        }
        let (before, taken) = (trace.mark(secrets.use_count()), budget.mark());
        let outcome = expr::run(&compiled, self, budget, depth);
        budget.settle(taken, outcome.as_ref().map_or(0, Outcome::weight));
        let used = trace.since(before, secrets.use_count());
        if !secrets.is_empty() {
            let sees = || compiled.sees(self, &|value| secrets.value_contains_secret(value));
            if let Ok(outcome) = &outcome
                && (used.secret || sees())
            {
                secrets.add_derived(&outcome.clone().into_json());
            }
        }
        outcome.map_err(|detail| match used.read {
            true => wrong(CONCEALED.to_owned()),
            false => wrong(secrets.redact(&detail).into_owned()),
        })
    }

    /// Charges for `bytes` of memory before their allocation.
    fn charge(&self, bytes: usize) -> Result<(), String> {
        self.parts.budget.charge(bytes).map_err(|spent| spent.to_string())
    }

    /// Charges for a copy of a value.
    fn made(&self, value: &Value) -> Result<(), String> {
        weight::charge(value, &self.parts.budget).map_err(|spent| spent.to_string())
    }

    fn text<'a>(self: &Arc<Self>, text: &'a str, depth: usize) -> Result<Cow<'a, str>, TemplateError> {
        if !may_be_template(text) {
            return Ok(Cow::Borrowed(text));
        }
        let segments = scan::scan(text);
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
                    let why = Outcome::why_nothing(outcome.missing());
                    let shown = outcome.text();
                    let nothing = || failed(Failure { detail: why, compile: false, offset: 0 });
                    out.push_str(&shown.ok_or_else(nothing)?);
                }
            }
        }
        Ok(Cow::Owned(out))
    }

    fn value(self: &Arc<Self>, text: &str, depth: usize) -> Result<Value, TemplateError> {
        if !may_be_template(text) {
            return Ok(Value::String(text.to_owned()));
        }
        if let [Segment::Expr { source, offset }] = scan::scan(text).as_slice() {
            let outcome = self.evaluate(source, depth).map_err(|failure| failure.at(text, source, *offset))?;
            return Ok(outcome.into_json());
        }
        self.text(text, depth).map(|text| Value::String(text.into_owned()))
    }

    /// Records the result of a function as a secret when an argument contains a secret.
    fn derived(&self, from: &[Value], made: &Value) {
        let secrets = &self.parts.secrets;
        if !secrets.is_empty() && from.iter().any(|value| secrets.value_contains_secret(value)) {
            secrets.add_derived(made);
        }
    }

    fn template(self: &Arc<Self>, args: &[Value], depth: usize) -> Result<Value, String> {
        let [Value::String(text)] = args else { return Err("template requires a string argument".to_owned()) };
        if text.ends_with(".jet") {
            return self.jet(args, depth);
        }
        let depth = deeper(depth)?;
        let body = if text.ends_with(".templ") { Cow::Owned(self.read(text)?) } else { Cow::Borrowed(text.as_str()) };
        self.value(&body, depth).map_err(|error| error.to_string())
    }

    fn jet(self: &Arc<Self>, args: &[Value], depth: usize) -> Result<Value, String> {
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
        let depth = deeper(depth)?;
        let (name, body) = if body.ends_with(".jet") { (body.clone(), self.read(&body)?) } else { ("jet".to_owned(), body) };
        jet::render(self, &name, &body, (&left, &right), depth).map(Value::String)
    }
}

/// Returns the depth one level down, or an error beyond the limit.
fn deeper(depth: usize) -> Result<usize, String> {
    if depth < MAX_DEPTH { Ok(depth + 1) } else { Err(format!("templates are nested more than {MAX_DEPTH} deep")) }
}

#[cfg(test)]
mod tests;
