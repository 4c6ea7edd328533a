//! Parser for Go templates.

use std::collections::HashMap;
use std::rc::Rc;

use crate::diag::did_you_mean;

use super::functions::{self, GoFunction};
use super::lex::{GoSegment, GoSyntaxError, GoToken, GoTokenKind, lex, syntax_error};

/// The deepest nesting of blocks and of parentheses.
const MAX_DEPTH: usize = 64;

/// A parsed template.
#[derive(Debug)]
pub(super) struct GoTemplate {
    pub(super) body: Vec<GoNode>,
    /// The bodies of `define` and `block`, by name.
    pub(super) defined: HashMap<String, Rc<Vec<GoNode>>>,
}

#[derive(Debug)]
pub(super) enum GoNode {
    Text(String),
    /// Runs a pipeline, and prints the result unless the pipeline declares a variable.
    Print(Pipeline),
    If {
        arms: Vec<(Pipeline, Vec<Self>)>,
        otherwise: Vec<Self>,
    },
    With {
        arms: Vec<(Pipeline, Vec<Self>)>,
        otherwise: Vec<Self>,
    },
    Range {
        pipe: Pipeline,
        body: Vec<Self>,
        otherwise: Vec<Self>,
    },
    Call {
        at: usize,
        name: String,
        pipe: Option<Pipeline>,
    },
    Break,
    Continue,
}

#[derive(Debug)]
pub(super) struct Pipeline {
    pub(super) at: usize,
    pub(super) end: usize,
    /// The declared or assigned variables.
    pub(super) variables: Vec<Rc<str>>,
    pub(super) assigns: bool,
    pub(super) commands: Vec<GoCommand>,
}

#[derive(Debug)]
pub(super) struct GoCommand {
    pub(super) first: GoOperand,
    pub(super) rest: Vec<GoOperand>,
}

#[derive(Debug)]
pub(super) struct GoOperand {
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
    Function(&'static GoFunction),
    Pipe(Box<Pipeline>),
}

/// Parses a template.
pub(super) fn parse(source: &str, delimiters: (&str, &str)) -> Result<GoTemplate, GoSyntaxError> {
    let pieces = lex(source, delimiters)?;
    let mut parser =
        GoParser { pieces: pieces.into_iter(), variables: initial_variables(), defined: HashMap::new(), depth: 0, ranges: 0 };
    let (body, ending) = parser.nodes(true)?;
    match ending {
        Ending::Text => Ok(GoTemplate { body, defined: parser.defined }),
        Ending::End(at) => syntax_error(at, "unexpected end: nothing is open here"),
        Ending::Else(at, _) => syntax_error(at, "unexpected else: nothing is open here"),
    }
}

fn initial_variables() -> Vec<Rc<str>> {
    vec![Rc::from("$")]
}

/// The end of a list of nodes.
enum Ending<'a> {
    Text,
    End(usize),
    Else(usize, Vec<GoToken<'a>>),
}

struct GoParser<'a> {
    pieces: std::vec::IntoIter<GoSegment<'a>>,
    /// The visible variables.
    variables: Vec<Rc<str>>,
    defined: HashMap<String, Rc<Vec<GoNode>>>,
    depth: usize,
    /// The number of open ranges.
    ranges: usize,
}

impl<'a> GoParser<'a> {
    fn nodes(&mut self, top: bool) -> Result<(Vec<GoNode>, Ending<'a>), GoSyntaxError> {
        let mut nodes = Vec::new();
        while let Some(piece) = self.pieces.next() {
            let (at, end, words) = match piece {
                GoSegment::Text(text) => {
                    nodes.push(GoNode::Text(text.to_owned()));
                    continue;
                }
                GoSegment::Action { at, end, tokens: words } => (at, end, words),
            };
            let keyword = if let Some(GoTokenKind::Name(name)) = words.first().map(|token| &token.kind) { *name } else { "" };
            let rest = |words: &[GoToken<'a>]| words.get(1..).unwrap_or_default().to_vec();
            match keyword {
                "end" if words.len() == 1 => return Ok((nodes, Ending::End(at))),
                "else" => return Ok((nodes, Ending::Else(at, rest(&words)))),
                "if" | "with" => nodes.push(self.branch(keyword, at, end, rest(&words))?),
                "range" => nodes.push(self.range(at, end, &rest(&words))?),
                "template" => nodes.push(self.call(at, end, &rest(&words))?),
                "block" => nodes.push(self.block(at, end, &rest(&words))?),
                "define" if top => self.define(at, &rest(&words))?,
                "define" => return syntax_error(at, "define is allowed only at the top of a file, outside of other blocks"),
                "break" | "continue" if words.len() == 1 => {
                    if self.ranges == 0 {
                        return syntax_error(at, format!("{keyword} outside of a range"));
                    }
                    nodes.push(if keyword == "break" { GoNode::Break } else { GoNode::Continue });
                }
                _ => nodes.push(GoNode::Print(self.pipe(at, end, &words, 1)?)),
            }
        }
        Ok((nodes, Ending::Text))
    }

    /// Parses the nodes up to `end` or `else`, as a block with its own variables.
    fn body(&mut self, what: &str, at: usize) -> Result<(Vec<GoNode>, Ending<'a>), GoSyntaxError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return syntax_error(at, format!("blocks are nested more than {MAX_DEPTH} deep"));
        }
        let mark = self.variables.len();
        let (nodes, ending) = self.nodes(false)?;
        self.variables.truncate(mark);
        self.depth -= 1;
        match ending {
            Ending::Text => syntax_error(at, format!("{what} is not closed with end")),
            ending => Ok((nodes, ending)),
        }
    }

    /// Parses the nodes up to `end`.
    fn last_body(&mut self, what: &str, at: usize) -> Result<Vec<GoNode>, GoSyntaxError> {
        match self.body(what, at)? {
            (nodes, Ending::End(_)) => Ok(nodes),
            (_, Ending::Else(at, _)) => syntax_error(at, "a second else"),
            (_, Ending::Text) => syntax_error(at, format!("{what} is not closed with end")),
        }
    }

    /// Parses `if` or `with`, including `else if` and `else with`.
    fn branch(&mut self, keyword: &str, at: usize, end: usize, mut words: Vec<GoToken<'a>>) -> Result<GoNode, GoSyntaxError> {
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
                Some((GoToken { kind: GoTokenKind::Name(name), .. }, rest)) if *name == keyword => {
                    (here, until) = (place, next.last().map_or(place, |token| token.end));
                    words = rest.to_vec();
                }
                Some((other, _)) => return syntax_error(other.at, format!("only {keyword} may follow else")),
            }
        }
        self.variables.truncate(mark);
        Ok(if keyword == "if" { GoNode::If { arms, otherwise } } else { GoNode::With { arms, otherwise } })
    }

    fn range(&mut self, at: usize, end: usize, words: &[GoToken<'a>]) -> Result<GoNode, GoSyntaxError> {
        let mark = self.variables.len();
        let pipe = self.pipe(at, end, words, 2)?;
        self.ranges += 1;
        let (body, ending) = self.body("range", at)?;
        self.ranges -= 1;
        let otherwise = match ending {
            Ending::Else(_, words) if words.is_empty() => self.last_body("range", at)?,
            Ending::Else(place, _) => return syntax_error(place, "nothing may follow the else of a range"),
            _ => Vec::new(),
        };
        self.variables.truncate(mark);
        Ok(GoNode::Range { pipe, body, otherwise })
    }

    /// Parses the name of a template; returns the remaining tokens too.
    fn template_name<'w>(what: &str, at: usize, words: &'w [GoToken<'a>]) -> Result<(String, &'w [GoToken<'a>]), GoSyntaxError> {
        match words.split_first() {
            Some((GoToken { kind: GoTokenKind::Text(name), .. }, rest)) => Ok((name.clone(), rest)),
            _ => syntax_error(at, format!("{what} takes a name in quotes")),
        }
    }

    fn call(&mut self, at: usize, end: usize, words: &[GoToken<'a>]) -> Result<GoNode, GoSyntaxError> {
        let (name, rest) = Self::template_name("template", at, words)?;
        let pipe = if rest.is_empty() { None } else { Some(self.pipe(at, end, rest, 0)?) };
        Ok(GoNode::Call { at, name, pipe })
    }

    fn define(&mut self, at: usize, words: &[GoToken<'a>]) -> Result<(), GoSyntaxError> {
        let (name, rest) = Self::template_name("define", at, words)?;
        if let Some(token) = rest.first() {
            return syntax_error(token.at, "define takes only a name");
        }
        self.define_template(name, "define", at)
    }

    fn block(&mut self, at: usize, end: usize, words: &[GoToken<'a>]) -> Result<GoNode, GoSyntaxError> {
        let (name, rest) = Self::template_name("block", at, words)?;
        let pipe = Some(self.pipe(at, end, rest, 0)?);
        self.define_template(name.clone(), "block", at)?;
        Ok(GoNode::Call { at, name, pipe })
    }

    /// Parses the body of a named template, which does not see outer variables.
    fn define_template(&mut self, name: String, what: &str, at: usize) -> Result<(), GoSyntaxError> {
        let outer = std::mem::replace(&mut self.variables, initial_variables());
        let ranges = std::mem::take(&mut self.ranges);
        let body = self.last_body(what, at)?;
        self.variables = outer;
        self.ranges = ranges;
        let is_empty = body.iter().all(|node| matches!(node, GoNode::Text(text) if text.trim().is_empty()));
        match self.defined.get(&name) {
            Some(_) if is_empty => {}
            Some(known) if !known.is_empty() => return syntax_error(at, format!("template \"{name}\" is defined twice")),
            _ => {
                self.defined.insert(name, Rc::new(if is_empty { Vec::new() } else { body }));
            }
        }
        Ok(())
    }

    /// Parses all tokens as a pipeline with at most `declares` variables.
    fn pipe(&mut self, at: usize, end: usize, words: &[GoToken<'a>], declares: usize) -> Result<Pipeline, GoSyntaxError> {
        let mut words = TokenReader { tokens: words, at: 0, end: words.last().map_or(end, |token| token.end) };
        let pipe = self.pipeline(&mut words, declares)?;
        match words.peek() {
            Some(token) => syntax_error(token.at, format!("unexpected {}", token_text(&token.kind))),
            None => Ok(Pipeline { at: if pipe.at == pipe.end { at } else { pipe.at }, ..pipe }),
        }
    }

    fn pipeline(&mut self, words: &mut TokenReader<'_, 'a>, declares: usize) -> Result<Pipeline, GoSyntaxError> {
        let at = words.next_start();
        let (variables, assigns) = self.declaration(words, declares)?;
        let mut commands = Vec::new();
        loop {
            let stage = words.next_start();
            let command = self.command(words)?;
            let Some(command) = command else {
                return syntax_error(
                    stage,
                    if commands.is_empty() { "a value is missing" } else { "a value is missing after the last |" },
                );
            };
            let constant = !matches!(command.first.value, Primary::Function(_) | Primary::Variable(_) | Primary::Pipe(_))
                && command.first.fields.is_empty();
            if !commands.is_empty() && constant {
                return syntax_error(stage, "only a function may follow |");
            }
            commands.push(command);
            if !words.take("|") {
                break;
            }
        }
        if !assigns {
            self.variables.extend(variables.iter().cloned());
        }
        Ok(Pipeline { at, end: words.previous_end(), variables, assigns, commands })
    }

    /// Parses `$x :=`, `$x =` and, in a range, `$i, $x :=`.
    fn declaration(&mut self, words: &mut TokenReader<'_, 'a>, most: usize) -> Result<(Vec<Rc<str>>, bool), GoSyntaxError> {
        let variable = |at: usize| match words.tokens.get(words.at + at) {
            Some(GoToken { kind: GoTokenKind::Variable(name), .. }) => Some(Rc::from(*name)),
            _ => None,
        };
        let sign = |at: usize| match words.tokens.get(words.at + at) {
            Some(GoToken { kind: GoTokenKind::Sign(sign), .. }) => *sign,
            _ => "",
        };
        let (variables, length): (Vec<Rc<str>>, usize) = match (variable(0), sign(1), variable(2), sign(3)) {
            (Some(first), ":=" | "=", ..) => (vec![first], 2),
            (Some(first), ",", Some(second), ":=" | "=") => (vec![first, second], 4),
            _ => return Ok((Vec::new(), false)),
        };
        if variables.len() > most {
            let what = if most == 0 { "no variable is declared here" } else { "two variables are declared only by a range" };
            return syntax_error(words.next_start(), what);
        }
        let assigns = sign(length - 1) == "=";
        if assigns && let Some(unknown) = variables.iter().find(|name| !self.variables.contains(name)) {
            return syntax_error(words.next_start(), format!("undefined variable {unknown}; declare it with :="));
        }
        words.at += length;
        Ok((variables, assigns))
    }

    fn command(&mut self, words: &mut TokenReader<'_, 'a>) -> Result<Option<GoCommand>, GoSyntaxError> {
        let Some(first) = self.operand(words)? else { return Ok(None) };
        let mut rest = Vec::new();
        while words.peek().is_some_and(|token| !matches!(token.kind, GoTokenKind::Sign("|" | ")"))) {
            if words.peek().is_some_and(|token| !token.after_space) {
                return words.unexpected("a space is missing before");
            }
            match self.operand(words)? {
                Some(operand) => rest.push(operand),
                None => return words.unexpected("unexpected"),
            }
        }
        Ok(Some(GoCommand { first, rest }))
    }

    fn operand(&mut self, words: &mut TokenReader<'_, 'a>) -> Result<Option<GoOperand>, GoSyntaxError> {
        let Some(token) = words.peek() else { return Ok(None) };
        let at = token.at;
        let mut fields = Vec::new();
        let value = match &token.kind {
            GoTokenKind::Sign("(") => {
                words.at += 1;
                self.depth += 1;
                if self.depth > MAX_DEPTH {
                    return syntax_error(at, format!("parentheses are nested more than {MAX_DEPTH} deep"));
                }
                let pipe = self.pipeline(words, 0)?;
                self.depth -= 1;
                if !words.take(")") {
                    return if words.peek().is_none() {
                        syntax_error(at, "the ( is not closed")
                    } else {
                        words.unexpected("unexpected")
                    };
                }
                words.at -= 1;
                Primary::Pipe(Box::new(pipe))
            }
            GoTokenKind::Sign("|" | ")") => return Ok(None),
            GoTokenKind::Sign(_) => return words.unexpected("unexpected"),
            GoTokenKind::Dot => Primary::Dot,
            GoTokenKind::Field(name) => {
                fields.push((*name).to_owned());
                Primary::Dot
            }
            GoTokenKind::Variable(name) => match self.variables.iter().find(|known| known.as_ref() == *name) {
                Some(known) => Primary::Variable(Rc::clone(known)),
                None => return syntax_error(at, format!("undefined variable {name}")),
            },
            GoTokenKind::Int(value) => Primary::Int(*value),
            GoTokenKind::Float(value) => Primary::Float(*value),
            GoTokenKind::Text(text) => Primary::Text(Rc::from(text.as_str())),
            GoTokenKind::Name(name) => resolve_name(name, at)?,
        };
        words.at += 1;
        while let Some(GoToken { kind: GoTokenKind::Field(name), after_space: false, at, .. }) = words.peek() {
            if !matches!(value, Primary::Dot | Primary::Variable(_) | Primary::Pipe(_) | Primary::Function(_)) {
                return syntax_error(*at, "a constant has no fields");
            }
            if matches!(value, Primary::Dot) && fields.is_empty() {
                return syntax_error(*at, "unexpected \".\" after \".\"");
            }
            fields.push((*name).to_owned());
            words.at += 1;
        }
        Ok(Some(GoOperand { at, end: words.previous_end(), value, fields }))
    }
}

fn resolve_name(name: &str, at: usize) -> Result<Primary, GoSyntaxError> {
    match name {
        "true" => Ok(Primary::Bool(true)),
        "false" => Ok(Primary::Bool(false)),
        "nil" => Ok(Primary::Nil),
        _ => match functions::find(name) {
            Some(function) => Ok(Primary::Function(function)),
            None => syntax_error(at, unknown_function(name)),
        },
    }
}

/// Explains an unknown function name, with a suggestion.
fn unknown_function(name: &str) -> String {
    if let Some(why) = functions::left_out(name) {
        return format!("function \"{name}\" is left out: {why}");
    }
    let near = did_you_mean(name, functions::names()).map(|near| format!("; did you mean \"{near}\"?"));
    format!("function \"{name}\" not defined{}", near.unwrap_or_default())
}

/// The tokens of an action, from left to right.
struct TokenReader<'w, 'a> {
    tokens: &'w [GoToken<'a>],
    at: usize,
    /// The end of the last token.
    end: usize,
}

impl<'w, 'a> TokenReader<'w, 'a> {
    fn peek(&self) -> Option<&'w GoToken<'a>> {
        self.tokens.get(self.at)
    }

    fn take(&mut self, sign: &str) -> bool {
        let found = matches!(self.peek(), Some(GoToken { kind: GoTokenKind::Sign(found), .. }) if *found == sign);
        self.at += usize::from(found);
        found
    }

    /// Returns the start of the next token.
    fn next_start(&self) -> usize {
        self.peek().map_or(self.end, |token| token.at)
    }

    /// Returns the end of the previous token.
    fn previous_end(&self) -> usize {
        self.at.checked_sub(1).and_then(|at| self.tokens.get(at)).map_or(0, |token| token.end)
    }

    fn unexpected<T>(&self, what: &str) -> Result<T, GoSyntaxError> {
        match self.peek() {
            Some(token) => syntax_error(token.at, format!("{what} {}", token_text(&token.kind))),
            None => syntax_error(self.end, "the action ends too early"),
        }
    }
}

fn token_text(word: &GoTokenKind<'_>) -> String {
    match word {
        GoTokenKind::Field(name) => format!(".{name}"),
        GoTokenKind::Dot => ".".to_owned(),
        GoTokenKind::Variable(name) | GoTokenKind::Name(name) => (*name).to_owned(),
        GoTokenKind::Int(value) => value.to_string(),
        GoTokenKind::Float(value) => value.to_string(),
        GoTokenKind::Text(text) => format!("{text:?}"),
        GoTokenKind::Sign(sign) => (*sign).to_owned(),
    }
}
