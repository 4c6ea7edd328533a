//! Trees of Jinja files, and of Jet files put into Jinja: both are rendered by minijinja.
//!
//! All files of a tree are templates of one environment, so that each is compiled once and Jinja's
//! own `include`, `import` and `extends` find them. A file that is read in vain says so only when it is
//! used.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Enumerator, Object, Serde, Value as Item, ValueKind, merge_maps};
use minijinja::{AutoEscape, Environment, Error, State, UndefinedBehavior, context};
use serde_json::Value;

use super::expr::Root;
use super::expr::Sight;
use super::jet;
use super::tree::{Engine, FileError, Session};

/// The functions that look at the scope.
const SCOPED: &[&str] = &["lookup", "readFile", "file", "template", "jet", "kvGet", "registrations"];
/// The deepest nesting of includes and macros.
const MAX_RECURSION: usize = 100;
/// What `.` is in a translated Jet file.
const DOT: &str = "ensign_dot";

/// A file as minijinja takes it.
struct Prepared {
    code: String,
    /// For a translated one: where its actions begin in the code, and where in the file.
    places: Vec<(usize, usize)>,
}

/// Renders every file of a tree.
pub(super) fn render(session: &Arc<Session>) -> Result<(), FileError> {
    let mut prepared = BTreeMap::new();
    let mut unreadable = HashMap::new();
    for (file, source) in session.files() {
        match prepare(session, source) {
            Ok(ready) => drop(prepared.insert(file.as_str(), ready)),
            Err((at, message)) => drop(unreadable.insert(file.as_str(), FileError::at(file, source, at, message))),
        }
    }
    let mut environment = environment(session).map_err(|message| FileError::of("", message))?;
    for (file, ready) in &prepared {
        if let Err(error) = environment.add_template(file, &ready.code) {
            unreadable.insert(file, located(session, &prepared, file, &error));
        }
    }
    let roots = roots(session);
    add_render(&mut environment, session, &roots, unreadable.iter().map(|(file, error)| (*file, error.to_string())));
    for file in session.rendered() {
        session.check().map_err(|message| FileError::of(file, message))?;
        if let Some(error) = unreadable.remove(file) {
            return Err(error);
        }
        let template = environment.get_template(file).map_err(|error| located(session, &prepared, file, &error))?;
        let rendered = template.render(variables(&roots, None)).map_err(|error| located(session, &prepared, file, &error))?;
        session.keep(file, rendered)?;
    }
    Ok(())
}

/// A file in minijinja's language; or where it can't be read, and why.
fn prepare(session: &Session, source: &str) -> Result<Prepared, (usize, String)> {
    if session.engine == Engine::Jinja {
        return Ok(Prepared { code: source.to_owned(), places: Vec::new() });
    }
    let is_function = |name: &str| jet::is_function(name) || matches!(name, "render" | "write");
    let translated = jet::translate(source, session.delimiters(), &is_function, Some(DOT));
    translated.map(|done| Prepared { code: done.code, places: done.places }).map_err(|wrong| (wrong.at, wrong.message))
}

fn environment<'s>(session: &Arc<Session>) -> Result<Environment<'s>, String> {
    let mut environment = match session.engine {
        Engine::Jinja => of_jinja(session)?,
        _ => jet::environment(&session.scope, 0)?,
    };
    // By default the names of files decide.
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_recursion_limit(MAX_RECURSION);
    let writer = Arc::clone(session);
    environment.add_function("write", move |path: String, content: Item| {
        writer.write(&path, &content.to_string()).map(|()| "").map_err(jet::failure)
    });
    Ok(environment)
}

fn of_jinja<'s>(session: &Arc<Session>) -> Result<Environment<'s>, String> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    let (left, right) = session.delimiters();
    let syntax =
        SyntaxConfig::builder().keep_trailing_newline(true).variable_delimiters(left.to_owned(), right.to_owned()).build();
    environment.set_syntax(syntax.map_err(|error| jet::why(&error))?);
    environment.set_fuel(Some(jet::FUEL));
    jet::add_scoped(&mut environment, &session.scope, SCOPED, 0);
    Ok(environment)
}

/// `render`: another file of the tree, with its own `.` or variables.
fn add_render<'a>(
    environment: &mut Environment<'_>,
    session: &Arc<Session>,
    roots: &Item,
    unreadable: impl Iterator<Item = (&'a str, String)>,
) {
    let unreadable: HashMap<String, String> = unreadable.map(|(file, why)| (file.to_owned(), why)).collect();
    let (session, roots, nesting) = (Arc::clone(session), roots.clone(), AtomicUsize::new(0));
    environment.add_function("render", move |state: &State<'_, '_>, file: String, dot: Option<Item>| -> Result<String, Error> {
        let path = session.enter(&file, nesting.load(Ordering::Relaxed)).map_err(jet::failure)?;
        if let Some(why) = unreadable.get(&path) {
            return Err(jet::failure(why.clone()));
        }
        let template = state.env().get_template(&path)?;
        nesting.fetch_add(1, Ordering::Relaxed);
        let rendered = template.render(variables(&roots, dot));
        nesting.fetch_sub(1, Ordering::Relaxed);
        rendered
    });
}

/// What there is at the top: facts, data and environ, in both spellings.
fn roots(session: &Session) -> Item {
    let scope = &session.scope;
    // Facts cost much to gather; most templates use none.
    let facts = if session.mentions("acts") { Item::from(Serde(scope.root(Root::Facts))) } else { Item::UNDEFINED };
    let data = Item::from(Serde(scope.root(Root::Data)));
    let environ = Item::from_object(Environ(scope.root(Root::Environ).clone()));
    context! {
        facts => facts.clone(), Facts => facts, data => data.clone(), Data => data, environ => environ.clone(), Environ => environ,
    }
}

/// The variables of a file: what it was given by their names, then what there is at the top.
fn variables(roots: &Item, given: Option<Item>) -> Item {
    let dot = given.unwrap_or_else(|| roots.clone());
    let own = context! { ensign_dot => dot.clone() };
    if dot.kind() == ValueKind::Map { merge_maps([own, dot, roots.clone()]) } else { merge_maps([own, roots.clone()]) }
}

/// The environment, in which what is not there is the empty text.
#[derive(Debug)]
struct Environ(Value);

impl Object for Environ {
    fn get_value(self: &Arc<Self>, key: &Item) -> Option<Item> {
        Some(Item::from(self.0.get(key.as_str()?).and_then(Value::as_str).unwrap_or_default()))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let names = self.0.as_object().into_iter().flatten().map(|(name, _)| Item::from(name.as_str()));
        Enumerator::Values(names.collect())
    }
}

/// An error of minijinja with its place in the file that was written.
fn located(session: &Session, prepared: &BTreeMap<&str, Prepared>, file: &str, error: &Error) -> FileError {
    // The innermost file that is known: an included one rather than that which includes it.
    let mut cause = error;
    while let Some(inner) = std::error::Error::source(cause).and_then(|inner| inner.downcast_ref::<Error>()) {
        cause = inner;
    }
    let cause = if cause.name().is_some() { cause } else { error };
    let file = cause.name().filter(|name| prepared.contains_key(name)).unwrap_or(file);
    let message = match jet::why(cause) {
        message if message == cause.kind().to_string() || cause.detail().is_none() => message,
        message if session.engine == Engine::Jinja && !message.contains(' ') => format!("{}: {message}", cause.kind()),
        message => message,
    };
    let message = match cause.kind() {
        minijinja::ErrorKind::UndefinedError => {
            format!("{message}; give it a value with the filter default, or ask for it with \"is defined\"")
        }
        _ => message,
    };
    let (Some(ready), Some(source)) = (prepared.get(file), session.source(file)) else {
        return FileError::of(file, message);
    };
    let offset = cause.range().map(|range| range.start).or_else(|| {
        let line = cause.line()?.checked_sub(1)?;
        Some(ready.code.split_inclusive('\n').take(line).map(str::len).sum())
    });
    match (offset, session.engine) {
        (None, _) => FileError::of(file, message),
        (Some(offset), Engine::Jinja) => FileError::at(file, source, offset, message),
        (Some(offset), _) => {
            let place = ready.places.iter().take_while(|(there, _)| *there <= offset).last();
            FileError::at(file, source, place.map_or(0, |(_, here)| *here), message)
        }
    }
}

#[cfg(test)]
mod tests {
    // The tests of whole trees are in `tree/tests.rs`.
    use super::*;

    #[test]
    fn the_environment_has_every_name() {
        let environ = Item::from_object(Environ(serde_json::json!({"A": "1"})));
        assert_eq!(environ.get_attr("A").unwrap().to_string(), "1");
        assert_eq!(environ.get_attr("NOPE").unwrap().to_string(), "");
        assert!(!DOT.is_empty());
    }
}
