//! Sends a signed command, with or without JetStream.

use crate::diag::Diagnostic;
use crate::fleet::{ExpectedNode, JobFollower, NodeStates, SealedCommand};

use super::super::error::{CliError, Exit};
use super::super::ui::{Ui, text};
use super::last_job;
use super::session::{FleetSession, connection_failure, dispatch_failure};
use super::unknown_nodes;

/// Checks that the streams answer, for a rollout in waves: nodes prove the success of a wave there.
///
/// # Errors
/// When the states are unavailable.
pub(super) fn check_streams(states: &NodeStates) -> Result<(), CliError> {
    let Some(reason) = &states.unavailable else { return Ok(()) };
    let wrong = Diagnostic::new(format!("JetStream does not answer: {reason}"));
    Err(CliError::new(Exit::Partial, wrong.hint("waves need it; nothing was sent")))
}

/// Sends a signed command: without a record where the states are unavailable.
///
/// # Errors
/// When the command can't be sent.
pub(super) async fn start(
    signed: &SealedCommand,
    expected: Vec<ExpectedNode>,
    states: &NodeStates,
    session: &FleetSession,
    ui: &mut Ui,
) -> Result<JobFollower, CliError> {
    last_job::record(&signed.command, ui);
    let Some(reason) = &states.unavailable else {
        unknown_nodes::warn(&signed.command.to, states, ui);
        return JobFollower::send(session, signed, expected).await.map_err(|error| dispatch_failure(&error, session));
    };
    ui.warn(text!("JetStream does not answer: {}", reason));
    ui.warn("the command goes out without a record; nodes keep its results until JetStream is back");
    let job = JobFollower::send_unrecorded(session, signed, expected).await;
    job.map_err(|error| connection_failure(&error))
}
