//! Prepares a command, sends it, and prints its events until every node has reached its terminal state.

use std::time::Duration;

use crate::fleet::job::dispatch;
use crate::fleet::job::follow::{time_for, time_left};
use crate::fleet::rollout::overrides::give_go_aheads;
use crate::fleet::{CommandDraft, ExpectedNode, JobFollower, NodeResult, NodeStates, PreparedJob, SealedCommand};
use crate::model::HumanDuration;
use crate::wire::Command;

use super::super::error::{Exit, Failure};
use super::super::ui::Ui;
use super::interrupt::interrupted;
use super::render_job::{self, JobRenderer};
use super::seal::{seal, sign_draft};
use super::selection;
use super::session::{Session, disconnected, failure, undelivered};
use super::target::TargetArgs;
use super::unknown_nodes;
use crate::cli::local::inputs::OutputFormat;

/// The end of a job that the command line followed.
#[derive(Debug)]
pub(in crate::cli) struct Followed {
    /// The exit of the command line.
    pub(in crate::cli) exit: Exit,
    /// The terminal state of every node.
    pub(in crate::cli) results: Vec<NodeResult>,
}

/// Signs a draft, sends it, and follows it unless it is detached.
///
/// # Errors
/// When the draft can't be signed or sent, or the connection is lost.
pub(super) async fn send(
    draft: CommandDraft,
    target: &TargetArgs,
    states: &NodeStates,
    session: &Session,
    ui: &mut Ui,
) -> Result<Followed, Failure> {
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
    session: &Session,
    ui: &mut Ui,
) -> Result<Followed, Failure> {
    session.warn_of_clock(ui);
    if session.output == OutputFormat::Text && !target.detach {
        selection::show_selected(&draft.to, states, session, ui).await?;
    }
    let expected = states.expected(&draft.to);
    let mut job = PreparedJob::new(session, draft, expected);
    target.waves.add_to(&mut job, session, ui)?;
    let (signed, expected) = seal(job, session)?;
    let signed = SealedCommand { after, ..signed };
    if target.detach {
        dispatch::dispatch(&session.bus, &session.subjects, &signed).await.map_err(|error| undelivered(&error, session))?;
        render_job::detached(&signed, session, ui);
        return Ok(Followed { exit: Exit::Success, results: Vec::new() });
    }
    unknown_nodes::warn(&signed.command.to, states, ui);
    let followed = deliver(&signed, expected, target.timeout().get(), session, ui).await?;
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
    session: &Session,
    ui: &mut Ui,
) -> Result<Followed, Failure> {
    let job = JobFollower::send(session, signed, expected).await.map_err(|error| undelivered(&error, session))?;
    follow(job, &signed.command, &signed.digest, time_for(&signed.command, timeout), session, ui).await
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
    session: &Session,
    ui: &mut Ui,
) -> Result<Followed, Failure> {
    let expected = states.expected(&command.to);
    let job = JobFollower::attach(session, command, digest, expected).await.map_err(|error| failure(&error))?;
    let wait = timeout.map_or_else(|| time_left(command, session.now()), HumanDuration::get);
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
    session: &Session,
    ui: &mut Ui,
) -> Result<Followed, Failure> {
    let mut renderer = JobRenderer::new(session);
    let mut emit = |event| renderer.event(event, ui);
    let run = job.run(wait, interrupted(), &mut emit);
    let sign = |draft| sign_draft(draft, session).ok();
    let outcome = give_go_aheads(session, command, digest, &sign, run).await;
    let outcome = outcome.map_err(|error| disconnected(&error, command.id))?;
    let exit = renderer.finish(command.id, digest, &outcome, ui);
    Ok(Followed { exit, results: outcome.results })
}
