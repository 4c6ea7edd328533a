//! Errors in rules.

/// An error in rules.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", at.as_deref().map(|at| format!("{at}: ")).unwrap_or_default())]
pub struct RuleError {
    /// The reason.
    pub message: String,
    /// The section and the item.
    pub(super) at: Option<String>,
    /// The key at fault, as written.
    pub key: Option<String>,
    /// A hint for the author.
    pub hint: Option<String>,
}

impl RuleError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), at: None, key: None, hint: None }
    }

    pub(super) fn key(mut self, key: &str) -> Self {
        self.key = self.key.or_else(|| Some(key.to_owned()));
        self
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(super) fn at(mut self, at: String) -> Self {
        self.at = self.at.or(Some(at));
        self
    }
}
