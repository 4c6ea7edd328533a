//! The evaluation of parsed expressions.

use std::cell::{Cell, OnceCell, RefCell};

use super::env::Env;
use super::names::{Path, Root};
use super::node::{Node, Op, Pointer, PredicateFunction};
use super::value::Value;
use super::{functions, operators, predicates, resolve, weigh};
use crate::model::EvaluationBudget;
use crate::model::budget::VALUE_WEIGHT;
use crate::template::weight;

/// The most steps of one expression: about a second in a debug build.
const MAX_STEPS: u32 = 2_000_000;

/// The evaluation of one expression.
pub(super) struct Evaluation<'e> {
    env: &'e dyn Env,
    budget: &'e EvaluationBudget,
    paths: &'e [Path],
    /// The values of the paths; the evaluation resolves each path at most once.
    found: Vec<OnceCell<Value>>,
    /// Paths without a value, as written.
    missing: RefCell<Vec<String>>,
    /// The number of enclosing templates.
    depth: usize,
    steps: Cell<u32>,
}

/// A level of names: a variable, or the element that a predicate tests.
struct Frame<'f> {
    outer: Option<&'f Self>,
    bound: Bound<'f>,
}

/// The names of a frame.
enum Bound<'f> {
    Local(&'f str, Value),
    Element { item: Value, index: i64, accumulator: Value },
}

impl<'e> Evaluation<'e> {
    pub(super) fn new(env: &'e dyn Env, budget: &'e EvaluationBudget, paths: &'e [Path], depth: usize) -> Self {
        let found = paths.iter().map(|_| OnceCell::new()).collect();
        Self { env, budget, paths, found, missing: RefCell::default(), depth, steps: Cell::new(0) }
    }

    /// The paths without a value, as written.
    pub(super) fn into_missing(self) -> Vec<String> {
        self.missing.into_inner()
    }

    /// Evaluates a whole expression.
    pub(super) fn run(&self, node: &Node) -> Result<Value, String> {
        self.eval(node, None)
    }

    /// Evaluates a node.
    ///
    /// The budget pays for each part when the part is made. At the end, the budget holds the result alone.
    fn eval(&self, node: &Node, frame: Option<&Frame<'_>>) -> Result<Value, String> {
        self.steps.set(self.steps.get() + 1);
        if self.steps.get() > MAX_STEPS {
            return Err(format!("the expression takes more than {MAX_STEPS} steps"));
        }
        let taken = self.budget.mark();
        let value = self.value(node, frame)?;
        let kept = weigh::of(&value);
        if kept == usize::MAX {
            return Err(format!("lists and maps are nested more than {} deep", weigh::MAX_DEPTH));
        }
        self.budget.settle(taken, 0);
        self.charge(kept)?;
        Ok(value)
    }

    fn charge(&self, bytes: usize) -> Result<(), String> {
        self.budget.charge(bytes).map_err(|spent| spent.to_string())
    }

    fn value(&self, node: &Node, frame: Option<&Frame<'_>>) -> Result<Value, String> {
        match node {
            Node::Value(value) => weigh::copy(value, self.budget),
            Node::Path(index) => self.path(*index),
            Node::Roots => self.roots(),
            Node::Local(name) => weigh::copy(local(name, frame)?, self.budget),
            Node::Pointer(pointer) => pointed(*pointer, frame, self.budget),
            Node::Not(of) => self.truth(of, frame).map(|truth| Value::Bool(!truth)),
            Node::Signed(negative, of) => signed(*negative, self.eval(of, frame)?),
            Node::Binary(op, a, b) => self.binary(*op, a, b, frame),
            Node::Matches(of, pattern) => match self.eval(of, frame)? {
                Value::Nil => Ok(Value::Bool(false)),
                Value::String(text) => Ok(Value::Bool(pattern.on(&text, self.budget)?.is_match(&text))),
                other => Err(format!("invalid operation: {} matches string", other.kind())),
            },
            Node::Choice(condition, then, otherwise) => {
                self.eval(if self.truth(condition, frame)? { then } else { otherwise }, frame)
            }
            Node::List(items) => self.all(items, frame).map(Value::Array),
            Node::Map(pairs) => self.map(pairs, frame),
            Node::Member { of, key, optional } => match self.eval(of, frame)? {
                Value::Nil if *optional => Ok(Value::Nil),
                of => operators::member(&of, &self.eval(key, frame)?),
            },
            Node::Slice { of, from, to } => {
                let of = self.eval(of, frame)?;
                let place = |node: &Option<Box<Node>>| node.as_ref().map(|node| self.eval(node, frame)).transpose();
                operators::slice(&of, place(from)?.as_ref(), place(to)?.as_ref())
            }
            Node::Method { of, name, args } => functions::method(&self.eval(of, frame)?, name, &self.all(args, frame)?),
            Node::Call { name, args, .. } => self.call(name, self.all(args, frame)?),
            Node::PredicateCall { function, list, predicate, rest } => {
                let items = self.elements(self.eval(list, frame)?)?;
                let takes_rest = matches!(function, PredicateFunction::SortBy | PredicateFunction::Reduce);
                let rest = rest.as_ref().filter(|_| takes_rest).map(|rest| self.eval(rest, frame)).transpose()?;
                let predicate = |index: usize, item: Value, accumulator: Value| {
                    let Some(predicate) = predicate else { return Ok(item) };
                    let index = i64::try_from(index).unwrap_or(i64::MAX);
                    self.eval(predicate, Some(&Frame { outer: frame, bound: Bound::Element { item, index, accumulator } }))
                };
                predicates::call(*function, items, &predicate, rest, self.budget)
            }
            Node::Let(name, value, body) => {
                let bound = Bound::Local(name, self.eval(value, frame)?);
                self.eval(body, Some(&Frame { outer: frame, bound }))
            }
            Node::Sequence(nodes) => nodes.iter().try_fold(Value::Nil, |_, node| self.eval(node, frame)),
        }
    }

    fn all(&self, nodes: &[Node], frame: Option<&Frame<'_>>) -> Result<Vec<Value>, String> {
        nodes.iter().map(|node| self.eval(node, frame)).collect()
    }

    /// The value of a path, by its index.
    fn path(&self, index: usize) -> Result<Value, String> {
        let (Some(path), Some(found)) = (self.paths.get(index), self.found.get(index)) else { return Ok(Value::Nil) };
        if let Some(known) = found.get() {
            return Ok(known.clone());
        }
        self.env.looks_up(path)?;
        let value = resolve::value(path, self.env.root(path.root), self.budget)?;
        if value.is_nil() {
            self.missing.borrow_mut().push(path.shown.clone());
        }
        Ok(found.get_or_init(|| value).clone())
    }

    /// All roots, for `$env`.
    fn roots(&self) -> Result<Value, String> {
        self.env.looks_at_all();
        let value = |(name, root): (&str, Root)| {
            let root = self.env.root(root);
            weight::charge(root, self.budget).map_err(|spent| spent.to_string())?;
            Ok((name.to_owned(), Value::from(root)))
        };
        [("Facts", Root::Facts), ("Data", Root::Data), ("Environ", Root::Environ)].into_iter().map(value).collect()
    }

    fn call(&self, name: &str, args: Vec<Value>) -> Result<Value, String> {
        self.charge(weigh::made(name, &args))?;
        if let Some(result) = functions::call(name, &args, self.budget) {
            return result;
        }
        let args: Vec<_> = args.into_iter().map(Value::into_json).collect();
        self.env.call(name, &args, self.depth).map(|value| Value::from(&value))
    }

    /// The elements of a list, or the bytes of a text.
    fn elements(&self, list: Value) -> Result<Vec<Value>, String> {
        match list {
            Value::Array(items) => Ok(items),
            text @ (Value::String(_) | Value::Bytes(_)) => {
                let bytes = text.as_bytes().unwrap_or_default();
                self.charge(bytes.len().saturating_mul(VALUE_WEIGHT))?;
                Ok(bytes.iter().map(|byte| Value::Integer((*byte).into())).collect())
            }
            other => Err(format!("a predicate requires a list, got {}", other.kind())),
        }
    }

    fn map(&self, pairs: &[(Node, Node)], frame: Option<&Frame<'_>>) -> Result<Value, String> {
        let mut map = indexmap::IndexMap::with_capacity(pairs.len());
        for (key, value) in pairs {
            let key = match self.eval(key, frame)? {
                Value::String(key) => key,
                other => return Err(format!("a key of a map is a text, not {}", other.kind())),
            };
            let value = self.eval(value, frame)?;
            // Of two equal keys, the first one counts.
            map.entry(key).or_insert(value);
        }
        Ok(Value::Map(map))
    }

    fn truth(&self, node: &Node, frame: Option<&Frame<'_>>) -> Result<bool, String> {
        let value = self.eval(node, frame)?;
        value.as_bool().ok_or_else(|| format!("expected true or false, got {}", value.kind()))
    }

    fn binary(&self, op: Op, a: &Node, b: &Node, frame: Option<&Frame<'_>>) -> Result<Value, String> {
        match op {
            // When the left side does not decide, the right side is the result, of any type.
            Op::Or | Op::And => match self.truth(a, frame)? {
                decided if decided == (op == Op::Or) => Ok(Value::Bool(decided)),
                _ => self.eval(b, frame),
            },
            Op::Coalesce => match self.eval(a, frame)? {
                Value::Nil => self.eval(b, frame),
                found => Ok(found),
            },
            _ => operators::binary(op, &self.eval(a, frame)?, &self.eval(b, frame)?, self.budget),
        }
    }
}

fn local<'f>(name: &str, frame: Option<&'f Frame<'_>>) -> Result<&'f Value, String> {
    let mut here = frame;
    while let Some(frame) = here {
        match &frame.bound {
            Bound::Local(known, value) if *known == name => return Ok(value),
            _ => here = frame.outer,
        }
    }
    Err(format!("unknown name {name}"))
}

fn pointed(pointer: Pointer, frame: Option<&Frame<'_>>, budget: &EvaluationBudget) -> Result<Value, String> {
    let mut here = frame;
    while let Some(frame) = here {
        match (&frame.bound, pointer) {
            (Bound::Element { item, .. }, Pointer::Item) => return weigh::copy(item, budget),
            (Bound::Element { index, .. }, Pointer::Index) => return Ok(Value::Integer(*index)),
            (Bound::Element { accumulator, .. }, Pointer::Accumulator) => return weigh::copy(accumulator, budget),
            (Bound::Local(..), _) => here = frame.outer,
        }
    }
    Err("# is only available in predicates".to_owned())
}

fn signed(negative: bool, value: Value) -> Result<Value, String> {
    match value {
        Value::Integer(value) => Ok(Value::Integer(if negative { value.wrapping_neg() } else { value })),
        Value::Float(value) => Ok(Value::Float(if negative { -value } else { value })),
        Value::Duration(value) => Ok(Value::Duration(if negative { value.wrapping_neg() } else { value })),
        other => Err(format!("invalid operation: a sign before {}", other.kind())),
    }
}
