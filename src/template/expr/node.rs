//! Expressions as trees, and the operators between values.

use super::value::Value;
use crate::template::functions::regexes::Pattern;

/// An expression.
#[derive(Debug)]
pub(super) enum ExprNode {
    Value(Value),
    /// The index of a path in the compiled expression.
    Path(usize),
    /// `$env`
    AllRoots,
    /// A variable, declared with `let`.
    Local(String),
    /// `#`, `#index` and `#acc`
    Pointer(Pointer),
    Not(Box<Self>),
    /// A sign before an operand; true for minus.
    Signed(bool, Box<Self>),
    Binary(Op, Box<Self>, Box<Self>),
    /// `text matches "^a"`, with a literal pattern.
    Matches(Box<Self>, Pattern),
    Choice(Box<Self>, Box<Self>, Box<Self>),
    List(Vec<Self>),
    Map(Vec<(Self, Self)>),
    Member {
        of: Box<Self>,
        key: Box<Self>,
        /// A member of nil is nil.
        optional: bool,
    },
    Slice {
        of: Box<Self>,
        from: Option<Box<Self>>,
        to: Option<Box<Self>>,
    },
    /// A method of a time or a duration.
    Method {
        of: Box<Self>,
        name: String,
        args: Vec<Self>,
    },
    Call {
        name: String,
        args: Vec<Self>,
        /// The offset of the call, in bytes.
        offset: usize,
    },
    PredicateCall {
        function: PredicateFunction,
        list: Box<Self>,
        predicate: Option<Box<Self>>,
        rest: Option<Box<Self>>,
    },
    Let(String, Box<Self>, Box<Self>),
    /// Expressions of which the last one is the value.
    Sequence(Vec<Self>),
}

impl ExprNode {
    /// The direct parts of the node.
    pub(super) fn parts(&self) -> Vec<&Self> {
        match self {
            Self::Value(_) | Self::Path(_) | Self::AllRoots | Self::Local(_) | Self::Pointer(_) => Vec::new(),
            Self::Not(of) | Self::Signed(_, of) | Self::Matches(of, _) => vec![of],
            Self::Binary(_, left, right) | Self::Let(_, left, right) => vec![left, right],
            Self::Choice(condition, then, otherwise) => vec![condition, then, otherwise],
            Self::List(items) | Self::Sequence(items) | Self::Call { args: items, .. } => items.iter().collect(),
            Self::Map(pairs) => pairs.iter().flat_map(|(key, value)| [key, value]).collect(),
            Self::Member { of, key, .. } => vec![of, key],
            Self::Slice { of, from, to } => [&**of].into_iter().chain(from.as_deref()).chain(to.as_deref()).collect(),
            Self::Method { of, args, .. } => [&**of].into_iter().chain(args).collect(),
            Self::PredicateCall { list, predicate, rest, .. } => {
                [&**list].into_iter().chain(predicate.as_deref()).chain(rest.as_deref()).collect()
            }
        }
    }
}

/// A value that a predicate can refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pointer {
    Item,
    Index,
    Accumulator,
}

/// An operator between two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    Or,
    And,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    More,
    MoreEqual,
    In,
    Contains,
    StartsWith,
    EndsWith,
    Matches,
    Range,
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
    Power,
    Coalesce,
}

/// The operators by sign or word, with their precedence. A higher number binds tighter.
pub(super) const OPERATORS: &[(&str, Op, u32)] = &[
    ("or", Op::Or, 10),
    ("||", Op::Or, 10),
    ("and", Op::And, 15),
    ("&&", Op::And, 15),
    ("==", Op::Equal, 20),
    ("!=", Op::NotEqual, 20),
    ("<", Op::Less, 20),
    ("<=", Op::LessEqual, 20),
    (">", Op::More, 20),
    (">=", Op::MoreEqual, 20),
    ("in", Op::In, 20),
    ("contains", Op::Contains, 20),
    ("startsWith", Op::StartsWith, 20),
    ("endsWith", Op::EndsWith, 20),
    ("matches", Op::Matches, 20),
    ("..", Op::Range, 25),
    ("+", Op::Add, 30),
    ("-", Op::Subtract, 30),
    ("*", Op::Multiply, 60),
    ("/", Op::Divide, 60),
    ("%", Op::Modulo, 60),
    ("**", Op::Power, 100),
    ("^", Op::Power, 100),
    ("??", Op::Coalesce, 500),
];
/// The precedence of `not` and `!`.
pub(super) const NOT_PRECEDENCE: u32 = 50;
/// The precedence of a sign before an operand.
pub(super) const SIGN_PRECEDENCE: u32 = 90;

pub(super) fn is_order(op: Op) -> bool {
    matches!(op, Op::Less | Op::LessEqual | Op::More | Op::MoreEqual)
}

/// A function that takes a predicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PredicateFunction {
    All,
    Any,
    Count,
    Filter,
    Find,
    FindIndex,
    FindLast,
    FindLastIndex,
    GroupBy,
    Map,
    None,
    One,
    Reduce,
    SortBy,
    Sum,
}

/// Functions that take a predicate, by their names.
pub(super) const PREDICATE_FUNCTIONS: &[(&str, PredicateFunction)] = &[
    ("all", PredicateFunction::All),
    ("any", PredicateFunction::Any),
    ("count", PredicateFunction::Count),
    ("filter", PredicateFunction::Filter),
    ("find", PredicateFunction::Find),
    ("findIndex", PredicateFunction::FindIndex),
    ("findLast", PredicateFunction::FindLast),
    ("findLastIndex", PredicateFunction::FindLastIndex),
    ("groupBy", PredicateFunction::GroupBy),
    ("map", PredicateFunction::Map),
    ("none", PredicateFunction::None),
    ("one", PredicateFunction::One),
    ("reduce", PredicateFunction::Reduce),
    ("sortBy", PredicateFunction::SortBy),
    ("sum", PredicateFunction::Sum),
];

impl PredicateFunction {
    pub(super) fn from_name(name: &str) -> Option<Self> {
        PREDICATE_FUNCTIONS.iter().find(|(known, _)| *known == name).map(|(_, function)| *function)
    }

    /// True when the function takes the elements themselves if the call has no predicate.
    pub(super) fn has_default_predicate(self) -> bool {
        matches!(self, Self::Count | Self::Sum)
    }
}
