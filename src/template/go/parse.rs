//! Parser for Go templates.

use std::collections::HashMap;
use std::rc::Rc;

use crate::diag::did_you_mean;

use super::functions::{self, Function};
use super::lex::{Piece, Token, Word, Wrong, lex, wrong};

/// The deepest nesting of blocks and of parentheses.
const MAX_DEPTH: usize = 64;

/// A parsed template.
#[derive(Debug)]
pub(super) struct Template {
    pub(super) body: Vec<Node>,
    /// The bodies of `define` and `block`, by name.
    pub(super) defined: HashMap<String, Rc<Vec<Node>>>,
}

#[derive(Debug)]
pub(super) enum Node {
    Text(String),
    /// Runs a pipeline, and prints the result unless the pipeline declares a variable.
    Print(Pipe),
    If {
        arms: Vec<(Pipe, Vec<Self>)>,
        otherwise: Vec<Self>,
    },
    With {
        arms: Vec<(Pipe, Vec<Self>)>,
        otherwise: Vec<Self>,
    },
    Range {
        pipe: Pipe,
        body: Vec<Self>,
        otherwise: Vec<Self>,
    },
    Call {
        at: usize,
        name: String,
        pipe: Option<Pipe>,
    },
    Break,
    Continue,
}

#[derive(Debug)]
pub(super) struct Pipe {
    pub(super) at: usize,
    pub(super) end: usize,
    /// The declared or assigned variables.
    pub(super) variables: Vec<Rc<str>>,
    pub(super) assigns: bool,
    pub(super) commands: Vec<Command>,
}

#[derive(Debug)]
pub(super) struct Command {
    pub(super) first: Operand,
    pub(super) rest: Vec<Operand>,
}

#[derive(Debug)]
pub(super) struct Operand {
    pub(super) at: usize,
    pub(super) end: usize,
    pub(super) value: Primary,
    /// The fields after the value.
    pub(super) fields: Vec<String>,
}

#[derive(Debug)]
pub(super) enum Primary {
    Dot,
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Rc<str>),
    Variable(Rc<str>),
    Function(&'static Function),
    Pipe(Box<Pipe>),
}

/// Parses a template.
pub(super) fn parse(source: &str, delimiters: (&str, &str)) -> Result<Template, Wrong> {
    let pieces = lex(source, delimiters)?;
    let mut parser = Parser { pieces: pieces.into_iter(), variables: top(), defined: HashMap::new(), depth: 0, ranges: 0 };
    let (body, ending) = parser.list(true)?;
    match ending {
        Ending::Text => Ok(Template { body, defined: parser.defined }),
        Ending::End(at) => wrong(at, "unexpected end: nothing is open here"),
        Ending::Else(at, _) => wrong(at, "unexpected else: nothing is open here"),
    }
}

fn top() -> Vec<Rc<str>> {
    vec![Rc::from("$")]
}

/// The end of a list of nodes.
enum Ending<'a> {
    Text,
    End(usize),
    Else(usize, Vec<Token<'a>>),
}

struct Parser<'a> {
    pieces: std::vec::IntoIter<Piece<'a>>,
    /// The visible variables.
    variables: Vec<Rc<str>>,
    defined: HashMap<String, Rc<Vec<Node>>>,
    depth: usize,
    /// The number of open ranges.
    ranges: usize,
}

impl<'a> Parser<'a> {
    fn list(&mut self, top: bool) -> Result<(Vec<Node>, Ending<'a>), Wrong> {
        let mut nodes = Vec::new();
        while let Some(piece) = self.pieces.next() {
            let (at, end, words) = match piece {
                Piece::Text(text) => {
                    nodes.push(Node::Text(text.to_owned()));
                    continue;
                }
                Piece::Action { at, end, words } => (at, end, words),
            };
            let keyword = if let Some(Word::Name(name)) = words.first().map(|token| &token.word) { *name } else { "" };
            let rest = |words: &[Token<'a>]| words.get(1..).unwrap_or_default().to_vec();
            match keyword {
                "end" if words.len() == 1 => return Ok((nodes, Ending::End(at))),
                "else" => return Ok((nodes, Ending::Else(at, rest(&words)))),
                "if" | "with" => nodes.push(self.branch(keyword, at, end, rest(&words))?),
                "range" => nodes.push(self.range(at, end, &rest(&words))?),
                "template" => nodes.push(self.call(at, end, &rest(&words))?),
                "block" => nodes.push(self.block(at, end, &rest(&words))?),
                "define" if top => self.define(at, &rest(&words))?,
                "define" => return wrong(at, "define is allowed only at the top of a file, outside of other blocks"),
                "break" | "continue" if words.len() == 1 => {
                    if self.ranges == 0 {
                        return wrong(at, format!("{keyword} outside of a range"));
                    }
                    nodes.push(if keyword == "break" { Node::Break } else { Node::Continue });
                }
                _ => nodes.push(Node::Print(self.pipe(at, end, &words, 1)?)),
            }
        }
        Ok((nodes, Ending::Text))
    }

    /// Parses the nodes up to `end` or `else`, as a block with its own variables.
    fn body(&mut self, what: &str, at: usize) -> Result<(Vec<Node>, Ending<'a>), Wrong> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return wrong(at, format!("blocks are nested more than {MAX_DEPTH} deep"));
        }
        let mark = self.variables.len();
        let (nodes, ending) = self.list(false)?;
        self.variables.truncate(mark);
        self.depth -= 1;
        match ending {
            Ending::Text => wrong(at, format!("{what} is not closed with end")),
            ending => Ok((nodes, ending)),
        }
    }

    /// Parses the nodes up to `end`.
    fn last_body(&mut self, what: &str, at: usize) -> Result<Vec<Node>, Wrong> {
        match self.body(what, at)? {
            (nodes, Ending::End(_)) => Ok(nodes),
            (_, Ending::Else(at, _)) => wrong(at, "a second else"),
            (_, Ending::Text) => wrong(at, format!("{what} is not closed with end")),
        }
    }

    /// Parses `if` or `with`, including `else if` and `else with`.
    fn branch(&mut self, keyword: &str, at: usize, end: usize, mut words: Vec<Token<'a>>) -> Result<Node, Wrong> {
        let mark = self.variables.len();
        let (mut here, mut until) = (at, end);
        let mut arms = Vec::new();
        let mut otherwise = Vec::new();
        loop {
            let pipe = self.pipe(here, until, &words, 1)?;
            let (body, ending) = self.body(keyword, at)?;
            arms.push((pipe, body));
            let Ending::Else(place, next) = ending else { break };
            match next.split_first() {
                None => {
                    otherwise = self.last_body(keyword, at)?;
                    break;
                }
                Some((Token { word: Word::Name(name), .. }, rest)) if *name == keyword => {
                    (here, until) = (place, next.last().map_or(place, |token| token.end));
                    words = rest.to_vec();
                }
                Some((other, _)) => return wrong(other.at, format!("only {keyword} may follow else")),
            }
        }
        self.variables.truncate(mark);
        Ok(if keyword == "if" { Node::If { arms, otherwise } } else { Node::With { arms, otherwise } })
    }

    fn range(&mut self, at: usize, end: usize, words: &[Token<'a>]) -> Result<Node, Wrong> {
        let mark = self.variables.len();
        let pipe = self.pipe(at, end, words, 2)?;
        self.ranges += 1;
        let (body, ending) = self.body("range", at)?;
        self.ranges -= 1;
        let otherwise = match ending {
            Ending::Else(_, words) if words.is_empty() => self.last_body("range", at)?,
            Ending::Else(place, _) => return wrong(place, "nothing may follow the else of a range"),
            _ => Vec::new(),
        };
        self.variables.truncate(mark);
        Ok(Node::Range { pipe, body, otherwise })
    }

    /// Parses the name of a template; returns the remaining tokens too.
    fn named<'w>(what: &str, at: usize, words: &'w [Token<'a>]) -> Result<(String, &'w [Token<'a>]), Wrong> {
        match words.split_first() {
            Some((Token { word: Word::Text(name), .. }, rest)) => Ok((name.clone(), rest)),
            _ => wrong(at, format!("{what} takes a name in quotes")),
        }
    }

    fn call(&mut self, at: usize, end: usize, words: &[Token<'a>]) -> Result<Node, Wrong> {
        let (name, rest) = Self::named("template", at, words)?;
        let pipe = if rest.is_empty() { None } else { Some(self.pipe(at, end, rest, 0)?) };
        Ok(Node::Call { at, name, pipe })
    }

    fn define(&mut self, at: usize, words: &[Token<'a>]) -> Result<(), Wrong> {
        let (name, rest) = Self::named("define", at, words)?;
        if let Some(token) = rest.first() {
            return wrong(token.at, "define takes only a name");
        }
        self.keep(name, "define", at)
    }

    fn block(&mut self, at: usize, end: usize, words: &[Token<'a>]) -> Result<Node, Wrong> {
        let (name, rest) = Self::named("block", at, words)?;
        let pipe = Some(self.pipe(at, end, rest, 0)?);
        self.keep(name.clone(), "block", at)?;
        Ok(Node::Call { at, name, pipe })
    }

    /// Parses the body of a named template, which does not see outer variables.
    fn keep(&mut self, name: String, what: &str, at: usize) -> Result<(), Wrong> {
        let outer = std::mem::replace(&mut self.variables, top());
        let ranges = std::mem::take(&mut self.ranges);
        let body = self.last_body(what, at)?;
        self.variables = outer;
        self.ranges = ranges;
        let is_empty = body.iter().all(|node| matches!(node, Node::Text(text) if text.trim().is_empty()));
        match self.defined.get(&name) {
            Some(_) if is_empty => {}
            Some(known) if !known.is_empty() => return wrong(at, format!("template \"{name}\" is defined twice")),
            _ => {
                self.defined.insert(name, Rc::new(if is_empty { Vec::new() } else { body }));
            }
        }
        Ok(())
    }

    /// Parses all tokens as a pipeline with at most `declares` variables.
    fn pipe(&mut self, at: usize, end: usize, words: &[Token<'a>], declares: usize) -> Result<Pipe, Wrong> {
        let mut words = Words { tokens: words, at: 0, end: words.last().map_or(end, |token| token.end) };
        let pipe = self.pipeline(&mut words, declares)?;
        match words.peek() {
            Some(token) => wrong(token.at, format!("unexpected {}", shown(&token.word))),
            None => Ok(Pipe { at: if pipe.at == pipe.end { at } else { pipe.at }, ..pipe }),
        }
    }

    fn pipeline(&mut self, words: &mut Words<'_, 'a>, declares: usize) -> Result<Pipe, Wrong> {
        let at = words.place();
        let (variables, assigns) = self.declaration(words, declares)?;
        let mut commands = Vec::new();
        loop {
            let stage = words.place();
            let command = self.command(words)?;
            let Some(command) = command else {
                return wrong(
                    stage,
                    if commands.is_empty() { "a value is missing" } else { "a value is missing after the last |" },
                );
            };
            let constant = !matches!(command.first.value, Primary::Function(_) | Primary::Variable(_) | Primary::Pipe(_))
                && command.first.fields.is_empty();
            if !commands.is_empty() && constant {
                return wrong(stage, "only a function may follow |");
            }
            commands.push(command);
            if !words.take("|") {
                break;
            }
        }
        if !assigns {
            self.variables.extend(variables.iter().cloned());
        }
        Ok(Pipe { at, end: words.before(), variables, assigns, commands })
    }

    /// Parses `$x :=`, `$x =` and, in a range, `$i, $x :=`.
    fn declaration(&mut self, words: &mut Words<'_, 'a>, most: usize) -> Result<(Vec<Rc<str>>, bool), Wrong> {
        let variable = |at: usize| match words.tokens.get(words.at + at) {
            Some(Token { word: Word::Variable(name), .. }) => Some(Rc::from(*name)),
            _ => None,
        };
        let sign = |at: usize| match words.tokens.get(words.at + at) {
            Some(Token { word: Word::Sign(sign), .. }) => *sign,
            _ => "",
        };
        let (variables, length): (Vec<Rc<str>>, usize) = match (variable(0), sign(1), variable(2), sign(3)) {
            (Some(first), ":=" | "=", ..) => (vec![first], 2),
            (Some(first), ",", Some(second), ":=" | "=") => (vec![first, second], 4),
            _ => return Ok((Vec::new(), false)),
        };
        if variables.len() > most {
            let what = if most == 0 { "no variable is declared here" } else { "two variables are declared only by a range" };
            return wrong(words.place(), what);
        }
        let assigns = sign(length - 1) == "=";
        if assigns && let Some(unknown) = variables.iter().find(|name| !self.variables.contains(name)) {
            return wrong(words.place(), format!("undefined variable {unknown}; declare it with :="));
        }
        words.at += length;
        Ok((variables, assigns))
    }

    fn command(&mut self, words: &mut Words<'_, 'a>) -> Result<Option<Command>, Wrong> {
        let Some(first) = self.operand(words)? else { return Ok(None) };
        let mut rest = Vec::new();
        while words.peek().is_some_and(|token| !matches!(token.word, Word::Sign("|" | ")"))) {
            if words.peek().is_some_and(|token| !token.spaced) {
                return words.unexpected("a space is missing before");
            }
            match self.operand(words)? {
                Some(operand) => rest.push(operand),
                None => return words.unexpected("unexpected"),
            }
        }
        Ok(Some(Command { first, rest }))
    }

    fn operand(&mut self, words: &mut Words<'_, 'a>) -> Result<Option<Operand>, Wrong> {
        let Some(token) = words.peek() else { return Ok(None) };
        let at = token.at;
        let mut fields = Vec::new();
        let value = match &token.word {
            Word::Sign("(") => {
                words.at += 1;
                self.depth += 1;
                if self.depth > MAX_DEPTH {
                    return wrong(at, format!("parentheses are nested more than {MAX_DEPTH} deep"));
                }
                let pipe = self.pipeline(words, 0)?;
                self.depth -= 1;
                if !words.take(")") {
                    return if words.peek().is_none() {
                        wrong(at, "the ( is not closed")
                    } else {
                        words.unexpected("unexpected")
                    };
                }
                words.at -= 1;
                Primary::Pipe(Box::new(pipe))
            }
            Word::Sign("|" | ")") => return Ok(None),
            Word::Sign(_) => return words.unexpected("unexpected"),
            Word::Dot => Primary::Dot,
            Word::Field(name) => {
                fields.push((*name).to_owned());
                Primary::Dot
            }
            Word::Variable(name) => match self.variables.iter().find(|known| known.as_ref() == *name) {
                Some(known) => Primary::Variable(Rc::clone(known)),
                None => return wrong(at, format!("undefined variable {name}")),
            },
            Word::Int(value) => Primary::Int(*value),
            Word::Float(value) => Primary::Float(*value),
            Word::Text(text) => Primary::Text(Rc::from(text.as_str())),
            Word::Name(name) => name_value(name, at)?,
        };
        words.at += 1;
        while let Some(Token { word: Word::Field(name), spaced: false, at, .. }) = words.peek() {
            if !matches!(value, Primary::Dot | Primary::Variable(_) | Primary::Pipe(_) | Primary::Function(_)) {
                return wrong(*at, "a constant has no fields");
            }
            if matches!(value, Primary::Dot) && fields.is_empty() {
                return wrong(*at, "unexpected \".\" after \".\"");
            }
            fields.push((*name).to_owned());
            words.at += 1;
        }
        Ok(Some(Operand { at, end: words.before(), value, fields }))
    }
}

fn name_value(name: &str, at: usize) -> Result<Primary, Wrong> {
    match name {
        "true" => Ok(Primary::Bool(true)),
        "false" => Ok(Primary::Bool(false)),
        "nil" => Ok(Primary::Nil),
        _ => match functions::find(name) {
            Some(function) => Ok(Primary::Function(function)),
            None => wrong(at, unknown(name)),
        },
    }
}

/// Explains an unknown function name, with a suggestion.
fn unknown(name: &str) -> String {
    if let Some(why) = functions::left_out(name) {
        return format!("function \"{name}\" is left out: {why}");
    }
    let near = did_you_mean(name, functions::names()).map(|near| format!("; did you mean \"{near}\"?"));
    format!("function \"{name}\" not defined{}", near.unwrap_or_default())
}

/// The tokens of an action, from left to right.
struct Words<'w, 'a> {
    tokens: &'w [Token<'a>],
    at: usize,
    /// The end of the last token.
    end: usize,
}

impl<'w, 'a> Words<'w, 'a> {
    fn peek(&self) -> Option<&'w Token<'a>> {
        self.tokens.get(self.at)
    }

    fn take(&mut self, sign: &str) -> bool {
        let found = matches!(self.peek(), Some(Token { word: Word::Sign(found), .. }) if *found == sign);
        self.at += usize::from(found);
        found
    }

    /// Returns the start of the next token.
    fn place(&self) -> usize {
        self.peek().map_or(self.end, |token| token.at)
    }

    /// Returns the end of the previous token.
    fn before(&self) -> usize {
        self.at.checked_sub(1).and_then(|at| self.tokens.get(at)).map_or(0, |token| token.end)
    }

    fn unexpected<T>(&self, what: &str) -> Result<T, Wrong> {
        match self.peek() {
            Some(token) => wrong(token.at, format!("{what} {}", shown(&token.word))),
            None => wrong(self.end, "the action ends too early"),
        }
    }
}

fn shown(word: &Word<'_>) -> String {
    match word {
        Word::Field(name) => format!(".{name}"),
        Word::Dot => ".".to_owned(),
        Word::Variable(name) | Word::Name(name) => (*name).to_owned(),
        Word::Int(value) => value.to_string(),
        Word::Float(value) => value.to_string(),
        Word::Text(text) => format!("{text:?}"),
        Word::Sign(sign) => (*sign).to_owned(),
    }
}
