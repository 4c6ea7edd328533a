//! Statements of Jet that stand around others, and those that look at other files.
//!
//! The body of each becomes a macro: minijinja has no `try`, and a macro can be called where what it makes is wanted.
//! Macros see the variables around them; those of blocks see nothing but what they are given.

use std::collections::{BTreeMap, HashMap};

use super::super::lex::{Kind, Token};
use super::expression::{Code, GIVEN, Names, Reader, quoted};
use super::link::{Piece, Unit};
use super::translate::{Translator, VARIABLES};

/// What `.` is within a block.
const DOT: &str = "ensign_dot";
/// What a block was given by its parameters.
const ARGUMENTS: &str = "ensign_arguments";
/// What stands between `content` and `end` where a block is asked for.
const CONTENT: &str = "ensign_content";

/// The kinds of statements that are closed with `end`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Statement {
    Top,
    If {
        /// How many ifs stand within its else branches.
        inner: usize,
        /// What is declared before its conditions, which all its branches see.
        header: HashMap<String, String>,
    },
    Range,
    /// With the macro that may fail.
    Try(String),
    /// With both macros.
    Catch(String, String),
    /// A block that is defined.
    Block,
    /// With what asks for the block, once its content is known.
    Content(String),
}

impl Statement {
    /// How it is written.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Top => "the file",
            Self::If { .. } => "if",
            Self::Range => "range",
            Self::Try(_) => "try",
            Self::Catch(..) => "catch",
            Self::Block => "block",
            Self::Content(_) => "content",
        }
    }
}

impl Translator<'_> {
    pub(super) fn end(&mut self) -> Result<(), String> {
        let closed = self.blocks.pop_if(|block| block.kind != Statement::Top).ok_or("end without a beginning")?;
        match closed.kind {
            Statement::Top => {}
            Statement::If { inner, .. } => (0..=inner).for_each(|_| self.emit(&["{% endif %}"])),
            Statement::Range => self.emit(&["{% endfor %}"]),
            Statement::Try(body) => self.emit(&["{% endmacro %}{{ attempt(", &body, ", none) }}"]),
            Statement::Catch(body, caught) => self.emit(&["{% endmacro %}{{ attempt(", &body, ", ", &caught, ") }}"]),
            Statement::Content(asks) => self.emit(&["{% endmacro %}", &asks]),
            Statement::Block => {
                let asks = self.keep()?;
                self.emit(&[&asks.with("none")]);
            }
        }
        Ok(())
    }

    pub(super) fn attempt(&mut self, here: usize) -> Result<(), String> {
        let body = self.made("try");
        self.emit(&["{% macro ", &body, "() %}"]);
        self.open(Statement::Try(body), HashMap::new(), None, here)
    }

    /// `catch`, or `catch err`.
    pub(super) fn caught(&mut self, rest: &[Token<'_>]) -> Result<(), String> {
        let Some(super::translate::Block { kind: Statement::Try(body), at, .. }) =
            self.blocks.pop_if(|block| matches!(block.kind, Statement::Try(_)))
        else {
            return Err("catch without try".to_owned());
        };
        let caught = self.made("catch");
        self.emit(&["{% endmacro %}{% macro ", &caught, "(", &caught, "_error) %}"]);
        let mut variables = HashMap::new();
        match rest {
            [] => {}
            [Token { kind: Kind::Name(name), .. }] => {
                variables.insert((*name).to_owned(), format!("{caught}_error"));
            }
            _ => return Err("after catch comes nothing, or a name".to_owned()),
        }
        self.open(Statement::Catch(body, caught), variables, None, at)
    }

    /// `block name(a, b=1) context`: defines it, and asks for it.
    pub(super) fn block(&mut self, tokens: &[Token<'_>], here: usize) -> Result<(), String> {
        let mut reader = Reader::splitting(tokens, self);
        let name = reader.name_of("block")?.to_owned();
        check_name(&name)?;
        let begins = reader.at;
        // Read here only to find out where they end: they are evaluated in the block.
        let opens = tokens.get(begins).is_some_and(|token| token.kind == Kind::Sign("("));
        let length = if opens { closing(tokens.get(begins..).unwrap_or_default())? } else { 0 };
        let (parameters, rest) = tokens.get(begins..).unwrap_or_default().split_at_checked(length).unwrap_or_default();
        let context = if rest.is_empty() { None } else { Some(self.read(rest)?) };
        let asks = self.asks(&name, &[], context.as_ref());
        self.unit.open.push((name, asks));
        self.pieces.push(Piece::default());
        self.open(Statement::Block, HashMap::new(), Some(DOT.to_owned()), here)?;
        self.emit(&["{% set ", VARIABLES, " = namespace() %}"]);
        let parameters = Reader::new(parameters, self).parameters()?;
        for (parameter, default) in parameters {
            let (key, default) = (quoted(parameter), default.map_or_else(|| "false".to_owned(), |code| code.code));
            self.declare(parameter, &format!("({ARGUMENTS}[{key}] if {key} in {ARGUMENTS} else {default})"));
        }
        Ok(())
    }

    /// Keeps the body of the block that ends; what asks for it.
    fn keep(&mut self) -> Result<Asks, String> {
        let (name, asks) = self.unit.open.pop().ok_or("no block is open")?;
        let body = self.pieces.pop().unwrap_or_default();
        if self.unit.blocks.insert(name.clone(), body).is_some() {
            return Err(format!("the block {name} is defined twice"));
        }
        Ok(asks)
    }

    /// `content` within `block`: what follows is its content where it is defined.
    pub(super) fn content(&mut self, here: usize) -> Result<(), String> {
        self.blocks
            .pop_if(|block| block.kind == Statement::Block)
            .ok_or("content stands in a block, outside of other statements")?;
        let asks = self.keep()?;
        self.filled(&asks, here)
    }

    /// Begins the content of what asks for a block.
    fn filled(&mut self, asks: &Asks, here: usize) -> Result<(), String> {
        let content = self.made("content");
        let dot = format!("{content}_dot");
        self.emit(&["{% macro ", &content, "(", &dot, "=", &asks.dot, ") %}"]);
        self.open(Statement::Content(asks.with(&content)), HashMap::new(), Some(dot), here)
    }

    /// `yield name(a=1) context content`, or `yield content`.
    pub(super) fn yielded(&mut self, tokens: &[Token<'_>], here: usize) -> Result<(), String> {
        let mut reader = Reader::splitting(tokens, self);
        let name = reader.name_of("yield")?;
        if name == "content" {
            let context = if reader.is_over() { None } else { Some(reader.next()?) };
            if !reader.is_over() {
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
        let mut filled = reader.takes_word("content");
        let context = if filled || reader.is_over() { None } else { Some(reader.next()?) };
        filled = filled || reader.takes_word("content");
        if !reader.is_over() {
            return Err(reader.unexpected());
        }
        let asks = self.asks(name, &arguments, context.as_ref());
        if filled {
            return self.filled(&asks, here);
        }
        self.emit(&[&asks.with("none")]);
        Ok(())
    }

    fn asks(&self, name: &str, arguments: &[(&str, Code)], context: Option<&Code>) -> Asks {
        let dot = context.map_or_else(|| self.here(), |code| code.code.clone());
        let arguments: Vec<_> = arguments.iter().map(|(name, value)| format!("{}: {}", quoted(name), value.code)).collect();
        let start = format!(
            "{{{{ invoke({}, {}, {dot}, {}, {{{}}}, ",
            Unit::macro_of(name),
            quoted(name),
            self.given(),
            arguments.join(", "),
        );
        Asks { start, dot }
    }

    /// What `.` is here.
    fn here(&self) -> String {
        self.dot().unwrap_or_else(|| {
            let mut roots = vec!["data", "Data", "environ", "Environ"];
            // Facts cost much to gather.
            if self.body.contains("acts") {
                roots.extend(["facts", "Facts"]);
            }
            let roots: Vec<_> = roots.iter().map(|root| format!("{}: {}", quoted(root), root.to_lowercase())).collect();
            format!("{{{}}}", roots.join(", "))
        })
    }

    /// The variables that can be seen here, for what is asked for.
    fn given(&self) -> String {
        let mut all = BTreeMap::new();
        for block in self.visible() {
            for (name, variable) in &block.variables {
                all.entry(name).or_insert(variable);
            }
        }
        let all: Vec<_> = all.into_iter().map(|(name, variable)| format!("{}: {variable}", quoted(name))).collect();
        format!("given({GIVEN}, {{{}}})", all.join(", "))
    }

    /// `include file context`, `includeIfExists(file, context)`
    pub(super) fn include(&mut self, tokens: &[Token<'_>], what: &str) -> Result<(), String> {
        let Some(from) = self.around.file else { return Err(no_files(what)) };
        let inner = match tokens {
            [Token { kind: Kind::Sign("("), .. }, inner @ .., Token { kind: Kind::Sign(")"), .. }] => inner,
            plain => plain,
        };
        let mut reader = Reader::splitting(inner, self);
        let path = reader.next()?;
        reader.takes_comma();
        let context = if reader.is_over() { None } else { Some(reader.next()?) };
        if !reader.is_over() {
            return Err(reader.unexpected());
        }
        let dot = context.map_or_else(|| self.here(), |code| code.code);
        let must = if what == "include" { "true" } else { "false" };
        let code = format!("{{{{ included({}, {}, {dot}, {}, {must}) }}}}", path.code, quoted(from), self.given());
        self.emit(&[&code]);
        Ok(())
    }

    /// `extends "file"` and `import "file"`
    pub(super) fn takes_from(&mut self, source: &str, tokens: &[Token<'_>], here: usize) -> Result<(), String> {
        let (what, file) = match tokens {
            [Token { kind: Kind::Name(what), .. }, Token { kind: Kind::Text(file), .. }] => (*what, file.clone()),
            _ => {
                return Err(format!(
                    "{} takes the path of a file in quotes",
                    source.split_whitespace().next().unwrap_or_default()
                ));
            }
        };
        if self.around.file.is_none() {
            return Err(no_files(what));
        }
        if self.any {
            return Err(format!("{what} stands at the top of a file, before all other actions"));
        }
        if what == "import" {
            self.unit.imports.push((here, file));
        } else if self.unit.extends.is_none() && self.unit.imports.is_empty() {
            self.unit.extends = Some((here, file));
        } else {
            return Err("extends stands once in a file, before import".to_owned());
        }
        Ok(())
    }
}

/// What asks for a block.
pub(super) struct Asks {
    start: String,
    dot: String,
}

impl Asks {
    fn with(&self, content: &str) -> String {
        format!("{}{content}) }}}}", self.start)
    }
}

fn no_files(what: &str) -> String {
    format!("{what} finds only files of a scaffold; here, file and jet read one")
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

/// How many words there are up to the parenthesis that closes the first.
fn closing(tokens: &[Token<'_>]) -> Result<usize, String> {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate() {
        match token.kind {
            Kind::Sign("(") => depth += 1,
            Kind::Sign(")") => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Ok(at + 1);
        }
    }
    Err("the ( is not closed".to_owned())
}

/// The parameters of the macro of a block, in the order of [`super::functions`]' `invoke`.
pub(super) fn parameters() -> String {
    format!("({DOT}, {GIVEN}, {ARGUMENTS}, {CONTENT})")
}
