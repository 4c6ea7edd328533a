//! Translation of Jet templates into minijinja's language: text, conditions, loops, variables.
//!
//! `statement` has the enclosing statements (`block`, `yield`, `try`) and those that use other files.
//! `inheritance` joins the blocks of several files.

use std::collections::HashMap;

use super::expression::{NameResolver, quoted};
use super::translator::{OpenBlock, OpenStatement, TranslationContext, Translator};
use super::unit::{JetError, JetUnit, VARIABLES};
use crate::template::expr::lex::{self, Token, TokenKind};
use crate::template::text::outside_quotes;

/// Translates a template into minijinja's language.
pub(in crate::template) fn translate(body: &str, around: &TranslationContext<'_>) -> Result<JetUnit, JetError> {
    let (left, right) = around.delimiters;
    if left.is_empty() || right.is_empty() {
        return Err(JetError::syntax(0, "jet delimiters must not be empty".to_owned()));
    }
    let mut translator = Translator::new(around, body);
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
            let end = rest.find("*}").ok_or_else(|| JetError::unclosed(here, "the comment is not closed"))?;
            rest = rest.get(end + 2..).unwrap_or_default();
            trim = false;
            continue;
        }
        let inside = rest.get(left.len()..).unwrap_or_default();
        let end = end_of(inside, right).ok_or_else(|| JetError::syntax(here, format!("{left} without {right}")))?;
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
        let tokens = lex::lex(action).map_err(|error| JetError { at: here, message: error.detail, kind: error.kind })?;
        translator.action(&tokens, action, here).map_err(|message| JetError::syntax(here, message))?;
    }
    match translator.blocks.last() {
        Some(OpenBlock { kind, at, .. }) if *kind != OpenStatement::Top => {
            Err(JetError::syntax(*at, format!("{} without end", kind.keyword())))
        }
        _ => {
            let root = translator.fragments.pop().unwrap_or_default();
            Ok(JetUnit { root, ..translator.unit })
        }
    }
}

/// Returns the position of the right delimiter, outside of quotes.
fn end_of(inside: &str, right: &str) -> Option<usize> {
    let bytes = inside.as_bytes();
    outside_quotes(inside, |at, _| bytes.get(at..).is_some_and(|rest| rest.starts_with(right.as_bytes())).then_some(at))
}

impl Translator<'_> {
    fn action(&mut self, tokens: &[Token<'_>], source: &str, here: usize) -> Result<(), String> {
        let Some((first, rest)) = tokens.split_first() else { return Ok(()) };
        let called = is_sign(rest.first(), "(");
        match &first.kind {
            TokenKind::Name("extends" | "import") => return self.extend_or_import(source, tokens, here),
            _ => self.has_actions = true,
        }
        match &first.kind {
            TokenKind::Name("if") => {
                self.open(OpenStatement::If { inner: 0, header: HashMap::new() }, HashMap::new(), None, here)?;
                self.condition(rest, "if")
            }
            TokenKind::Name("else") => self.begin_else(rest),
            TokenKind::Name("end") if rest.is_empty() => self.end(),
            TokenKind::Name("range") => self.begin_range(rest, source, here),
            TokenKind::Name("try") if rest.is_empty() => self.begin_try(here),
            TokenKind::Name("catch") => self.begin_catch(rest),
            TokenKind::Name("block") => self.begin_block(rest, here),
            TokenKind::Name("yield") => self.yield_block(rest, here),
            TokenKind::Name("content") if rest.is_empty() => self.begin_default_content(here),
            TokenKind::Name("include") => self.include(rest, "include"),
            TokenKind::Name("includeIfExists") if called => self.include(rest, "includeIfExists"),
            TokenKind::Name("return") => Err("return is not supported: only exec would use the value".to_owned()),
            TokenKind::Name("exec") if called => Err("exec is not supported; render returns the text of a file".to_owned()),
            _ => self.set_or_print(tokens, source),
        }
    }

    /// Translates a declaration, an assignment or an expression to print.
    fn set_or_print(&mut self, tokens: &[Token<'_>], source: &str) -> Result<(), String> {
        let Some(sets) = Bindings::parse(tokens)? else {
            let shown = self.parse_expression(tokens)?;
            self.emit(&["{{ show(", &shown.code, ", ", &quoted(source.trim()), ") }}"]);
            return Ok(());
        };
        let rest = self.set_variables(&sets)?;
        match rest.first() {
            None => Ok(()),
            Some(first) => self.set_or_print(rest, source.get(first.offset..).unwrap_or_default()),
        }
    }

    /// Translates a declaration or an assignment; returns the tokens after the `;`.
    fn set_variables<'t>(&mut self, sets: &Bindings<'t>) -> Result<&'t [Token<'t>], String> {
        let values = sets.values.iter().map(|tokens| self.parse_expression(tokens)).collect::<Result<Vec<_>, _>>()?;
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

    /// Translates a condition of the innermost if, after an optional declaration: `x := a; x > 1`.
    fn condition(&mut self, tokens: &[Token<'_>], keyword: &str) -> Result<(), String> {
        let asked = match Bindings::parse(tokens)? {
            None => tokens,
            Some(sets) => self.set_variables(&sets)?,
        };
        if asked.is_empty() {
            return Err("if needs a condition as its last part".to_owned());
        }
        let condition = self.parse_expression(asked)?;
        self.emit(&["{% ", keyword, " ", &condition.truth(), " %}"]);
        if let Some(OpenBlock { kind: OpenStatement::If { header, .. }, variables, .. }) = self.blocks.last_mut() {
            header.clone_from(variables);
        }
        Ok(())
    }

    fn begin_else(&mut self, rest: &[Token<'_>]) -> Result<(), String> {
        let closed = self.blocks.pop_if(|block| matches!(block.kind, OpenStatement::If { .. } | OpenStatement::Range));
        let mut closed = closed.ok_or("else without if or range")?;
        // Variables of the previous branch are out of scope.
        closed.variables = if let OpenStatement::If { header, .. } = &closed.kind { header.clone() } else { HashMap::new() };
        closed.dot = None;
        match (rest.split_first(), &mut closed.kind) {
            (None, _) => self.emit(&["{% else %}"]),
            (Some((first, rest)), OpenStatement::If { inner, .. }) if first.kind == TokenKind::Name("if") => {
                let keyword = if Bindings::parse(rest)?.is_some() {
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
    fn begin_range(&mut self, tokens: &[Token<'_>], source: &str, here: usize) -> Result<(), String> {
        let sets = Bindings::parse(tokens)?;
        let over = match &sets {
            Some(Bindings { values, rest: [], .. }) if values.len() == 1 => values.first().copied().unwrap_or_default(),
            Some(_) => return Err("range takes one value".to_owned()),
            None => tokens,
        };
        let code = self.parse_expression(over)?;
        let shown = over.first().and_then(|token| source.get(token.offset..)).unwrap_or_default();
        let entry = self.fresh_name("entry");
        self.emit(&["{% for ", &entry, " in entries(", &code.code, ", ", &quoted(shown.trim()), ") %}"]);
        let names = sets.map(|sets| sets.names).unwrap_or_default();
        if names.len() > 2 {
            return Err("range declares at most a key and a value".to_owned());
        }
        let dot = (names.len() < 2).then(|| format!("{entry}[1]"));
        let variables = names.iter().enumerate().map(|(part, name)| ((*name).to_owned(), format!("{entry}[{part}]")));
        let variables = variables.filter(|(name, _)| name != "_").collect();
        self.open(OpenStatement::Range, variables, dot, here)
    }
}

/// A declaration or an assignment: `a, b := 1, 2; …`
struct Bindings<'t> {
    names: Vec<&'t str>,
    declares: bool,
    values: Vec<&'t [Token<'t>]>,
    /// The tokens after the `;`.
    rest: &'t [Token<'t>],
}

impl<'t> Bindings<'t> {
    /// Parses a declaration or an assignment; `None` for other tokens.
    fn parse(tokens: &'t [Token<'t>]) -> Result<Option<Self>, String> {
        let mut names = Vec::new();
        let mut at = 0;
        while let Some(TokenKind::Name(name)) = tokens.get(at).map(|token| &token.kind) {
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
        let TokenKind::Sign(sign) = token.kind else { return None };
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
    matches!(token, Some(Token { kind: TokenKind::Sign(found), .. }) if *found == sign)
}
