//! Expressions in the Expr language: compiled once, evaluated over facts, data and environment.
//!
//! `lex` and `parse` read an expression into the tree of `node`. `eval` evaluates the tree, and `resolve` walks paths. `operators`,
//! `predicates` and `functions` compute. `value` has the one type of values, and `value_weight` estimates their memory. `names` has
//! the names in scope, and `missing_keys` finds keys that the data lacks.

mod env;
mod error;
mod eval;
mod functions;
pub(super) mod lex;
mod missing_keys;
mod names;
mod node;
mod operators;
mod parse;
mod predicates;
mod resolve;
mod value;
mod value_weight;

use serde_json::Value as Json;

pub(super) use self::env::Env;
pub(super) use self::error::ExprError;
pub use self::error::TemplateErrorKind;
use self::eval::Evaluation;
pub use self::missing_keys::MissingKey;
pub(super) use self::names::{Member, NameScope, Root, ValuePath};
use self::node::ExprNode;
pub(super) use self::resolve::is_go_field_name;
use self::value::Value;
use crate::model::EvaluationBudget;

/// A compiled expression.
pub(super) struct Compiled {
    node: ExprNode,
    paths: Vec<ValuePath>,
}

impl Compiled {
    /// Refuses an expression that cannot be true or false.
    pub(super) fn check_condition(&self) -> Result<(), ExprError> {
        parse::check_condition(&self.node)
    }

    /// The calls of these functions with literal texts as arguments, each with its offset in bytes.
    pub(super) fn literal_calls<'c>(&'c self, names: &[&str]) -> Vec<(usize, &'c str, Vec<&'c str>)> {
        let (mut found, mut left) = (Vec::new(), vec![&self.node]);
        while let Some(node) = left.pop() {
            if let ExprNode::Call { name, args, offset } = node
                && names.contains(&name.as_str())
            {
                let text =
                    |arg: &'c ExprNode| if let ExprNode::Value(Value::String(text)) = arg { Some(text.as_str()) } else { None };
                found.extend(args.iter().map(text).collect::<Option<Vec<_>>>().map(|texts| (*offset, name.as_str(), texts)));
            }
            left.extend(node.parts());
        }
        found
    }

    /// The truth value of a literal.
    pub(super) fn constant(&self) -> Option<bool> {
        if let ExprNode::Value(Value::Bool(truth)) = &self.node { Some(*truth) } else { None }
    }

    /// The first key that the data lacks.
    pub(super) fn missing_key(&self, data: &Json) -> Option<MissingKey> {
        missing_keys::find(&self.node, &self.paths, data)
    }

    /// The outputs that the expression uses: the resource as `type#name`, and the output.
    pub(super) fn outputs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.paths.iter().filter_map(ValuePath::output).map(|(resource, output, _)| (resource, output))
    }

    /// True when the value of a path outside of the facts passes a test.
    pub(super) fn any_path_value(&self, env: &dyn Env, test: &dyn Fn(&Json) -> bool) -> bool {
        let seen = |path: &&ValuePath| {
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
pub(super) struct EvaluationOutcome {
    value: Value,
    /// Paths without a value, as written.
    missing: Vec<String>,
}

/// Compiles an expression.
pub(super) fn compile(source: &str, names: &NameScope<'_>) -> Result<Compiled, ExprError> {
    let (node, paths) = parse::parse(source, names)?;
    Ok(Compiled { node, paths })
}

/// Evaluates an expression.
pub(super) fn evaluate(
    compiled: &Compiled,
    env: &dyn Env,
    budget: &EvaluationBudget,
    depth: usize,
) -> Result<EvaluationOutcome, String> {
    let evaluation = Evaluation::new(env, budget, &compiled.paths, depth);
    let result = evaluation.run(&compiled.node);
    let missing = evaluation.into_missing();
    match result {
        Ok(value) => Ok(EvaluationOutcome { value, missing }),
        // The message names the path already.
        Err(message) if message.starts_with("missing key") => Err(message),
        // An error over nil is most often a missing key.
        Err(message) => Err(match missing.first() {
            Some(path) => format!("{message} (missing key '{path}')"),
            None => message,
        }),
    }
}

impl EvaluationOutcome {
    /// The approximate memory of the result, in bytes.
    pub(super) fn weight(&self) -> usize {
        value_weight::weight(&self.value)
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
    pub(super) fn no_value_message(missing: &[String]) -> String {
        match missing.first() {
            Some(path) => format!("missing key '{path}' in environment"),
            None => "the expression has no value".to_owned(),
        }
    }

    /// The paths without a value.
    pub(super) fn missing_paths(&self) -> &[String] {
        &self.missing
    }
}

#[cfg(test)]
mod tests;
