//! `ensign fleet job cancel`: a signed cancel, followed until every node has ended the job.

use clap::Args;

use crate::diag::error_chain;
use crate::fleet::job::follow::{max_wait, remaining_wait};
use crate::fleet::job::outcome_groups;
use crate::fleet::job::tracker::Grade;
use crate::fleet::rollout::overrides;
use crate::fleet::{CheckedCommand, JobFollower, NodeResult, SealedCommand};
use crate::model::HumanDuration;
use crate::wire::Action;

use super::super::error::{CliError, Exit};
use super::super::ui::{Ui, text};
use super::confirm::{self, ConfirmArgs};
use super::job_name::{JobName, show_signed_about};
use super::job_progress::ProgressDisplay;
use super::job_record::checked_command;
use super::render_job::{self, JobRenderer, group_lines};
use super::seal::sign;
use super::session::{FleetSession, connection_failure, disconnect_failure, dispatch_failure};
use super::unknown_nodes;
use crate::cli::local::inputs::OutputFormat;

#[derive(Debug, Args)]
pub(super) struct JobCancelArgs {
    /// Id of the job.
    #[arg(hide_possible_values = true)]
    id: JobName,
    /// Reason, for the audit trail and for the result of every node.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Longest wait for the answers of the nodes, and again for the ends of their runs.
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    timeout: HumanDuration,
    #[command(flatten)]
    confirm: ConfirmArgs,
}

pub(super) async fn run(args: JobCancelArgs, session: &FleetSession, ui: &mut Ui) -> Result<Exit, CliError> {
    let checker = session.checker()?;
    let id = args.id.resolve(session).await?;
    let job = checked_command(id, &checker, session).await?;
    let command = job.command();
    if let Some(channel) = command.channel.as_ref().filter(|_| command.action.is_desired_state()) {
        let refused = CliError::usage(format!("the job {id} is an assignment, which no cancel ends"));
        return Err(refused.hint(format!("`ensign fleet withdraw {}` ends the assignment of the channel", channel.name)));
    }
    show_signed_about("cancel", &job, session, ui);
    let states = session.states_if_available(&command.to).await?;
    confirm::confirm("cancel", &command.to, &args.confirm, &states, session, ui).await?;
    let last = overrides::read_checked_override(&session.bus, &session.subjects, &checker, id).await.unwrap_or_default();
    let at = overrides::next_override_time(last.as_ref(), session.now());
    let draft = overrides::override_draft(Action::Cancel, &job, args.reason);
    let signed = sign(draft.command(&session.operator.fleet, session.host.new_id(), at), session)?;
    let mut is_stored = true;
    if command.options.waves.is_some()
        && let Err(error) = overrides::store_override(&session.bus, &session.subjects, id, &signed).await
    {
        is_stored = false;
        ui.warn(text!("cannot store the cancel, so only online nodes get it: {}", error_chain(&error)));
    }
    let answered = deliver(&signed, args.timeout, session, ui).await?;
    let ended = follow(&job, args.timeout, session, ui).await?;
    Ok(match (answered, ended) {
        (Exit::Success, true) if is_stored => Exit::Success,
        (Exit::Success, _) => Exit::Partial,
        (exit, _) => exit,
    })
}

/// Sends a signed cancel, and prints the answers of the nodes in groups. Returns the exit for these answers.
async fn deliver(signed: &SealedCommand, timeout: HumanDuration, session: &FleetSession, ui: &mut Ui) -> Result<Exit, CliError> {
    let to = &signed.command.to;
    let states = session.states_of(to).await?;
    unknown_nodes::warn(to, &states, ui);
    let job = JobFollower::send(session, signed, states.expected(to)).await;
    let job = job.map_err(|error| dispatch_failure(&error, session))?;
    let mut progress = ProgressDisplay::default();
    let wait = max_wait(&signed.command, timeout.as_std());
    let outcome = job.run(wait, session.interrupt.listen(), &mut |event| progress.show(&event, ui)).await;
    let outcome = outcome.map_err(|error| disconnect_failure(&error, signed.command.id))?;
    if session.output == OutputFormat::Text {
        outcome_groups::group_results(&outcome.results).iter().for_each(|group| group_lines(group, ui));
    }
    Ok(if outcome.complete { render_job::exit_of_results(&outcome.results) } else { Exit::Partial })
}

/// Follows the cancelled job. Returns true when every node has ended it. No wave gets a go-ahead meanwhile.
async fn follow(job: &CheckedCommand, timeout: HumanDuration, session: &FleetSession, ui: &mut Ui) -> Result<bool, CliError> {
    let command = job.command();
    let states = session.states_of(&command.to).await?;
    let expected = states.expected(&command.to);
    let followed = JobFollower::attach(session, command, job.digest(), expected).await;
    let followed = followed.map_err(|error| connection_failure(&error))?;
    let wait = remaining_wait(command, session.now()).min(timeout.as_std());
    let mut renderer = JobRenderer::new(session);
    let outcome = followed.run(wait, session.interrupt.listen(), &mut |event| renderer.event(event, ui)).await;
    let outcome = outcome.map_err(|error| disconnect_failure(&error, command.id))?;
    renderer.finish(command.id, job.digest(), &outcome, ui);
    let has_ended = |result: &NodeResult| result.done.is_some() || result.outcome.grade() != Grade::Incomplete;
    Ok(outcome.complete && outcome.results.iter().all(has_ended))
}
