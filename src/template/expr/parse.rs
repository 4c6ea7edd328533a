//! Reads expressions: words in, a tree out. Operators bind as they do in the Expr language.

use ::expr::{Program, Value as Item};
use regex::Regex;

use super::each::Each;
use super::names::{Member, Names, Path, Step};
use crate::template::lex::{self, Kind, Token};
use crate::template::remote::PROMETHEUS;

/// The longest expression, in bytes.
const MAX_SOURCE: usize = 16 << 10;
/// The most operators in an expression: reading and running need stack for each in a chain.
const MAX_OPERATORS: usize = 200;
/// The deepest brackets in an expression.
const MAX_DEPTH: usize = 32;

/// Something that is wrong with an expression, and where in it, in bytes.
pub(in crate::template) type Wrong = (usize, String);

/// An expression.
#[derive(Debug)]
pub(super) enum Node {
    Item(Item),
    /// The number of a path.
    Path(usize),
    /// `$env`
    Roots,
    /// Declared with `let`.
    Local(String),
    /// `#`, `#index` and `#acc`
    Pointer(Pointer),
    Not(Box<Self>),
    /// With its sign changed, or kept.
    Signed(bool, Box<Self>),
    Binary(Op, Box<Self>, Box<Self>),
    /// `text matches "^a"`, with a pattern that is known.
    Matches(Box<Self>, Regex),
    Choice(Box<Self>, Box<Self>, Box<Self>),
    List(Vec<Self>),
    Map(Vec<(Self, Self)>),
    Member {
        of: Box<Self>,
        key: Box<Self>,
        /// Nothing below nothing is nothing.
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
        call: Program,
        args: Vec<Self>,
    },
    Call(String, Vec<Self>),
    Each {
        what: Each,
        list: Box<Self>,
        predicate: Option<Box<Self>>,
        rest: Option<Box<Self>>,
    },
    Let(String, Box<Self>, Box<Self>),
    /// The last one counts.
    Sequence(Vec<Self>),
}

/// What a predicate may point at.
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

/// An operator by its sign or word, with how tight it binds.
const OPERATORS: &[(&str, Op, u32)] = &[
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
/// How tight `not` and `!` bind, and how tight signs do.
const NOT: u32 = 50;
const SIGN: u32 = 90;

/// Reads an expression; the paths in it have numbers.
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
        predicates: 0,
        depth: 0,
        operators: 0,
    };
    let node = parser.sequence()?;
    if parser.at < tokens.len() { Err(parser.unexpected()) } else { Ok((node, parser.paths)) }
}

struct Parser<'a, 't> {
    names: &'a Names<'a>,
    source: &'t str,
    tokens: &'a [Token<'t>],
    at: usize,
    paths: Vec<Path>,
    locals: Vec<&'t str>,
    /// How many predicates are around.
    predicates: usize,
    /// How many brackets are open.
    depth: usize,
    operators: usize,
}

type Parsed = Result<Node, Wrong>;

impl<'a, 't> Parser<'a, 't> {
    fn peek(&self, ahead: usize) -> Option<&'a Kind<'t>> {
        self.tokens.get(self.at + ahead).map(|token| &token.kind)
    }

    /// The sign or word at a place.
    fn word(&self, ahead: usize) -> &'t str {
        match self.peek(ahead) {
            Some(Kind::Sign(word) | Kind::Name(word)) => word,
            _ => "",
        }
    }

    fn offset(&self) -> usize {
        self.tokens.get(self.at).map_or(self.source.len(), |token| token.offset)
    }

    fn unexpected(&self) -> Wrong {
        let word = self.source.get(self.offset()..).and_then(|rest| rest.split_whitespace().next());
        let end = if self.depth > 0 { "a bracket is not closed" } else { "unexpected end" };
        (self.offset(), word.map_or_else(|| end.to_owned(), |word| format!("unexpected '{word}'")))
    }

    /// Takes a sign or word when it comes next.
    fn takes(&mut self, word: &str) -> bool {
        let found = self.word(0) == word;
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, word: &str) -> Result<(), Wrong> {
        if self.takes(word) { Ok(()) } else { Err(self.unexpected()) }
    }

    fn count(&mut self) -> Result<(), Wrong> {
        self.operators += 1;
        if self.operators > MAX_OPERATORS {
            return Err((self.offset(), format!("the expression has more than {MAX_OPERATORS} operators")));
        }
        Ok(())
    }

    /// What stands between brackets, the open one taken.
    fn inside<T>(&mut self, close: &str, read: impl FnOnce(&mut Self) -> Result<T, Wrong>) -> Result<T, Wrong> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err((self.offset(), "the brackets are nested too deep".to_owned()));
        }
        let read = read(self)?;
        self.expect(close)?;
        self.depth -= 1;
        Ok(read)
    }

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

    /// An expression, as loose as can be.
    fn whole(&mut self) -> Parsed {
        match self.word(0) {
            "let" => self.declaration(),
            "if" => self.condition(),
            _ => self.binary(0),
        }
    }

    fn declaration(&mut self) -> Parsed {
        self.at += 1;
        let Some(Kind::Name(name)) = self.peek(0) else { return Err(self.unexpected()) };
        let name: &'t str = name;
        self.at += 1;
        self.expect("=")?;
        self.count()?;
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
        let condition = self.binary(0)?;
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

    /// The operator that comes next, whether it is negated, and how many words it takes.
    fn operator(&self) -> Option<(Op, u32, bool, usize)> {
        let negated = self.word(0) == "not" && matches!(self.peek(0), Some(Kind::Name(_)));
        let words = usize::from(negated);
        let (_, op, tightness) = OPERATORS.iter().find(|(word, ..)| *word == self.word(words))?;
        let negatable = matches!(op, Op::In | Op::Contains | Op::StartsWith | Op::EndsWith | Op::Matches);
        (!negated || negatable).then_some((*op, *tightness, negated, words + 1))
    }

    /// Operators that bind at least that tight, and what is between them.
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
            self.at += words;
            self.count()?;
            left = if is_order(op) {
                self.chained(left, op)?
            } else {
                let right = self.binary(if op == Op::Power { tightness } else { tightness + 1 })?;
                self.join(op, left, right)?
            };
            if negated {
                left = Node::Not(Box::new(left));
            }
            coalesced = op == Op::Coalesce;
        }
        if least == 0 {
            while self.takes("?") {
                left = self.choice(left)?;
            }
        }
        Ok(left)
    }

    /// `a < b <= c` is `a < b and b <= c`.
    fn chained(&mut self, first: Node, op: Op) -> Parsed {
        let (mut op, mut begin) = (op, self.at);
        let mut right = self.binary(21)?;
        let mut all: Option<Node> = None;
        let mut left = first;
        loop {
            let next = self.operator().map(|(op, ..)| op).filter(|op| is_order(*op));
            // What stands between two is read twice.
            let again = match next {
                Some(_) => {
                    let end = std::mem::replace(&mut self.at, begin);
                    let again = self.binary(21)?;
                    self.at = end;
                    Some(again)
                }
                None => None,
            };
            let one = Node::Binary(op, Box::new(left), Box::new(right));
            all = Some(match all {
                Some(all) => Node::Binary(Op::And, Box::new(all), Box::new(one)),
                None => one,
            });
            let (Some(next), Some(again)) = (next, again) else { break };
            self.at += 1;
            self.count()?;
            begin = self.at;
            (op, left) = (next, again);
            right = self.binary(21)?;
        }
        all.ok_or_else(|| self.unexpected())
    }

    fn join(&self, op: Op, left: Node, right: Node) -> Parsed {
        if let (Op::Matches, Node::Item(Item::String(pattern))) = (op, &right) {
            let pattern = Regex::new(pattern).map_err(|error| (self.offset(), no_regex(&error)))?;
            return Ok(Node::Matches(Box::new(left), pattern));
        }
        Ok(Node::Binary(op, Box::new(left), Box::new(right)))
    }

    /// After `?`: `a ? b : c`, or `a ?: c`.
    fn choice(&mut self, condition: Node) -> Parsed {
        self.count()?;
        if self.takes(":") {
            let otherwise = self.binary(0)?;
            // Only true goes the first way.
            return Ok(Node::Choice(Box::new(condition), Box::new(Node::Item(Item::Bool(true))), Box::new(otherwise)));
        }
        let then = self.binary(0)?;
        self.expect(":")?;
        let otherwise = self.binary(0)?;
        Ok(Node::Choice(Box::new(condition), Box::new(then), Box::new(otherwise)))
    }

    /// A value with what stands before and behind it.
    fn operand(&mut self) -> Parsed {
        let tightness = match self.word(0) {
            "not" | "!" => NOT,
            "-" | "+" => SIGN,
            _ => return self.primary(),
        };
        let negative = self.word(0) == "-";
        self.at += 1;
        self.count()?;
        let node = Box::new(self.binary(tightness)?);
        Ok(if tightness == NOT { Node::Not(node) } else { Node::Signed(negative, node) })
    }

    fn primary(&mut self) -> Parsed {
        let offset = self.offset();
        let Some(token) = self.tokens.get(self.at) else { return Err(self.unexpected()) };
        let node = match &token.kind {
            Kind::Text(text) => {
                self.at += 1;
                Node::Item(Item::String(text.clone()))
            }
            Kind::Literal(word) => {
                self.at += 1;
                Node::Item(literal(word).ok_or_else(|| (offset, format!("{word} is no number")))?)
            }
            Kind::Sign("(") => {
                self.at += 1;
                self.inside(")", Self::sequence)?
            }
            Kind::Sign("[") => {
                self.at += 1;
                Node::List(self.inside("]", |parser| parser.list("]"))?)
            }
            Kind::Sign("{") => {
                self.at += 1;
                Node::Map(self.inside("}", Self::pairs)?)
            }
            // `.name` in a predicate is `#.name`.
            Kind::Sign(".") if self.predicates > 0 => Node::Pointer(Pointer::Item),
            Kind::Name(name) => {
                let name: &'t str = name;
                self.at += 1;
                self.named(name, offset)?
            }
            Kind::Sign(_) => return Err(self.unexpected()),
        };
        self.postfix(node)
    }

    /// What a name stands for.
    fn named(&mut self, name: &'t str, offset: usize) -> Parsed {
        match name {
            "true" | "false" => return Ok(Node::Item(Item::Bool(name == "true"))),
            "nil" => return Ok(Node::Item(Item::Nil)),
            "$env" => return Ok(Node::Roots),
            _ => {}
        }
        if let Some(what) = name.strip_prefix('#') {
            let pointer = match what {
                _ if self.predicates == 0 => return Err((offset, format!("unexpected '{name}': only predicates have it"))),
                "" => Pointer::Item,
                "index" => Pointer::Index,
                "acc" => Pointer::Accumulator,
                _ => return Err((offset, format!("unknown pointer {name}, there are #, #index and #acc"))),
            };
            return Ok(Node::Pointer(pointer));
        }
        if self.takes("(") {
            return self.call(name, offset, None);
        }
        if self.locals.contains(&name) {
            return Ok(Node::Local(name.to_owned()));
        }
        if OPERATORS.iter().any(|(word, ..)| *word == name) || matches!(name, "not" | "let" | "if" | "else") {
            self.at -= 1;
            return Err(self.unexpected());
        }
        let root = self.names.root(name).map_err(|why| (offset, why))?;
        let mut steps = Vec::new();
        while let Some(step) = self.step() {
            steps.push(step);
        }
        let shown = self.source.get(offset..self.offset()).unwrap_or_default().trim().to_owned();
        let path = Path { root, steps, shown };
        let index = self.paths.iter().position(|known| *known == path).unwrap_or_else(|| {
            self.paths.push(path);
            self.paths.len() - 1
        });
        Ok(Node::Path(index))
    }

    /// The next step of a path, when it is known before the expression runs.
    fn step(&mut self) -> Option<Step> {
        let optional = self.word(0) == "?.";
        if (optional || self.word(0) == ".")
            && let Some(Kind::Name(name)) = self.peek(1)
        {
            // A call of a method comes later.
            if self.word(2) == "(" {
                return None;
            }
            let to = Member::Key((*name).to_owned());
            self.at += 2;
            return Some(Step { to, optional });
        }
        let open = usize::from(optional);
        if self.word(open) != "[" {
            return None;
        }
        let (to, length) = match (self.peek(open + 1)?, self.peek(open + 2)?) {
            (Kind::Text(key), _) => (Member::Key(key.clone()), 1),
            (Kind::Literal(index), _) => (Member::Index(index.parse().ok()?), 1),
            (Kind::Sign("-"), Kind::Literal(index)) => (Member::Index(index.parse::<i64>().ok()?.checked_neg()?), 2),
            _ => return None,
        };
        if self.word(open + 1 + length) != "]" {
            return None;
        }
        self.at += open + length + 2;
        Some(Step { to, optional })
    }

    /// Members, indexes, slices and methods.
    fn postfix(&mut self, mut node: Node) -> Parsed {
        // Behind the first `?.` nothing is below nothing.
        let mut optional = matches!(&node, Node::Path(index) if self.paths.get(*index).is_some_and(|path| path.steps.iter().any(|step| step.optional)));
        loop {
            let sign = self.word(0);
            let dotted = matches!(sign, "." | "?.") && matches!(self.peek(0), Some(Kind::Sign(_)));
            optional |= sign == "?.";
            if dotted && let Some(Kind::Name(name)) = self.peek(1) {
                let name: &'t str = name;
                let offset = self.offset();
                self.at += 2;
                self.count()?;
                if self.takes("(") {
                    node = self.method(node, name, offset)?;
                    continue;
                }
                let key = Box::new(Node::Item(Item::String(name.to_owned())));
                node = Node::Member { of: Box::new(node), key, optional };
                continue;
            }
            let indexed = matches!(self.peek(usize::from(sign == "?.")), Some(Kind::Sign("[")));
            if !indexed || sign == "." {
                return if dotted {
                    self.at += 1;
                    Err(self.unexpected())
                } else {
                    Ok(node)
                };
            }
            self.at += 1 + usize::from(sign == "?.");
            self.count()?;
            node = self.inside("]", |parser| parser.index(node, optional))?;
        }
    }

    /// `[1]`, `[1:2]`, `[:]`, without the brackets.
    fn index(&mut self, of: Node, optional: bool) -> Parsed {
        let of = Box::new(of);
        let from = if self.word(0) == ":" { None } else { Some(Box::new(self.binary(0)?)) };
        if self.takes(":") {
            let to = if self.word(0) == "]" { None } else { Some(Box::new(self.binary(0)?)) };
            return Ok(Node::Slice { of, from, to });
        }
        from.map(|key| Node::Member { of, key, optional }).ok_or_else(|| self.unexpected())
    }

    /// A method, the open bracket taken.
    fn method(&mut self, of: Node, name: &str, offset: usize) -> Parsed {
        let args = self.inside(")", |parser| parser.list(")"))?;
        // The one method that manifests call on something else than a time.
        if name == PROMETHEUS {
            return Ok(Node::Call(name.to_owned(), std::iter::once(of).chain(args).collect()));
        }
        let given: Vec<String> = (0..args.len()).map(|index| format!("a{index}")).collect();
        let call = ::expr::compile(&format!("of.{name}({})", given.join(", "))).map_err(|error| (offset, error.to_string()))?;
        Ok(Node::Method { of: Box::new(of), call, args })
    }

    /// What stands behind a pipe.
    fn piped(&mut self, first: Node) -> Parsed {
        let offset = self.offset();
        let Some(Kind::Name(name)) = self.peek(0) else { return Err(self.unexpected()) };
        let name: &'t str = name;
        self.at += 1;
        self.expect("(")?;
        let node = self.call(name, offset, Some(first))?;
        self.postfix(node)
    }

    /// A call, the open bracket taken.
    fn call(&mut self, name: &str, offset: usize, first: Option<Node>) -> Parsed {
        let Some(what) = Each::of(name) else {
            self.names.function(name).map_err(|why| (offset, why))?;
            let args = self.inside(")", |parser| parser.list(")"))?;
            return Ok(Node::Call(name.to_owned(), first.into_iter().chain(args).collect()));
        };
        let (list, predicate, rest) = self.inside(")", |parser| {
            let list = match first {
                Some(first) => first,
                None => {
                    let list = parser.whole()?;
                    if parser.word(0) != ")" {
                        parser.expect(",")?;
                    }
                    list
                }
            };
            let predicate = if parser.word(0) == ")" { None } else { Some(Box::new(parser.predicate()?)) };
            let rest = if parser.takes(",") && parser.word(0) != ")" { Some(Box::new(parser.whole()?)) } else { None };
            parser.takes(",");
            Ok((Box::new(list), predicate, rest))
        })?;
        if predicate.is_none() && !what.works_alone() {
            return Err((offset, format!("{name} wants a list and a predicate, as {name}(list, # > 1)")));
        }
        Ok(Node::Each { what, list, predicate, rest })
    }

    /// `# > 1` or `{ # > 1 }`
    fn predicate(&mut self) -> Parsed {
        self.predicates += 1;
        let node = if self.word(0) == "{" && !self.map_begins() {
            self.at += 1;
            self.inside("}", Self::sequence)?
        } else {
            self.whole()?
        };
        self.predicates -= 1;
        Ok(node)
    }

    /// Whether the brace that comes next begins a map, where it could begin a predicate.
    fn map_begins(&self) -> bool {
        let key = matches!(self.peek(1), Some(Kind::Name(_) | Kind::Text(_) | Kind::Literal(_)));
        self.word(1) == "}" || (key && self.word(2) == ":")
    }

    fn list(&mut self, close: &str) -> Result<Vec<Node>, Wrong> {
        let mut nodes = Vec::new();
        while self.word(0) != close || !matches!(self.peek(0), Some(Kind::Sign(_))) {
            nodes.push(self.whole()?);
            if !self.takes(",") {
                break;
            }
        }
        Ok(nodes)
    }

    /// `a: 1, "b": 2, (c): 3`
    fn pairs(&mut self) -> Result<Vec<(Node, Node)>, Wrong> {
        let mut pairs = Vec::new();
        while self.word(0) != "}" {
            let key = match self.peek(0) {
                Some(Kind::Name(name)) => Item::String((*name).to_owned()),
                Some(Kind::Literal(number)) => Item::String((*number).to_owned()),
                Some(Kind::Text(text)) => Item::String(text.clone()),
                _ => Item::Nil,
            };
            let key = if key.is_nil() {
                self.expect("(")?;
                self.inside(")", Self::whole)?
            } else {
                self.at += 1;
                Node::Item(key)
            };
            self.expect(":")?;
            pairs.push((key, self.whole()?));
            if !self.takes(",") {
                break;
            }
        }
        Ok(pairs)
    }
}

fn is_order(op: Op) -> bool {
    matches!(op, Op::Less | Op::LessEqual | Op::More | Op::MoreEqual)
}

/// Why a regular expression can't be read, on one line.
pub(super) fn no_regex(error: &regex::Error) -> String {
    let shown = error.to_string();
    let why = shown.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
    format!("the regular expression can't be read: {why}")
}

/// A number, or bytes.
fn literal(word: &str) -> Option<Item> {
    if word.starts_with(['b', 'B']) {
        return ::expr::eval(word, &::expr::Context::default()).ok();
    }
    let plain = word.replace('_', "");
    let digits = plain.to_ascii_lowercase();
    for (prefix, radix) in [("0x", 16), ("0o", 8), ("0b", 2)] {
        if let Some(digits) = digits.strip_prefix(prefix) {
            return i64::from_str_radix(digits, radix).ok().map(Item::Integer);
        }
    }
    if plain.contains(['.', 'e', 'E']) {
        return plain.parse().ok().map(Item::Float);
    }
    plain.parse().ok().map(Item::Integer)
}
