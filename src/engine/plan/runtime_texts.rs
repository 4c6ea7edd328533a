//! Errors in texts that are read only when the resource runs: conditions, runtime templates, health checks.
//!
//! Their results are known only then. Planning checks their syntax, and the data keys that they use.

use serde_json::Value;

use crate::diag::Diagnostic;
use crate::manifest::Declaration;
use crate::resource::Control;
use crate::resource::core::text;
use crate::template::{self, MissingKey, Scope, TemplateError, TemplateErrorKind, mask_expressions};
use crate::yaml::{KeyOrIndex, YamlDocument};

use super::place::narrow_place;
use super::planned::PlannedResource;

/// The errors in the runtime texts of a resource.
#[derive(Default)]
pub(super) struct TemplateFindings {
    /// Errors: nothing may run.
    pub(super) errors: Vec<Diagnostic>,
    /// Missing data keys: the resource fails when it is reached.
    pub(super) failing: Vec<Diagnostic>,
    /// Possible mistakes, for a warning.
    pub(super) suspicious: Vec<Diagnostic>,
}

/// Checks the runtime texts of a resource. `data` has the keys that the texts may use, if they are known.
pub(super) fn check_runtime_texts(
    planned: &PlannedResource,
    document: &YamlDocument,
    scope: &Scope,
    data: Option<&Value>,
) -> TemplateFindings {
    let mut texts = Texts { declaration: &planned.declaration, document, scope, data, found: TemplateFindings::default() };
    let control = planned.common.control.as_ref();
    if let Some(control) = control {
        texts.conditions(control);
    }
    // A text behind a condition that is always false may use any key.
    if control.is_some_and(|control| never_applies(control, scope)) {
        return texts.found;
    }
    for (key, line) in planned.decoded.command_lines(&planned.common.provider) {
        texts.command(key, line);
    }
    for check in &planned.common.health_checks {
        texts.command("health_checks", &check.command);
    }
    let late = planned.deferred.iter().flatten().filter(|(key, _)| planned.is_late(key));
    for (key, value) in late {
        texts.templates(key, value, control);
    }
    for rules in planned.common.health_checks.iter().filter_map(|check| check.goss_rules.as_ref()) {
        for section in rules.values() {
            for name in section.as_object().into_iter().flat_map(|things| things.keys()) {
                texts.template("health_checks", name, control);
            }
            texts.templates("health_checks", section, control);
        }
    }
    texts.found
}

/// Returns the errors in the conditions of a resource, as far as they can be read without data.
pub(super) fn conditions(
    declaration: &Declaration,
    document: &YamlDocument,
    scope: &Scope,
    control: &Control,
) -> Vec<Diagnostic> {
    let mut texts = Texts { declaration, document, scope, data: None, found: TemplateFindings::default() };
    texts.conditions(control);
    texts.found.errors
}

/// Returns true when the conditions exclude the resource on every host.
fn never_applies(control: &Control, scope: &Scope) -> bool {
    let is = |expression: &Option<String>, truth| expression.as_ref().is_some_and(|text| scope.is_constant(text, truth));
    is(&control.only_if, false) || is(&control.unless, true)
}

/// Checks the templates in a value. Returns the first error.
pub(super) fn check_templates(scope: &Scope, value: &Value) -> Result<(), TemplateError> {
    match value {
        Value::String(text) => scope.check_text(text),
        Value::Array(list) => list.iter().try_for_each(|item| check_templates(scope, item)),
        Value::Object(map) => map.values().try_for_each(|item| check_templates(scope, item)),
        _ => Ok(()),
    }
}

struct Texts<'a> {
    declaration: &'a Declaration,
    document: &'a YamlDocument,
    scope: &'a Scope,
    data: Option<&'a Value>,
    found: TemplateFindings,
}

impl Texts<'_> {
    fn conditions(&mut self, control: &Control) {
        for (key, expression) in [("if", &control.only_if), ("unless", &control.unless)] {
            let Some(expression) = expression else { continue };
            let path = [KeyOrIndex::from("control"), KeyOrIndex::from(key)];
            match self.scope.check_condition(expression) {
                Err(error) => {
                    let found = self.declaration.diagnose_at(self.document, &path, format!("control {key}: {error}"));
                    self.found.errors.push(explain(self.document, found, &error, self.scope));
                }
                Ok(()) => {
                    let Some(missing) = self.data.and_then(|data| self.scope.missing_key(expression, data)) else { continue };
                    let found = self.declaration.diagnose_at(self.document, &path, unknown(&format!("control {key}"), &missing));
                    let found = narrow_place(self.document, found, expression, missing.offset).hint(suggestion(&missing));
                    // A key that only some hosts have is empty on the others.
                    if missing.suggestion.is_some() { self.found.errors.push(found) } else { self.found.suspicious.push(found) }
                }
            }
        }
    }

    /// Checks a command line for unclosed quotes.
    fn command(&mut self, key: &str, line: &str) {
        let outline = mask_expressions(line);
        let Some((quote, at)) = text::unclosed(&outline) else { return };
        let rest = outline.get(at..).unwrap_or_default();
        let found =
            self.declaration.diagnose(self.document, Some(key), format!("{key}: the {quote} in \"{rest}\" is not closed"));
        let within = if outline == line { at } else { 0 };
        let found = narrow_place(self.document, found, line, within);
        self.found.errors.push(found.hint("close it, or put a backslash before a literal quote"));
    }

    fn templates(&mut self, key: &str, value: &Value, control: Option<&Control>) {
        match value {
            Value::String(text) => self.template(key, text, control),
            Value::Array(list) => list.iter().for_each(|item| self.templates(key, item, control)),
            Value::Object(map) => map.values().for_each(|item| self.templates(key, item, control)),
            _ => {}
        }
    }

    fn template(&mut self, key: &str, text: &str, control: Option<&Control>) {
        if let Err(error) = self.scope.check_text(text) {
            self.found.errors.push(unresolved(self.declaration, self.document, key, &error, self.scope));
            return;
        }
        for (expression, missing) in self.data.map(|data| self.scope.missing_keys(text, data)).unwrap_or_default() {
            // A condition on the same key decides if the text is ever resolved.
            let conditions = control.into_iter().flat_map(|control| control.only_if.iter().chain(&control.unless));
            if conditions.into_iter().any(|condition| condition.contains(&missing.key)) {
                continue;
            }
            let found = self.declaration.diagnose(self.document, Some(key), unknown(key, &missing));
            let found = narrow_place(self.document, found, expression, missing.offset).hint(suggestion(&missing));
            if missing.suggestion.is_some() { self.found.errors.push(found) } else { self.found.failing.push(found) }
        }
    }
}

fn unknown(place: &str, missing: &MissingKey) -> String {
    format!("{place}: the data has no key {} (in '{}')", missing.key, missing.path)
}

fn suggestion(missing: &MissingKey) -> String {
    match (&missing.suggestion, missing.known.as_slice()) {
        (Some(near), _) => format!("did you mean \"{near}\"?"),
        (None, []) => "the data has no keys here; ?? gives an expression a default".to_owned(),
        (None, known) => {
            const SHOWN: usize = 12;
            let more = if known.len() > SHOWN { ", ..." } else { "" };
            let shown: Vec<&str> = known.iter().take(SHOWN).map(String::as_str).collect();
            format!("known keys are {}{more}; ?? gives an expression a default", shown.join(", "))
        }
    }
}

/// Finds texts with an unclosed `{{`, which are no templates.
pub(super) fn unclosed(declaration: &Declaration, document: &YamlDocument) -> Vec<Diagnostic> {
    let look = |(key, value): (&String, &Value)| {
        let text = value.as_str()?;
        let at = template::unclosed(text)?;
        let message = format!("{key}: the {{{{ here is not closed outside of quotes, so the text stays as it is");
        let found = declaration.diagnose(document, Some(key), message);
        let found = narrow_place(document, found, text.get(at..).unwrap_or_default().lines().next().unwrap_or_default(), 0);
        Some(found.hint("close it with }}, and the quotes within; \"{{ '{{' }}\" writes two braces"))
    };
    declaration.written_properties().filter_map(look).collect()
}

/// Returns the error of a property whose template cannot be resolved, with its place.
pub(super) fn unresolved(
    declaration: &Declaration,
    document: &YamlDocument,
    key: &str,
    error: &TemplateError,
    scope: &Scope,
) -> Diagnostic {
    let found = declaration.diagnose(document, Some(key), format!("resolving {key}: {error}"));
    explain(document, found, error, scope)
}

/// Returns the error of an expression, at its place, with a hint.
pub(super) fn explain(document: &YamlDocument, found: Diagnostic, error: &TemplateError, scope: &Scope) -> Diagnostic {
    if error.kind == TemplateErrorKind::Evaluation {
        let missing = if scope.hides_values() { None } else { scope.missing_key(&error.expression, scope.data()) };
        let within = missing.as_ref().map_or(error.within, |missing| missing.offset);
        let found = narrow_place(document, found, &error.expression, within);
        return match missing {
            Some(missing) => found.hint(suggestion(&missing)),
            None => found,
        };
    }
    let diagnostic = narrow_place(document, found, &error.expression, error.within);
    let hint = match error.kind {
        TemplateErrorKind::MisspelledName => return diagnostic,
        TemplateErrorKind::Unclosed => "close what is opened there; put a text in quotes",
        TemplateErrorKind::UnknownName => "an expression sees Data, Facts and Environ; put a text in quotes",
        TemplateErrorKind::WrongType => "compare the value, or convert it with int(), float() or string()",
        TemplateErrorKind::Evaluation | TemplateErrorKind::Syntax => "docs/templates.md has what expressions are made of",
    };
    diagnostic.hint(hint)
}
