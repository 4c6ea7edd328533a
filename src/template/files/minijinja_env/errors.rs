//! Errors of minijinja, without the positions in translated code.

use minijinja::{Error, ErrorKind};

/// Returns the innermost cause of an error.
pub(in crate::template::files) fn innermost_cause(error: &Error) -> &Error {
    let mut cause = error;
    while let Some(inner) = std::error::Error::source(cause).and_then(|inner| inner.downcast_ref::<Error>()) {
        cause = inner;
    }
    cause
}

/// Returns the error of an exhausted budget, which `try` does not catch.
pub(in crate::template::files) fn budget_error(message: String) -> Error {
    Error::new(ErrorKind::OutOfFuel, message)
}

pub(in crate::template::files) fn template_error(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// Returns the reason of an error, without its positions in the translated code.
pub(in crate::template::files) fn error_reason(error: &Error) -> String {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.kind() {
        ErrorKind::OutOfFuel if error.detail().is_none() => "the template does not end".to_owned(),
        _ => detail,
    }
}
