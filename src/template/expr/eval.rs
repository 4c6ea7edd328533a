//! The evaluation of parsed expressions.

use std::cell::{Cell, OnceCell, RefCell};

use super::env::Env;
use super::names::{Root, ValuePath};
use super::node::{ExprNode, Op, Pointer, PredicateFunction};
use super::value::Value;
use super::{functions, operators, predicates, resolve, value_weight};
use crate::model::EvaluationBudget;
use crate::model::budget::VALUE_WEIGHT;
use crate::template::functions::limits;

/// The most steps of one expression: about a second in a debug build.
const MAX_STEPS: u32 = 2_000_000;

/// The evaluation of one expression.
pub(super) struct Evaluation<'e> {
    env: &'e dyn Env,
    budget: &'e EvaluationBudget,
    paths: &'e [ValuePath],
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
    binding: Binding<'f>,
}

/// The names of a frame.
enum Binding<'f> {
    Local(&'f str, Value),
    Element { item: Value, index: i64, accumulator: Value },
}

impl<'e> Evaluation<'e> {
    pub(super) fn new(env: &'e dyn Env, budget: &'e EvaluationBudget, paths: &'e [ValuePath], depth: usize) -> Self {
        let found = paths.iter().map(|_| OnceCell::new()).collect();
        Self { env, budget, paths, found, missing: RefCell::default(), depth, steps: Cell::new(0) }
    }

    /// The paths without a value, as written.
    pub(super) fn into_missing(self) -> Vec<String> {
        self.missing.into_inner()
    }

    /// Evaluates a whole expression.
    pub(super) fn run(&self, node: &ExprNode) -> Result<Value, String> {
        self.eval(node, None)
    }

    /// Evaluates a node.
    ///
    /// The budget pays for each part when the part is made. At the end, the budget holds the result alone.
    fn eval(&self, node: &ExprNode, frame: Option<&Frame<'_>>) -> Result<Value, String> {
        self.steps.set(self.steps.get() + 1);
        if self.steps.get() > MAX_STEPS {
            return Err(format!("the expression takes more than {MAX_STEPS} steps"));
        }
        let taken = self.budget.used_memory();
        let value = self.eval_node(node, frame)?;
        let kept = value_weight::weight(&value);
        if kept == usize::MAX {
            return Err(format!("lists and maps are nested more than {} deep", value_weight::MAX_DEPTH));
        }
        self.budget.release_since(taken, 0);
        self.charge(kept)?;
        Ok(value)
    }

    fn charge(&self, bytes: usize) -> Result<(), String> {
        self.budget.charge(bytes).map_err(|spent| spent.to_string())
    }

    fn eval_node(&self, node: &ExprNode, frame: Option<&Frame<'_>>) -> Result<Value, String> {
        match node {
            ExprNode::Value(value) => value_weight::charged_clone(value, self.budget),
            ExprNode::Path(index) => self.path_value(*index),
            ExprNode::AllRoots => self.roots(),
            ExprNode::Local(name) => value_weight::charged_clone(local_value(name, frame)?, self.budget),
            ExprNode::Pointer(pointer) => pointer_value(*pointer, frame, self.budget),
            ExprNode::Not(of) => self.eval_truth(of, frame).map(|truth| Value::Bool(!truth)),
            ExprNode::Signed(negative, of) => apply_sign(*negative, self.eval(of, frame)?),
            ExprNode::Binary(op, a, b) => self.binary(*op, a, b, frame),
            ExprNode::Matches(of, pattern) => match self.eval(of, frame)? {
                Value::Nil => Ok(Value::Bool(false)),
                Value::String(text) => Ok(Value::Bool(pattern.charge(&text, self.budget)?.is_match(&text))),
                other => Err(format!("invalid operation: {} matches string", other.kind())),
            },
            ExprNode::Choice(condition, then, otherwise) => {
                self.eval(if self.eval_truth(condition, frame)? { then } else { otherwise }, frame)
            }
            ExprNode::List(items) => self.eval_all(items, frame).map(Value::Array),
            ExprNode::Map(pairs) => self.map(pairs, frame),
            ExprNode::Member { of, key, optional } => match self.eval(of, frame)? {
                Value::Nil if *optional => Ok(Value::Nil),
                of => operators::member(&of, &self.eval(key, frame)?),
            },
            ExprNode::Slice { of, from, to } => {
                let of = self.eval(of, frame)?;
                let place = |node: &Option<Box<ExprNode>>| node.as_ref().map(|node| self.eval(node, frame)).transpose();
                operators::slice(&of, place(from)?.as_ref(), place(to)?.as_ref())
            }
            ExprNode::Method { of, name, args } => functions::method(&self.eval(of, frame)?, name, &self.eval_all(args, frame)?),
            ExprNode::Call { name, args, .. } => self.call(name, self.eval_all(args, frame)?),
            ExprNode::PredicateCall { function, list, predicate, rest } => {
                let items = self.elements(self.eval(list, frame)?)?;
                let takes_rest = matches!(function, PredicateFunction::SortBy | PredicateFunction::Reduce);
                let rest = rest.as_ref().filter(|_| takes_rest).map(|rest| self.eval(rest, frame)).transpose()?;
                let predicate = |index: usize, item: Value, accumulator: Value| {
                    let Some(predicate) = predicate else { return Ok(item) };
                    let index = i64::try_from(index).unwrap_or(i64::MAX);
                    self.eval(predicate, Some(&Frame { outer: frame, binding: Binding::Element { item, index, accumulator } }))
                };
                predicates::call(*function, items, &predicate, rest, self.budget)
            }
            ExprNode::Let(name, value, body) => {
                let bound = Binding::Local(name, self.eval(value, frame)?);
                self.eval(body, Some(&Frame { outer: frame, binding: bound }))
            }
            ExprNode::Sequence(nodes) => nodes.iter().try_fold(Value::Nil, |_, node| self.eval(node, frame)),
        }
    }

    fn eval_all(&self, nodes: &[ExprNode], frame: Option<&Frame<'_>>) -> Result<Vec<Value>, String> {
        nodes.iter().map(|node| self.eval(node, frame)).collect()
    }

    /// The value of a path, by its index.
    fn path_value(&self, index: usize) -> Result<Value, String> {
        let (Some(path), Some(found)) = (self.paths.get(index), self.found.get(index)) else { return Ok(Value::Nil) };
        if let Some(known) = found.get() {
            return Ok(known.clone());
        }
        self.env.record_lookup(path)?;
        let value = resolve::resolve_path(path, self.env.root(path.root), self.budget)?;
        if value.is_nil() {
            self.missing.borrow_mut().push(path.written.clone());
        }
        Ok(found.get_or_init(|| value).clone())
    }

    /// All roots, for `$env`.
    fn roots(&self) -> Result<Value, String> {
        self.env.record_all_roots();
        let value = |(name, root): (&str, Root)| {
            let root = self.env.root(root);
            limits::charge_value(root, self.budget).map_err(|spent| spent.to_string())?;
            Ok((name.to_owned(), Value::from(root)))
        };
        [("Facts", Root::Facts), ("Data", Root::Data), ("Environ", Root::Environ)].into_iter().map(value).collect()
    }

    fn call(&self, name: &str, args: Vec<Value>) -> Result<Value, String> {
        self.charge(value_weight::call_weight(name, &args))?;
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

    fn map(&self, pairs: &[(ExprNode, ExprNode)], frame: Option<&Frame<'_>>) -> Result<Value, String> {
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

    fn eval_truth(&self, node: &ExprNode, frame: Option<&Frame<'_>>) -> Result<bool, String> {
        let value = self.eval(node, frame)?;
        value.as_bool().ok_or_else(|| format!("expected true or false, got {}", value.kind()))
    }

    fn binary(&self, op: Op, a: &ExprNode, b: &ExprNode, frame: Option<&Frame<'_>>) -> Result<Value, String> {
        match op {
            // When the left side does not decide, the right side is the result, of any type.
            Op::Or | Op::And => match self.eval_truth(a, frame)? {
                decided if decided == (op == Op::Or) => Ok(Value::Bool(decided)),
                _ => self.eval(b, frame),
            },
            Op::Coalesce => match self.eval(a, frame)? {
                Value::Nil => self.eval(b, frame),
                found => Ok(found),
            },
            _ => operators::apply(op, &self.eval(a, frame)?, &self.eval(b, frame)?, self.budget),
        }
    }
}

fn local_value<'f>(name: &str, frame: Option<&'f Frame<'_>>) -> Result<&'f Value, String> {
    let mut here = frame;
    while let Some(frame) = here {
        match &frame.binding {
            Binding::Local(known, value) if *known == name => return Ok(value),
            _ => here = frame.outer,
        }
    }
    Err(format!("unknown name {name}"))
}

fn pointer_value(pointer: Pointer, frame: Option<&Frame<'_>>, budget: &EvaluationBudget) -> Result<Value, String> {
    let mut here = frame;
    while let Some(frame) = here {
        match (&frame.binding, pointer) {
            (Binding::Element { item, .. }, Pointer::Item) => return value_weight::charged_clone(item, budget),
            (Binding::Element { index, .. }, Pointer::Index) => return Ok(Value::Integer(*index)),
            (Binding::Element { accumulator, .. }, Pointer::Accumulator) => {
                return value_weight::charged_clone(accumulator, budget);
            }
            (Binding::Local(..), _) => here = frame.outer,
        }
    }
    Err("# is only available in predicates".to_owned())
}

fn apply_sign(negative: bool, value: Value) -> Result<Value, String> {
    match value {
        Value::Integer(value) => Ok(Value::Integer(if negative { value.wrapping_neg() } else { value })),
        Value::Float(value) => Ok(Value::Float(if negative { -value } else { value })),
        Value::Duration(value) => Ok(Value::Duration(if negative { value.wrapping_neg() } else { value })),
        other => Err(format!("invalid operation: a sign before {}", other.kind())),
    }
}
