//! Static types of expressions. The parser refuses operations between types that never fit.

use super::super::node::{Node, Op, PredicateFunction};
use super::super::operators::sign;
use super::super::value::Value;
use super::parser::Wrong;

/// The type of the result of an expression, as far as its text tells the type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Kind {
    Nil,
    Bool,
    Integer,
    Float,
    Text,
    List,
    Map,
    /// A type that only the evaluation tells.
    Any,
}

impl Kind {
    /// The type of the result of a node.
    pub(in super::super) fn of(node: &Node) -> Self {
        match node {
            Node::Value(item) => Self::of_item(item),
            Node::Not(_) | Node::Matches(..) => Self::Bool,
            Node::Signed(_, of) => Self::of(of),
            Node::Binary(op, left, right) => Self::of_binary(*op, left, right),
            Node::Choice(_, left, right) => Self::either(Self::of(left), Self::of(right)),
            Node::List(_) => Self::List,
            Node::Map(_) => Self::Map,
            Node::Call { name, .. } => Self::of_call(name),
            Node::PredicateCall { function, .. } => Self::of_predicate_call(*function),
            Node::Let(_, _, body) => Self::of(body),
            Node::Sequence(nodes) => nodes.last().map_or(Self::Any, Self::of),
            Node::Path(_)
            | Node::Roots
            | Node::Local(_)
            | Node::Pointer(_)
            | Node::Member { .. }
            | Node::Slice { .. }
            | Node::Method { .. } => Self::Any,
        }
    }

    fn of_item(item: &Value) -> Self {
        match item {
            Value::Nil => Self::Nil,
            Value::Bool(_) => Self::Bool,
            Value::Integer(_) => Self::Integer,
            Value::Float(_) => Self::Float,
            Value::String(_) => Self::Text,
            Value::Array(_) => Self::List,
            Value::Map(_) => Self::Map,
            _ => Self::Any,
        }
    }

    fn of_binary(op: Op, left: &Node, right: &Node) -> Self {
        match op {
            Op::Range => Self::List,
            Op::Divide | Op::Power => Self::Float,
            Op::Modulo => Self::Integer,
            Op::Coalesce => Self::either(Self::of(left), Self::of(right)),
            Op::Add | Op::Subtract | Op::Multiply => match (Self::of(left), Self::of(right)) {
                (Self::Integer, Self::Integer) => Self::Integer,
                (Self::Integer | Self::Float, Self::Integer | Self::Float) => Self::Float,
                (Self::Text, Self::Text) => Self::Text,
                _ => Self::Any,
            },
            // The right side is the result when the left side does not decide, so its type counts too.
            Op::And | Op::Or => Self::either(Self::Bool, Self::of(right)),
            _ => Self::Bool,
        }
    }

    fn either(left: Self, right: Self) -> Self {
        if left == right { left } else { Self::Any }
    }

    fn of_call(name: &str) -> Self {
        match name {
            "hasPrefix" | "hasSuffix" => Self::Bool,
            "indexOf" | "int" | "lastIndexOf" | "len" => Self::Integer,
            "float" => Self::Float,
            "join" | "lower" | "repeat" | "replace" | "string" | "toBase64" | "toJSON" | "trim" | "trimPrefix" | "trimSuffix"
            | "type" | "upper" => Self::Text,
            "concat" | "flatten" | "keys" | "reverse" | "split" | "splitAfter" | "toPairs" | "uniq" | "values" => Self::List,
            _ => Self::Any,
        }
    }

    fn of_predicate_call(function: PredicateFunction) -> Self {
        match function {
            PredicateFunction::All | PredicateFunction::Any | PredicateFunction::None | PredicateFunction::One => Self::Bool,
            PredicateFunction::Count => Self::Integer,
            PredicateFunction::Filter | PredicateFunction::Map | PredicateFunction::SortBy => Self::List,
            _ => Self::Any,
        }
    }

    fn is_number(self) -> bool {
        matches!(self, Self::Integer | Self::Float)
    }

    /// The name of the type, for errors.
    fn name(self) -> &'static str {
        match self {
            Self::Nil => "<nil>",
            Self::Bool => "bool",
            Self::Integer => "int",
            Self::Float => "float64",
            Self::Text => "string",
            Self::List => "list",
            Self::Map => "map",
            Self::Any => "unknown",
        }
    }
}

/// Refuses an operator between values of types that do not fit.
pub(super) fn binary(op: Op, left: &Node, right: &Node, offset: usize) -> Result<(), Wrong> {
    let (a, b) = (Kind::of(left), Kind::of(right));
    let each = |fits: fn(Kind) -> bool| fits(a) && fits(b);
    let fits = match op {
        Op::Equal | Op::NotEqual => {
            a == b || (a.is_number() && b.is_number()) || [a, b].iter().any(|kind| matches!(kind, Kind::Any | Kind::Nil))
        }
        Op::Less | Op::LessEqual | Op::More | Op::MoreEqual | Op::Add => {
            each(|kind| kind.is_number() || kind == Kind::Any) || each(|kind| matches!(kind, Kind::Text | Kind::Any))
        }
        Op::Subtract | Op::Multiply | Op::Divide | Op::Power => each(|kind| kind.is_number() || kind == Kind::Any),
        Op::Modulo | Op::Range => each(|kind| matches!(kind, Kind::Integer | Kind::Any)),
        Op::And | Op::Or => each(|kind| matches!(kind, Kind::Bool | Kind::Any)),
        Op::In => matches!(b, Kind::List | Kind::Map | Kind::Any),
        Op::Contains | Op::StartsWith | Op::EndsWith | Op::Matches => each(|kind| matches!(kind, Kind::Text | Kind::Any)),
        Op::Coalesce => true,
    };
    let (a, sign, b) = (a.name(), sign(op), b.name());
    if fits { Ok(()) } else { Err((offset, format!("invalid operation: {a} {sign} {b}"))) }
}

/// Refuses a condition that can't be true or false.
pub(super) fn condition(node: &Node, offset: usize) -> Result<(), Wrong> {
    match Kind::of(node) {
        Kind::Bool | Kind::Any => Ok(()),
        other => Err((offset, format!("expected true or false, got {}", other.name()))),
    }
}

/// Refuses a sign before a value that is no number.
pub(super) fn signed(node: &Node, negative: bool, offset: usize) -> Result<(), Wrong> {
    let kind = Kind::of(node);
    if kind.is_number() || kind == Kind::Any {
        return Ok(());
    }
    Err((offset, format!("invalid operation: {} before {}", if negative { "-" } else { "+" }, kind.name())))
}

/// Refuses an argument that is no list, for a function that requires a list. `get` takes a map too.
pub(super) fn list(name: &str, node: &Node, offset: usize) -> Result<(), Wrong> {
    match Kind::of(node) {
        Kind::List | Kind::Any => Ok(()),
        Kind::Map if name == "get" => Ok(()),
        other => Err((offset, format!("{name} requires a list, got {}", other.name()))),
    }
}

/// Refuses a predicate with a type that its function does not take.
pub(super) fn predicate(function: PredicateFunction, node: &Node, offset: usize) -> Result<(), Wrong> {
    let kind = Kind::of(node);
    match function {
        PredicateFunction::Map
        | PredicateFunction::Sum
        | PredicateFunction::Reduce
        | PredicateFunction::GroupBy
        | PredicateFunction::SortBy
            if kind != Kind::Nil =>
        {
            Ok(())
        }
        _ if matches!(kind, Kind::Bool | Kind::Any) => Ok(()),
        PredicateFunction::Map
        | PredicateFunction::Sum
        | PredicateFunction::Reduce
        | PredicateFunction::GroupBy
        | PredicateFunction::SortBy => Err((offset, "the predicate has no value".to_owned())),
        _ => Err((offset, format!("a predicate must be true or false, not {}", kind.name()))),
    }
}
