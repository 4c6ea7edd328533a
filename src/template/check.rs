//! What is known of texts before anything is resolved.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::Value;

use super::expr::{Compiled, Missing};
use super::scan::{self, Segment};
use super::{Failure, Scope, TemplateError, jet, may_be_template};

/// Where the first `{{` of a text stands that has no end, and so is no expression.
pub fn unclosed(text: &str) -> Option<usize> {
    if may_be_template(text) { scan::unclosed(text) } else { None }
}

/// The text without its expressions: a word stands for each.
pub fn outline(text: &str) -> Cow<'_, str> {
    if !may_be_template(text) {
        return Cow::Borrowed(text);
    }
    let piece = |segment: Segment<'_>| match segment {
        Segment::Text(text) => text.to_owned(),
        Segment::Expr { .. } => "x".to_owned(),
    };
    scan::scan(text).into_iter().map(piece).collect::<String>().into()
}

impl Scope {
    /// Whether every expression in the text can be read; nothing is resolved.
    ///
    /// # Errors
    /// With the first that can't.
    pub fn check(&self, text: &str) -> Result<(), TemplateError> {
        if !may_be_template(text) {
            return Ok(());
        }
        scan::scan(text).into_iter().try_for_each(|segment| match segment {
            Segment::Text(_) => Ok(()),
            Segment::Expr { source, offset } => {
                let checked = self.inner.compile(source).and_then(|compiled| self.check_written(&compiled, &mut HashSet::new()));
                checked.map_err(|failure| failure.at(text, source, offset))
            }
        })
    }

    /// Whether the templates that an expression has written out, or in files of the manifest, can be read.
    fn check_written(&self, compiled: &Compiled, seen: &mut HashSet<String>) -> Result<(), Failure> {
        for (offset, function, args) in compiled.literal_calls(&["jet", "template"]) {
            let wrong = |detail: String| Failure { detail, compile: true, offset };
            let Some((first, rest)) = args.split_first() else { continue };
            // Once is enough; and files that bring in each other come to an end.
            if !seen.insert(format!("{function} {first}")) {
                continue;
            }
            let delimiters = if let [left, right] = rest { (*left, *right) } else { ("[[", "]]") };
            let is_jet = function == "jet" || first.ends_with(".jet");
            let body = if first.ends_with(".jet") || (!is_jet && first.ends_with(".templ")) {
                // Another file may be made by a resource before.
                match self.inner.parts.reader.as_ref().and_then(|reader| reader(first).ok()).filter(|found| found.own) {
                    Some(found) => Cow::Owned(found.text),
                    None => continue,
                }
            } else {
                Cow::Borrowed(*first)
            };
            if is_jet {
                let name = if first.ends_with(".jet") { first } else { "jet" };
                jet::read(name, &body, delimiters).map_err(wrong)?;
            } else {
                for segment in scan::scan(&body) {
                    if let Segment::Expr { source, .. } = segment {
                        let compiled =
                            self.inner.compile(source).map_err(|failure| wrong(format!("'{source}': {}", failure.detail)))?;
                        self.check_written(&compiled, seen).map_err(|failure| wrong(failure.detail))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a bare expression can be evaluated at all, and be true or false; nothing is.
    ///
    /// # Errors
    /// When it can't be read, names what nobody knows, or gives something else.
    pub fn check_condition(&self, expression: &str) -> Result<(), TemplateError> {
        let compiled = self.inner.compile(expression);
        let checked = compiled.and_then(|compiled| {
            compiled.check_condition().map_err(|(offset, detail)| Failure { detail, compile: true, offset })?;
            self.check_written(&compiled, &mut HashSet::new())
        });
        checked.map_err(|failure| failure.at(expression, expression, 0))
    }

    /// True for a bare expression that is the same whatever the facts and data are, and says so.
    pub fn is_always(&self, expression: &str, truth: bool) -> bool {
        self.inner.compile(expression).is_ok_and(|compiled| compiled.constant() == Some(truth))
    }

    /// The expressions in a text that ask for keys that are not in `data`, each with the first of them.
    pub fn missing<'a>(&self, text: &'a str, data: &Value) -> Vec<(&'a str, Missing)> {
        if !may_be_template(text) {
            return Vec::new();
        }
        let found = scan::scan(text).into_iter().filter_map(|segment| match segment {
            Segment::Text(_) => None,
            Segment::Expr { source, .. } => Some((source, self.missing_in(source, data)?)),
        });
        found.collect()
    }

    /// The first key that a bare expression asks for and that is not in `data`.
    pub fn missing_in(&self, expression: &str, data: &Value) -> Option<Missing> {
        self.inner.compile(expression).ok()?.missing(data)
    }

    /// The data that expressions see.
    pub fn data(&self) -> &Value {
        &self.inner.parts.data
    }
}
