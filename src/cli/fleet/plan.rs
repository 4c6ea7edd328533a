//! `ensign fleet plan`: what a command would change on every node, before it does; and the approval of just that.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::json;
use uuid::Uuid;

use crate::fleet::job::{dispatch, records};
use crate::fleet::plan::{Group, Plan, PlanError};
use crate::host::fs;
use crate::store::state_dir;

use super::super::error::{Exit, Failure};
use super::super::ui::{Tone, Ui, text};
use super::apply::ApplyWhat;
pub(super) use super::approve::approve;
use super::follow::{self, JobOutcome, MARGIN};
use super::job::words;
use super::render_job::{self, few, look, nodes};
use super::session::{Context, Session, undelivered};
use super::target::TargetArgs;
use super::{ensure, target_filter};
use crate::cli::args::properties::{OnNodes, ResourceArgs};
use crate::cli::local::inputs::OutputFormat;

/// With more groups than this, the rest is in the file only.
const GROUPS: usize = 20;
/// Plans that nobody can approve any more are kept for so many days.
const KEPT_DAYS: i64 = 7;

#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(super) struct PlanArgs {
    /// Does what a plan said, where nodes would still do the same: the id of the plan, or its file.
    #[arg(long, value_name = "ID|FILE")]
    approve: Option<String>,
    /// With --approve: does not ask before it signs.
    #[arg(long, requires = "approve")]
    yes: bool,
    /// Where to write the plan, instead of a file of its id in $XDG_STATE_HOME/ensign/plans.
    #[arg(long, global = true, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    target: TargetArgs,
    #[command(subcommand)]
    what: Option<PlanWhat>,
}

#[derive(Debug, Subcommand)]
enum PlanWhat {
    /// What applying a manifest or bundle would change.
    Apply(ApplyWhat),
    /// What bringing one resource to its desired state would change.
    Ensure(EnsureWhat),
}

#[derive(Debug, Args)]
struct EnsureWhat {
    #[command(subcommand)]
    what: ResourceArgs<OnNodes>,
}

pub(super) async fn run(args: PlanArgs, context: &Context, ui: &mut Ui) -> Result<Exit, Failure> {
    let PlanArgs { approve: approved, yes, out, target, what } = args;
    match (approved, what) {
        (Some(name), None) => approve(&name, yes, &target, context, ui).await,
        (None, Some(what)) => make(what, out.as_deref(), TargetArgs { noop: true, ..target }, context, ui).await,
        (Some(_), Some(_)) => Err(Failure::usage("--approve says what is to be done: it takes no apply or ensure beside it")),
        (None, None) => {
            Err(Failure::usage("what is to be planned is not said").hint("ensign fleet plan apply|ensure ..., or --approve ID"))
        }
    }
}

async fn make(what: PlanWhat, out: Option<&Path>, target: TargetArgs, context: &Context, ui: &mut Ui) -> Result<Exit, Failure> {
    let (order, session) = match what {
        PlanWhat::Apply(apply) => apply.order(&target, context, ui).await?,
        PlanWhat::Ensure(ensure) => (ensure::order(ensure.what, &target)?, context.open().await?),
    };
    if target.detach {
        let signed = follow::sign(order, &session)?;
        dispatch::dispatch(&session.bus, &session.subjects, &signed).await.map_err(|error| undelivered(&error, &session))?;
        render_job::detached(&signed, &session, ui);
        return Ok(Exit::Success);
    }
    if session.output == OutputFormat::Text {
        target_filter::say_selected(&order.to, &session, ui).await?;
    }
    ui.say(text!("planning {}for {}", words(&[order.action.name(), &records::what(&order.action)]), records::whom(&order.to)));
    let collected = follow::ask(order, target.timeout().get() + MARGIN, &session, ui).await?;
    let plan =
        Plan::of(&collected.signed.command, &collected.signed.digest, &collected.results).map_err(|error| wrong(&error))?;
    let file = save(&plan, out, ui)?;
    print(&plan, &collected, file.as_deref(), &session, ui);
    if !collected.complete {
        ui.say(text!("stopped waiting; `ensign fleet job show {}` has what came later", plan.id));
        return Ok(Exit::Partial);
    }
    Ok(render_job::exit(&collected.results))
}

pub(super) fn wrong(error: &PlanError) -> Failure {
    let failure = Failure::from_error(Exit::Usage, error);
    match error {
        PlanError::TooOld { .. } => failure.hint("make the plan anew: ensign fleet plan ..."),
        _ => failure,
    }
}

fn print(plan: &Plan, collected: &JobOutcome, file: Option<&Path>, session: &Session, ui: &mut Ui) {
    match session.output {
        OutputFormat::Json => ui.json(&json!({
            "id": plan.id,
            "digest": plan.digest,
            // Not the action itself: it may hold secrets.
            "action": plan.action.name(),
            "what": records::what(&plan.action),
            "to": plan.to,
            "expires": plan.expires,
            "until": plan.until(),
            "file": file,
            "groups": plan.groups,
            "nodes": plan.nodes,
            "complete": collected.complete,
        })),
        OutputFormat::Jsonl => collected.results.iter().for_each(|result| ui.jsonl(result)),
        OutputFormat::Text => print_groups(&plan.groups, ui),
    }
    let (changing, same) = plan.counts();
    let rest = plan.nodes.len() - changing - same;
    let rest = if rest > 0 { format!(", {rest} without a plan") } else { String::new() };
    ui.say(text!("plan {}: {} would change, {} would not{}", plan.id, nodes(changing), same, rest));
    if let Some(file) = file {
        ui.say(text!("saved in {}", file.display()));
    }
    if changing > 0 {
        ui.say(text!("to let them do just that, until {:.0}: ensign fleet plan --approve {}", plan.until(), plan.id));
    }
}

/// The groups of a plan, each with what it would change.
pub(super) fn print_groups(groups: &[Group], ui: &mut Ui) {
    for group in groups.iter().take(GROUPS) {
        let (mark, tone) = look(&group.outcome);
        let what = match (group.outcome.as_str(), group.count) {
            ("stable", _) => "no change".to_owned(),
            ("would_change", 1) => "1 change".to_owned(),
            ("would_change", count) => format!("{count} changes"),
            (word, _) if group.cause.is_empty() => word.to_owned(),
            (word, _) => format!("{word}: {}", group.cause),
        };
        let names = ui.paint(Tone::Dim, few(&group.nodes));
        ui.line(text!("  {} {:>12}  {}  {}", ui.paint(tone, mark), nodes(group.nodes.len()), what, names));
        let width = group.changes.iter().map(|change| change.resource.chars().count()).max().unwrap_or(0).min(48);
        for change in &group.changes {
            ui.line(text!("      + {:<width$}  {}", change.resource, change.what));
            for line in change.diff.iter().flat_map(|diff| diff.lines()) {
                let tone = match line.chars().next() {
                    Some('+') => Tone::Success,
                    Some('-') => Tone::Error,
                    _ => Tone::Dim,
                };
                ui.line(text!("          {}", ui.paint(tone, line)));
            }
        }
        if group.diffs_differ {
            ui.line(ui.paint(
                Tone::Dim,
                "      the content differs from node to node: `ensign fleet job show ID --node NODE` shows one",
            ));
        }
        let more = group.count.saturating_sub(group.changes.len() as u64);
        if more > 0 {
            ui.line(text!("      and {} more", more));
        }
    }
    let more = groups.len().saturating_sub(GROUPS);
    if more > 0 {
        ui.line(text!("  and {} more groups, in the file of the plan", more));
    }
}

/// The directory of this user's plans, when the user has a place for such.
fn directory() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = variable("XDG_STATE_HOME").or_else(|| variable("HOME").map(|home| home.join(".local/state")));
    state.filter(|path| path.is_absolute()).map(|state| state.join("ensign/plans"))
}

pub(super) fn file_of(id: Uuid) -> Option<PathBuf> {
    directory().map(|directory| directory.join(format!("{id}.json")))
}

/// Writes a plan where it was asked to go, else where plans are kept; nothing is lost when that can't be, as the nodes and
/// the server know it too.
fn save(plan: &Plan, out: Option<&Path>, ui: &mut Ui) -> Result<Option<PathBuf>, Failure> {
    if let Some(out) = out {
        plan.write(out).map_err(|error| Failure::from_error(Exit::Partial, &error))?;
        return Ok(Some(out.to_owned()));
    }
    let Some(path) = file_of(plan.id) else { return Ok(None) };
    let written = path.parent().map_or(Ok(()), state_dir::create).map_err(PlanError::from).and_then(|()| plan.write(&path));
    match written {
        Ok(()) => {
            forget_old(plan.issued);
            Ok(Some(path))
        }
        Err(error) => {
            ui.warn(text!("the plan is not kept in a file: {}", crate::diag::chain(&error)));
            Ok(None)
        }
    }
}

/// Removes the files of plans that are long over. That one stays does no harm.
fn forget_old(now: Timestamp) {
    let files = directory().and_then(|directory| fs::list(&directory).ok()).unwrap_or_default();
    for file in files {
        let made = file.file_stem().and_then(|stem| stem.to_str()?.parse::<Uuid>().ok()?.get_timestamp());
        let made = made.and_then(|made| i64::try_from(made.to_unix().0).ok());
        if made.is_some_and(|made| now.as_second() - made > KEPT_DAYS * 86_400) {
            let _stays = fs::remove(&file);
        }
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
        assert!(line.plan.target.all && line.plan.out.is_some() && line.plan.target.only_where.is_some());
        let line = Line::parse_from(["plan", "ensure", "file", "/a", "--node", "web1", "--content", "x"]);
        assert_eq!(line.plan.target.node, ["web1"]);
        assert!(matches!(line.plan.what, Some(PlanWhat::Ensure(_))));
        let line = Line::parse_from(["plan", "--approve", "x", "--group", "web"]);
        assert!(line.plan.what.is_none() && line.plan.approve.as_deref() == Some("x"));
    }
}
