//! Queries of nodes: sent like commands, and followed without a line for each node.

use std::time::Duration;

use crate::fleet::{CommandDraft, JobOutcome, NodeStates, PreparedJob, SealedCommand};
use crate::model::HumanDuration;
use crate::wire::{Action, CommandOptions, Target};

use super::super::error::CliError;
use super::super::ui::Ui;
use super::job_progress::ProgressDisplay;
use super::seal::seal;
use super::session::{FleetSession, disconnect_failure};
use super::start::start;

/// Time for which nodes may accept a query: an old answer helps no user.
const QUERY_LIFETIME: HumanDuration = HumanDuration::seconds(60);

/// Drafts a query.
pub(super) fn query_draft(action: Action, to: Target) -> CommandDraft {
    CommandDraft { action, to, options: CommandOptions::default(), channel: None, reason: None, lifetime: QUERY_LIFETIME }
}

/// Signs a draft, sends it, and waits for the nodes of `states`, at most `wait`.
///
/// # Errors
/// When the draft can't be signed or sent, or the connection is lost.
pub(super) async fn run_query(
    draft: CommandDraft,
    wait: Duration,
    states: &NodeStates,
    session: &FleetSession,
    ui: &mut Ui,
) -> Result<(SealedCommand, JobOutcome), CliError> {
    let expected = states.expected(&draft.to);
    let (signed, expected) = seal(PreparedJob::new(session, draft, expected), session)?;
    let job = start(&signed, expected, states, session, ui).await?;
    let mut progress = ProgressDisplay::default();
    let outcome = job.run(wait, session.interrupt.listen(), &mut |event| progress.show(&event, ui)).await;
    let outcome = outcome.map_err(|error| disconnect_failure(&error, signed.command.id))?;
    Ok((signed, outcome))
}
