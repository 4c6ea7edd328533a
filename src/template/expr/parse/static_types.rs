//! Static types of expressions. The parser refuses operations between types that never fit.

use super::super::error::{ExprError, TemplateErrorKind};
use super::super::node::{ExprNode, Op, PredicateFunction};
use super::super::operators::symbol;
use super::super::value::Value;

/// The type of the result of an expression, as far as its text tells the type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum StaticType {
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

impl StaticType {
    /// The type of the result of a node.
    pub(in super::super) fn of_node(node: &ExprNode) -> Self {
        match node {
            ExprNode::Value(item) => Self::of_value(item),
            ExprNode::Not(_) | ExprNode::Matches(..) => Self::Bool,
            ExprNode::Signed(_, of) => Self::of_node(of),
            ExprNode::Binary(op, left, right) => Self::of_binary(*op, left, right),
            ExprNode::Choice(_, left, right) => Self::either(Self::of_node(left), Self::of_node(right)),
            ExprNode::List(_) => Self::List,
            ExprNode::Map(_) => Self::Map,
            ExprNode::Call { name, .. } => Self::of_call(name),
            ExprNode::PredicateCall { function, .. } => Self::of_predicate_call(*function),
            ExprNode::Let(_, _, body) => Self::of_node(body),
            ExprNode::Sequence(nodes) => nodes.last().map_or(Self::Any, Self::of_node),
            ExprNode::Path(_)
            | ExprNode::AllRoots
            | ExprNode::Local(_)
            | ExprNode::Pointer(_)
            | ExprNode::Member { .. }
            | ExprNode::Slice { .. }
            | ExprNode::Method { .. } => Self::Any,
        }
    }

    fn of_value(item: &Value) -> Self {
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

    fn of_binary(op: Op, left: &ExprNode, right: &ExprNode) -> Self {
        match op {
            Op::Range => Self::List,
            Op::Divide | Op::Power => Self::Float,
            Op::Modulo => Self::Integer,
            Op::Coalesce => Self::either(Self::of_node(left), Self::of_node(right)),
            Op::Add | Op::Subtract | Op::Multiply => match (Self::of_node(left), Self::of_node(right)) {
                (Self::Integer, Self::Integer) => Self::Integer,
                (Self::Integer | Self::Float, Self::Integer | Self::Float) => Self::Float,
                (Self::Text, Self::Text) => Self::Text,
                _ => Self::Any,
            },
            // The right side is the result when the left side does not decide, so its type counts too.
            Op::And | Op::Or => Self::either(Self::Bool, Self::of_node(right)),
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
pub(super) fn check_operator(op: Op, left: &ExprNode, right: &ExprNode, offset: usize) -> Result<(), ExprError> {
    let (a, b) = (StaticType::of_node(left), StaticType::of_node(right));
    let each = |fits: fn(StaticType) -> bool| fits(a) && fits(b);
    let fits = match op {
        Op::Equal | Op::NotEqual => {
            a == b
                || (a.is_number() && b.is_number())
                || [a, b].iter().any(|kind| matches!(kind, StaticType::Any | StaticType::Nil))
        }
        Op::Less | Op::LessEqual | Op::More | Op::MoreEqual | Op::Add => {
            each(|kind| kind.is_number() || kind == StaticType::Any)
                || each(|kind| matches!(kind, StaticType::Text | StaticType::Any))
        }
        Op::Subtract | Op::Multiply | Op::Divide | Op::Power => each(|kind| kind.is_number() || kind == StaticType::Any),
        Op::Modulo | Op::Range => each(|kind| matches!(kind, StaticType::Integer | StaticType::Any)),
        Op::And | Op::Or => each(|kind| matches!(kind, StaticType::Bool | StaticType::Any)),
        Op::In => matches!(b, StaticType::List | StaticType::Map | StaticType::Any),
        Op::Contains | Op::StartsWith | Op::EndsWith | Op::Matches => {
            each(|kind| matches!(kind, StaticType::Text | StaticType::Any))
        }
        Op::Coalesce => true,
    };
    let (a, sign, b) = (a.name(), symbol(op), b.name());
    if fits {
        Ok(())
    } else {
        Err(ExprError::new(offset, TemplateErrorKind::WrongType, format!("invalid operation: {a} {sign} {b}")))
    }
}

/// Refuses a condition that can't be true or false.
pub(super) fn check_condition(node: &ExprNode, offset: usize) -> Result<(), ExprError> {
    match StaticType::of_node(node) {
        StaticType::Bool | StaticType::Any => Ok(()),
        other => {
            Err(ExprError::new(offset, TemplateErrorKind::WrongType, format!("expected true or false, got {}", other.name())))
        }
    }
}

/// Refuses a sign before a value that is no number.
pub(super) fn check_sign(node: &ExprNode, negative: bool, offset: usize) -> Result<(), ExprError> {
    let kind = StaticType::of_node(node);
    if kind.is_number() || kind == StaticType::Any {
        return Ok(());
    }
    Err(ExprError::new(
        offset,
        TemplateErrorKind::WrongType,
        format!("invalid operation: {} before {}", if negative { "-" } else { "+" }, kind.name()),
    ))
}

/// Refuses an argument that is no list, for a function that requires a list. `get` takes a map too.
pub(super) fn check_list(name: &str, node: &ExprNode, offset: usize) -> Result<(), ExprError> {
    match StaticType::of_node(node) {
        StaticType::List | StaticType::Any => Ok(()),
        StaticType::Map if name == "get" => Ok(()),
        other => Err(ExprError::syntax(offset, format!("{name} requires a list, got {}", other.name()))),
    }
}

/// Refuses a predicate with a type that its function does not take.
pub(super) fn check_predicate(function: PredicateFunction, node: &ExprNode, offset: usize) -> Result<(), ExprError> {
    let kind = StaticType::of_node(node);
    match function {
        PredicateFunction::Map
        | PredicateFunction::Sum
        | PredicateFunction::Reduce
        | PredicateFunction::GroupBy
        | PredicateFunction::SortBy
            if kind != StaticType::Nil =>
        {
            Ok(())
        }
        _ if matches!(kind, StaticType::Bool | StaticType::Any) => Ok(()),
        PredicateFunction::Map
        | PredicateFunction::Sum
        | PredicateFunction::Reduce
        | PredicateFunction::GroupBy
        | PredicateFunction::SortBy => Err(ExprError::syntax(offset, "the predicate has no value".to_owned())),
        _ => Err(ExprError::new(
            offset,
            TemplateErrorKind::WrongType,
            format!("a predicate must be true or false, not {}", kind.name()),
        )),
    }
}
