//! Runs what `parse` has read.

use std::cell::Cell;

use ::expr::{Context, ContextProvider, Environment, Value as Item};

use super::each::{self, Call};
use super::parse::{Node, Op, Pointer};
use super::{operate, weigh};
use crate::model::EvaluationBudget;
use crate::model::budget::VALUE_WEIGHT;

/// The most steps that running an expression may take.
const MAX_STEPS: u32 = 2_000_000;

/// What an expression is run with.
pub(super) struct Run<'r> {
    pub(super) environment: &'r Environment<'r>,
    /// The value of a path, by its number.
    pub(super) path: &'r dyn Fn(usize) -> Result<Item, String>,
    /// Everything, for `$env`.
    all: &'r dyn Fn() -> Result<Item, String>,
    /// What functions are told.
    pub(super) context: &'r dyn ContextProvider,
    pub(super) budget: &'r EvaluationBudget,
    steps: Cell<u32>,
}

/// What a part of an expression sees besides: what was declared, and what a predicate is about.
pub(super) struct Frame<'f> {
    pub(super) outer: Option<&'f Self>,
    pub(super) held: Held<'f>,
}

/// What a frame holds.
pub(super) enum Held<'f> {
    Local(&'f str, Item),
    Each { item: Item, index: i64, sum: Item },
}

impl<'r> Run<'r> {
    pub(super) fn new(
        environment: &'r Environment<'r>,
        path: &'r dyn Fn(usize) -> Result<Item, String>,
        all: &'r dyn Fn() -> Result<Item, String>,
        context: &'r dyn ContextProvider,
        budget: &'r EvaluationBudget,
    ) -> Self {
        Self { environment, path, all, context, budget, steps: Cell::new(0) }
    }

    /// The value of an expression; the error says what went wrong.
    ///
    /// Parts of an expression are charged as they are made. When it has its value, only that is still there.
    pub(super) fn eval(&self, node: &Node, frame: Option<&Frame<'_>>) -> Result<Item, String> {
        self.steps.set(self.steps.get() + 1);
        if self.steps.get() > MAX_STEPS {
            return Err(format!("the expression takes more than {MAX_STEPS} steps"));
        }
        let taken = self.budget.mark();
        let item = self.value(node, frame)?;
        let kept = weigh::of(&item);
        if kept == usize::MAX {
            return Err(format!("lists and maps are nested more than {} deep", weigh::MAX_DEPTH));
        }
        self.budget.settle(taken, 0);
        self.budget.charge(kept).map_err(|spent| spent.to_string())?;
        Ok(item)
    }

    fn value(&self, node: &Node, frame: Option<&Frame<'_>>) -> Result<Item, String> {
        match node {
            Node::Item(item) => weigh::copy(item, self.budget),
            Node::Path(index) => (self.path)(*index),
            Node::Roots => (self.all)(),
            Node::Local(name) => weigh::copy(local(name, frame)?, self.budget),
            Node::Pointer(pointer) => pointed(*pointer, frame, self.budget),
            Node::Not(of) => self.truth(of, frame).map(|truth| Item::Bool(!truth)),
            Node::Signed(negative, of) => signed(*negative, self.eval(of, frame)?),
            Node::Binary(op, a, b) => self.binary(*op, a, b, frame),
            Node::Matches(of, pattern) => match self.eval(of, frame)? {
                Item::Nil => Ok(Item::Bool(false)),
                Item::String(text) => Ok(Item::Bool(pattern.on(&text, self.budget)?.is_match(&text))),
                other => Err(format!("invalid operation: {} matches string", operate::kind(&other))),
            },
            Node::Choice(condition, then, otherwise) => {
                self.eval(if self.truth(condition, frame)? { then } else { otherwise }, frame)
            }
            Node::List(items) => self.all(items, frame).map(Item::Array),
            Node::Map(pairs) => self.map(pairs, frame),
            Node::Member { of, key, optional } => match self.eval(of, frame)? {
                Item::Nil if *optional => Ok(Item::Nil),
                of => operate::member(&of, &self.eval(key, frame)?),
            },
            Node::Slice { of, from, to } => {
                let of = self.eval(of, frame)?;
                let place = |node: &Option<Box<Node>>| node.as_ref().map(|node| self.eval(node, frame)).transpose();
                operate::slice(&of, place(from)?.as_ref(), place(to)?.as_ref())
            }
            Node::Method { of, call, args } => {
                let mut context = Context::default();
                context.insert("of", self.eval(of, frame)?);
                for (index, arg) in self.all(args, frame)?.into_iter().enumerate() {
                    context.insert(format!("a{index}"), arg);
                }
                self.environment.run(call, &context).map_err(|error| error.to_string())
            }
            Node::Call { name, args, .. } => {
                let args = self.all(args, frame)?;
                self.budget.charge(weigh::made(name, &args)).map_err(|spent| spent.to_string())?;
                self.environment.eval_func(self.context, name, args, None).map_err(|error| error.to_string())
            }
            Node::Each { what, list, predicate, rest } => {
                let items = match self.eval(list, frame)? {
                    Item::Array(items) => items,
                    text @ (Item::String(_) | Item::Bytes(_)) => {
                        let bytes = operate::bytes(&text).unwrap_or_default();
                        self.budget.charge(bytes.len().saturating_mul(VALUE_WEIGHT)).map_err(|spent| spent.to_string())?;
                        bytes.iter().map(|byte| Item::Integer((*byte).into())).collect()
                    }
                    other => return Err(format!("a predicate wants a list, this is {}", operate::kind(&other))),
                };
                let call = Call { what: *what, predicate: predicate.as_deref(), rest: rest.as_deref() };
                each::call(self, &call, items, frame)
            }
            Node::Let(name, value, body) => {
                let held = Held::Local(name, self.eval(value, frame)?);
                self.eval(body, Some(&Frame { outer: frame, held }))
            }
            Node::Sequence(nodes) => nodes.iter().try_fold(Item::Nil, |_, node| self.eval(node, frame)),
        }
    }

    fn all(&self, nodes: &[Node], frame: Option<&Frame<'_>>) -> Result<Vec<Item>, String> {
        nodes.iter().map(|node| self.eval(node, frame)).collect()
    }

    fn map(&self, pairs: &[(Node, Node)], frame: Option<&Frame<'_>>) -> Result<Item, String> {
        let mut made: Vec<(String, Item)> = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            let key = match self.eval(key, frame)? {
                Item::String(key) => key,
                other => return Err(format!("a key of a map is a text, not {}", operate::kind(&other))),
            };
            let value = self.eval(value, frame)?;
            // Of two equal keys the first one counts.
            if !made.iter().any(|(known, _)| *known == key) {
                made.push((key, value));
            }
        }
        Ok(made.into_iter().collect())
    }

    fn truth(&self, node: &Node, frame: Option<&Frame<'_>>) -> Result<bool, String> {
        let item = self.eval(node, frame)?;
        item.as_bool().ok_or_else(|| format!("expected true or false, this is {}", operate::kind(&item)))
    }

    fn binary(&self, op: Op, a: &Node, b: &Node, frame: Option<&Frame<'_>>) -> Result<Item, String> {
        match op {
            // What the left side does not decide is the right side, whatever that is.
            Op::Or | Op::And => match self.truth(a, frame)? {
                decided if decided == (op == Op::Or) => Ok(Item::Bool(decided)),
                _ => self.eval(b, frame),
            },
            Op::Coalesce => match self.eval(a, frame)? {
                Item::Nil => self.eval(b, frame),
                found => Ok(found),
            },
            _ => operate::binary(op, self.eval(a, frame)?, self.eval(b, frame)?, self.budget),
        }
    }
}

fn local<'f>(name: &str, frame: Option<&'f Frame<'_>>) -> Result<&'f Item, String> {
    let mut here = frame;
    while let Some(frame) = here {
        match &frame.held {
            Held::Local(known, item) if *known == name => return Ok(item),
            _ => here = frame.outer,
        }
    }
    Err(format!("unknown name {name}"))
}

fn pointed(pointer: Pointer, frame: Option<&Frame<'_>>, budget: &EvaluationBudget) -> Result<Item, String> {
    let mut here = frame;
    while let Some(frame) = here {
        match (&frame.held, pointer) {
            (Held::Each { item, .. }, Pointer::Item) => return weigh::copy(item, budget),
            (Held::Each { index, .. }, Pointer::Index) => return Ok(Item::Integer(*index)),
            (Held::Each { sum, .. }, Pointer::Accumulator) => return weigh::copy(sum, budget),
            (Held::Local(..), _) => here = frame.outer,
        }
    }
    Err("# is only there in predicates".to_owned())
}

fn signed(negative: bool, item: Item) -> Result<Item, String> {
    match item {
        Item::Integer(value) => Ok(Item::Integer(if negative { value.wrapping_neg() } else { value })),
        Item::Float(value) => Ok(Item::Float(if negative { -value } else { value })),
        Item::Duration(value) => Ok(Item::Duration(if negative { value.wrapping_neg() } else { value })),
        other => Err(format!("invalid operation: a sign before {}", operate::kind(&other))),
    }
}
