//! Places of errors in a manifest.

use crate::diag::{Diagnostic, SourceLocation};
use crate::manifest::Declaration;
use crate::resource::DecodeError;
use crate::yaml::{KeyOrIndex, YamlDocument};

/// Moves the place of a diagnostic into the expression, if the expression is found at or below its property.
pub(super) fn narrow_place(document: &YamlDocument, mut diagnostic: Diagnostic, expression: &str, within: usize) -> Diagnostic {
    if let Some(place) = diagnostic.place.as_mut()
        && let Some(nearer) = document.find_text(place.line, expression, within)
    {
        *place = nearer;
    }
    diagnostic
}

pub(super) fn decode_error(declaration: &Declaration, document: &YamlDocument, error: DecodeError) -> Diagnostic {
    let mut diagnostic = declaration.diagnose(document, error.property.as_deref(), error.message);
    diagnostic.hint = error.hint;
    diagnostic
}

/// Returns an error with a place, unless it has one.
pub(super) fn with_place(mut error: Diagnostic, place: &Option<SourceLocation>) -> Diagnostic {
    error.place = error.place.take().or_else(|| place.clone());
    error
}

pub(super) fn key_place(document: &YamlDocument, path: &[&str]) -> Option<SourceLocation> {
    document.key_place(&path.iter().map(|key| KeyOrIndex::Key((*key).to_owned())).collect::<Vec<_>>())
}
