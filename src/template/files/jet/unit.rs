//! A translated Jet file, before its link with other files.

use std::collections::BTreeMap;

use crate::template::expr::TemplateErrorKind;

/// The namespace of all variables: minijinja drops a plain variable at the end of its loop.
pub(super) const VARIABLES: &str = "variables";

/// A template that can't be translated.
#[derive(Debug, Clone)]
pub(in crate::template) struct JetError {
    /// The position, in bytes.
    pub(in crate::template) at: usize,
    pub(in crate::template) message: String,
    pub(in crate::template) kind: TemplateErrorKind,
}

impl JetError {
    pub(super) fn syntax(at: usize, message: String) -> Self {
        Self { at, message, kind: TemplateErrorKind::Syntax }
    }

    pub(super) fn unclosed(at: usize, message: impl Into<String>) -> Self {
        Self { at, message: message.into(), kind: TemplateErrorKind::Unclosed }
    }
}

/// A fragment of a file in minijinja's language.
#[derive(Debug, Clone, Default)]
pub(super) struct CodeFragment {
    pub(super) code: String,
    /// The start of each action in the code and in the source; in bytes, in order.
    pub(super) places: Vec<(usize, usize)>,
}

/// A translated file, not yet linked with other files.
#[derive(Default)]
pub(in crate::template) struct JetUnit {
    pub(super) root: CodeFragment,
    pub(super) blocks: BTreeMap<String, CodeFragment>,
    /// The position of the statement, and the file that the statement names.
    pub(super) extends: Option<(usize, String)>,
    pub(super) imports: Vec<(usize, String)>,
}

impl JetUnit {
    /// Returns the macro name of a block.
    pub(super) fn macro_of(block: &str) -> String {
        format!("block_{block}")
    }
}
