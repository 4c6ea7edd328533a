//! `jet(…)`: the Jet template language, translated into minijinja's language and rendered by minijinja.
//!
//! - `translate`, `statement`, `expression` and `inheritance` translate.
//! - `functions`, `macros` and `values` are the functions that translated templates call.
//! - `arithmetic` has the operators on numbers, `facts` the facts under two spellings.
//!
//! Fuel limits rendering, so loops end. Output is not escaped for HTML.

mod arithmetic;
mod expression;
mod facts;
mod functions;
mod inheritance;
mod macros;
mod statement;
mod translate;
mod values;

use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Serde, Value as Item};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, context};
use serde_json::Value;

use super::expr::Root;
use super::{ScopeState, bus_functions, minijinja_charges};

pub(super) use self::facts::facts_item;
pub(super) use self::inheritance::{CodeOrigin, JetLibrary, JetUnit, LinkedTemplate, NoLibrary, link};
pub(super) use self::translate::{JetError, TranslationContext, translate};

/// The fuel of one rendering; a step of a loop over a list costs about ten.
pub(super) const FUEL: u64 = 5_000_000;

/// The deepest nesting of blocks and files.
pub(super) const MAX_RECURSION: usize = 100;

/// The functions that need the scope.
const SCOPED: &[&str] = &["lookup", "readFile", "file", "template", "kvGet", "registrations", "secret"];

/// True for the name of a function.
pub(super) fn is_function(name: &str) -> bool {
    SCOPED.contains(&name) || functions::TABLE.iter().any(|(known, _)| *known == name)
}

/// Returns a message with its position in a template.
fn with_place(name: &str, body: &str, at: Option<usize>, message: &str) -> String {
    let Some(at) = at else { return format!("{name}: {message}") };
    let before = body.get(..at).unwrap_or(body);
    let column = 1 + before.rsplit('\n').next().unwrap_or_default().chars().count();
    format!("{name}:{}:{column}: {message}", 1 + before.matches('\n').count())
}

/// Parses a template; the error is the reason with its position.
pub(super) fn parse(name: &str, body: &str, delimiters: (&str, &str)) -> Result<LinkedTemplate, String> {
    let around = TranslationContext { delimiters, is_function: &is_function, dot: None, file: None };
    let linked = translate(body, &around).and_then(|unit| link("", &unit, &NoLibrary));
    linked.map_err(|wrong| with_place(name, body, Some(wrong.at), &wrong.message))
}

/// Renders a template; the error is the reason with its position.
pub(super) fn render(
    scope: &Arc<ScopeState>,
    name: &str,
    body: &str,
    delimiters: (&str, &str),
    depth: usize,
) -> Result<String, String> {
    let linked = parse(name, body, delimiters)?;
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

/// Returns the innermost cause of an error.
pub(super) fn innermost_cause(error: &Error) -> &Error {
    let mut cause = error;
    while let Some(inner) = std::error::Error::source(cause).and_then(|inner| inner.downcast_ref::<Error>()) {
        cause = inner;
    }
    cause
}

/// Creates the environment for translated templates.
pub(super) fn environment<'s>(scope: &Arc<ScopeState>, depth: usize) -> Result<Environment<'s>, String> {
    let mut environment = Environment::empty();
    environment.set_undefined_behavior(UndefinedBehavior::SemiStrict);
    let syntax = SyntaxConfig::builder().keep_trailing_newline(true).build();
    environment.set_syntax(syntax.map_err(|error| error_reason(&error))?);
    environment.set_fuel(Some(FUEL));
    charge_output(&mut environment, scope);
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
    environment.set_recursion_limit(MAX_RECURSION);
    add_scoped(&mut environment, scope, SCOPED, depth);
    let environ = Arc::clone(scope);
    // As in expressions: an unset variable of the environment is the empty text.
    environment.add_function("environ_of", move |name: String| environ.environ_variable(&name).map_err(template_error));
    Ok(environment)
}

/// Adds functions that need the scope.
pub(super) fn add_scoped(
    environment: &mut Environment<'_>,
    scope: &Arc<ScopeState>,
    names: &'static [&'static str],
    depth: usize,
) {
    for name in names {
        let scope = Arc::clone(scope);
        environment.add_function(*name, move |args: Rest<Item>| {
            let args = all_to_json(&scope, &args)?;
            to_item(
                &scope,
                match *name {
                    "lookup" => scope.call_lookup(&args),
                    "template" => scope.call_template(&args, depth),
                    "kvGet" | "registrations" => scope.call_bus_function(name, &args),
                    "secret" => scope.call_secret(&args),
                    "jet" => scope.call_jet(&args, depth),
                    _ => scope.call_read_file(&args),
                },
            )
        });
    }
}

/// Charges the budget for all output.
pub(super) fn charge_output(environment: &mut Environment<'_>, scope: &Arc<ScopeState>) {
    let scope = Arc::clone(scope);
    environment.set_formatter(move |out, state, item| minijinja_charges::write(&scope, out, state, item));
}

/// Returns a copy, charged to the budget.
fn to_json(scope: &ScopeState, item: &Item) -> Result<Value, Error> {
    minijinja_charges::weigh(item, &|bytes| scope.parts.budget.charge(bytes)).map_err(budget_error)?;
    serde_json::to_value(item).map_err(|error| template_error(error.to_string()))
}

fn all_to_json(scope: &ScopeState, items: &[Item]) -> Result<Vec<Value>, Error> {
    items.iter().map(|item| to_json(scope, item)).collect()
}

fn to_item(scope: &ScopeState, result: Result<Value, String>) -> Result<Item, Error> {
    let value = result.map_err(template_error)?;
    scope.charge_copy(&value).map_err(budget_error)?;
    Ok(Item::from(Serde(value)))
}

/// Returns the error of an exhausted budget, which `try` does not catch.
pub(super) fn budget_error(message: String) -> Error {
    Error::new(ErrorKind::OutOfFuel, message)
}

pub(super) fn template_error(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// Returns the reason of an error, without its positions in the translated code.
pub(super) fn error_reason(error: &Error) -> String {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.kind() {
        ErrorKind::OutOfFuel if error.detail().is_none() => "the template does not end".to_owned(),
        _ => detail,
    }
}

#[cfg(test)]
mod tests;
