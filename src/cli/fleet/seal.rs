//! Signs commands with the keys of the operator.

use crate::diag::Diagnostic;
use crate::fleet::job::seal::{self, SealError};
use crate::fleet::{CommandDraft, ExpectedNode, PreparedJob, SealedCommand};
use crate::wire::{Action, Command};

use super::super::error::{CliError, Exit};
use super::session::{FleetSession, signer_refs, signers};

/// Checks and signs a job. Also returns the nodes that must answer.
///
/// # Errors
/// When there is no key, or nodes would refuse the command.
pub(super) fn seal(job: PreparedJob, session: &FleetSession) -> Result<(SealedCommand, Vec<ExpectedNode>), CliError> {
    if session.interrupt.is_set() {
        return Err(CliError::new(Exit::Partial, Diagnostic::new("interrupted: nothing was signed or sent")));
    }
    let signers = signers(&session.operator)?;
    let hint = size_hint(&job.command);
    job.sign(&signer_refs(&signers)).map_err(|error| {
        let failure = CliError::from_error(Exit::Usage, &error);
        if matches!(error, SealError::TooLarge(_)) { failure.hint(hint) } else { failure }
    })
}

/// Signs a command that has its id and times.
///
/// # Errors
/// When there is no key, or a key does not sign.
pub(super) fn sign(command: Command, session: &FleetSession) -> Result<SealedCommand, CliError> {
    let signers = signers(&session.operator)?;
    seal::sign(command, &signer_refs(&signers)).map_err(|error| CliError::from_error(Exit::Usage, &error))
}

/// Signs a draft that needs no answer.
///
/// # Errors
/// As [`sign`].
pub(super) fn sign_draft(draft: CommandDraft, session: &FleetSession) -> Result<SealedCommand, CliError> {
    sign(PreparedJob::new(session, draft, Vec::new()).command, session)
}

/// Returns the hint for a command that is too large.
fn size_hint(command: &Command) -> &'static str {
    let length = |value: serde_json::Result<Vec<u8>>| value.map_or(0, |bytes| bytes.len());
    let (action, to) = (length(serde_json::to_vec(&command.action)), length(serde_json::to_vec(&command.to)));
    match command.action {
        _ if to > action => "name its nodes by a pattern as 'web*', by --group, or by --all with --where",
        Action::Ensure(_) => {
            "pack it as a bundle: a directory with manifest.yaml and its files, and `ensign fleet apply DIR`; or shorten it"
        }
        _ => "put its data into the bundle, or shorten it",
    }
}
