//! Templates of Jet, put into those of minijinja: text, statements, scopes of variables.

use std::collections::HashMap;

use super::super::lex::{self, Kind, Token};
use super::super::scan::outside_quotes;
use super::expression::{Code, Names, Reader, quoted};

/// Statements that are not supported; each is named when it is met.
const UNSUPPORTED: &[&str] = &["include", "includeIfExists", "block", "yield", "extends", "import", "try", "catch", "return"];

/// The namespace that holds the variables: in minijinja a plain variable set in a loop ends with it.
const VARIABLES: &str = "variables";

/// A template that can't be translated.
pub(in super::super) struct Wrong {
    /// Where, in bytes.
    pub(in super::super) at: usize,
    pub(in super::super) message: String,
}

/// A template in minijinja's language.
pub(in super::super) struct Translated {
    pub(in super::super) code: String,
    /// Where each action begins in the code, and where it began before; in bytes, in order.
    pub(in super::super) places: Vec<(usize, usize)>,
}

/// Puts a template into minijinja's language. `dot` is what `.` is at the top; when none, everything there is.
pub(in super::super) fn translate(
    body: &str,
    delimiters: (&str, &str),
    is_function: &dyn Fn(&str) -> bool,
    dot: Option<&str>,
) -> Result<Translated, Wrong> {
    let (left, right) = delimiters;
    let wrong = |at: usize, message: String| Wrong { at, message };
    if left.is_empty() || right.is_empty() {
        return Err(wrong(0, "jet delimiters must not be empty".to_owned()));
    }
    let mut translator = Translator {
        is_function,
        out: format!("{{% set {VARIABLES} = namespace() %}}"),
        blocks: vec![Block { kind: Statement::Top, variables: HashMap::new(), dot: dot.map(str::to_owned) }],
        open_names: dot.is_some(),
        made: 0,
    };
    let mut places = Vec::new();
    let mut rest = body;
    let mut trim = false;
    loop {
        let (comment, action) = (rest.find("{*"), rest.find(left));
        let next = comment.into_iter().chain(action).min();
        let text = rest.get(..next.unwrap_or(rest.len())).unwrap_or_default();
        let Some(next) = next else {
            translator.text(if trim { text.trim_start() } else { text });
            break;
        };
        rest = rest.get(next..).unwrap_or_default();
        let here = body.len() - rest.len();
        let text = if trim { text.trim_start() } else { text };
        if action != Some(next) {
            translator.text(text);
            let end = rest.find("*}").ok_or_else(|| wrong(here, "the comment does not end".to_owned()))?;
            rest = rest.get(end + 2..).unwrap_or_default();
            trim = false;
            continue;
        }
        let inside = rest.get(left.len()..).unwrap_or_default();
        let end = end_of(inside, right).ok_or_else(|| wrong(here, format!("{left} without {right}")))?;
        rest = inside.get(end + right.len()..).unwrap_or_default();
        let mut action = inside.get(..end).unwrap_or_default();
        let trims = |part: Option<&str>| part.filter(|part| part.is_empty() || part.starts_with(char::is_whitespace)).is_some();
        if trims(action.strip_prefix('-')) {
            translator.text(text.trim_end());
            action = action.get(1..).unwrap_or_default();
        } else {
            translator.text(text);
        }
        trim = action.strip_suffix('-').is_some_and(|part| part.ends_with(char::is_whitespace));
        if trim {
            action = action.get(..action.len() - 1).unwrap_or_default();
        }
        places.push((translator.out.len(), here));
        translator.action(action).map_err(|message| wrong(here, message))?;
    }
    match translator.blocks.last() {
        Some(Block { kind: Statement::If, .. }) => Err(wrong(body.len(), "if without end".to_owned())),
        Some(Block { kind: Statement::Range, .. }) => Err(wrong(body.len(), "range without end".to_owned())),
        _ => Ok(Translated { code: translator.out, places }),
    }
}

/// Where the right delimiter stands, outside of quotes.
fn end_of(inside: &str, right: &str) -> Option<usize> {
    let bytes = inside.as_bytes();
    outside_quotes(inside, |at, _| bytes.get(at..).is_some_and(|rest| rest.starts_with(right.as_bytes())).then_some(at))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Statement {
    Top,
    If,
    Range,
}

/// An open statement, with what is declared in it.
struct Block {
    kind: Statement,
    variables: HashMap<String, String>,
    dot: Option<String>,
}

struct Translator<'a> {
    is_function: &'a dyn Fn(&str) -> bool,
    out: String,
    blocks: Vec<Block>,
    /// Names that nobody knows are fields of `.`.
    open_names: bool,
    /// How many names were made.
    made: usize,
}

impl Names for Translator<'_> {
    fn variable(&self, name: &str) -> Option<String> {
        self.blocks.iter().rev().find_map(|block| block.variables.get(name).cloned())
    }

    fn dot(&self) -> Option<String> {
        self.blocks.iter().rev().find_map(|block| block.dot.clone())
    }

    fn is_function(&self, name: &str) -> bool {
        (self.is_function)(name)
    }

    fn open(&self) -> bool {
        self.open_names
    }
}

impl Translator<'_> {
    fn text(&mut self, text: &str) {
        for (index, piece) in text.split('{').enumerate() {
            if index > 0 {
                // Alone, it would begin something with what follows.
                self.out.push_str("{{ \"{\" }}");
            }
            self.out.push_str(piece);
        }
    }

    fn emit(&mut self, parts: &[&str]) {
        self.out.extend(parts.iter().copied());
    }

    fn made(&mut self, what: &str) -> String {
        self.made += 1;
        format!("{what}{}", self.made)
    }

    fn read(&self, tokens: &[Token<'_>]) -> Result<Code, String> {
        Reader::new(tokens, self).whole()
    }

    fn action(&mut self, source: &str) -> Result<(), String> {
        let tokens = lex::lex(source).map_err(|(_, message)| message)?;
        let Some((first, rest)) = tokens.split_first() else { return Ok(()) };
        match &first.kind {
            Kind::Name("if") => {
                let condition = self.read(rest)?;
                self.emit(&["{% if ", &condition.code, " %}"]);
                self.open(Statement::If, HashMap::new(), None);
            }
            Kind::Name("else") => self.otherwise(rest)?,
            Kind::Name("end") => {
                let closed = self.blocks.pop_if(|block| block.kind != Statement::Top).map(|block| block.kind);
                self.emit(match closed {
                    Some(Statement::If) => &["{% endif %}"],
                    Some(Statement::Range) => &["{% endfor %}"],
                    _ => return Err("end without a beginning".to_owned()),
                });
            }
            Kind::Name("range") => self.range(rest, source)?,
            Kind::Name(name) if UNSUPPORTED.contains(name) => return Err(format!("{name} is not supported")),
            Kind::Name(name) if is_sign(rest.first(), "=") => self.assign(name, rest.get(1..).unwrap_or_default())?,
            Kind::Name(name) if is_sign(rest.first(), ":") && is_sign(rest.get(1), "=") => {
                self.declare(name, rest.get(2..).unwrap_or_default())?;
            }
            _ => {
                let shown = self.read(&tokens)?;
                self.emit(&["{{ show(", &shown.code, ", ", &quoted(source.trim()), ") }}"]);
            }
        }
        Ok(())
    }

    fn open(&mut self, kind: Statement, variables: HashMap<String, String>, dot: Option<String>) {
        self.blocks.push(Block { kind, variables, dot });
    }

    fn otherwise(&mut self, rest: &[Token<'_>]) -> Result<(), String> {
        let closed = self.blocks.pop_if(|block| block.kind != Statement::Top).map(|block| block.kind);
        let kind = closed.ok_or("else without if or range")?;
        match rest.split_first() {
            None => self.emit(&["{% else %}"]),
            Some((first, rest)) if first.kind == Kind::Name("if") && kind == Statement::If => {
                let condition = self.read(rest)?;
                self.emit(&["{% elif ", &condition.code, " %}"]);
            }
            Some(_) => return Err("after else comes nothing, or if".to_owned()),
        }
        self.open(kind, HashMap::new(), None);
        Ok(())
    }

    fn declare(&mut self, name: &str, value: &[Token<'_>]) -> Result<(), String> {
        let value = self.read(value)?;
        let variable = format!("{VARIABLES}.{}", self.made("v"));
        self.emit(&["{% set ", &variable, " = ", &value.code, " %}"]);
        if name != "_"
            && let Some(block) = self.blocks.last_mut()
        {
            block.variables.insert(name.to_owned(), variable);
        }
        Ok(())
    }

    fn assign(&mut self, name: &str, value: &[Token<'_>]) -> Result<(), String> {
        if name == "_" {
            return self.declare(name, value);
        }
        let variable = self.variable(name).filter(|variable| variable.starts_with(VARIABLES));
        let variable = variable.ok_or_else(|| format!("{name} is not declared"))?;
        let value = self.read(value)?;
        self.emit(&["{% set ", &variable, " = ", &value.code, " %}"]);
        Ok(())
    }

    /// `range x`, `range i := x`, `range i, v := x`: the value is `.` unless it has a name.
    fn range(&mut self, tokens: &[Token<'_>], source: &str) -> Result<(), String> {
        let name =
            |at: usize| if let Some(Kind::Name(name)) = tokens.get(at).map(|token| &token.kind) { Some(*name) } else { None };
        let declares = |at: usize| {
            let colon = usize::from(is_sign(tokens.get(at), ":"));
            is_sign(tokens.get(at + colon), "=").then_some(at + colon + 1)
        };
        let two = is_sign(tokens.get(1), ",").then(|| declares(3)).flatten();
        let (key, value, from) = match (declares(1), two) {
            (Some(from), _) => (name(0), None, from),
            (None, Some(from)) => (name(0), name(2), from),
            (None, None) => (None, None, 0),
        };
        let over = self.read(tokens.get(from..).unwrap_or_default())?;
        let shown = tokens.get(from).and_then(|token| source.get(token.offset..)).unwrap_or_default();
        let entry = self.made("entry");
        self.emit(&["{% for ", &entry, " in entries(", &over.code, ", ", &quoted(shown.trim()), ") %}"]);
        let mut variables = HashMap::new();
        for (name, part) in [(key, 0), (value, 1)] {
            if let Some(name) = name {
                variables.insert(name.to_owned(), format!("{entry}[{part}]"));
            }
        }
        let dot = value.is_none().then(|| format!("{entry}[1]"));
        self.open(Statement::Range, variables, dot);
        Ok(())
    }
}

fn is_sign(token: Option<&Token<'_>>, sign: &str) -> bool {
    matches!(token, Some(Token { kind: Kind::Sign(found), .. }) if *found == sign)
}
