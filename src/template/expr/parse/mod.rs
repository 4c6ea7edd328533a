//! The parser of expressions, with the precedence of the Expr language.
//!
//! `operand` reads the operands of operators. `kinds` refuses operations between types that never fit.

mod kinds;
mod operand;
mod parser;

pub(super) use self::parser::Wrong;
use self::parser::{Parsed, Parser};
use super::names::{Names, Path};
use super::node::{Node, OPERATORS, Op, is_order};
use super::value::Value;
use crate::template::lex::{self, Kind};
use crate::template::regexes::Pattern;

/// The longest expression, in bytes.
const MAX_SOURCE: usize = 16 << 10;

/// Reads an expression, and the paths that its nodes refer to by number.
pub(super) fn parse(source: &str, names: &Names<'_>) -> Result<(Node, Vec<Path>), Wrong> {
    if source.len() > MAX_SOURCE {
        return Err((0, format!("the expression has {} bytes, at most {MAX_SOURCE} are taken", source.len())));
    }
    let tokens = lex::lex(source)?;
    if tokens.is_empty() {
        return Err((0, "the expression is empty".to_owned()));
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
        let mut nodes = vec![self.whole()?];
        while self.takes(";") {
            if self.at >= self.tokens.len() || self.word(0) == "}" {
                break;
            }
            nodes.push(self.whole()?);
        }
        self.locals.truncate(declared);
        Ok(if nodes.len() == 1 { nodes.remove(0) } else { Node::Sequence(nodes) })
    }

    /// Reads an expression with operators of any precedence.
    fn whole(&mut self) -> Parsed {
        match self.word(0) {
            "let" => self.declaration(),
            "if" => self.condition(),
            _ => self.binary(0),
        }
    }

    fn declaration(&mut self) -> Parsed {
        self.at += 1;
        let offset = self.offset();
        let Some(Kind::Name(name)) = self.peek(0) else { return Err(self.unexpected()) };
        let name: &'t str = name;
        self.at += 1;
        self.expect("=")?;
        self.count()?;
        if self.locals.contains(&name) || self.names.is_taken(name) {
            return Err((offset, format!("the name {name} is already in use: choose another name for the variable")));
        }
        let value = self.whole()?;
        self.expect(";")?;
        self.locals.push(name);
        let body = self.sequence()?;
        self.locals.pop();
        Ok(Node::Let(name.to_owned(), Box::new(value), Box::new(body)))
    }

    /// `if a { b } else { c }`
    fn condition(&mut self) -> Parsed {
        self.at += 1;
        self.count()?;
        let offset = self.offset();
        let condition = self.whole()?;
        kinds::condition(&condition, offset)?;
        self.expect("{")?;
        let then = self.inside("}", Self::sequence)?;
        self.expect("else")?;
        let otherwise = match self.word(0) {
            "if" => self.condition()?,
            _ => {
                self.expect("{")?;
                self.inside("}", Self::sequence)?
            }
        };
        Ok(Node::Choice(Box::new(condition), Box::new(then), Box::new(otherwise)))
    }

    /// The next operator with its precedence, true when negated, and its number of words.
    fn operator(&self) -> Option<(Op, u32, bool, usize)> {
        let negated = self.word(0) == "not" && matches!(self.peek(0), Some(Kind::Name(_)));
        let words = usize::from(negated);
        let (_, op, tightness) = OPERATORS.iter().find(|(word, ..)| *word == self.word(words))?;
        let negatable = matches!(op, Op::In | Op::Contains | Op::StartsWith | Op::EndsWith | Op::Matches);
        (!negated || negatable).then_some((*op, *tightness, negated, words + 1))
    }

    /// Reads operands and the operators between them, of at least this precedence.
    fn binary(&mut self, least: u32) -> Parsed {
        let mut left = self.operand()?;
        let mut coalesced = false;
        loop {
            if self.word(0) == "|" && least == 0 {
                self.at += 1;
                self.count()?;
                left = self.piped(left)?;
                coalesced = false;
                continue;
            }
            let Some((op, tightness, negated, words)) = self.operator().filter(|(_, tightness, ..)| *tightness >= least) else {
                break;
            };
            if coalesced && op != Op::Coalesce {
                let word = self.word(0);
                return Err((self.offset(), format!("{word} and ?? can't be mixed: put one of them into parentheses")));
            }
            let offset = self.offset();
            self.at += words;
            self.count()?;
            left = if is_order(op) {
                self.chained(left, op, offset)?
            } else {
                let right = self.binary(if op == Op::Power { tightness } else { tightness + 1 })?;
                self.join(op, left, right, offset)?
            };
            if negated {
                left = operand::negated(left);
            }
            coalesced = op == Op::Coalesce;
        }
        if least == 0 {
            while self.word(0) == "?" {
                left = self.choice(left)?;
            }
        }
        Ok(left)
    }

    /// `a < b <= c` is `a < b and b <= c`.
    fn chained(&mut self, first: Node, op: Op, offset: usize) -> Parsed {
        let (mut op, mut begin, mut offset) = (op, self.at, offset);
        let mut right = self.binary(21)?;
        let mut all: Option<Node> = None;
        let mut left = first;
        loop {
            let next = self.operator().map(|(op, ..)| op).filter(|op| is_order(*op));
            // The operand between two comparisons belongs to both, so the parser reads the operand twice.
            let again = match next {
                Some(_) => {
                    let end = std::mem::replace(&mut self.at, begin);
                    let again = self.binary(21)?;
                    self.at = end;
                    Some(again)
                }
                None => None,
            };
            kinds::binary(op, &left, &right, offset)?;
            let one = Node::Binary(op, Box::new(left), Box::new(right));
            all = Some(match all {
                Some(all) => Node::Binary(Op::And, Box::new(all), Box::new(one)),
                None => one,
            });
            let (Some(next), Some(again)) = (next, again) else { break };
            offset = self.offset();
            self.at += 1;
            self.count()?;
            begin = self.at;
            (op, left) = (next, again);
            right = self.binary(21)?;
        }
        all.ok_or_else(|| self.unexpected())
    }

    fn join(&self, op: Op, left: Node, right: Node, offset: usize) -> Parsed {
        kinds::binary(op, &left, &right, offset)?;
        if let (Op::Matches, Node::Value(Value::String(pattern))) = (op, &right) {
            let pattern = Pattern::read(pattern).map_err(|why| (self.offset(), why))?;
            return Ok(Node::Matches(Box::new(left), pattern));
        }
        Ok(folded(op, left, right))
    }

    /// At `?`: `a ? b : c`, or `a ?: c`.
    fn choice(&mut self, condition: Node) -> Parsed {
        kinds::condition(&condition, self.offset())?;
        self.at += 1;
        self.count()?;
        if self.takes(":") {
            let otherwise = self.whole()?;
            // The condition is the result when it is true.
            return Ok(Node::Choice(Box::new(condition), Box::new(Node::Value(Value::Bool(true))), Box::new(otherwise)));
        }
        let then = self.whole()?;
        self.expect(":")?;
        let otherwise = self.whole()?;
        Ok(Node::Choice(Box::new(condition), Box::new(then), Box::new(otherwise)))
    }
}

/// Refuses an expression that can't be true or false.
pub(super) fn check_condition(node: &Node) -> Result<(), Wrong> {
    kinds::condition(node, 0)
}

/// Simplifies `and` and `or` with a literal on one side, as the Go parser does. `x or true` is `true`, and `x and true` is
/// `x`.
fn folded(op: Op, left: Node, right: Node) -> Node {
    let literal = |node: &Node| if let Node::Value(Value::Bool(truth)) = node { Some(*truth) } else { None };
    let decides = match op {
        Op::And => false,
        Op::Or => true,
        _ => return Node::Binary(op, Box::new(left), Box::new(right)),
    };
    match (literal(&left), literal(&right)) {
        (Some(truth), _) if truth != decides => right,
        (_, Some(truth)) if truth != decides => left,
        (Some(_), _) | (_, Some(_)) => Node::Value(Value::Bool(decides)),
        (None, None) => Node::Binary(op, Box::new(left), Box::new(right)),
    }
}
