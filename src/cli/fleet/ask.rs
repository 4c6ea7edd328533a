//! Queries of nodes: sent like commands, and followed without a line for each node.

use std::time::Duration;

use crate::fleet::{CommandDraft, JobFollower, JobOutcome, NodeStates, PreparedJob, SealedCommand};
use crate::model::HumanDuration;
use crate::wire::{Action, Options, Target};

use super::super::error::Failure;
use super::super::ui::Ui;
use super::interrupt::interrupted;
use super::render_job::ProgressDisplay;
use super::seal::seal;
use super::session::{Session, disconnected, undelivered};
use super::unknown_nodes;

/// Time for which nodes may accept a query: an old answer helps no user.
const QUESTION_LIFETIME: HumanDuration = HumanDuration::seconds(60);

/// Drafts a query.
pub(super) fn question(action: Action, to: Target) -> CommandDraft {
    CommandDraft { action, to, options: Options::default(), channel: None, reason: None, lifetime: QUESTION_LIFETIME }
}

/// Signs a draft, sends it, and waits for the nodes of `states`, at most `wait`.
///
/// # Errors
/// When the draft can't be signed or sent, or the connection is lost.
pub(super) async fn ask(
    draft: CommandDraft,
    wait: Duration,
    states: &NodeStates,
    session: &Session,
    ui: &mut Ui,
) -> Result<(SealedCommand, JobOutcome), Failure> {
    let expected = states.expected(&draft.to);
    let (signed, expected) = seal(PreparedJob::new(session, draft, expected), session)?;
    unknown_nodes::warn(&signed.command.to, states, ui);
    let job = JobFollower::send(session, &signed, expected).await.map_err(|error| undelivered(&error, session))?;
    let mut progress = ProgressDisplay::default();
    let outcome = job.run(wait, interrupted(), &mut |event| progress.show(&event, ui)).await;
    let outcome = outcome.map_err(|error| disconnected(&error, signed.command.id))?;
    Ok((signed, outcome))
}
