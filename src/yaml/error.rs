//! The error of a refused text.

use saphyr_parser::Span;

/// The reason why a text is refused.
pub(super) struct YamlError {
    pub(super) message: String,
    pub(super) hint: Option<&'static str>,
    /// The line and the column, both from 1, when they are known.
    pub(super) at: Option<(usize, usize)>,
    /// True for a syntax error; false for valid YAML that can't be data.
    pub(super) is_syntax_error: bool,
    /// A quote or bracket that is probably not closed, with its line and column from 1.
    pub(super) unclosed: Option<(char, (usize, usize))>,
}

impl YamlError {
    pub(super) fn new(message: impl Into<String>, at: Span) -> Self {
        Self { message: message.into(), hint: None, at: Some(position(at)), is_syntax_error: false, unclosed: None }
    }

    pub(super) fn hint(mut self, hint: &'static str) -> Self {
        self.hint = Some(hint);
        self
    }
}

/// The line and the column of the beginning of a span, both from 1.
pub(super) fn position(at: Span) -> (usize, usize) {
    (at.start.line(), at.start.col() + 1)
}
