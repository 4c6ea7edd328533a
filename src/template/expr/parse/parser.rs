//! The state of the parser: tokens, open brackets, names in scope.

use super::super::error::{ExprError, TemplateErrorKind};
use super::super::names::{NameScope, ValuePath};
use super::super::node::ExprNode;
use crate::template::expr::lex::{Token, TokenKind};

/// The most operators of an expression: the parser and the evaluation need stack for each operator of a chain.
const MAX_OPERATORS: usize = 200;
/// The deepest nesting of brackets: each level needs stack.
const MAX_DEPTH: usize = 32;

/// The state of the parser.
pub(super) struct Parser<'a, 't> {
    pub(super) names: &'a NameScope<'a>,
    pub(super) source: &'t str,
    pub(super) tokens: &'a [Token<'t>],
    pub(super) at: usize,
    pub(super) paths: Vec<ValuePath>,
    pub(super) locals: Vec<&'t str>,
    /// The enclosing predicates, innermost last; true for a predicate of `reduce`.
    pub(super) predicates: Vec<bool>,
    /// Offsets of the open brackets.
    pub(super) open: Vec<usize>,
    pub(super) operators: usize,
}

/// The result of the parser for a part of an expression.
pub(super) type Parsed = Result<ExprNode, ExprError>;

impl<'a, 't> Parser<'a, 't> {
    pub(super) fn peek(&self, ahead: usize) -> Option<&'a TokenKind<'t>> {
        self.tokens.get(self.at + ahead).map(|token| &token.kind)
    }

    /// The sign or word that is `ahead` tokens further.
    pub(super) fn word_at(&self, ahead: usize) -> &'t str {
        match self.peek(ahead) {
            Some(TokenKind::Sign(word) | TokenKind::Name(word)) => word,
            _ => "",
        }
    }

    pub(super) fn offset(&self) -> usize {
        self.tokens.get(self.at).map_or(self.source.len(), |token| token.offset)
    }

    pub(super) fn unexpected(&self) -> ExprError {
        let word = self.source.get(self.offset()..).and_then(|rest| rest.split_whitespace().next());
        match (word, self.open.last()) {
            (Some(word), _) => ExprError::syntax(self.offset(), format!("unexpected '{word}'")),
            (None, Some(begin)) => {
                let bracket = self.source.get(*begin..).and_then(|rest| rest.chars().next()).unwrap_or('(');
                ExprError::new(*begin, TemplateErrorKind::Unclosed, format!("the {bracket} is not closed"))
            }
            (None, None) => ExprError::syntax(self.offset(), "unexpected end"),
        }
    }

    /// Consumes a sign or word when it is the next token.
    pub(super) fn consume(&mut self, word: &str) -> bool {
        let found = self.word_at(0) == word;
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect(&mut self, word: &str) -> Result<(), ExprError> {
        if self.consume(word) { Ok(()) } else { Err(self.unexpected()) }
    }

    pub(super) fn count_operator(&mut self) -> Result<(), ExprError> {
        self.operators += 1;
        if self.operators > MAX_OPERATORS {
            return Err(ExprError::syntax(self.offset(), format!("the expression has more than {MAX_OPERATORS} operators")));
        }
        Ok(())
    }

    /// Reads the content of brackets and the closing bracket. The open bracket is already consumed.
    pub(super) fn bracketed<T>(
        &mut self,
        close: &str,
        read: impl FnOnce(&mut Self) -> Result<T, ExprError>,
    ) -> Result<T, ExprError> {
        let begin = self.at.checked_sub(1).and_then(|at| self.tokens.get(at)).map_or(0, |token| token.offset);
        self.open.push(begin);
        if self.open.len() > MAX_DEPTH {
            return Err(ExprError::syntax(self.offset(), "the brackets are nested too deep".to_owned()));
        }
        let read = read(self)?;
        self.expect(close)?;
        self.open.pop();
        Ok(read)
    }
}
