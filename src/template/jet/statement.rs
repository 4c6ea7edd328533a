//! Statements of Jet that enclose others, and those that use other files.
//!
//! Each body becomes a macro, as minijinja has no `try`; the macro is called where its text is needed.
//! Macros see the variables around them. The macros of blocks see only their arguments.

use std::collections::{BTreeMap, HashMap};

use super::super::lex::{Kind, Token};
use super::expression::{Code, GIVEN, Names, Reader, quoted};
use super::link::{Piece, Unit};
use super::translate::{Translator, VARIABLES};

/// The name of `.` within a block.
const DOT: &str = "ensign_dot";
/// The name of the arguments of a block.
const ARGUMENTS: &str = "ensign_arguments";
/// The name of the text between `content` and `end` where a block is used.
const CONTENT: &str = "ensign_content";

/// The statements that `end` closes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Statement {
    Top,
    If {
        /// The number of ifs nested in its else branches.
        inner: usize,
        /// The variables declared before its conditions, which all branches see.
        header: HashMap<String, String>,
    },
    Range,
    /// With the macro that may fail.
    Try(String),
    /// With both macros.
    Catch(String, String),
    /// A definition of a block.
    Block,
    /// With the code that uses the block, once the content is known.
    Content(String),
}

impl Statement {
    /// The keyword.
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
        let closed = self.blocks.pop_if(|block| block.kind != Statement::Top).ok_or("end without an open statement")?;
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
            _ => return Err("only a name may follow catch".to_owned()),
        }
        self.open(Statement::Catch(body, caught), variables, None, at)
    }

    /// Translates `block name(a, b=1) context`: defines the block, and uses it in place.
    pub(super) fn block(&mut self, tokens: &[Token<'_>], here: usize) -> Result<(), String> {
        let mut reader = Reader::splitting(tokens, self);
        let name = reader.name_of("block")?.to_owned();
        check_name(&name)?;
        let begins = reader.at;
        // Parsed here only to find the end: the parameters are evaluated in the block.
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

    /// Stores the body of the block that ends, and returns the code that uses the block.
    fn keep(&mut self) -> Result<Asks, String> {
        let (name, asks) = self.unit.open.pop().ok_or("no block is open")?;
        let body = self.pieces.pop().unwrap_or_default();
        if self.unit.blocks.insert(name.clone(), body).is_some() {
            return Err(format!("the block {name} is defined twice"));
        }
        Ok(asks)
    }

    /// Translates `content` within `block`: the rest is the default content of the block.
    pub(super) fn content(&mut self, here: usize) -> Result<(), String> {
        self.blocks
            .pop_if(|block| block.kind == Statement::Block)
            .ok_or("content must be in a block, outside of other statements")?;
        let asks = self.keep()?;
        self.filled(&asks, here)
    }

    /// Begins the content of a use of a block.
    fn filled(&mut self, asks: &Asks, here: usize) -> Result<(), String> {
        let content = self.made("content");
        let dot = format!("{content}_dot");
        self.emit(&["{% macro ", &content, "(", &dot, "=", &asks.dot, ") %}"]);
        self.open(Statement::Content(asks.with(&content)), HashMap::new(), Some(dot), here)
    }

    /// Translates `yield name(a=1) context content`, or `yield content`.
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

    /// Returns the code of `.` at this place.
    fn here(&self) -> String {
        self.dot().unwrap_or_else(|| {
            let mut roots = vec!["data", "Data", "environ", "Environ"];
            // Gathering facts is expensive.
            if self.body.contains("acts") {
                roots.extend(["facts", "Facts"]);
            }
            let roots: Vec<_> = roots.iter().map(|root| format!("{}: {}", quoted(root), root.to_lowercase())).collect();
            format!("{{{}}}", roots.join(", "))
        })
    }

    /// Returns the code of the visible variables, for a block or file.
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

    /// Translates `include file context` and `includeIfExists(file, context)`.
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

    /// Translates `extends "file"` and `import "file"`.
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

/// The code that uses a block, up to the argument for the content.
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

/// The parameters of a block's macro, in the order of `invoke` in [`super::calls`].
pub(super) fn parameters() -> String {
    format!("({DOT}, {GIVEN}, {ARGUMENTS}, {CONTENT})")
}
