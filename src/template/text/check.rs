//! Checks of templates before any value is resolved.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::Value;

use super::error::TemplateError;
use super::interpolation::{self, Segment, may_be_template};
use super::outputs::OutputReference;
use super::scope::Scope;
use crate::template::expr::{Compiled, ExprError, MissingKey, Root};
use crate::template::files::jet;

/// Returns the position of the first `{{` without an end, which therefore begins no expression.
pub fn unclosed(text: &str) -> Option<usize> {
    if may_be_template(text) { interpolation::unclosed(text) } else { None }
}

/// Returns the text with each expression replaced by `x`.
pub fn mask_expressions(text: &str) -> Cow<'_, str> {
    if !may_be_template(text) {
        return Cow::Borrowed(text);
    }
    let piece = |segment: Segment<'_>| match segment {
        Segment::Text(text) => text.to_owned(),
        Segment::Expr { .. } => "x".to_owned(),
    };
    interpolation::scan(text).into_iter().map(piece).collect::<String>().into()
}

impl Scope {
    /// Checks that every expression in the text can be parsed. Resolves nothing.
    ///
    /// # Errors
    /// The first expression that can't be parsed.
    pub fn check_text(&self, text: &str) -> Result<(), TemplateError> {
        if !may_be_template(text) {
            return Ok(());
        }
        interpolation::scan(text).into_iter().try_for_each(|segment| match segment {
            Segment::Text(_) => Ok(()),
            Segment::Expr { source, offset } => {
                let checked =
                    self.inner.compile(source).and_then(|compiled| self.check_literal_templates(&compiled, &mut HashSet::new()));
                checked.map_err(|failure| failure.at(text, source, offset))
            }
        })
    }

    /// Checks the templates that an expression names as literals: inline texts and files of the manifest.
    fn check_literal_templates(&self, compiled: &Compiled, seen: &mut HashSet<String>) -> Result<(), ExprError> {
        for (offset, function, args) in compiled.literal_calls(&["jet", "template"]) {
            let Some((first, rest)) = args.split_first() else { continue };
            // Each template is checked once, so files that include each other come to an end.
            if !seen.insert(format!("{function} {first}")) {
                continue;
            }
            let delimiters = if let [left, right] = rest { (*left, *right) } else { ("[[", "]]") };
            let is_jet = function == "jet" || first.ends_with(".jet");
            let body = if first.ends_with(".jet") || (!is_jet && first.ends_with(".templ")) {
                // A resource may create any other file before it is read.
                match self.inner.parts.reader.as_ref().and_then(|reader| reader(first).ok()).filter(|found| found.is_in_manifest)
                {
                    Some(found) => Cow::Owned(found.text),
                    None => continue,
                }
            } else {
                Cow::Borrowed(*first)
            };
            if is_jet {
                let name = if first.ends_with(".jet") { first } else { "jet" };
                jet::check(name, &body, delimiters).map_err(|(kind, detail)| ExprError::new(offset, kind, detail))?;
            } else {
                for segment in interpolation::scan(&body) {
                    if let Segment::Expr { source, .. } = segment {
                        let compiled = self
                            .inner
                            .compile(source)
                            .map_err(|error| ExprError::new(offset, error.kind, format!("'{source}': {}", error.detail)))?;
                        self.check_literal_templates(&compiled, seen).map_err(|error| ExprError { offset, ..error })?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks that a bare expression can be evaluated and is true or false. Evaluates nothing.
    ///
    /// # Errors
    /// The expression can't be parsed, uses an unknown name, or has another type.
    pub fn check_condition(&self, expression: &str) -> Result<(), TemplateError> {
        let compiled = self.inner.compile(expression);
        let checked = compiled.and_then(|compiled| {
            compiled.check_condition()?;
            self.check_literal_templates(&compiled, &mut HashSet::new())
        });
        checked.map_err(|failure| failure.at(expression, expression, 0))
    }

    /// True for a bare expression that is always `truth`, whatever the facts and data are.
    pub fn is_constant(&self, expression: &str, truth: bool) -> bool {
        self.inner.compile(expression).is_ok_and(|compiled| compiled.constant() == Some(truth))
    }

    /// Returns the expressions of a text that use keys missing in `data`, each with its first missing key.
    pub fn missing_keys<'a>(&self, text: &'a str, data: &Value) -> Vec<(&'a str, MissingKey)> {
        if !may_be_template(text) {
            return Vec::new();
        }
        let found = interpolation::scan(text).into_iter().filter_map(|segment| match segment {
            Segment::Text(_) => None,
            Segment::Expr { source, .. } => Some((source, self.missing_key(source, data)?)),
        });
        found.collect()
    }

    /// Returns the first key that a bare expression uses and `data` does not have.
    pub fn missing_key(&self, expression: &str, data: &Value) -> Option<MissingKey> {
        self.inner.compile(expression).ok()?.missing_key(data)
    }

    /// Returns the outputs that a text uses. An expression that can't be parsed uses none.
    pub fn outputs(&self, text: &str) -> Vec<OutputReference> {
        if !may_be_template(text) || !Root::Resources.is_mentioned(text) {
            return Vec::new();
        }
        let expressions = interpolation::scan(text).into_iter().filter_map(|segment| match segment {
            Segment::Text(_) => None,
            Segment::Expr { source, .. } => Some(source),
        });
        expressions.flat_map(|source| self.expression_outputs(source)).collect()
    }

    /// Returns the outputs that a bare expression uses. An expression that can't be parsed uses none.
    pub fn expression_outputs(&self, expression: &str) -> Vec<OutputReference> {
        if !Root::Resources.is_mentioned(expression) {
            return Vec::new();
        }
        let compiled = self.inner.compile(expression);
        let found = compiled.iter().flat_map(|compiled| compiled.outputs());
        found.filter_map(|(resource, output)| OutputReference::new(resource, output)).collect()
    }

    /// The data that expressions see.
    pub fn data(&self) -> &Value {
        &self.inner.parts.data
    }
}
