//! Rendering of Jet templates, and the environment of translated templates.

use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Serde, Value as Item};
use minijinja::{Environment, UndefinedBehavior, context};

use super::facts::facts_item;
use super::inheritance::{NoLibrary, link};
use super::translate::translate;
use super::translator::TranslationContext;
use super::unit::JetError;
use super::{functions, macros, values};
use crate::template::expr::{Root, TemplateErrorKind};
use crate::template::files::minijinja_env::{
    LinkedTemplate, add_scoped, all_to_json, budget_error, error_reason, innermost_cause, set_limits, template_error, to_item,
    to_json,
};
use crate::template::functions::bus_functions;
use crate::template::text::ScopeState;

/// The functions that need the scope.
const SCOPED: &[&str] = &["lookup", "readFile", "file", "template", "kvGet", "registrations", "secret"];

/// True for the name of a function.
pub(in crate::template) fn is_function(name: &str) -> bool {
    SCOPED.contains(&name) || functions::TABLE.iter().any(|(known, _)| *known == name)
}

/// Returns a message with its position in a template.
fn with_place(name: &str, body: &str, at: Option<usize>, message: &str) -> String {
    let Some(at) = at else { return format!("{name}: {message}") };
    let before = body.get(..at).unwrap_or(body);
    let column = 1 + before.rsplit('\n').next().unwrap_or_default().chars().count();
    format!("{name}:{}:{column}: {message}", 1 + before.matches('\n').count())
}

/// Checks that a template can be parsed; the error is the reason with its position.
pub(in crate::template) fn check(name: &str, body: &str, delimiters: (&str, &str)) -> Result<(), (TemplateErrorKind, String)> {
    let wrong = |error: JetError| (error.kind, with_place(name, body, Some(error.at), &error.message));
    parse(body, delimiters).map(drop).map_err(wrong)
}

fn parse(body: &str, delimiters: (&str, &str)) -> Result<LinkedTemplate, JetError> {
    let around = TranslationContext { delimiters, is_function: &is_function, dot: None, file: None };
    translate(body, &around).and_then(|unit| link("", &unit, &NoLibrary))
}

/// Renders a template; the error is the reason with its position.
pub(in crate::template) fn render(
    scope: &Arc<ScopeState>,
    name: &str,
    body: &str,
    delimiters: (&str, &str),
    depth: usize,
) -> Result<String, String> {
    let linked = parse(body, delimiters).map_err(|wrong| with_place(name, body, Some(wrong.at), &wrong.message))?;
    let environment = environment(scope, depth)?;
    let root = |used: bool, root| {
        if !used {
            return Item::UNDEFINED;
        }
        scope.note_root(root);
        Item::from(Serde(scope.root(root)))
    };
    let context = context! {
        facts => if linked.code.contains("facts") { facts_item(scope.root(Root::Facts)) } else { Item::UNDEFINED },
        data => root(linked.code.contains("data"), Root::Data),
        environ => root(linked.code.contains("environ"), Root::Environ),
    };
    environment.render_str(&linked.code, context).map_err(|error| {
        let error = innermost_cause(&error);
        let place = error.range().and_then(|range| linked.origin(range.start));
        with_place(name, body, place.map(|place| place.at), &error_reason(error))
    })
}

/// Creates the environment for translated templates.
pub(in crate::template) fn environment<'s>(scope: &Arc<ScopeState>, depth: usize) -> Result<Environment<'s>, String> {
    let mut environment = Environment::empty();
    environment.set_undefined_behavior(UndefinedBehavior::SemiStrict);
    let syntax = SyntaxConfig::builder().keep_trailing_newline(true).build();
    environment.set_syntax(syntax.map_err(|error| error_reason(&error))?);
    set_limits(&mut environment, scope);
    environment.add_function("namespace", minijinja::functions::namespace);
    for (name, function) in functions::TABLE.iter().chain(functions::OPERATORS) {
        let scope = Arc::clone(scope);
        environment.add_function(*name, move |args: Rest<Item>| {
            let budget = &scope.parts.budget;
            let taken = budget.used_memory();
            let args = all_to_json(&scope, &args)?;
            scope.charge(functions::memory_bound(name, &args)).map_err(budget_error)?;
            let made = function(&args);
            made.iter().for_each(|made| scope.record_derived(&args, made));
            // The arguments and intermediate values are dropped by now.
            budget.release_since(taken, 0);
            to_item(&scope, made)
        });
    }
    let of = Arc::clone(scope);
    environment.add_function(bus_functions::PROMETHEUS, move |list: Item| {
        to_item(&of, bus_functions::prometheus_targets(&[to_json(&of, &list)?]))
    });
    values::add(&mut environment, scope);
    macros::add(&mut environment);
    add_scoped(&mut environment, scope, SCOPED, depth);
    let environ = Arc::clone(scope);
    // As in expressions: an unset variable of the environment is the empty text.
    environment.add_function("environ_of", move |name: String| environ.environ_variable(&name).map_err(template_error));
    Ok(environment)
}
