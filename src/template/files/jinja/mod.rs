//! Trees of Jinja files, and of Jet files translated to Jinja; minijinja renders both.
//!
//! All files of a tree are templates of one environment, so each file is compiled once.
//! Jinja's own `include`, `import` and `extends` find the files there.
//! A file that can't be parsed is an error only when it is rendered, alone or within another file.

mod filters;
mod metered;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Enumerator, Object, Rest, Serde, Value as Item, ValueKind, merge_maps};
use minijinja::{AutoEscape, Environment, Error, State, UndefinedBehavior, context};

use super::error::FileError;
use super::jet;
use super::minijinja_env::{LinkedTemplate, add_scoped, error_reason, innermost_cause, set_limits, template_error};
use super::session::{Engine, RenderSession};
use crate::template::expr::Root;
use crate::template::text::ScopeState;

/// The functions that need the scope.
const SCOPED: &[&str] = &["lookup", "readFile", "file", "template", "jet", "kvGet", "registrations"];

/// The files in minijinja's language.
type Prepared<'s> = BTreeMap<&'s str, LinkedTemplate>;

/// Renders every file of a tree.
pub(super) fn render(session: &Arc<RenderSession>) -> Result<(), FileError> {
    let (prepared, mut unreadable) = prepare(session);
    let mut environment = environment(session).map_err(|message| FileError::without_place("", message))?;
    for (file, ready) in &prepared {
        if let Err(error) = environment.add_template(file, &ready.code) {
            unreadable.insert(file, with_place(session, &prepared, file, &error));
        }
    }
    let roots = roots(session);
    add_render(&mut environment, session, &roots, unreadable.iter().map(|(file, error)| (*file, error.to_string())));
    for file in session.top_level_files() {
        let taken = session.begin().map_err(|message| FileError::without_place(file, message))?;
        session.check_not_over().map_err(|message| FileError::without_place(file, message))?;
        if let Some(error) = unreadable.remove(file) {
            return Err(error);
        }
        let template = environment.get_template(file).map_err(|error| with_place(session, &prepared, file, &error))?;
        let rendered = template
            .render(variables(&roots, None, Item::UNDEFINED))
            .map_err(|error| with_place(session, &prepared, file, &error))?;
        session.end(taken, rendered.len());
        session.store_rendered(file, rendered)?;
    }
    Ok(())
}

/// Prepares the files for minijinja; returns the errors of those that can't be parsed.
fn prepare(session: &RenderSession) -> (Prepared<'_>, HashMap<&str, FileError>) {
    let files = session.files().iter().map(|(file, source)| (file.as_str(), source.as_str()));
    if session.engine == Engine::Jinja {
        return prepare_jinja(session);
    }
    let is_function = |name: &str| jet::is_function(name) || matches!(name, "render" | "write");
    let translated = files.map(|(file, source)| {
        let around = jet::TranslationContext {
            delimiters: session.delimiters(),
            is_function: &is_function,
            dot: Some(jet::DOT),
            file: Some(file),
        };
        (file, jet::translate(source, &around))
    });
    let library = TreeLibrary { session, units: translated.collect() };
    let (mut prepared, mut unreadable) = (Prepared::new(), HashMap::new());
    for (file, unit) in &library.units {
        let linked = unit.as_ref().map_err(Clone::clone).and_then(|unit| jet::link(file, unit, &library));
        match linked {
            Ok(linked) => drop(prepared.insert(*file, linked)),
            Err(wrong) => {
                let source = session.source(file).unwrap_or_default();
                unreadable.insert(*file, FileError::at(file, source, wrong.at, wrong.message));
            }
        }
    }
    (prepared, unreadable)
}

/// Rewrites Jinja files with charges; returns the errors of those that can't be parsed.
fn prepare_jinja(session: &RenderSession) -> (Prepared<'_>, HashMap<&str, FileError>) {
    let (mut prepared, mut unreadable) = (Prepared::new(), HashMap::new());
    for (file, source) in session.files() {
        let (left, right) = session.delimiters();
        let syntax =
            SyntaxConfig::builder().keep_trailing_newline(true).variable_delimiters(left.to_owned(), right.to_owned()).build();
        match syntax.and_then(|syntax| metered::add_charges(file, source, syntax)) {
            Ok(linked) => drop(prepared.insert(file.as_str(), linked)),
            Err(error) => {
                let before = || error.line().and_then(|line| line.checked_sub(1)).unwrap_or(0);
                let lines = || source.split_inclusive('\n').take(before()).map(str::len).sum();
                let offset = error.range().map_or_else(lines, |range| range.start);
                let why = error_reason(&error);
                let kind = error.kind().to_string();
                let message = if why == kind { kind } else { format!("{kind}: {why}") };
                unreadable.insert(file.as_str(), FileError::at(file, source, offset, message));
            }
        }
    }
    (prepared, unreadable)
}

/// Jet files that may take blocks from each other.
struct TreeLibrary<'s> {
    session: &'s RenderSession,
    units: BTreeMap<&'s str, Result<jet::JetUnit, jet::JetError>>,
}

impl jet::JetLibrary for TreeLibrary<'_> {
    fn find(&self, file: &str, name: &str) -> Result<(&str, &jet::JetUnit), String> {
        let path = self
            .session
            .resolve_name(file, name)
            .ok_or_else(|| format!("there is no template {name} in the source directory"))?;
        match self.units.get(path) {
            Some(Ok(unit)) => Ok((path, unit)),
            Some(Err(wrong)) => {
                let source = self.session.source(path).unwrap_or_default();
                Err(FileError::at(path, source, wrong.at, &wrong.message).to_string())
            }
            None => Err(format!("there is no template {name} in the source directory")),
        }
    }
}

fn environment<'s>(session: &Arc<RenderSession>) -> Result<Environment<'s>, String> {
    let mut environment = match session.engine {
        Engine::Jinja => jinja_environment(session)?,
        _ => jet::environment(&session.scope, 0)?,
    };
    // minijinja would decide by the file extension.
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    let writer = Arc::clone(session);
    environment.add_function("write", move |path: String, content: Item| {
        writer.write(&path, &content.to_string()).map(|()| "").map_err(template_error)
    });
    Ok(environment)
}

fn jinja_environment<'s>(session: &Arc<RenderSession>) -> Result<Environment<'s>, String> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    // Rewritten templates have the default delimiters, whatever their own were.
    let syntax = SyntaxConfig::builder().keep_trailing_newline(true).build();
    environment.set_syntax(syntax.map_err(|error| error_reason(&error))?);
    set_limits(&mut environment, &session.scope);
    filters::add(&mut environment, &session.scope);
    add_scoped(&mut environment, &session.scope, SCOPED, 0);
    Ok(environment)
}

/// Adds `render` (another file of the tree, with its own `.` or variables) and `included`.
///
/// Jet's `include` becomes `included`, which also passes the variables at its place.
fn add_render<'a>(
    environment: &mut Environment<'_>,
    session: &Arc<RenderSession>,
    roots: &Item,
    unreadable: impl Iterator<Item = (&'a str, String)>,
) {
    let rooms = Arc::new(FileRenderer {
        session: Arc::clone(session),
        roots: roots.clone(),
        unreadable: unreadable.map(|(file, why)| (file.to_owned(), why)).collect(),
        nesting: AtomicUsize::new(0),
    });
    let shared = Arc::clone(&rooms);
    environment.add_function("render", move |state: &State<'_, '_>, file: String, dot: Option<Item>| {
        shared.render(state, &file, dot, Item::UNDEFINED)
    });
    environment.add_function("included", move |state: &State<'_, '_>, with: Rest<Item>| {
        let [file, from, dot, given, must] = with.as_slice() else {
            return Err(template_error("included takes five arguments".to_owned()));
        };
        let file = file.as_str().ok_or_else(|| template_error("include takes the path of a file".to_owned()))?;
        match rooms.session.resolve_name(from.as_str().unwrap_or_default(), file) {
            Some(path) => rooms.render(state, path, Some(dot.clone()), given.clone()),
            None if must.is_true() => Err(template_error(format!("there is no template {file} in the source directory"))),
            None => Ok(String::new()),
        }
    });
}

/// The shared context to render files within files.
struct FileRenderer {
    session: Arc<RenderSession>,
    roots: Item,
    unreadable: HashMap<String, String>,
    /// The current depth of files within files.
    nesting: AtomicUsize,
}

impl FileRenderer {
    fn render(&self, state: &State<'_, '_>, file: &str, dot: Option<Item>, given: Item) -> Result<String, Error> {
        let path = self.session.check_render(file, self.nesting.load(Ordering::Relaxed)).map_err(template_error)?;
        if let Some(why) = self.unreadable.get(&path) {
            return Err(template_error(why.clone()));
        }
        let template = state.env().get_template(&path)?;
        self.nesting.fetch_add(1, Ordering::Relaxed);
        let rendered = template.render(variables(&self.roots, dot, given));
        self.nesting.fetch_sub(1, Ordering::Relaxed);
        rendered
    }
}

/// Returns the variables at the top: facts, data and environ, in both spellings.
fn roots(session: &RenderSession) -> Item {
    let facts = match (session.root(Root::Facts), session.engine) {
        (None, _) => Item::UNDEFINED,
        (Some(facts), Engine::Jet) => jet::facts_item(facts),
        (Some(facts), _) => Item::from(Serde(facts)),
    };
    let data = session.root(Root::Data).map_or(Item::UNDEFINED, |data| Item::from(Serde(data)));
    // Records the use.
    session.root(Root::Environ);
    let environ = Item::from_object(Environ(Arc::clone(&session.scope)));
    context! {
        facts => facts.clone(), Facts => facts, data => data.clone(), Data => data, environ => environ.clone(), Environ => environ,
    }
}

/// Returns the variables of a file: those of its caller, then the roots.
fn variables(roots: &Item, dot: Option<Item>, given: Item) -> Item {
    let dot = dot.unwrap_or_else(|| roots.clone());
    let own = Item::from(BTreeMap::from([(jet::DOT, dot.clone()), (jet::GIVEN, given)]));
    if dot.kind() == ValueKind::Map { merge_maps([own, dot, roots.clone()]) } else { merge_maps([own, roots.clone()]) }
}

/// The environment; an unset variable is the empty text.
struct Environ(Arc<ScopeState>);

impl fmt::Debug for Environ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Environ")
    }
}

impl Object for Environ {
    fn get_value(self: &Arc<Self>, key: &Item) -> Option<Item> {
        let found = self.0.environ_variable(key.as_str()?);
        Some(found.map_or_else(|why| Item::from(template_error(why)), Item::from))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let names = self.0.root(Root::Environ).as_object().into_iter().flatten().map(|(name, _)| Item::from(name.as_str()));
        Enumerator::Values(names.collect())
    }
}

/// Returns an error of minijinja with its place in the source file.
fn with_place(session: &RenderSession, prepared: &Prepared<'_>, file: &str, error: &Error) -> FileError {
    // The innermost known file: an included file rather than the including one.
    let cause = innermost_cause(error);
    let cause = if cause.name().is_some() { cause } else { error };
    let file = cause.name().filter(|name| prepared.contains_key(name)).unwrap_or(file);
    let message = match error_reason(cause) {
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
        return FileError::without_place(file, message);
    };
    let offset = cause.range().map(|range| range.start).or_else(|| {
        let line = cause.line()?.checked_sub(1)?;
        Some(ready.code.split_inclusive('\n').take(line).map(str::len).sum())
    });
    match offset {
        None => FileError::without_place(file, message),
        Some(offset) => {
            let place = ready.origin(offset);
            // The code may come from another file than the rendered one.
            let file = place.map_or(file, |place| place.file.as_ref());
            FileError::at(file, session.source(file).unwrap_or(source), place.map_or(0, |place| place.at), message)
        }
    }
}

#[cfg(test)]
mod tests {
    // The tests of whole trees are in `files/tests.rs`.
    use super::*;

    #[test]
    fn unset_environment_variables_are_empty() {
        let known = [("A".to_owned(), "1".to_owned())].into();
        let scope = crate::template::Scope::new(Arc::new(|| serde_json::Value::Null), serde_json::Value::Null, known);
        let environ = Item::from_object(Environ(scope.inner));
        assert_eq!(environ.get_attr("A").unwrap().to_string(), "1");
        assert_eq!(environ.get_attr("NOPE").unwrap().to_string(), "");
    }
}
