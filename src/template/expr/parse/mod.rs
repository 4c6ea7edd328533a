//! The parser of expressions, with the precedence of the Expr language.
//!
//! `operand` reads the operands of operators. `static_types` refuses operations between types that never fit.

mod operand;
mod parser;
mod static_types;

use self::parser::{Parsed, Parser};
use super::error::ExprError;
use super::names::{NameScope, ValuePath};
use super::node::{ExprNode, OPERATORS, Op, is_order};
use super::value::Value;
use crate::template::expr::lex::{self, TokenKind};
use crate::template::functions::regexes::Pattern;

/// The longest expression, in bytes.
const MAX_SOURCE: usize = 16 << 10;

/// Reads an expression, and the paths that its nodes refer to by number.
pub(super) fn parse(source: &str, names: &NameScope<'_>) -> Result<(ExprNode, Vec<ValuePath>), ExprError> {
    if source.len() > MAX_SOURCE {
        return Err(ExprError::syntax(0, format!("the expression has {} bytes, at most {MAX_SOURCE} are taken", source.len())));
    }
    let tokens = lex::lex(source)?;
    if tokens.is_empty() {
        return Err(ExprError::syntax(0, "the expression is empty".to_owned()));
    }
    let mut parser = Parser {
        names,
        source,
        tokens: &tokens,
        at: 0,
        paths: Vec::new(),
        locals: Vec::new(),
        predicates: Vec::new(),
        open: Vec::new(),
        operators: 0,
    };
    let node = parser.sequence()?;
    if parser.at < tokens.len() { Err(parser.unexpected()) } else { Ok((node, parser.paths)) }
}

impl<'t> Parser<'_, 't> {
    /// `a; b; c`
    fn sequence(&mut self) -> Parsed {
        let declared = self.locals.len();
        let mut nodes = vec![self.expression()?];
        while self.consume(";") {
            if self.at >= self.tokens.len() || self.word_at(0) == "}" {
                break;
            }
            nodes.push(self.expression()?);
        }
        self.locals.truncate(declared);
        Ok(if nodes.len() == 1 { nodes.remove(0) } else { ExprNode::Sequence(nodes) })
    }

    /// Reads an expression with operators of any precedence.
    fn expression(&mut self) -> Parsed {
        match self.word_at(0) {
            "let" => self.declaration(),
            "if" => self.condition(),
            _ => self.binary_expression(0),
        }
    }

    fn declaration(&mut self) -> Parsed {
        self.at += 1;
        let offset = self.offset();
        let Some(TokenKind::Name(name)) = self.peek(0) else { return Err(self.unexpected()) };
        let name: &'t str = name;
        self.at += 1;
        self.expect("=")?;
        self.count_operator()?;
        if self.locals.contains(&name) || self.names.is_taken(name) {
            return Err(ExprError::syntax(
                offset,
                format!("the name {name} is already in use: choose another name for the variable"),
            ));
        }
        let value = self.expression()?;
        self.expect(";")?;
        self.locals.push(name);
        let body = self.sequence()?;
        self.locals.pop();
        Ok(ExprNode::Let(name.to_owned(), Box::new(value), Box::new(body)))
    }

    /// `if a { b } else { c }`
    fn condition(&mut self) -> Parsed {
        self.at += 1;
        self.count_operator()?;
        let offset = self.offset();
        let condition = self.expression()?;
        static_types::check_condition(&condition, offset)?;
        self.expect("{")?;
        let then = self.bracketed("}", Self::sequence)?;
        self.expect("else")?;
        let otherwise = match self.word_at(0) {
            "if" => self.condition()?,
            _ => {
                self.expect("{")?;
                self.bracketed("}", Self::sequence)?
            }
        };
        Ok(ExprNode::Choice(Box::new(condition), Box::new(then), Box::new(otherwise)))
    }

    /// The next operator with its precedence, true when negated, and its number of words.
    fn next_operator(&self) -> Option<(Op, u32, bool, usize)> {
        let negated = self.word_at(0) == "not" && matches!(self.peek(0), Some(TokenKind::Name(_)));
        let words = usize::from(negated);
        let (_, op, tightness) = OPERATORS.iter().find(|(word, ..)| *word == self.word_at(words))?;
        let negatable = matches!(op, Op::In | Op::Contains | Op::StartsWith | Op::EndsWith | Op::Matches);
        (!negated || negatable).then_some((*op, *tightness, negated, words + 1))
    }

    /// Reads operands and the operators between them, of at least this precedence.
    fn binary_expression(&mut self, least: u32) -> Parsed {
        let mut left = self.operand()?;
        let mut coalesced = false;
        loop {
            if self.word_at(0) == "|" && least == 0 {
                self.at += 1;
                self.count_operator()?;
                left = self.pipe_call(left)?;
                coalesced = false;
                continue;
            }
            let Some((op, tightness, negated, words)) = self.next_operator().filter(|(_, tightness, ..)| *tightness >= least)
            else {
                break;
            };
            if coalesced && op != Op::Coalesce {
                let word = self.word_at(0);
                return Err(ExprError::syntax(
                    self.offset(),
                    format!("{word} and ?? can't be mixed: put one of them into parentheses"),
                ));
            }
            let offset = self.offset();
            self.at += words;
            self.count_operator()?;
            left = if is_order(op) {
                self.comparison_chain(left, op, offset)?
            } else {
                let right = self.binary_expression(if op == Op::Power { tightness } else { tightness + 1 })?;
                self.binary_node(op, left, right, offset)?
            };
            if negated {
                left = operand::negate(left);
            }
            coalesced = op == Op::Coalesce;
        }
        if least == 0 {
            while self.word_at(0) == "?" {
                left = self.ternary(left)?;
            }
        }
        Ok(left)
    }

    /// `a < b <= c` is `a < b and b <= c`.
    fn comparison_chain(&mut self, first: ExprNode, op: Op, offset: usize) -> Parsed {
        let (mut op, mut begin, mut offset) = (op, self.at, offset);
        let mut right = self.binary_expression(21)?;
        let mut all: Option<ExprNode> = None;
        let mut left = first;
        loop {
            let next = self.next_operator().map(|(op, ..)| op).filter(|op| is_order(*op));
            // The operand between two comparisons belongs to both, so the parser reads the operand twice.
            let again = match next {
                Some(_) => {
                    let end = std::mem::replace(&mut self.at, begin);
                    let again = self.binary_expression(21)?;
                    self.at = end;
                    Some(again)
                }
                None => None,
            };
            static_types::check_operator(op, &left, &right, offset)?;
            let one = ExprNode::Binary(op, Box::new(left), Box::new(right));
            all = Some(match all {
                Some(all) => ExprNode::Binary(Op::And, Box::new(all), Box::new(one)),
                None => one,
            });
            let (Some(next), Some(again)) = (next, again) else { break };
            offset = self.offset();
            self.at += 1;
            self.count_operator()?;
            begin = self.at;
            (op, left) = (next, again);
            right = self.binary_expression(21)?;
        }
        all.ok_or_else(|| self.unexpected())
    }

    fn binary_node(&self, op: Op, left: ExprNode, right: ExprNode, offset: usize) -> Parsed {
        static_types::check_operator(op, &left, &right, offset)?;
        if let (Op::Matches, ExprNode::Value(Value::String(pattern))) = (op, &right) {
            let pattern = Pattern::compile(pattern).map_err(|why| ExprError::syntax(self.offset(), why))?;
            return Ok(ExprNode::Matches(Box::new(left), pattern));
        }
        Ok(simplify(op, left, right))
    }

    /// At `?`: `a ? b : c`, or `a ?: c`.
    fn ternary(&mut self, condition: ExprNode) -> Parsed {
        static_types::check_condition(&condition, self.offset())?;
        self.at += 1;
        self.count_operator()?;
        if self.consume(":") {
            let otherwise = self.expression()?;
            // The condition is the result when it is true.
            return Ok(ExprNode::Choice(Box::new(condition), Box::new(ExprNode::Value(Value::Bool(true))), Box::new(otherwise)));
        }
        let then = self.expression()?;
        self.expect(":")?;
        let otherwise = self.expression()?;
        Ok(ExprNode::Choice(Box::new(condition), Box::new(then), Box::new(otherwise)))
    }
}

/// Refuses an expression that can't be true or false.
pub(super) fn check_condition(node: &ExprNode) -> Result<(), ExprError> {
    static_types::check_condition(node, 0)
}

/// Simplifies `and` and `or` with a literal on one side, as the Go parser does. `x or true` is `true`, and `x and true` is
/// `x`.
fn simplify(op: Op, left: ExprNode, right: ExprNode) -> ExprNode {
    let literal = |node: &ExprNode| if let ExprNode::Value(Value::Bool(truth)) = node { Some(*truth) } else { None };
    let decides = match op {
        Op::And => false,
        Op::Or => true,
        _ => return ExprNode::Binary(op, Box::new(left), Box::new(right)),
    };
    match (literal(&left), literal(&right)) {
        (Some(truth), _) if truth != decides => right,
        (_, Some(truth)) if truth != decides => left,
        (Some(_), _) | (_, Some(_)) => ExprNode::Value(Value::Bool(decides)),
        (None, None) => ExprNode::Binary(op, Box::new(left), Box::new(right)),
    }
}
