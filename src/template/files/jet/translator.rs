//! The state of a translation: output, open statements, scopes of variables.

use std::collections::HashMap;

use super::block_use::BlockUse;
use super::expression::{Code, ExpressionParser, NameResolver, quoted};
use super::unit::{CodeFragment, JetUnit, VARIABLES};
use crate::template::expr::lex::Token;
use crate::template::files::minijinja_env::MAX_PLAIN_TEXT;

/// The deepest nesting of statements.
const MAX_DEPTH: usize = 64;

/// The context of a translation.
pub(in crate::template) struct TranslationContext<'a> {
    pub(in crate::template) delimiters: (&'a str, &'a str),
    pub(in crate::template) is_function: &'a dyn Fn(&str) -> bool,
    /// The name of `.` at the top; `None` for all roots.
    pub(in crate::template) dot: Option<&'a str>,
    /// The path of the file, in a tree of files.
    pub(in crate::template) file: Option<&'a str>,
}

/// The statements that `end` closes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OpenStatement {
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

impl OpenStatement {
    /// The keyword.
    pub(super) fn keyword(&self) -> &'static str {
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

/// An open statement, with the variables declared inside.
pub(super) struct OpenBlock {
    pub(super) kind: OpenStatement,
    pub(super) variables: HashMap<String, String>,
    pub(super) dot: Option<String>,
    /// The start, in bytes.
    pub(super) at: usize,
}

pub(super) struct Translator<'a> {
    pub(super) context: &'a TranslationContext<'a>,
    pub(super) body: &'a str,
    /// The output: the file, and the bodies of the open blocks.
    pub(super) fragments: Vec<CodeFragment>,
    pub(super) unit: JetUnit,
    pub(super) blocks: Vec<OpenBlock>,
    /// The names and uses of the open block definitions.
    pub(super) open_block_uses: Vec<(String, BlockUse)>,
    /// The number of generated names.
    name_count: usize,
    /// True after the first text that is not blank.
    has_text: bool,
    /// True after the first action other than `extends` and `import`.
    pub(super) has_actions: bool,
}

impl<'a> Translator<'a> {
    /// Begins the translation of a file.
    pub(super) fn new(context: &'a TranslationContext<'a>, body: &'a str) -> Self {
        let top = OpenBlock { kind: OpenStatement::Top, variables: HashMap::new(), dot: context.dot.map(str::to_owned), at: 0 };
        Self {
            context,
            body,
            fragments: vec![CodeFragment::default()],
            unit: JetUnit::default(),
            blocks: vec![top],
            open_block_uses: Vec::new(),
            name_count: 0,
            has_text: false,
            has_actions: false,
        }
    }
}

impl NameResolver for Translator<'_> {
    fn variable(&self, name: &str) -> Option<String> {
        self.visible_statements().find_map(|block| block.variables.get(name).cloned())
    }

    fn dot(&self) -> Option<String> {
        self.visible_statements().find_map(|block| block.dot.clone())
    }

    fn is_function(&self, name: &str) -> bool {
        (self.context.is_function)(name)
    }

    fn allows_unknown_names(&self) -> bool {
        self.context.dot.is_some() || self.blocks.iter().any(|block| block.kind == OpenStatement::Block)
    }
}

impl Translator<'_> {
    /// Returns the open statements with visible variables, innermost first. A block hides all around it.
    pub(super) fn visible_statements(&self) -> impl Iterator<Item = &OpenBlock> {
        let from = self.blocks.iter().rposition(|block| block.kind == OpenStatement::Block).unwrap_or(0);
        self.blocks.iter().skip(from).rev()
    }

    fn fragment(&mut self) -> Option<&mut CodeFragment> {
        self.fragments.last_mut()
    }

    pub(super) fn mark(&mut self, here: usize) {
        self.fragment().into_iter().for_each(|piece| piece.places.push((piece.code.len(), here)));
    }

    pub(super) fn text(&mut self, text: &str) {
        // Blanks before the first text or action are dropped, as are those around `extends` and `import`.
        if !self.has_actions && !self.has_text && text.trim().is_empty() {
            return;
        }
        self.has_text = true;
        for (index, part) in text.split('{').enumerate() {
            if index > 0 {
                // A lone brace could form a delimiter with the following text.
                self.emit(&["{{ \"{\" }}"]);
            }
            // An expression instead of plain text, so that each output is charged.
            if part.len() > MAX_PLAIN_TEXT { self.emit(&["{{ ", &quoted(part), " }}"]) } else { self.emit(&[part]) }
        }
    }

    pub(super) fn emit(&mut self, parts: &[&str]) {
        self.fragment().into_iter().for_each(|piece| piece.code.extend(parts.iter().copied()));
    }

    pub(super) fn fresh_name(&mut self, what: &str) -> String {
        self.name_count += 1;
        format!("{what}{}", self.name_count)
    }

    pub(super) fn parse_expression(&self, tokens: &[Token<'_>]) -> Result<Code, String> {
        ExpressionParser::new(tokens, self).parse_all()
    }

    pub(super) fn open(
        &mut self,
        kind: OpenStatement,
        variables: HashMap<String, String>,
        dot: Option<String>,
        at: usize,
    ) -> Result<(), String> {
        if self.blocks.len() > MAX_DEPTH {
            return Err(format!("statements are nested more than {MAX_DEPTH} deep"));
        }
        self.blocks.push(OpenBlock { kind, variables, dot, at });
        Ok(())
    }

    pub(super) fn declare(&mut self, name: &str, code: &str) {
        let variable = format!("{VARIABLES}.{}", self.fresh_name("v"));
        self.emit(&["{% set ", &variable, " = ", code, " %}"]);
        if name != "_"
            && let Some(block) = self.blocks.last_mut()
        {
            block.variables.insert(name.to_owned(), variable);
        }
    }
}
