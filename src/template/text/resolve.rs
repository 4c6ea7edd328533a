//! Resolution: evaluates the expressions of a text in a scope.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::error::TemplateError;
use super::interpolation::{self, Segment, may_be_template};
use super::scope::{Scope, ScopeState};
use crate::model::lock;
use crate::template::expr::{self, Compiled, EvaluationOutcome, ExprError, NameScope};
use crate::template::functions::bus_functions::PROMETHEUS;

/// Functions of a full scope, besides those of the language.
const FUNCTIONS: &[&str] = &["lookup", "readFile", "file", "template", "jet", "kvGet", "registrations", "secret", PROMETHEUS];
/// Functions of a restricted scope.
const RESTRICTED_FUNCTIONS: &[&str] = &["lookup", "secret"];

/// The error detail that replaces a reason which could repeat a value that was read.
const REASON_LEFT_OUT: &str = "evaluation failed after a read on this node or from the bus; the reason is left out, as it could \
                         show the value";

impl Scope {
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
        let failed = |failure: ExprError| failure.at(expression, expression, 0);
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
            failed(ExprError::evaluation(detail))
        })
    }
}

impl ScopeState {
    pub(super) fn compile(&self, source: &str) -> Result<Arc<Compiled>, ExprError> {
        let known = lock(&self.compiled).get(source).cloned();
        if let Some(compiled) = known {
            return Ok(compiled);
        }
        let restricted = self.parts.restricted;
        let functions = if restricted { RESTRICTED_FUNCTIONS } else { FUNCTIONS };
        let compiled = expr::compile(source, &NameScope { functions, facts_only: restricted, value_only: false })?;
        let compiled = Arc::new(compiled);
        lock(&self.compiled).insert(source.to_owned(), Arc::clone(&compiled));
        Ok(compiled)
    }

    pub(super) fn evaluate(self: &Arc<Self>, source: &str, depth: usize) -> Result<EvaluationOutcome, ExprError> {
        let compiled = self.compile(source)?;
        let (secrets, trace, budget) = (&self.parts.secrets, &self.parts.trace, &self.parts.budget);
        let wrong = |detail: String| ExprError::evaluation(detail);
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
                    let failed = |failure: ExprError| failure.at(text, source, offset);
                    let outcome = self.evaluate(source, depth).map_err(failed)?;
                    let why = EvaluationOutcome::no_value_message(outcome.missing_paths());
                    let shown = outcome.text();
                    let nothing = || failed(ExprError::evaluation(why));
                    out.push_str(&shown.ok_or_else(nothing)?);
                }
            }
        }
        Ok(Cow::Owned(out))
    }

    pub(super) fn resolve_value(self: &Arc<Self>, text: &str, depth: usize) -> Result<Value, TemplateError> {
        if !may_be_template(text) {
            return Ok(Value::String(text.to_owned()));
        }
        if let [Segment::Expr { source, offset }] = interpolation::scan(text).as_slice() {
            let outcome = self.evaluate(source, depth).map_err(|failure| failure.at(text, source, *offset))?;
            return Ok(outcome.into_json());
        }
        self.resolve_text(text, depth).map(|text| Value::String(text.into_owned()))
    }
}
