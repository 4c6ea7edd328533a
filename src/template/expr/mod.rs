//! Expressions in the Expr language: compiled once, evaluated over facts, data and environment.
//!
//! `parse` reads an expression into the tree of `node`. `eval` evaluates the tree, and `resolve` walks paths. `operators`,
//! `predicates` and `functions` compute. `value` has the one type of values, and `weigh` estimates their memory. `names` has
//! the names in scope, and `missing` finds keys that the data lacks.

mod env;
mod eval;
mod functions;
mod missing;
mod names;
mod node;
mod operators;
mod parse;
mod predicates;
mod resolve;
mod value;
mod weigh;

use serde_json::Value as Json;

pub(super) use self::env::Env;
use self::eval::Evaluation;
pub use self::missing::Missing;
pub(super) use self::names::{Member, Names, Path, Root};
use self::node::Node;
use self::parse::Wrong;
pub(super) use self::resolve::is_old_name;
use self::value::Value;
use crate::model::EvaluationBudget;

/// A compiled expression.
pub(super) struct Compiled {
    node: Node,
    paths: Vec<Path>,
}

impl Compiled {
    /// Refuses an expression that cannot be true or false.
    pub(super) fn check_condition(&self) -> Result<(), Wrong> {
        parse::check_condition(&self.node)
    }

    /// The calls of these functions with literal texts as arguments, each with its offset in bytes.
    pub(super) fn literal_calls<'c>(&'c self, names: &[&str]) -> Vec<(usize, &'c str, Vec<&'c str>)> {
        let (mut found, mut left) = (Vec::new(), vec![&self.node]);
        while let Some(node) = left.pop() {
            if let Node::Call { name, args, offset } = node
                && names.contains(&name.as_str())
            {
                let text = |arg: &'c Node| if let Node::Value(Value::String(text)) = arg { Some(text.as_str()) } else { None };
                found.extend(args.iter().map(text).collect::<Option<Vec<_>>>().map(|texts| (*offset, name.as_str(), texts)));
            }
            left.extend(node.parts());
        }
        found
    }

    /// The truth value of a literal.
    pub(super) fn constant(&self) -> Option<bool> {
        if let Node::Value(Value::Bool(truth)) = &self.node { Some(*truth) } else { None }
    }

    /// The first key that the data lacks.
    pub(super) fn missing(&self, data: &Json) -> Option<Missing> {
        missing::find(&self.node, &self.paths, data)
    }

    /// True when the value of a path outside of the facts passes a test.
    pub(super) fn sees(&self, env: &dyn Env, test: &dyn Fn(&Json) -> bool) -> bool {
        let seen = |path: &&Path| {
            let steps = &mut path.steps.iter();
            let found = steps.try_fold(env.root(path.root), |here, step| match (here, &step.to) {
                (Json::Object(map), Member::Key(key)) => map.get(key),
                (Json::Array(items), Member::Index(at)) => usize::try_from(*at).ok().and_then(|at| items.get(at)).or(Some(here)),
                _ => None,
            });
            found.is_some_and(test)
        };
        self.paths.iter().filter(|path| path.root != Root::Facts).any(|path| seen(&path))
    }
}

/// The result of an evaluation.
#[derive(Clone)]
pub(super) struct Outcome {
    value: Value,
    /// Paths without a value, as written.
    missing: Vec<String>,
}

/// Compiles an expression.
pub(super) fn compile(source: &str, names: &Names<'_>) -> Result<Compiled, Wrong> {
    let (node, paths) = parse::parse(source, names)?;
    Ok(Compiled { node, paths })
}

/// Evaluates an expression.
pub(super) fn run(compiled: &Compiled, env: &dyn Env, budget: &EvaluationBudget, depth: usize) -> Result<Outcome, String> {
    let evaluation = Evaluation::new(env, budget, &compiled.paths, depth);
    let result = evaluation.run(&compiled.node);
    let missing = evaluation.into_missing();
    match result {
        Ok(value) => Ok(Outcome { value, missing }),
        // The message names the path already.
        Err(message) if message.starts_with("missing key") => Err(message),
        // An error over nil is most often a missing key.
        Err(message) => Err(match missing.first() {
            Some(path) => format!("{message} (missing key '{path}')"),
            None => message,
        }),
    }
}

impl Outcome {
    /// The approximate memory of the result, in bytes.
    pub(super) fn weight(&self) -> usize {
        weigh::of(&self.value)
    }

    /// The result as JSON; nil is null.
    pub(super) fn into_json(self) -> Json {
        self.value.into_json()
    }

    /// The result as text; nil has none.
    pub(super) fn text(self) -> Option<String> {
        match self.value {
            Value::Nil => None,
            Value::String(text) => Some(text),
            other => Some(other.to_string()),
        }
    }

    /// The result, when it is true or false.
    pub(super) fn truth(&self) -> Option<bool> {
        self.value.as_bool()
    }

    /// The error message for an expression without a value.
    pub(super) fn why_nothing(missing: &[String]) -> String {
        match missing.first() {
            Some(path) => format!("missing key '{path}' in environment"),
            None => "the expression has no value".to_owned(),
        }
    }

    /// The paths without a value.
    pub(super) fn missing(&self) -> &[String] {
        &self.missing
    }
}

#[cfg(test)]
mod tests;
