//! Statements of Jet that enclose others, and those that use other files.
//!
//! Each body becomes a macro, as minijinja has no `try`; the macro is called where its text is needed.
//! Macros see the variables around them. The macros of blocks see only their arguments.

use std::collections::{BTreeMap, HashMap};

use super::block_use::{ARGUMENTS, BlockUse, CONTENT, DOT};
use super::expression::{Code, ExpressionParser, GIVEN, NameResolver, quoted};
use super::translator::{OpenBlock, OpenStatement, Translator};
use super::unit::{CodeFragment, JetUnit, VARIABLES};
use crate::template::expr::Root;
use crate::template::expr::lex::{Token, TokenKind};

impl Translator<'_> {
    pub(super) fn end(&mut self) -> Result<(), String> {
        let closed = self.blocks.pop_if(|block| block.kind != OpenStatement::Top).ok_or("end without an open statement")?;
        match closed.kind {
            OpenStatement::Top => {}
            OpenStatement::If { inner, .. } => (0..=inner).for_each(|_| self.emit(&["{% endif %}"])),
            OpenStatement::Range => self.emit(&["{% endfor %}"]),
            OpenStatement::Try(body) => self.emit(&["{% endmacro %}{{ attempt(", &body, ", none) }}"]),
            OpenStatement::Catch(body, caught) => self.emit(&["{% endmacro %}{{ attempt(", &body, ", ", &caught, ") }}"]),
            OpenStatement::Content(asks) => self.emit(&["{% endmacro %}", &asks]),
            OpenStatement::Block => {
                let asks = self.finish_block()?;
                self.emit(&[&asks.with_content("none")]);
            }
        }
        Ok(())
    }

    pub(super) fn begin_try(&mut self, here: usize) -> Result<(), String> {
        let body = self.fresh_name("try");
        self.emit(&["{% macro ", &body, "() %}"]);
        self.open(OpenStatement::Try(body), HashMap::new(), None, here)
    }

    /// `catch`, or `catch err`.
    pub(super) fn begin_catch(&mut self, rest: &[Token<'_>]) -> Result<(), String> {
        let Some(OpenBlock { kind: OpenStatement::Try(body), at, .. }) =
            self.blocks.pop_if(|block| matches!(block.kind, OpenStatement::Try(_)))
        else {
            return Err("catch without try".to_owned());
        };
        let caught = self.fresh_name("catch");
        self.emit(&["{% endmacro %}{% macro ", &caught, "(", &caught, "_error) %}"]);
        let mut variables = HashMap::new();
        match rest {
            [] => {}
            [Token { kind: TokenKind::Name(name), .. }] => {
                variables.insert((*name).to_owned(), format!("{caught}_error"));
            }
            _ => return Err("only a name may follow catch".to_owned()),
        }
        self.open(OpenStatement::Catch(body, caught), variables, None, at)
    }

    /// Translates `block name(a, b=1) context`: defines the block, and uses it in place.
    pub(super) fn begin_block(&mut self, tokens: &[Token<'_>], here: usize) -> Result<(), String> {
        let mut reader = ExpressionParser::for_sequence(tokens, self);
        let name = reader.expect_name("block")?.to_owned();
        check_name(&name)?;
        let begins = reader.at;
        // Parsed here only to find the end: the parameters are evaluated in the block.
        let opens = tokens.get(begins).is_some_and(|token| token.kind == TokenKind::Sign("("));
        let length = if opens { closing_parenthesis(tokens.get(begins..).unwrap_or_default())? } else { 0 };
        let (parameters, rest) = tokens.get(begins..).unwrap_or_default().split_at_checked(length).unwrap_or_default();
        let context = if rest.is_empty() { None } else { Some(self.parse_expression(rest)?) };
        let asks = self.block_use(&name, &[], context.as_ref());
        self.open_block_uses.push((name, asks));
        self.fragments.push(CodeFragment::default());
        self.open(OpenStatement::Block, HashMap::new(), Some(DOT.to_owned()), here)?;
        self.emit(&["{% set ", VARIABLES, " = namespace() %}"]);
        let parameters = ExpressionParser::new(parameters, self).parameters()?;
        for (parameter, default) in parameters {
            let (key, default) = (quoted(parameter), default.map_or_else(|| "false".to_owned(), |code| code.code));
            self.declare(parameter, &format!("({ARGUMENTS}[{key}] if {key} in {ARGUMENTS} else {default})"));
        }
        Ok(())
    }

    /// Stores the body of the block that ends, and returns the code that uses the block.
    fn finish_block(&mut self) -> Result<BlockUse, String> {
        let (name, asks) = self.open_block_uses.pop().ok_or("no block is open")?;
        let body = self.fragments.pop().unwrap_or_default();
        if self.unit.blocks.insert(name.clone(), body).is_some() {
            return Err(format!("the block {name} is defined twice"));
        }
        Ok(asks)
    }

    /// Translates `content` within `block`: the rest is the default content of the block.
    pub(super) fn begin_default_content(&mut self, here: usize) -> Result<(), String> {
        self.blocks
            .pop_if(|block| block.kind == OpenStatement::Block)
            .ok_or("content must be in a block, outside of other statements")?;
        let asks = self.finish_block()?;
        self.begin_content(&asks, here)
    }

    /// Begins the content of a use of a block.
    fn begin_content(&mut self, asks: &BlockUse, here: usize) -> Result<(), String> {
        let content = self.fresh_name("content");
        let dot = format!("{content}_dot");
        self.emit(&["{% macro ", &content, "(", &dot, "=", &asks.dot, ") %}"]);
        self.open(OpenStatement::Content(asks.with_content(&content)), HashMap::new(), Some(dot), here)
    }

    /// Translates `yield name(a=1) context content`, or `yield content`.
    pub(super) fn yield_block(&mut self, tokens: &[Token<'_>], here: usize) -> Result<(), String> {
        let mut reader = ExpressionParser::for_sequence(tokens, self);
        let name = reader.expect_name("yield")?;
        if name == "content" {
            let context = if reader.is_at_end() { None } else { Some(reader.next_expression()?) };
            if !reader.is_at_end() {
                return Err(reader.unexpected());
            }
            let context = context.map(|code| format!(", {}", code.code)).unwrap_or_default();
            self.emit(&["{{ contents(", CONTENT, &context, ") }}"]);
            return Ok(());
        }
        check_name(name)?;
        let mut arguments = Vec::new();
        for (parameter, value) in reader.parameters()? {
            let value = value.ok_or_else(|| format!("{parameter} has no name: the parameters of a block have names, as id=1"))?;
            arguments.push((parameter, value));
        }
        let mut filled = reader.take_name("content");
        let context = if filled || reader.is_at_end() { None } else { Some(reader.next_expression()?) };
        filled = filled || reader.take_name("content");
        if !reader.is_at_end() {
            return Err(reader.unexpected());
        }
        let asks = self.block_use(name, &arguments, context.as_ref());
        if filled {
            return self.begin_content(&asks, here);
        }
        self.emit(&[&asks.with_content("none")]);
        Ok(())
    }

    fn block_use(&self, name: &str, arguments: &[(&str, Code)], context: Option<&Code>) -> BlockUse {
        let dot = context.map_or_else(|| self.dot_code(), |code| code.code.clone());
        let arguments: Vec<_> = arguments.iter().map(|(name, value)| format!("{}: {}", quoted(name), value.code)).collect();
        let start = format!(
            "{{{{ invoke({}, {}, {dot}, {}, {{{}}}, ",
            JetUnit::macro_of(name),
            quoted(name),
            self.visible_variables_code(),
            arguments.join(", "),
        );
        BlockUse { start, dot }
    }

    /// Returns the code of `.` at this place.
    fn dot_code(&self) -> String {
        self.dot().unwrap_or_else(|| {
            let mut roots = vec!["data", "Data", "environ", "Environ"];
            // Gathering facts is expensive.
            if Root::Facts.is_mentioned(self.body) {
                roots.extend(["facts", "Facts"]);
            }
            let roots: Vec<_> = roots.iter().map(|root| format!("{}: {}", quoted(root), root.to_lowercase())).collect();
            format!("{{{}}}", roots.join(", "))
        })
    }

    /// Returns the code of the visible variables, for a block or file.
    fn visible_variables_code(&self) -> String {
        let mut all = BTreeMap::new();
        for block in self.visible_statements() {
            for (name, variable) in &block.variables {
                all.entry(name).or_insert(variable);
            }
        }
        let all: Vec<_> = all.into_iter().map(|(name, variable)| format!("{}: {variable}", quoted(name))).collect();
        format!("given({GIVEN}, {{{}}})", all.join(", "))
    }

    /// Translates `include file context` and `includeIfExists(file, context)`.
    pub(super) fn include(&mut self, tokens: &[Token<'_>], what: &str) -> Result<(), String> {
        let Some(from) = self.context.file else { return Err(needs_scaffold(what)) };
        let inner = match tokens {
            [Token { kind: TokenKind::Sign("("), .. }, inner @ .., Token { kind: TokenKind::Sign(")"), .. }] => inner,
            plain => plain,
        };
        let mut reader = ExpressionParser::for_sequence(inner, self);
        let path = reader.next_expression()?;
        reader.take_comma();
        let context = if reader.is_at_end() { None } else { Some(reader.next_expression()?) };
        if !reader.is_at_end() {
            return Err(reader.unexpected());
        }
        let dot = context.map_or_else(|| self.dot_code(), |code| code.code);
        let must = if what == "include" { "true" } else { "false" };
        let code =
            format!("{{{{ included({}, {}, {dot}, {}, {must}) }}}}", path.code, quoted(from), self.visible_variables_code());
        self.emit(&[&code]);
        Ok(())
    }

    /// Translates `extends "file"` and `import "file"`.
    pub(super) fn extend_or_import(&mut self, source: &str, tokens: &[Token<'_>], here: usize) -> Result<(), String> {
        let (what, file) = match tokens {
            [Token { kind: TokenKind::Name(what), .. }, Token { kind: TokenKind::Text(file), .. }] => (*what, file.clone()),
            _ => {
                return Err(format!(
                    "{} takes the path of a file in quotes",
                    source.split_whitespace().next().unwrap_or_default()
                ));
            }
        };
        if self.context.file.is_none() {
            return Err(needs_scaffold(what));
        }
        if self.has_actions {
            return Err(format!("{what} must be at the top of a file, before all other actions"));
        }
        if what == "import" {
            self.unit.imports.push((here, file));
        } else if self.unit.extends.is_none() && self.unit.imports.is_empty() {
            self.unit.extends = Some((here, file));
        } else {
            return Err("a file has at most one extends, before all imports".to_owned());
        }
        Ok(())
    }
}

fn needs_scaffold(what: &str) -> String {
    format!("{what} finds only files of a scaffold; use file or jet here")
}

fn check_name(name: &str) -> Result<(), String> {
    let taken = matches!(
        name,
        "block"
            | "catch"
            | "content"
            | "else"
            | "end"
            | "extends"
            | "if"
            | "import"
            | "include"
            | "range"
            | "return"
            | "try"
            | "yield"
    );
    if taken { Err(format!("a block can't be called {name}")) } else { Ok(()) }
}

/// Returns the number of tokens up to the parenthesis that closes the first.
fn closing_parenthesis(tokens: &[Token<'_>]) -> Result<usize, String> {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate() {
        match token.kind {
            TokenKind::Sign("(") => depth += 1,
            TokenKind::Sign(")") => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Ok(at + 1);
        }
    }
    Err("the ( is not closed".to_owned())
}
