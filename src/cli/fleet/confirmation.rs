//! The question before a command is signed.

use std::io::IsTerminal;

use crate::diag::Diagnostic;

use super::super::error::{CliError, Exit};
use super::super::ui::Ui;
use super::session::FleetSession;
use crate::cli::local::inputs::OutputFormat;

/// Asks a user at a terminal whether to sign and send. Returns true when the user was asked, and agreed.
///
/// # Errors
/// When the user does not agree, or the answer can't be read.
pub(super) fn confirm(yes: bool, refusal: &str, session: &FleetSession, ui: &mut Ui) -> Result<bool, CliError> {
    if yes || session.output != OutputFormat::Text || !std::io::stdin().is_terminal() || !ui.is_watched() {
        return Ok(false);
    }
    if ui.confirm("sign and send it? [y/N]").map_err(|error| CliError::from_error(Exit::Failed, &error))? {
        return Ok(true);
    }
    Err(CliError::new(Exit::Partial, Diagnostic::new(format!("{refusal}: nothing was signed or sent"))))
}
