//! Errors of expressions, with their places in the text.

use std::fmt;

use crate::template::expr::{ExprError, TemplateErrorKind};

/// An expression that can't be resolved, with its place in the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct TemplateError {
    /// The expression, without its delimiters.
    pub expression: String,
    /// The reason.
    pub detail: String,
    /// The kind of the error.
    pub kind: TemplateErrorKind,
    /// The position of the error, in bytes from the beginning of the text.
    pub offset: usize,
    /// The line of the text, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The position of the error, in bytes from the beginning of the expression.
    pub within: usize,
    /// From [`Scope::resolve_tree`](super::Scope::resolve_tree): the keys and indexes that lead to the text, from the root.
    pub path: Vec<String>,
}

impl TemplateError {
    /// True when the evaluation failed because the facts or the data lack a key.
    pub fn is_missing_key(&self) -> bool {
        self.kind == TemplateErrorKind::Evaluation && self.detail.contains("missing key '")
    }
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { expression, detail, .. } = self;
        match self.kind {
            TemplateErrorKind::Evaluation => write!(f, "{detail} (in '{expression}')"),
            _ => write!(f, "expr compile error for '{expression}': {detail}"),
        }
    }
}

impl ExprError {
    /// Returns the error with its place in a text, in which the expression begins at `start`.
    pub(super) fn at(self, text: &str, expression: &str, start: usize) -> TemplateError {
        let offset = start + self.offset;
        let before = text.get(..offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        TemplateError {
            expression: expression.to_owned(),
            detail: self.detail,
            kind: self.kind,
            offset,
            line: 1 + before.matches('\n').count(),
            column: 1 + before.get(line_start..).unwrap_or_default().chars().count(),
            within: self.offset,
            path: Vec::new(),
        }
    }
}
