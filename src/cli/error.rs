//! The end of a command: exit codes (`docs/exit-codes.md`), and errors with their hints.

use std::error::Error;

use crate::diag::{Diagnostic, error_chain};

/// The exit codes of every command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The command succeeded, and nothing failed.
    Success,
    /// At least one resource (or node) failed.
    Failed,
    /// The usage, manifest, configuration or request is wrong: nothing was run.
    Usage,
    /// A signature or a rule was refused.
    Refused,
    /// Incomplete: no answer, a timeout, cancelled.
    Partial,
    /// With `--detailed-exitcodes`: something changed, nothing failed.
    Changed,
}

impl Exit {
    /// Returns the number of the exit code.
    pub fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Refused => 3,
            Self::Partial => 4,
            Self::Changed => 10,
        }
    }
}

/// The failure of a command.
#[derive(Debug)]
pub struct CliError {
    /// The exit code.
    pub exit: Exit,
    /// The errors, printed in this order.
    pub diagnostics: Vec<Diagnostic>,
}

impl CliError {
    /// Creates a failure with one message.
    pub fn new(exit: Exit, diagnostic: Diagnostic) -> Self {
        Self { exit, diagnostics: vec![diagnostic] }
    }

    /// Creates a failure for wrong usage.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, Diagnostic::new(message))
    }

    /// Creates a failure from an error with all its causes.
    pub fn from_error(exit: Exit, error: &dyn Error) -> Self {
        Self::new(exit, Diagnostic::new(error_chain(error)))
    }

    /// Adds a hint to the last message.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        if let Some(last) = self.diagnostics.last_mut() {
            last.hint = Some(hint.into());
        }
        self
    }

    /// Returns all messages as one text.
    pub fn message_text(&self) -> String {
        self.diagnostics.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }
}
