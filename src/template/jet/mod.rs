//! `jet(…)`: the Jet template language, translated into minijinja's language and rendered by minijinja.
//!
//! - `translate`, `statement`, `expression` and `link` translate.
//! - `functions`, `calls` and `values` are the functions that translated templates call.
//! - `arithmetic` has the operators on numbers, `facts` the facts under two spellings.
//!
//! Fuel limits rendering, so loops end. Output is not escaped for HTML.

mod arithmetic;
mod calls;
mod expression;
mod facts;
mod functions;
mod link;
mod statement;
mod translate;
mod values;

use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Serde, Value as Item};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, context};
use serde_json::Value;

use super::expr::Root;
use super::{Inner, paid, remote};

pub(super) use self::facts::facts;
pub(super) use self::link::{Alone, Library, Linked, Place, Unit, link};
pub(super) use self::translate::{Surroundings, Wrong, translate};

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
fn located(name: &str, body: &str, at: Option<usize>, message: &str) -> String {
    let Some(at) = at else { return format!("{name}: {message}") };
    let before = body.get(..at).unwrap_or(body);
    let column = 1 + before.rsplit('\n').next().unwrap_or_default().chars().count();
    format!("{name}:{}:{column}: {message}", 1 + before.matches('\n').count())
}

/// Parses a template; the error is the reason with its position.
pub(super) fn read(name: &str, body: &str, delimiters: (&str, &str)) -> Result<Linked, String> {
    let around = Surroundings { delimiters, is_function: &is_function, dot: None, file: None };
    let linked = translate(body, &around).and_then(|unit| link("", &unit, &Alone));
    linked.map_err(|wrong| located(name, body, Some(wrong.at), &wrong.message))
}

/// Renders a template; the error is the reason with its position.
pub(super) fn render(
    scope: &Arc<Inner>,
    name: &str,
    body: &str,
    delimiters: (&str, &str),
    depth: usize,
) -> Result<String, String> {
    let linked = read(name, body, delimiters)?;
    let environment = environment(scope, depth)?;
    let root = |used: bool, root| {
        if !used {
            return Item::UNDEFINED;
        }
        scope.uses_root(root);
        Item::from(Serde(scope.root(root)))
    };
    let context = context! {
        facts => if linked.code.contains("facts") { facts(scope.root(Root::Facts)) } else { Item::UNDEFINED },
        data => root(linked.code.contains("data"), Root::Data),
        environ => root(linked.code.contains("environ"), Root::Environ),
    };
    environment.render_str(&linked.code, context).map_err(|error| {
        let error = innermost(&error);
        let place = error.range().and_then(|range| linked.written(range.start));
        located(name, body, place.map(|place| place.at), &why(error))
    })
}

/// Returns the innermost cause of an error.
pub(super) fn innermost(error: &Error) -> &Error {
    let mut cause = error;
    while let Some(inner) = std::error::Error::source(cause).and_then(|inner| inner.downcast_ref::<Error>()) {
        cause = inner;
    }
    cause
}

/// Creates the environment for translated templates.
pub(super) fn environment<'s>(scope: &Arc<Inner>, depth: usize) -> Result<Environment<'s>, String> {
    let mut environment = Environment::empty();
    environment.set_undefined_behavior(UndefinedBehavior::SemiStrict);
    let syntax = SyntaxConfig::builder().keep_trailing_newline(true).build();
    environment.set_syntax(syntax.map_err(|error| why(&error))?);
    environment.set_fuel(Some(FUEL));
    pay_for_output(&mut environment, scope);
    environment.add_function("namespace", minijinja::functions::namespace);
    for (name, function) in functions::TABLE.iter().chain(functions::INTERNAL) {
        let scope = Arc::clone(scope);
        environment.add_function(*name, move |args: Rest<Item>| {
            let budget = &scope.parts.budget;
            let taken = budget.mark();
            let args = values(&scope, &args)?;
            scope.charge(functions::made(name, &args)).map_err(spent)?;
            let made = function(&args);
            made.iter().for_each(|made| scope.derived(&args, made));
            // The arguments and intermediate values are dropped by now.
            budget.settle(taken, 0);
            answer(&scope, made)
        });
    }
    let of = Arc::clone(scope);
    environment.add_function(remote::PROMETHEUS, move |list: Item| answer(&of, remote::prometheus(&[value(&of, &list)?])));
    values::add(&mut environment, scope);
    calls::add(&mut environment);
    environment.set_recursion_limit(MAX_RECURSION);
    add_scoped(&mut environment, scope, SCOPED, depth);
    let environ = Arc::clone(scope);
    // As in expressions: an unset variable of the environment is the empty text.
    environment.add_function("environ_of", move |name: String| environ.variable(&name).map_err(failure));
    Ok(environment)
}

/// Adds functions that need the scope.
pub(super) fn add_scoped(environment: &mut Environment<'_>, scope: &Arc<Inner>, names: &'static [&'static str], depth: usize) {
    for name in names {
        let scope = Arc::clone(scope);
        environment.add_function(*name, move |args: Rest<Item>| {
            let args = values(&scope, &args)?;
            answer(
                &scope,
                match *name {
                    "lookup" => scope.lookup(&args),
                    "template" => scope.template(&args, depth),
                    "kvGet" | "registrations" => scope.asked(name, &args),
                    "secret" => scope.secret(&args),
                    "jet" => scope.jet(&args, depth),
                    _ => scope.read_file(&args),
                },
            )
        });
    }
}

/// Charges the budget for all output.
pub(super) fn pay_for_output(environment: &mut Environment<'_>, scope: &Arc<Inner>) {
    let scope = Arc::clone(scope);
    environment.set_formatter(move |out, state, item| paid::write(&scope, out, state, item));
}

/// Returns a copy, charged to the budget.
fn value(scope: &Inner, item: &Item) -> Result<Value, Error> {
    paid::weigh(item, &|bytes| scope.parts.budget.charge(bytes)).map_err(spent)?;
    serde_json::to_value(item).map_err(|error| failure(error.to_string()))
}

fn values(scope: &Inner, items: &[Item]) -> Result<Vec<Value>, Error> {
    items.iter().map(|item| value(scope, item)).collect()
}

fn answer(scope: &Inner, result: Result<Value, String>) -> Result<Item, Error> {
    let value = result.map_err(failure)?;
    scope.made(&value).map_err(spent)?;
    Ok(Item::from(Serde(value)))
}

/// Returns the error of an exhausted budget, which `try` does not catch.
pub(super) fn spent(message: String) -> Error {
    Error::new(ErrorKind::OutOfFuel, message)
}

pub(super) fn failure(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// Returns the reason of an error, without its positions in the translated code.
pub(super) fn why(error: &Error) -> String {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.kind() {
        ErrorKind::OutOfFuel if error.detail().is_none() => "the template does not end".to_owned(),
        _ => detail,
    }
}

#[cfg(test)]
mod tests;
