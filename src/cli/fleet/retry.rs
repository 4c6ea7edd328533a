//! `ensign fleet job retry`: the action of a job again, on the nodes where the job had a bad end.

use std::collections::BTreeMap;

use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::fleet::job::retry::{self, NotRetryable, RETRIED, RETRYABLE};
use crate::fleet::rollout::request::Count;
use crate::fleet::{CheckedCommand, CommandDraft, NodeResult};
use crate::model::{HumanDuration, NodeId};

use super::super::error::{CliError, Exit};
use super::super::format::{first_names, nodes};
use super::super::ui::{Ui, text};
use super::super::verify;
use super::confirm::{ConfirmArgs, confirm_signature};
use super::job_name::JobName;
use super::job_record::{record, results};
use super::render_job;
use super::send::send;
use super::session::{FleetSession, check_failure};
use super::target::TargetArgs;

/// Nodes of each outcome that are named.
const MAX_NAMED: usize = 5;

#[derive(Debug, Args)]
pub(super) struct JobRetryArgs {
    /// Id of the job.
    #[arg(hide_possible_values = true)]
    id: JobName,
    /// Outcome to retry. May be repeated, or several with commas.
    #[arg(long, value_name = "OUTCOME", value_delimiter = ',', default_values = RETRIED, value_parser = PossibleValuesParser::new(RETRYABLE))]
    outcome: Vec<String>,
    /// Sign without a question.
    #[arg(long)]
    yes: bool,
    /// Longest run on a node, and longest wait for the nodes; as in the job by default.
    #[arg(long, value_name = "DURATION")]
    timeout: Option<HumanDuration>,
    /// Reason, for the audit trail; as in the job by default.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Print the id of the new job without waiting; `ensign fleet job watch ID` waits.
    #[arg(long)]
    detach: bool,
    /// Send nothing when more of the nodes are offline, as 3 or 5%.
    #[arg(long, value_name = "COUNT")]
    max_offline: Option<Count>,
}

pub(super) async fn run(args: JobRetryArgs, session: &FleetSession, ui: &mut Ui) -> Result<Exit, CliError> {
    let record = record(args.id.resolve(session).await?, session).await?;
    let job = session.checker()?.check(&record.envelope).map_err(|error| check_failure(&error))?;
    retry::check_retryable(job.command()).map_err(|error| not_retryable_failure(&error))?;
    let mut states = session.states().await?;
    let all = results(&record, &states, session).await?;
    let failed = retry::select_results(job.command(), &all, &args.outcome);
    if failed.is_empty() {
        ui.message(text!("no node of {} ended as {}: nothing is sent", nodes(all.len()), args.outcome.join(", ")));
        return Ok(render_job::exit_of_results(&all));
    }
    let names = failed.iter().map(|result| result.node.clone()).collect();
    let draft = retry::retry_draft(&job, names, args.timeout, args.reason);
    let timeout = Some(draft.options.timeout);
    // One question, and it is asked here.
    let confirm = ConfirmArgs { yes: true };
    let target = TargetArgs { timeout, detach: args.detach, max_offline: args.max_offline, confirm, ..TargetArgs::default() };
    target.check_offline(&draft.to, &states)?;
    show(&job, &failed, &draft, ui);
    if confirm_signature(args.yes, "not retried", session, ui).await? {
        // The answer may have taken minutes.
        states = session.states_of(&draft.to).await?;
    }
    Ok(send(draft, &target, &states, session, ui).await?.exit)
}

fn not_retryable_failure(error: &NotRetryable) -> CliError {
    let hint = if error.is_desired_state {
        "nodes retry an assignment by themselves, at its interval"
    } else {
        "only an ensure or apply is retried: send the command again"
    };
    CliError::from_error(Exit::Usage, error).hint(hint)
}

/// Shows everything that will be signed.
fn show(job: &CheckedCommand, failed: &[&NodeResult], draft: &CommandDraft, ui: &mut Ui) {
    let command = job.command();
    ui.message(text!("retries   {} (sha256 {})", command.id, job.digest()));
    ui.message(text!("signed    by {}, at {:.0}", job.signers().join(", "), command.issued));
    ui.message(text!("action    {}", verify::describe_action(&draft.action, draft.options.noop)));
    let mut outcomes: BTreeMap<&str, Vec<NodeId>> = BTreeMap::new();
    for result in failed {
        outcomes.entry(result.outcome.as_str()).or_default().push(result.node.clone());
    }
    for (outcome, names) in outcomes {
        ui.message(text!("of        {}, {}: {}", nodes(names.len()), outcome, first_names(&names, MAX_NAMED)));
    }
    if let Some(expression) = &draft.to.filter {
        ui.message(text!("where     {}", expression));
    }
    if let Some(channel) = &draft.channel {
        ui.message(text!("channel   {} {}.{}", channel.name, channel.epoch, channel.serial));
    }
    if let Some(plan) = draft.options.approves {
        ui.message(text!("approves  {}", plan));
    }
    if command.options.waves.is_some() {
        ui.message("waves     none, unlike the job: all nodes begin at once");
    }
    ui.message(text!("timeout   {}", draft.options.timeout));
    ui.message(text!("reason    {}", draft.reason.as_deref().unwrap_or("none")));
}
