//! Errors in expressions.

/// The kind of an error, by which callers choose a hint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateErrorKind {
    /// The expression can be evaluated, but not with these values.
    Evaluation,
    /// A text, a comment or a bracket has no end.
    Unclosed,
    /// A name is not in scope.
    UnknownName,
    /// A name is not in scope, and the error suggests a similar name.
    MisspelledName,
    /// A value of this type does not fit here.
    WrongType,
    /// Any other error of the syntax.
    Syntax,
}

/// An error in an expression, before its place in the text is known.
#[derive(Debug)]
pub(in crate::template) struct ExprError {
    /// In bytes from the beginning of the expression.
    pub(in crate::template) offset: usize,
    pub(in crate::template) kind: TemplateErrorKind,
    pub(in crate::template) detail: String,
}

impl ExprError {
    pub(in crate::template) fn new(offset: usize, kind: TemplateErrorKind, detail: impl Into<String>) -> Self {
        Self { offset, kind, detail: detail.into() }
    }

    pub(in crate::template) fn syntax(offset: usize, detail: impl Into<String>) -> Self {
        Self::new(offset, TemplateErrorKind::Syntax, detail)
    }

    pub(in crate::template) fn evaluation(detail: impl Into<String>) -> Self {
        Self::new(0, TemplateErrorKind::Evaluation, detail)
    }

    /// Returns the error for a longer text, in which the expression begins at `start`.
    pub(in crate::template) fn shifted(self, start: usize) -> Self {
        Self { offset: start + self.offset, ..self }
    }
}
