//! Expressions: read once, run over facts, data and environment.
//!
//! The language is Expr. `parse` reads it, `eval` runs it, `each` has the functions that take a predicate, `operate`
//! the operators, `names` what may be named, `missing` finds keys that are not there. Times, and most functions on values, are those of the crate `expr-lang`, of
//! which this module is the only user; `functions` has those that it does otherwise.

mod each;
mod eval;
mod functions;
mod missing;
mod names;
mod operate;
mod parse;
mod weigh;

use std::cell::{OnceCell, RefCell};

use expr::{Context, ContextProvider, Environment, Error, Value as Item};
use serde_json::{Map, Value};

use self::eval::Run;
pub use self::missing::Missing;
pub(super) use self::names::{Member, Names, Path, Root};
use self::parse::{Node, Wrong};
use super::{text, weight};
use crate::model::EvaluationBudget;

/// The variable that carries how deep templates are nested; no expression can name it.
const DEPTH: &str = "ensign_depth";

/// An expression that is ready to run.
pub(super) struct Compiled {
    node: Node,
    paths: Vec<Path>,
}

/// What an expression sees.
pub(super) trait Sight {
    /// All that is below a root.
    fn root(&self, root: Root) -> &Value;

    /// Told before a path is looked up.
    fn looks_up(&self, _: &Path) -> Result<(), String> {
        Ok(())
    }

    /// Told before everything is looked at.
    fn looks_at_all(&self) {}
}

impl Compiled {
    /// Whether it may be true or false.
    pub(super) fn check_condition(&self) -> Result<(), Wrong> {
        parse::check_condition(&self.node)
    }

    /// The calls of these functions whose arguments are texts that are written out, each with where it stands.
    pub(super) fn written<'c>(&'c self, names: &[&str]) -> Vec<(usize, &'c str, Vec<&'c str>)> {
        let (mut found, mut left) = (Vec::new(), vec![&self.node]);
        while let Some(node) = left.pop() {
            if let Node::Call { name, args, offset } = node
                && names.contains(&name.as_str())
            {
                let text = |arg: &'c Node| if let Node::Item(Item::String(text)) = arg { Some(text.as_str()) } else { None };
                found.extend(args.iter().map(text).collect::<Option<Vec<_>>>().map(|texts| (*offset, name.as_str(), texts)));
            }
            left.extend(node.parts());
        }
        found
    }

    /// What it is, whatever the facts and data are; only for what is written out.
    pub(super) fn always(&self) -> Option<bool> {
        if let Node::Item(Item::Bool(truth)) = &self.node { Some(*truth) } else { None }
    }

    /// Whether a value that the expression names passes a test. Facts are not looked at.
    pub(super) fn sees(&self, sight: &dyn Sight, test: &dyn Fn(&Value) -> bool) -> bool {
        let seen = |path: &&Path| {
            let steps = &mut path.steps.iter();
            let found = steps.try_fold(sight.root(path.root), |here, step| match (here, &step.to) {
                (Value::Object(map), Member::Key(key)) => map.get(key),
                (Value::Array(items), Member::Index(at)) => usize::try_from(*at).ok().and_then(|at| items.get(at)).or(Some(here)),
                _ => None,
            });
            found.is_some_and(test)
        };
        self.paths.iter().filter(|path| path.root != Root::Facts).any(|path| seen(&path))
    }
}

/// What came of running an expression.
#[derive(Clone)]
pub(super) struct Outcome {
    item: Item,
    /// The paths that led to nothing, as they were written.
    missing: Vec<String>,
}

/// Compiles an expression.
pub(super) fn compile(source: &str, names: &Names<'_>) -> Result<Compiled, Wrong> {
    let (node, paths) = parse::parse(source, names)?;
    Ok(Compiled { node, paths })
}

/// Runs an expression; the error says what went wrong.
pub(super) fn run(
    compiled: &Compiled,
    environment: &Environment<'_>,
    sight: &dyn Sight,
    budget: &EvaluationBudget,
    depth: usize,
) -> Result<Outcome, String> {
    let view = View {
        sight,
        budget,
        paths: &compiled.paths,
        items: compiled.paths.iter().map(|_| OnceCell::new()).collect(),
        missing: RefCell::default(),
        depth: Item::from(depth),
    };
    let path = |index: usize| view.path(index);
    let all = || view.all();
    let result = Run::new(environment, &path, &all, &view, budget).eval(&compiled.node, None);
    let missing = view.missing.take();
    match result {
        Ok(item) => Ok(Outcome { item, missing }),
        // What could not be reached is named already.
        Err(message) if message.starts_with("missing key") => Err(message),
        Err(message) => Err(with_missing(message, &missing)),
    }
}

/// An error of the evaluator over nothing is most often a key that is not there.
fn with_missing(message: String, missing: &[String]) -> String {
    match missing.first() {
        Some(path) => format!("{message} (missing key '{path}')"),
        None => message,
    }
}

/// What paths lead to, looked up when an expression reaches them.
struct View<'a> {
    sight: &'a dyn Sight,
    budget: &'a EvaluationBudget,
    paths: &'a [Path],
    items: Vec<OnceCell<Item>>,
    missing: RefCell<Vec<String>>,
    depth: Item,
}

impl View<'_> {
    fn path(&self, index: usize) -> Result<Item, String> {
        let (Some(path), Some(item)) = (self.paths.get(index), self.items.get(index)) else { return Ok(Item::Nil) };
        if let Some(known) = item.get() {
            return Ok(known.clone());
        }
        self.sight.looks_up(path)?;
        let found = resolve(path, self.sight.root(path.root), self.budget)?;
        if found.is_nil() {
            self.missing.borrow_mut().push(path.shown.clone());
        }
        Ok(item.get_or_init(|| found).clone())
    }

    /// Everything, for `$env`.
    fn all(&self) -> Result<Item, String> {
        self.sight.looks_at_all();
        let roots = [("Facts", Root::Facts), ("Data", Root::Data), ("Environ", Root::Environ)];
        let item = |(name, root): (&str, Root)| {
            let root = self.sight.root(root);
            weight::charge(root, self.budget).map_err(|spent| spent.to_string())?;
            Ok((name.to_owned(), to_item(root)))
        };
        Ok(roots.into_iter().map(item).collect::<Result<Vec<_>, String>>()?.into_iter().collect())
    }
}

impl ContextProvider for View<'_> {
    fn get(&self, key: &str) -> Option<&Item> {
        (key == DEPTH).then_some(&self.depth)
    }

    fn to_context(&self) -> Context {
        Context::default()
    }
}

/// The value a path leads to; nothing when the last step finds none.
fn resolve(path: &Path, root: &Value, budget: &EvaluationBudget) -> Result<Item, String> {
    let mut found = Some(root);
    for (index, step) in path.steps.iter().enumerate() {
        let here = match found {
            None | Some(Value::Null) if step.optional => return Ok(Item::Nil),
            None | Some(Value::Null) => {
                let missing = shown(path, index);
                return Err(format!("missing key '{missing}': cannot fetch {} from <nil>", member(&step.to)));
            }
            Some(here) => here,
        };
        found = match (here, &step.to) {
            (Value::Object(map), Member::Key(key)) => map.get(key).or_else(|| by_old_name(path.root, map, key)),
            (Value::Array(items), Member::Index(at)) => {
                let place = usize::try_from(*at).ok().or_else(|| items.len().checked_sub(at.unsigned_abs().try_into().ok()?));
                let item = place.and_then(|place| items.get(place));
                let length = items.len();
                Some(item.ok_or_else(|| format!("index out of range: {at} ({} has {length} elements)", shown(path, index)))?)
            }
            // A text is bytes there.
            (Value::String(text), Member::Index(at)) => return operate::member(&Item::from(text.as_str()), &Item::Integer(*at)),
            (other, to) => return Err(format!("cannot fetch {} from {}: it is {}", member(to), shown(path, index), kind(other))),
        };
    }
    match (found, path.root) {
        // As in a shell: what the environment does not have is empty.
        (None, Root::Environ) => Ok(Item::from("")),
        (found, _) => {
            found.map(|found| weight::charge(found, budget)).transpose().map_err(|spent| spent.to_string())?;
            Ok(found.map_or(Item::Nil, to_item))
        }
    }
}

/// Facts may also be written as the fields of another engine are: `PlatformFamily`, `OS`.
fn by_old_name<'a>(root: Root, map: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    map.iter().find(|(name, _)| root == Root::Facts && is_old_name(key, name)).map(|(_, value)| value)
}

/// Whether a key is the name that a fact has as a field of another engine.
pub(super) fn is_old_name(key: &str, name: &str) -> bool {
    key.starts_with(|c: char| c.is_ascii_uppercase()) && name.eq_ignore_ascii_case(key)
}

fn member(member: &Member) -> String {
    match member {
        Member::Key(key) => key.clone(),
        Member::Index(index) => index.to_string(),
    }
}

/// The first steps of a path, in one spelling.
fn shown(path: &Path, steps: usize) -> String {
    let steps = path.steps.iter().take(steps).map(|step| member(&step.to));
    std::iter::once(format!("{:?}", path.root)).chain(steps).collect::<Vec<_>>().join(".")
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}

impl Outcome {
    /// About how much memory the result takes.
    pub(super) fn weight(&self) -> usize {
        weigh::of(&self.item)
    }

    /// The result as a value; nothing is null.
    pub(super) fn value(self, environment: &Environment<'_>) -> Value {
        to_value(self.item, environment)
    }

    /// The result as text; nothing has none.
    pub(super) fn text(self, environment: &Environment<'_>) -> Option<String> {
        match self.item {
            Item::Nil => None,
            Item::String(text) => Some(text),
            Item::Float(value) => Some(text::float_text(value)),
            other => Some(text::to_text(&to_value(other, environment))),
        }
    }

    /// The result, when it is true or false.
    pub(super) fn truth(&self) -> Option<bool> {
        self.item.as_bool()
    }

    /// Why there is no value.
    pub(super) fn why_nothing(missing: &[String]) -> String {
        match missing.first() {
            Some(path) => format!("missing key '{path}' in environment"),
            None => "the expression has no value".to_owned(),
        }
    }

    /// The paths that led to nothing.
    pub(super) fn missing(&self) -> &[String] {
        &self.missing
    }
}

/// A value as the evaluator takes it.
pub(super) fn to_item(value: &Value) -> Item {
    match value {
        Value::Null => Item::Nil,
        Value::Bool(value) => Item::Bool(*value),
        Value::Number(number) => number.as_i64().map_or_else(|| Item::Float(number.as_f64().unwrap_or(f64::NAN)), Item::Integer),
        Value::String(text) => Item::String(text.clone()),
        Value::Array(items) => Item::Array(items.iter().map(to_item).collect()),
        Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), to_item(value))).collect(),
    }
}

/// A value as the evaluator gives it; times and the like are texts.
pub(super) fn to_value(item: Item, environment: &Environment<'_>) -> Value {
    match item {
        Item::Nil => Value::Null,
        Item::Bool(value) => Value::Bool(value),
        Item::Integer(value) => Value::from(value),
        Item::Float(value) => {
            serde_json::Number::from_f64(value).map_or_else(|| Value::String(text::float_text(value)), Value::Number)
        }
        Item::String(text) => Value::String(text),
        Item::Bytes(bytes) => Value::from(bytes),
        Item::Array(items) => Value::Array(items.into_iter().map(|item| to_value(item, environment)).collect()),
        Item::Map(map) => Value::Object(map.into_iter().map(|(key, item)| (key, to_value(item, environment))).collect()),
        Item::KeyedMap(pairs) => {
            let text = |key| text::to_text(&to_value(key, environment));
            Value::Object(pairs.into_iter().map(|(key, item)| (text(key), to_value(item, environment))).collect())
        }
        time => {
            let shown = time.to_string();
            let text = environment.eval_func(&Context::default(), "string", vec![time], None);
            Value::String(text.ok().and_then(|text| text.as_string().map(str::to_owned)).unwrap_or(shown))
        }
    }
}

/// A function that expressions call: its arguments, and how deep templates are nested.
pub(super) type Function = Box<dyn Fn(&[Value], usize) -> Result<Value, String> + Send + Sync>;

/// The evaluator with its own functions and these.
pub(super) fn environment(functions: Vec<(&'static str, Function)>) -> Environment<'static> {
    let mut environment = Environment::new();
    for (name, function) in functions {
        environment.add_function(name, move |call| {
            let args: Vec<_> = call.args.into_iter().map(|item| to_value(item, call.env)).collect();
            let depth = call.ctx.get(DEPTH).and_then(Item::as_integer).and_then(|depth| usize::try_from(depth).ok());
            function(&args, depth.unwrap_or(0)).map(|value| to_item(&value)).map_err(Error::ExprError)
        });
    }
    functions::add(&mut environment);
    environment
}

#[cfg(test)]
mod tests;
