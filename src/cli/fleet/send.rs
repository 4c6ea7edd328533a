//! Prepares a command, sends it, and prints its events until every node has reached its terminal state.

use std::time::Duration;

use crate::fleet::job::dispatch;
use crate::fleet::job::follow::{max_wait, remaining_wait};
use crate::fleet::rollout::overrides::with_go_aheads;
use crate::fleet::{CommandDraft, ExpectedNode, JobFollower, NodeResult, NodeStates, PreparedJob, SealedCommand};
use crate::model::HumanDuration;
use crate::wire::Command;

use super::super::error::{CliError, Exit};
use super::super::ui::Ui;
use super::confirm::confirm_draft;
use super::last_job;
use super::render_job::{self, JobRenderer};
use super::seal::{seal, sign_draft};
use super::selection;
use super::session::{FleetSession, connection_failure, disconnect_failure, dispatch_failure};
use super::start::{self, start};
use super::target::TargetArgs;
use crate::cli::local::inputs::OutputFormat;

/// The end of a job that the command line followed.
#[derive(Debug)]
pub(in crate::cli) struct FollowedJob {
    /// The exit of the command line.
    pub(in crate::cli) exit: Exit,
    /// The terminal state of every node.
    pub(in crate::cli) results: Vec<NodeResult>,
}

/// Signs a draft, sends it, and follows it unless it is detached.
///
/// # Errors
/// When the draft can't be signed or sent, too many nodes are offline, or the connection is lost.
pub(super) async fn send(
    draft: CommandDraft,
    target: &TargetArgs,
    states: &NodeStates,
    session: &FleetSession,
    ui: &mut Ui,
) -> Result<FollowedJob, CliError> {
    send_after(0, draft, target, states, session, ui).await
}

/// Sends desired state only behind the message of its channel with this sequence number; else as [`send`].
///
/// # Errors
/// As [`send`].
pub(super) async fn send_after(
    after: u64,
    draft: CommandDraft,
    target: &TargetArgs,
    states: &NodeStates,
    session: &FleetSession,
    ui: &mut Ui,
) -> Result<FollowedJob, CliError> {
    session.warn_of_clock(ui);
    if target.waves.counts().is_some() {
        start::check_streams(states)?;
    }
    target.check_offline(&draft.to, states)?;
    if session.output == OutputFormat::Text && !target.detach {
        selection::show_selected(&draft.to, states, session, ui).await?;
    }
    let fresh = confirm_draft(&draft, &target.confirm, states, session, ui).await?;
    let states = fresh.as_ref().unwrap_or(states);
    let expected = states.expected(&draft.to);
    let mut job = PreparedJob::new(session, draft, expected);
    target.waves.add_to(&mut job, session, ui)?;
    let (signed, expected) = seal(job, session)?;
    let signed = SealedCommand { last_sequence: after, ..signed };
    if target.detach {
        last_job::record(&signed.command, ui);
        dispatch::dispatch(&session.bus, &session.subjects, &signed).await.map_err(|error| dispatch_failure(&error, session))?;
        render_job::detached(&signed, session, ui);
        return Ok(FollowedJob { exit: Exit::Success, results: Vec::new() });
    }
    let job = start(&signed, expected, states, session, ui).await?;
    let wait = max_wait(&signed.command, target.timeout().as_std());
    let followed = follow(job, &signed.command, &signed.digest, wait, session, ui).await?;
    if render_job::is_none_selected(&followed.results) {
        selection::warn_none_selected(&signed.command.to, states, session, ui).await;
    }
    Ok(followed)
}

/// Sends a signed command and follows it, with `timeout` for the work on a node.
///
/// # Errors
/// When the command can't be sent, or the connection is lost.
pub(in crate::cli) async fn deliver(
    signed: &SealedCommand,
    expected: Vec<ExpectedNode>,
    timeout: Duration,
    session: &FleetSession,
    ui: &mut Ui,
) -> Result<FollowedJob, CliError> {
    let job = JobFollower::send(session, signed, expected).await.map_err(|error| dispatch_failure(&error, session))?;
    follow(job, &signed.command, &signed.digest, max_wait(&signed.command, timeout), session, ui).await
}

/// Follows a command that was sent before, until no node can report any more, or for `timeout`.
///
/// # Errors
/// When the stream of jobs can't be read, or the connection is lost.
pub(super) async fn watch(
    command: &Command,
    digest: &str,
    timeout: Option<HumanDuration>,
    states: &NodeStates,
    session: &FleetSession,
    ui: &mut Ui,
) -> Result<FollowedJob, CliError> {
    let expected = states.expected(&command.to);
    let job = JobFollower::attach(session, command, digest, expected).await.map_err(|error| connection_failure(&error))?;
    let wait = timeout.map_or_else(|| remaining_wait(command, session.now()), HumanDuration::as_std);
    follow(job, command, digest, wait, session, ui).await
}

/// Prints the events of a job. Gives the go-ahead for its waves meanwhile, where they need one.
///
/// # Errors
/// When the connection is lost.
pub(super) async fn follow(
    job: JobFollower,
    command: &Command,
    digest: &str,
    wait: Duration,
    session: &FleetSession,
    ui: &mut Ui,
) -> Result<FollowedJob, CliError> {
    let mut renderer = JobRenderer::new(session);
    let mut emit = |event| renderer.event(event, ui);
    let run = job.run(wait, session.interrupt.listen(), &mut emit);
    let sign = |draft| sign_draft(draft, session).ok();
    let outcome = with_go_aheads(session, command, digest, &sign, run).await;
    let outcome = outcome.map_err(|error| disconnect_failure(&error, command.id))?;
    let exit = renderer.finish(command.id, digest, &outcome, ui);
    Ok(FollowedJob { exit, results: outcome.results })
}
