//! `ensign fleet plan`: the changes that a command would make on every node, and their approval.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::json;

use crate::fleet::JobOutcome;
use crate::fleet::job::follow::TRAVEL_TIME;
use crate::fleet::job::{dispatch, records};
use crate::fleet::plan::FleetPlan;

use super::super::error::{CliError, Exit};
use super::super::format::{self, spaced};
use super::super::ui::{Ui, text};
use super::approve::approve;
use super::last_job;
use super::manifest_args::ManifestArgs;
use super::plan_output::{plan_failure, print_groups, save};
use super::query::run_query;
use super::seal::sign_draft;
use super::session::{FleetSession, OperatorArgs, dispatch_failure};
use super::target::TargetArgs;
use super::{ensure, render_job, selection};
use crate::cli::args::properties::{FleetFlags, ResourceArgs};
use crate::cli::local::inputs::OutputFormat;

#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(super) struct PlanArgs {
    /// Plan to approve: its id, @last or its file. Nodes apply it where their plan is still the same.
    #[arg(long, value_name = "ID|FILE")]
    approve: Option<String>,
    /// File for the plan, instead of one named by its id in $XDG_STATE_HOME/ensign/plans.
    #[arg(long, global = true, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    target: TargetArgs,
    #[command(subcommand)]
    what: Option<PlanCommand>,
}

#[derive(Debug, Subcommand)]
enum PlanCommand {
    /// Plan the changes of a manifest or bundle.
    Apply(ManifestArgs),
    /// Plan the changes of one resource.
    Ensure(PlanEnsureArgs),
}

#[derive(Debug, Args)]
struct PlanEnsureArgs {
    #[command(subcommand)]
    what: ResourceArgs<FleetFlags>,
}

pub(super) async fn run(args: PlanArgs, context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let PlanArgs { approve: approved, out, target, what } = args;
    match (approved, what) {
        (Some(name), None) => approve(&name, &target, context, ui).await,
        (None, Some(what)) => make_plan(what, out.as_deref(), TargetArgs { noop: true, ..target }, context, ui).await,
        (Some(_), Some(_)) => Err(CliError::usage("--approve takes no apply or ensure beside it")),
        (None, None) => {
            Err(CliError::usage("no apply or ensure to plan").hint("ensign fleet plan apply|ensure ..., or --approve ID"))
        }
    }
}

async fn make_plan(
    what: PlanCommand,
    out: Option<&Path>,
    target: TargetArgs,
    context: &OperatorArgs,
    ui: &mut Ui,
) -> Result<Exit, CliError> {
    let (draft, states, session) = match what {
        PlanCommand::Apply(manifest) => manifest.draft(&target, context, ui).await?,
        PlanCommand::Ensure(ensure) => {
            let (draft, session) = (ensure::draft(ensure.what, &target)?, context.open().await?);
            let states = target.states(&draft.to, &session).await?;
            (draft, states, session)
        }
    };
    target.check_offline(&draft.to, &states)?;
    if target.detach {
        let signed = sign_draft(draft, &session)?;
        last_job::record(&signed.command, ui);
        dispatch::dispatch(&session.bus, &session.subjects, &signed).await.map_err(|error| dispatch_failure(&error, &session))?;
        render_job::detached(&signed, &session, ui);
        return Ok(Exit::Success);
    }
    if session.output == OutputFormat::Text {
        selection::show_selected(&draft.to, &states, &session, ui).await?;
    }
    let action = spaced(&[draft.action.name(), &records::describe_object(&draft.action)]);
    ui.message(text!("planning {}for {}", action, records::describe_target(&draft.to)));
    let (signed, outcome) = run_query(draft, target.timeout().as_std() + TRAVEL_TIME, &states, &session, ui).await?;
    let plan =
        FleetPlan::from_results(&signed.command, &signed.digest, &outcome.results).map_err(|error| plan_failure(&error))?;
    let file = save(&plan, out, ui)?;
    print(&plan, &outcome, file.as_deref(), &session, ui);
    if !outcome.complete {
        ui.message(text!("stopped waiting; `ensign fleet job show {}` has later results", plan.id));
        return Ok(Exit::Partial);
    }
    Ok(render_job::exit_of_results(&outcome.results))
}

fn print(plan: &FleetPlan, outcome: &JobOutcome, file: Option<&Path>, session: &FleetSession, ui: &mut Ui) {
    match session.output {
        OutputFormat::Json => ui.json(&json!({
            "id": plan.id,
            "digest": plan.digest,
            // The action itself may hold secrets.
            "action": plan.action.name(),
            "what": records::describe_object(&plan.action),
            "to": plan.to,
            "expires": plan.expires,
            "until": plan.approval_deadline(),
            "file": file,
            "groups": plan.groups,
            "nodes": plan.nodes,
            "complete": outcome.complete,
        })),
        OutputFormat::Jsonl => outcome.results.iter().for_each(|result| ui.jsonl(result)),
        OutputFormat::Text => print_groups(&plan.groups, ui),
    }
    let (changing, same) = plan.counts();
    let rest = plan.nodes.len() - changing - same;
    let rest = if rest > 0 { format!(", {rest} without a plan") } else { String::new() };
    ui.message(text!("plan {}: {} would change, {} would not{}", plan.id, format::nodes(changing), same, rest));
    if let Some(file) = file {
        ui.message(text!("saved in {}", file.display()));
    }
    if changing > 0 {
        ui.message(text!("to approve it, until {:.0}: ensign fleet plan --approve {}", plan.approval_deadline(), plan.id));
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        plan: PlanArgs,
    }

    #[test]
    fn flags_may_stand_before_and_after() {
        Line::command().debug_assert();
        let line = Line::parse_from(["plan", "apply", "site", "--all", "--out", "p.json", "--where", "true"]);
        assert!(line.plan.target.nodes.all && line.plan.out.is_some() && line.plan.target.only_where.is_some());
        let line = Line::parse_from(["plan", "ensure", "file", "/a", "--node", "web1", "--content", "x"]);
        assert_eq!(line.plan.target.nodes.node, ["web1"]);
        assert!(matches!(line.plan.what, Some(PlanCommand::Ensure(_))));
        let line = Line::parse_from(["plan", "--approve", "x", "--group", "web"]);
        assert!(line.plan.what.is_none() && line.plan.approve.as_deref() == Some("x"));
    }
}
