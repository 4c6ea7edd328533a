//! Translation of Jet templates into minijinja's language: text, simple statements, scopes of variables.
//!
//! `statement` has the enclosing statements (`block`, `yield`, `try`) and those that use other files.
//! `link` joins the blocks of several files.

use std::collections::HashMap;

use super::super::lex::{self, Kind, Token};
use super::super::scan::outside_quotes;
use super::expression::{Code, Names, Reader, quoted};
use super::link::{Piece, Unit};
use super::statement::Statement;

/// The namespace of all variables: minijinja drops a plain variable at the end of its loop.
pub(super) const VARIABLES: &str = "variables";

/// The longest text that is not charged to the budget, in bytes: an instruction costs as much.
const MAX_PLAIN: usize = 32;

/// The deepest nesting of statements.
const MAX_DEPTH: usize = 64;

/// A template that can't be translated.
#[derive(Debug, Clone)]
pub(in super::super) struct Wrong {
    /// The position, in bytes.
    pub(in super::super) at: usize,
    pub(in super::super) message: String,
}

/// The context of a translation.
pub(in super::super) struct Surroundings<'a> {
    pub(in super::super) delimiters: (&'a str, &'a str),
    pub(in super::super) is_function: &'a dyn Fn(&str) -> bool,
    /// The name of `.` at the top; `None` for all roots.
    pub(in super::super) dot: Option<&'a str>,
    /// The path of the file, in a tree of files.
    pub(in super::super) file: Option<&'a str>,
}

/// Translates a template into minijinja's language.
pub(in super::super) fn translate(body: &str, around: &Surroundings<'_>) -> Result<Unit, Wrong> {
    let (left, right) = around.delimiters;
    let wrong = |at: usize, message: String| Wrong { at, message };
    if left.is_empty() || right.is_empty() {
        return Err(wrong(0, "jet delimiters must not be empty".to_owned()));
    }
    let mut translator = Translator {
        around,
        body,
        pieces: vec![Piece::default()],
        unit: Unit::default(),
        blocks: vec![Block { kind: Statement::Top, variables: HashMap::new(), dot: around.dot.map(str::to_owned), at: 0 }],
        made: 0,
        begun: false,
        any: false,
    };
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
            let end = rest.find("*}").ok_or_else(|| wrong(here, "the comment is not closed".to_owned()))?;
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
        translator.mark(here);
        translator.action(action, here).map_err(|message| wrong(here, message))?;
    }
    match translator.blocks.last() {
        Some(Block { kind, at, .. }) if *kind != Statement::Top => Err(wrong(*at, format!("{} without end", kind.word()))),
        _ => {
            let root = translator.pieces.pop().unwrap_or_default();
            Ok(Unit { root, ..translator.unit })
        }
    }
}

/// Returns the position of the right delimiter, outside of quotes.
fn end_of(inside: &str, right: &str) -> Option<usize> {
    let bytes = inside.as_bytes();
    outside_quotes(inside, |at, _| bytes.get(at..).is_some_and(|rest| rest.starts_with(right.as_bytes())).then_some(at))
}

/// An open statement, with the variables declared inside.
pub(super) struct Block {
    pub(super) kind: Statement,
    pub(super) variables: HashMap<String, String>,
    pub(super) dot: Option<String>,
    /// The start, in bytes.
    pub(super) at: usize,
}

pub(super) struct Translator<'a> {
    pub(super) around: &'a Surroundings<'a>,
    pub(super) body: &'a str,
    /// The output: the file, and the bodies of the open blocks.
    pub(super) pieces: Vec<Piece>,
    pub(super) unit: Unit,
    pub(super) blocks: Vec<Block>,
    /// The number of generated names.
    made: usize,
    /// True after the first text that is not blank.
    begun: bool,
    /// True after the first action other than `extends` and `import`.
    pub(super) any: bool,
}

impl Names for Translator<'_> {
    fn variable(&self, name: &str) -> Option<String> {
        self.visible().find_map(|block| block.variables.get(name).cloned())
    }

    fn dot(&self) -> Option<String> {
        self.visible().find_map(|block| block.dot.clone())
    }

    fn is_function(&self, name: &str) -> bool {
        (self.around.is_function)(name)
    }

    fn open(&self) -> bool {
        self.around.dot.is_some() || self.blocks.iter().any(|block| block.kind == Statement::Block)
    }
}

impl Translator<'_> {
    /// Returns the open statements with visible variables, innermost first. A block hides all around it.
    pub(super) fn visible(&self) -> impl Iterator<Item = &Block> {
        let from = self.blocks.iter().rposition(|block| block.kind == Statement::Block).unwrap_or(0);
        self.blocks.iter().skip(from).rev()
    }

    fn piece(&mut self) -> Option<&mut Piece> {
        self.pieces.last_mut()
    }

    fn mark(&mut self, here: usize) {
        self.piece().into_iter().for_each(|piece| piece.places.push((piece.code.len(), here)));
    }

    fn text(&mut self, text: &str) {
        // Blanks before the first text or action are dropped, as are those around `extends` and `import`.
        if !self.any && !self.begun && text.trim().is_empty() {
            return;
        }
        self.begun = true;
        for (index, part) in text.split('{').enumerate() {
            if index > 0 {
                // A lone brace could form a delimiter with the following text.
                self.emit(&["{{ \"{\" }}"]);
            }
            // An expression instead of plain text, so that each output is charged.
            if part.len() > MAX_PLAIN { self.emit(&["{{ ", &quoted(part), " }}"]) } else { self.emit(&[part]) }
        }
    }

    pub(super) fn emit(&mut self, parts: &[&str]) {
        self.piece().into_iter().for_each(|piece| piece.code.extend(parts.iter().copied()));
    }

    pub(super) fn made(&mut self, what: &str) -> String {
        self.made += 1;
        format!("{what}{}", self.made)
    }

    pub(super) fn read(&self, tokens: &[Token<'_>]) -> Result<Code, String> {
        Reader::new(tokens, self).whole()
    }

    fn action(&mut self, source: &str, here: usize) -> Result<(), String> {
        let tokens = lex::lex(source).map_err(|(_, message)| message)?;
        let Some((first, rest)) = tokens.split_first() else { return Ok(()) };
        let called = is_sign(rest.first(), "(");
        match &first.kind {
            Kind::Name("extends" | "import") => return self.takes_from(source, &tokens, here),
            _ => self.any = true,
        }
        match &first.kind {
            Kind::Name("if") => {
                self.open(Statement::If { inner: 0, header: HashMap::new() }, HashMap::new(), None, here)?;
                self.condition(rest, "if")
            }
            Kind::Name("else") => self.otherwise(rest),
            Kind::Name("end") if rest.is_empty() => self.end(),
            Kind::Name("range") => self.range(rest, source, here),
            Kind::Name("try") if rest.is_empty() => self.attempt(here),
            Kind::Name("catch") => self.caught(rest),
            Kind::Name("block") => self.block(rest, here),
            Kind::Name("yield") => self.yielded(rest, here),
            Kind::Name("content") if rest.is_empty() => self.content(here),
            Kind::Name("include") => self.include(rest, "include"),
            Kind::Name("includeIfExists") if called => self.include(rest, "includeIfExists"),
            Kind::Name("return") => Err("return is not supported: only exec would use the value".to_owned()),
            Kind::Name("exec") if called => Err("exec is not supported; render returns the text of a file".to_owned()),
            _ => self.value(&tokens, source),
        }
    }

    /// Translates a declaration, an assignment or an expression to print.
    fn value(&mut self, tokens: &[Token<'_>], source: &str) -> Result<(), String> {
        let Some(sets) = Sets::of(tokens)? else {
            let shown = self.read(tokens)?;
            self.emit(&["{{ show(", &shown.code, ", ", &quoted(source.trim()), ") }}"]);
            return Ok(());
        };
        let rest = self.set(&sets)?;
        match rest.first() {
            None => Ok(()),
            Some(first) => self.value(rest, source.get(first.offset..).unwrap_or_default()),
        }
    }

    /// Translates a declaration or an assignment; returns the tokens after the `;`.
    fn set<'t>(&mut self, sets: &Sets<'t>) -> Result<&'t [Token<'t>], String> {
        let values = sets.values.iter().map(|tokens| self.read(tokens)).collect::<Result<Vec<_>, _>>()?;
        let codes: Vec<String> = match (sets.names.as_slice(), values.as_slice()) {
            // `value, ok := map["key"]`
            ([_, _], [one]) => vec![format!("({} if {} else none)", one.code, one.is_set()), one.is_set()],
            (names, values) if names.len() == values.len() => values.iter().map(|value| value.code.clone()).collect(),
            (names, values) => return Err(format!("{} names for {} values", names.len(), values.len())),
        };
        for (name, code) in sets.names.iter().zip(codes) {
            if sets.declares { self.declare(name, &code) } else { self.assign(name, &code)? }
        }
        Ok(sets.rest)
    }

    pub(super) fn open(
        &mut self,
        kind: Statement,
        variables: HashMap<String, String>,
        dot: Option<String>,
        at: usize,
    ) -> Result<(), String> {
        if self.blocks.len() > MAX_DEPTH {
            return Err(format!("statements are nested more than {MAX_DEPTH} deep"));
        }
        self.blocks.push(Block { kind, variables, dot, at });
        Ok(())
    }

    /// Translates a condition of the innermost if, after an optional declaration: `x := a; x > 1`.
    fn condition(&mut self, tokens: &[Token<'_>], keyword: &str) -> Result<(), String> {
        let asked = match Sets::of(tokens)? {
            None => tokens,
            Some(sets) => self.set(&sets)?,
        };
        if asked.is_empty() {
            return Err("if needs a condition as its last part".to_owned());
        }
        let condition = self.read(asked)?;
        self.emit(&["{% ", keyword, " ", &condition.truth(), " %}"]);
        if let Some(Block { kind: Statement::If { header, .. }, variables, .. }) = self.blocks.last_mut() {
            header.clone_from(variables);
        }
        Ok(())
    }

    fn otherwise(&mut self, rest: &[Token<'_>]) -> Result<(), String> {
        let closed = self.blocks.pop_if(|block| matches!(block.kind, Statement::If { .. } | Statement::Range));
        let mut closed = closed.ok_or("else without if or range")?;
        // Variables of the previous branch are out of scope.
        closed.variables = if let Statement::If { header, .. } = &closed.kind { header.clone() } else { HashMap::new() };
        closed.dot = None;
        match (rest.split_first(), &mut closed.kind) {
            (None, _) => self.emit(&["{% else %}"]),
            (Some((first, rest)), Statement::If { inner, .. }) if first.kind == Kind::Name("if") => {
                let keyword = if Sets::of(rest)?.is_some() {
                    // A declaration needs a place before the condition.
                    *inner += 1;
                    self.emit(&["{% else %}"]);
                    "if"
                } else {
                    "elif"
                };
                self.blocks.push(closed);
                return self.condition(rest, keyword);
            }
            (Some(_), _) => return Err("only if may follow else".to_owned()),
        }
        self.blocks.push(closed);
        Ok(())
    }

    pub(super) fn declare(&mut self, name: &str, code: &str) {
        let variable = format!("{VARIABLES}.{}", self.made("v"));
        self.emit(&["{% set ", &variable, " = ", code, " %}"]);
        if name != "_"
            && let Some(block) = self.blocks.last_mut()
        {
            block.variables.insert(name.to_owned(), variable);
        }
    }

    fn assign(&mut self, name: &str, code: &str) -> Result<(), String> {
        if name == "_" {
            self.declare(name, code);
            return Ok(());
        }
        let variable = self.variable(name).filter(|variable| variable.starts_with(VARIABLES));
        let variable = variable.ok_or_else(|| format!("{name} is not declared here"))?;
        self.emit(&["{% set ", &variable, " = ", code, " %}"]);
        Ok(())
    }

    /// Translates `range x`, `range i := x`, `range i, v := x`. A value without a name is `.`.
    fn range(&mut self, tokens: &[Token<'_>], source: &str, here: usize) -> Result<(), String> {
        let sets = Sets::of(tokens)?;
        let over = match &sets {
            Some(Sets { values, rest: [], .. }) if values.len() == 1 => values.first().copied().unwrap_or_default(),
            Some(_) => return Err("range takes one value".to_owned()),
            None => tokens,
        };
        let code = self.read(over)?;
        let shown = over.first().and_then(|token| source.get(token.offset..)).unwrap_or_default();
        let entry = self.made("entry");
        self.emit(&["{% for ", &entry, " in entries(", &code.code, ", ", &quoted(shown.trim()), ") %}"]);
        let names = sets.map(|sets| sets.names).unwrap_or_default();
        if names.len() > 2 {
            return Err("range declares at most a key and a value".to_owned());
        }
        let dot = (names.len() < 2).then(|| format!("{entry}[1]"));
        let variables = names.iter().enumerate().map(|(part, name)| ((*name).to_owned(), format!("{entry}[{part}]")));
        let variables = variables.filter(|(name, _)| name != "_").collect();
        self.open(Statement::Range, variables, dot, here)
    }
}

/// A declaration or an assignment: `a, b := 1, 2; …`
struct Sets<'t> {
    names: Vec<&'t str>,
    declares: bool,
    values: Vec<&'t [Token<'t>]>,
    /// The tokens after the `;`.
    rest: &'t [Token<'t>],
}

impl<'t> Sets<'t> {
    /// Parses a declaration or an assignment; `None` for other tokens.
    fn of(tokens: &'t [Token<'t>]) -> Result<Option<Self>, String> {
        let mut names = Vec::new();
        let mut at = 0;
        while let Some(Kind::Name(name)) = tokens.get(at).map(|token| &token.kind) {
            names.push(*name);
            at += 1;
            if !is_sign(tokens.get(at), ",") {
                break;
            }
            at += 1;
        }
        let colon = is_sign(tokens.get(at), ":");
        at += usize::from(colon);
        if names.is_empty() || !is_sign(tokens.get(at), "=") {
            return Ok(None);
        }
        let after = tokens.get(at + 1..).unwrap_or_default();
        let end = top_level(after, ";").next();
        let (set, rest) = end.and_then(|end| after.split_at_checked(end)).unwrap_or((after, &[]));
        let mut values = Vec::new();
        let mut from = 0;
        // In a call without parentheses, as `split: a, b`, everything after the colon is an argument.
        let commas: Vec<usize> = if names.len() > 1 { top_level(set, ",").collect() } else { Vec::new() };
        for comma in commas.into_iter().chain([set.len()]) {
            values.push(set.get(from..comma).unwrap_or_default());
            from = comma + 1;
        }
        if values.iter().any(|value| value.is_empty()) {
            return Err("a value is missing after =".to_owned());
        }
        Ok(Some(Self { names, declares: colon, values, rest: rest.get(1..).unwrap_or_default() }))
    }
}

/// Returns the positions of a sign outside of brackets.
fn top_level(tokens: &[Token<'_>], wanted: &str) -> impl Iterator<Item = usize> {
    let mut depth = 0_usize;
    tokens.iter().enumerate().filter_map(move |(at, token)| {
        let Kind::Sign(sign) = token.kind else { return None };
        match sign {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            sign if sign == wanted && depth == 0 => return Some(at),
            _ => {}
        }
        None
    })
}

fn is_sign(token: Option<&Token<'_>>, sign: &str) -> bool {
    matches!(token, Some(Token { kind: Kind::Sign(found), .. }) if *found == sign)
}
